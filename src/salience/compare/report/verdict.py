"""What was measured, in a plain sentence that follows from the numbers, whoever won."""

import math

from salience.compare.report import numbers
from salience.compare.summary import Final, MethodSummary, Summary, tested_by

__all__ = ["has_target", "no_target", "verdicts"]


def verdicts(summary: Summary) -> list[str]:
    """One sentence per method other than the baseline."""
    baseline = summary["methods"][summary["baseline"]]
    return [
        f"{_train(name, method, summary)}; {_test(method['final'], baseline['final'])}."
        for name, method in summary["methods"].items()
        if name != summary["baseline"]
    ]


def has_target(summary: Summary) -> bool:
    """Whether the baseline ended lower than it began, so that there is something to reach."""
    return summary["methods"][summary["baseline"]]["steps_to_target_ratio"] is not None


def no_target(summary: Summary) -> str:
    """Why there is nothing to reach, and what to do."""
    end = numbers.loss(summary["target_train_loss"])
    base = summary["baseline"]
    return f"{base} ended no lower than it began (train loss {end}), so train for longer"


def _train(name: str, method: MethodSummary, summary: Summary) -> str:
    goal = (
        f"the train loss at which {summary['baseline']} sampling ended "
        f"({numbers.loss(summary['target_train_loss'])})"
    )
    if not has_target(summary):
        end = numbers.loss(method["final"]["train_loss"]["mean"])
        return f"There is no time to compare: {no_target(summary)}; {name} ended at {end}"
    steps, time = method["steps_to_target_ratio"], method["time_to_target_ratio"]
    if steps is None or time is None:
        final = method["final"]
        return (
            f"Importance sampling ({name}) did not reach {goal} in {final['step']} steps: "
            f"it ended at {numbers.loss(final['train_loss']['mean'])}"
        )
    return (
        f"To reach {goal}, importance sampling ({name}) needed {_effort(steps, time)}"
        f"{_cost(method['step_cost_ratio'])}"
    )


def _effort(steps: float, time: float) -> str:
    """Steps and time; "but" where the two point in different directions."""
    joint = "and" if (steps < 1) == (time < 1) else "but"
    return (
        f"{numbers.percent(steps)} of the steps {joint} {numbers.percent(time)} "
        f"of the training time"
    )


def _cost(ratio: float | None) -> str:
    return "" if ratio is None else f", at {ratio:.2f} times the cost per step"


def _test(final: Final, baseline: Final) -> str:
    measure = tested_by(final)
    ours, theirs = final[measure], baseline[measure]
    own, other = (numbers.measured(measure, value["mean"]) for value in (ours, theirs))
    text = f"its {measure.replace('_', ' ')} was {own} against {other}"
    if ours["std"] is None or theirs["std"] is None:
        return text + ", from one seed"
    # Two standard errors of the difference: less than that is what chance does with these seeds.
    noise = 2 * math.hypot(ours["std"], theirs["std"]) / math.sqrt(min(ours["n"], theirs["n"]))
    same = abs(ours["mean"] - theirs["mean"]) <= noise
    return text + (f", a difference within the noise of {ours['n']} seeds" if same else "")
