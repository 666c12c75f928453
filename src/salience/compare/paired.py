"""Differences between a method and the baseline, seed by seed, with an interval.

Runs with the same seed start from the same weights, so the difference of two such runs varies less
than either. The interval is Student's: mean ± t s / sqrt(n), with s the standard deviation of the n
differences and t so that 95 % of the distribution with n - 1 degrees of freedom is within ± t.

An error over 360 examples comes in steps of 1 / 360, and two seeds may differ by exactly as much.
So s is at least d / sqrt(6), the standard deviation of a difference of two values that were rounded
to multiples of d, with d the least distance of two values of that measure in the runs.
"""

import itertools
import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NotRequired, TypedDict

from salience.compare.measures import Better
from salience.compare.run import Row

__all__ = [
    *("CLOCK", "Differences", "Paired", "best_of", "differences", "paired", "resolution", "t_95"),
    "within",
]

CLOCK = 1.03  # times that differ by less are equal: clocks differ by as much for the same work
# What may differ between identical trainings.
UNEQUAL = ("method", "k", "seconds", "examples", "sampler")
WORST = "test_error_worst"

Runs = Sequence[Sequence[Row]]


class Paired(TypedDict):
    """A difference to the baseline, the method's less the baseline's, in the measure's own unit.

    Below 0 is better where a lower value is. The interval is None for a single seed.

    ``same``: the two trainings never differed, so there is no difference, whatever the clock said.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    same: bool


class Differences(TypedDict):
    """Differences to the baseline's run with the same seed.

    Of the task's primary test measure: at equal time, which is the last evaluation that the
    method came to, in the mean of its seeds, within the baseline's mean training time; at the end,
    after equal steps; and at the best point of each run.
    At the end also of the train loss, and of the error of the worst class.
    """

    equal_time: Paired
    end: Paired
    best: Paired
    train: Paired
    worst: NotRequired[Paired]


def differences(
    runs: Runs, baseline: Runs, measure: str, better: Better = "lower"
) -> Differences | None:
    """Of the seeds that both have; None where there are none."""
    theirs = {run[0]["seed"]: run for run in baseline}
    pairs = [(run, theirs[run[0]["seed"]]) for run in runs if run[0]["seed"] in theirs]
    if not pairs:
        return None
    own, base = [[*side] for side in zip(*pairs, strict=True)]
    same = all(_same(*pair) for pair in pairs)
    place = within(own, base)
    equal = [run[place] for run in own]
    fine = resolution([*own, *base], measure)
    found = Differences(
        equal_time=paired(_values(equal, measure), _ends(base, measure), same, fine),
        end=paired(_ends(own, measure), _ends(base, measure), same, fine),
        best=paired(_bests(own, measure, better), _bests(base, measure, better), same, fine),
        train=paired(_ends(own, "train_loss"), _ends(base, "train_loss"), same),
    )
    if all(WORST in run[-1] for pair in pairs for run in pair):
        fine = resolution([*own, *base], WORST)
        found["worst"] = paired(_ends(own, WORST), _ends(base, WORST), same, fine)
    return found


def within(runs: Runs, baseline: Runs) -> int:
    """The place of the last evaluation within the baseline's training time, in the mean of seeds.

    Not seed by seed: for a method of equal cost, the clock would decide whether the end counts.
    """
    limit = CLOCK * fmean(run[-1]["seconds"] for run in baseline)
    times = [fmean(row["seconds"] for row in rows) for rows in zip(*runs, strict=False)]
    return max((place for place, time in enumerate(times) if time <= limit), default=0)


def best_of(run: Sequence[Row], measure: str, better: Better = "lower") -> float:
    """The value at the best evaluation of the run; nan where none is finite.

    Which one is best is decided by the validation set where there is one: then the value is no
    longer chosen by the test set.
    """
    judge = measure.replace("test_", "validation_", 1)
    decided = [judge if judge in row else measure for row in run]
    pairs = [(row[name], row[measure]) for row, name in zip(_plain(run), decided, strict=True)]
    finite = [pair for pair in pairs if math.isfinite(pair[0])]
    best = max if better == "higher" else min
    return float(best(finite, key=lambda pair: pair[0])[1]) if finite else math.nan


def resolution(runs: Runs, measure: str) -> float:
    """The least distance of two values of a measure in the runs; 0 where all are equal."""
    values = {row.get(measure, math.nan) for run in runs for row in _plain(run)}
    finite = sorted(filter(math.isfinite, values))
    gaps = [b - a for a, b in itertools.pairwise(finite)]
    least = 1e-9 * max(map(abs, finite), default=0.0)  # less is rounding of floats
    return min((gap for gap in gaps if gap > least), default=0.0)


def _bests(runs: Runs, measure: str, better: Better) -> list[float]:
    return [best_of(run, measure, better) for run in runs]


def _ends(runs: Runs, measure: str) -> list[float]:
    return _values([run[-1] for run in runs], measure)


def _plain(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [*rows]


def _values(rows: Sequence[Any], measure: str) -> list[float]:
    return [row[measure] for row in rows]


def _same(run: Sequence[Row], baseline: Sequence[Row]) -> bool:
    """Whether everything that was measured is the same."""
    sides = [
        [{k: v for k, v in row.items() if k not in UNEQUAL} for row in side]
        for side in (run, baseline)
    ]
    return sides[0] == sides[1]


# ---------------------------------------------------------------------------------- the interval


def paired(
    ours: Sequence[float], theirs: Sequence[float], same: bool = False, fine: float = 0.0
) -> Paired:
    """The mean of ours - theirs, pair by pair, and its 95 % interval.

    ``fine``: the values are multiples of this.
    """
    each = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, n = fmean(each), len(each)
    if n < 2 or not math.isfinite(mean):
        return Paired(mean=mean, low=None, high=None, n=n, same=same)
    least = 0.0 if same else fine / math.sqrt(6)
    half = t_95(n - 1) * max(stdev(each), least) / math.sqrt(n)
    return Paired(mean=mean, low=mean - half, high=mean + half, n=n, same=same)


def t_95(freedom: int) -> float:
    """t with 95 % of Student's distribution within ± t, by bisection."""
    low, high = 0.0, 20.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < 0.95 else (low, middle)
    return low


def _inside(t: float, freedom: int) -> float:
    """The share of Student's distribution within ± t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = 0.0 if freedom == 1 else cosine if odd else 1.0
    for i in range(3 if odd else 2, freedom - 1, 2):
        term *= (i - 1) / i * cosine**2
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
