"""Does it pay: what the numbers of a method allow to say, before it is put into words.

Test results come first: in equal time, at the best point of each run, of the worst class. A method
is better only where the interval of its paired difference excludes 0 and none of the others
contradicts; what is worse anywhere is not praised. Time is that to the train loss at which the
baseline ended, and a method is sooner only where that is certain and the clock cannot explain it.
"""

import math
from typing import Literal, NamedTuple, get_args

from salience.compare.measures import Better
from salience.compare.paired import CLOCK, Paired
from salience.compare.summary import MethodSummary, Summary

__all__ = ["Call", "Category", "Pace", "Verdict", "call", "leading", "verdict", "verdicts"]

Call = Literal["better", "worse", "none", "one seed", "not finite"]
Pace = Literal["sooner", "later", "same", "never", "no target", "one seed"]
Category = Literal[
    "pays",
    "better test",
    "sooner",
    "mixed",
    "one seed",
    "no difference",
    "does not pay",
    "identical",
    "unknown",
]
# The more to gain, the earlier: which method a report is about.
ORDER: tuple[Category, ...] = get_args(Category)


class Verdict(NamedTuple):
    """What may be said of a method.

    ``test`` is in equal time, ``best`` at the best point of each run, and ``worst`` of the worst
    class; None without classes. ``pace`` is the time to the target.
    """

    category: Category
    test: Call
    best: Call
    worst: Call | None
    pace: Pace


def verdicts(summary: Summary) -> dict[str, Verdict]:
    """Of every method but the baseline."""
    return {name: verdict(name, summary) for name in summary["methods"] if name != _base(summary)}


def verdict(name: str, summary: Summary) -> Verdict:
    """Of one method."""
    method, better = summary["methods"][name], summary["better"]
    pairs = method["differences"]
    pace = _pace(method, summary)
    if pairs is None:
        return Verdict("unknown", "not finite", "not finite", None, pace)
    test, best = call(pairs["equal_time"], better), call(pairs["best"], better)
    worst = call(pairs["worst"], "lower") if "worst" in pairs else None
    if pairs["end"]["same"]:
        return Verdict("identical", "none", "none", worst and "none", "same")
    return Verdict(_category(test, best, worst, pace), test, best, worst, pace)


def leading(summary: Summary) -> str | None:
    """The method that there is most to say for, by its verdict, then by its test result and time.

    None where no other method was trained, or none ended at a finite test result.
    """
    sign = -1.0 if summary["better"] == "higher" else 1.0
    ranked = {}
    for name, found in verdicts(summary).items():
        method = summary["methods"][name]
        pairs, time = method["differences"], method["time_to_target_ratio"]
        if pairs is None or not math.isfinite(pairs["equal_time"]["mean"]):
            continue
        test = sign * pairs["equal_time"]["mean"]
        ranked[name] = ORDER.index(found.category), test, math.inf if time is None else time
    return min(ranked, key=lambda name: ranked[name], default=None)


def call(difference: Paired, better: Better) -> Call:
    """None where the interval includes 0, and where two trainings are identical."""
    low, high = difference["low"], difference["high"]
    if difference["same"]:
        return "none"
    if not math.isfinite(difference["mean"]):
        return "not finite"
    if low is None or high is None:
        return "one seed"
    if low <= 0 <= high:
        return "none"
    return "better" if (high < 0) == (better == "lower") else "worse"


def _category(test: Call, best: Call, worst: Call | None, pace: Pace) -> Category:
    if test == "not finite":
        return "unknown"
    if test == "one seed":
        return "one seed"
    others = (best, worst)
    if test == "better":
        return "mixed" if "worse" in others else "pays" if pace == "sooner" else "better test"
    if test == "worse":
        return "mixed" if best == "better" else "does not pay"
    if "worse" in others:
        return "does not pay"
    if pace == "sooner":
        return "sooner"
    return "does not pay" if pace in ("later", "never") else "no difference"


def _pace(method: MethodSummary, summary: Summary) -> Pace:
    """Sooner only where fewer steps are the reason: a cheaper step is the clock's doing.

    Importance sampling adds to a step. Only a method that trains on fewer examples has cheaper
    ones.
    """
    if summary["methods"][_base(summary)]["steps_to_target_ratio"] is None:
        return "no target"
    steps, time = method["steps_to_target_ratio"], method["time_to_target_ratio"]
    if steps is None or time is None:
        return "never"
    around = method["time_to_target_range"]
    if around is None:
        return "one seed" if method["n"] < 2 else "same"
    low, high = around
    slack = time if method["examples_ratio"] < 1 / CLOCK else max(time, steps)
    if slack < 1 / CLOCK and high * slack / time < 1:
        return "sooner"
    return "later" if time > CLOCK and low > 1 else "same"


def _base(summary: Summary) -> str:
    return summary["baseline"]
