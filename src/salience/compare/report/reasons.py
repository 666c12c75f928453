"""Why a method gains nothing, from what the runs recorded, and what to try."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any, cast

from salience.compare.reading import Comparison
from salience.compare.report import numbers
from salience.compare.run import Row
from salience.compare.summary import by_seed
from salience.compare.verdict import call, verdict

__all__ = ["decided", "few_seeds", "reasons"]

EVEN = 1.1  # gain of draws by loss, below which there is nothing to win
COSTLY = 1.1  # times the cost of a step, that has to be earned
SHORT = 0.005  # seconds of a step, beside which any work of a sampler shows
LATE = 0.5  # share of the training before which auto should be on
FEW = 6  # seeds; with fewer, intervals are wide
PASSES = 3.0  # over the data, that scores by index need to tell something
COMPUTED = ("loss", "upper_bound", "gnorm", "approx")  # scores that take time
TRY = {
    "too few passes to decide": "Train for at least three passes, or try a score that needs no "
    "history: loss or upper_bound.",
    "the network memorises": "Hard examples would be memorised sooner, not learned. Try "
    "augmentation, dropout, weight decay, a smaller network or more data.",
    "hard examples are worse than untrained": "Their labels may be wrong: look at suspects(), or "
    "at the page that `salience insight` writes.",
    "losses are too even": "All examples are about as hard, so there is nothing to choose. It may "
    "change in a longer training.",
    "almost nothing is left to learn": "The training set is learned: a harder task or a shorter "
    "training would show more.",
    "the validation loss has risen": "The network overfits: stop earlier, or try augmentation or "
    "weight decay.",
}


def decided(name: str, found: Comparison) -> str:
    """When and why ``auto`` turned on, in one sentence; empty for other methods."""
    last = _decisions(name, found)
    if not last:
        return ""
    on = [turned for each in last if isinstance(turned := each.get("turned_on"), Mapping)]
    if not on:
        why = str(last[0].get("why") or "")
        return f"{name} stayed off{f': {why}' if why else ''}."
    draws = sorted(int(each["draw"]) for each in on)
    at = f"{draws[0]:,}" if draws[0] == draws[-1] else f"{draws[0]:,} to {draws[-1]:,}"
    seeds = "" if len(on) == len(last) else f" in {len(on)} of {len(last)} seeds"
    first = on[0]
    gain = f"the gain of draws by loss was {float(first['gain']):.2f}"
    return f"{name} turned on at step {at}{seeds}: {gain}."


def _decisions(name: str, found: Comparison) -> list[Mapping[str, Any]]:
    """What the method's sampler told at the end of each seed, where it has one that decides."""
    ends = (cast(Mapping[str, Any], run[-1]).get("sampler") for run in by_seed(found.rows, name))
    return [each for each in ends if isinstance(each, Mapping) and "mode" in each]


def reasons(name: str, found: Comparison) -> list[str]:
    """The most telling first, each with what to try; none for a method that pays."""
    said = verdict(name, found.summary)
    if said.category in ("pays", "better test", "sooner", "unknown"):
        return []
    told = [
        _off(name, found),
        _overfits(name, found),
        _costs(name, found),
        _late(name, found),
        _few_passes(name, found),
        _even(name, found),
    ]
    return [each for each in told if each]


def _off(name: str, found: Comparison) -> str:
    last = _decisions(name, found)
    if not last or any(each.get("turned_on") for each in last):
        return ""
    why = str(last[0].get("why") or "")
    passes = _passes(name, found)
    of = f" ({passes:.1f} passes over the data)" if passes and why.startswith("too few") else ""
    return f"{name} stayed off: {why}{of}. {TRY[why]}" if why in TRY else ""


def _overfits(name: str, found: Comparison) -> str:
    """Better train, worse test, after equal steps."""
    said, pairs = verdict(name, found.summary), found.summary["methods"][name]["differences"]
    if pairs is None:
        return ""
    tests = (call(pairs["end"], found.summary["better"]), said.best, said.worst)
    fits = call(pairs["train"], "lower") == "better" or said.pace == "sooner"
    if "worse" not in tests or not fits:
        return ""
    best = "Try" if said.best == "worse" else "Stop at the best point of a run, or try"
    return (
        f"It fits the training set better and the test set worse, which is overfitting. {best} "
        f"auto, k closer to 1, augmentation or weight decay."
    )


def _costs(name: str, found: Comparison) -> str:
    method = found.summary["methods"][name]
    cost, steps = method["step_cost_ratio"], method["steps_to_target_ratio"]
    if cost is None or cost < COSTLY or (steps is not None and steps * cost < 1):
        return ""
    told = f"A step costs {cost:.2f} times one of {found.summary['baseline']}"
    told += "" if steps is None else f" and {numbers.percent(steps)} of the steps are needed"
    if name.partition(":")[0] in COMPUTED:
        return f"{told}: its scores take time. Try auto or history, whose scores cost nothing."
    second = _step(found)
    if second is None or second > SHORT:
        return f"{told}."
    return (
        f"{told}: at {1000 * second:.2g} ms a step, the work of the sampler shows. Larger batches "
        f"or networks hide it."
    )


def _step(found: Comparison) -> float | None:
    """Seconds of a step of the baseline."""
    final = found.summary["methods"][found.summary["baseline"]]["final"]
    return final["seconds"]["mean"] / final["step"] if final["step"] else None


def _late(name: str, found: Comparison) -> str:
    turned = [each.get("turned_on") for each in _decisions(name, found)]
    draws = [int(each["draw"]) for each in turned if isinstance(each, Mapping)]
    length = found.summary["methods"][name]["final"]["step"]
    if not draws or fmean(draws) < LATE * length:
        return ""
    rest = numbers.percent(1 - fmean(draws) / length)
    return f"It was on for the last {rest} of the training only: train for longer."


def _few_passes(name: str, found: Comparison) -> str:
    passes = _passes(name, found)
    if passes is None or passes >= PASSES or _decisions(name, found):
        return ""
    if name.partition(":")[0] in COMPUTED[:3]:
        return ""
    return (
        f"The training has {passes:.1f} passes over the data, too few to know which examples are "
        f"hard. Train for longer, or try a score that needs no history: loss or upper_bound."
    )


def _passes(name: str, found: Comparison) -> float | None:
    """Over the data, in the mean of the seeds; None where its size is not recorded."""
    size = found.config.get("train_examples")
    if not isinstance(size, int) or size < 1:
        return None
    return fmean(run[-1].get("examples", 0) for run in _plain(name, found)) / size


def _plain(name: str, found: Comparison) -> list[list[dict[str, Any]]]:
    return cast(list[list[dict[str, Any]]], by_seed(found.rows, name))


def _even(name: str, found: Comparison) -> str:
    """The baseline's losses tell how uneven the examples are."""
    if _decisions(name, found):
        return ""  # it told by itself
    gains = [gain for row in found.rows if (gain := _gain(row, found)) is not None]
    if not gains or fmean(gains) >= EVEN:
        return ""
    return (
        f"Losses are too even: draws by loss would need {fmean(gains):.2f} times fewer examples at "
        f"best, so there is nothing to choose."
    )


def _gain(row: Row, found: Comparison) -> float | None:
    value = cast(Mapping[str, Any], row).get("loss_gain")
    counts = row["step"] and row["method"] == found.summary["baseline"]
    return float(value) if counts and isinstance(value, int | float) else None


def few_seeds(name: str, found: Comparison) -> str:
    """How large a difference would have to be to show; empty where there is one, or many seeds."""
    pairs, n = found.summary["methods"][name]["differences"], found.summary["methods"][name]["n"]
    if pairs is None or pairs["end"]["same"] or n >= FEW:
        return ""
    pair, measure = pairs["equal_time"], found.measures[found.primary]
    low, high = pair["low"], pair["high"]
    if low is None or high is None or call(pair, measure.better) != "none":
        return ""
    half = (high - low) / 2
    least = f"{100 * half:.2f} points" if measure.unit == "%" else f"{half:.2g}"
    return (
        f"With {n} seeds only a difference of more than {least} would show; --seeds 10 --resume "
        f"adds seeds and shows less."
    )
