"""What each column of a table is, in a sentence: for readers who point at its head."""

from collections.abc import Sequence

__all__ = ["explained"]

MEANS = {
    "Difference in equal time": (
        "The test result at the last evaluation within the training time of the baseline, minus "
        "that of the baseline: the mean of the differences seed by seed, and its 95% interval. An "
        "interval that includes 0 is no difference."
    ),
    "Best of the run": "The test result at the best evaluation of each run, wherever that was.",
    "Worst class": "The test error of the class with the highest error, at the end.",
    "Same test result in": (
        "The share of the baseline's training time in which the method comes to the test result of "
        "the baseline at its whole length."
    ),
    "Train loss at the end": "The mean loss of the training examples at the last evaluation.",
    "Train loss so far": "The mean loss of the training examples at the last evaluation so far.",
    "Worst train loss": "The largest loss of any training example at the last evaluation.",
    "Steps to target": (
        "Steps until the mean train loss of the seeds is first at or below the target, over those "
        "of the baseline. Less than 1 is fewer."
    ),
    "Single seeds": "The same for each seed alone: the least and the greatest.",
    "Time to target": (
        "Training time until the target, over that of the baseline. Less than 1 is faster."
    ),
    "Cost of a step": "Training time of a step, over that of the baseline.",
    "Seeds": "How many runs the numbers of the line are from.",
    "Same in": (
        "The share of the baseline's training time in which the mean result equals that of the "
        "baseline at its whole length; linear in log time between budgets, never extrapolated."
    ),
}


def explained(columns: Sequence[str]) -> list[tuple[str, str]]:
    """Each head with what it means; nothing for the name of the method."""
    return [(head, _meaning(head) if place else "") for place, head in enumerate(columns)]


def _meaning(head: str) -> str:
    if head in MEANS:
        return MEANS[head]
    if head.endswith("%"):
        return (
            f"A whole training within {head} of the length: the test result at its end, and the "
            f"difference to the baseline with its 95% interval."
        )
    return f"{head} at the last evaluation: mean ± standard deviation over seeds."
