"""Statistics of runs: moving averages, rank correlation, intervals, and the way to the target.

Pure functions of rows and lists.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from salience.compare.run import Row
from salience.compare.summary import arrival, curve, target_loss, to_target

__all__ = [
    *("Arrival", "Interval", "Trace", "arrivals", "correlation_interval", "interval"),
    *("mean_and_range", "moving", "nearest", "ranks", "spearman", "until"),
]

# The 97.5% points of Student's distribution for 1, 2, ... degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
NORMAL = 1.960


class Trace(NamedTuple):
    """One finished run: its evaluations and what was observed at each of them."""

    rows: list[Row]
    observed: list[dict[str, Any]]


def moving(values: Sequence[float], window: int) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of the ``window`` values around each one.

    The window is centred and cut off at both ends: no value is invented or shifted.
    """
    array, before, after = np.asarray(values, float), window // 2, (window + 1) // 2
    parts = [array[max(0, i - before) : i + after] for i in range(len(array))]
    std = [float(part.std(ddof=1)) if len(part) > 1 else 0.0 for part in parts]
    return [float(part.mean()) for part in parts], std


def mean_and_range(
    curves: Sequence[Sequence[float]],
) -> tuple[list[float], list[float], list[float]]:
    """Over curves of equal length, point by point: mean, least and greatest."""
    array = np.asarray(curves, float)
    return array.mean(0).tolist(), array.min(0).tolist(), array.max(0).tolist()


def ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of their ranks."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = counts.cumsum()
    shared: NDArray[np.float64] = (last - (counts - 1) / 2)[place]
    return shared


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """The correlation of the ranks, -1 to 1; nan where all x or all y are equal."""
    a, b = (r - r.mean() for r in (ranks(x), ranks(y)))
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else math.nan


class Interval(NamedTuple):
    """A mean and half the width of its 95% interval; infinite where ``n`` is 1."""

    mean: float
    half: float
    n: int


def interval(values: Sequence[float]) -> Interval:
    """The mean of one value per seed, by Student's distribution."""
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return Interval(fmean(values), math.inf, n)
    # Beyond the table: within 0.02 of the true quantile.
    factor = STUDENT[n - 2] if n - 2 < len(STUDENT) else NORMAL + 2.4 / (n - 1)
    return Interval(fmean(values), factor * stdev(values) / math.sqrt(n), n)


def correlation_interval(r: float, n: int) -> Interval:
    """A correlation of ``n`` pairs with its 95% interval, by Fisher's transformation.

    The interval is not symmetric; the wider of its two sides is given.
    """
    if n < 4 or not abs(r) < 1:
        return Interval(r, math.inf if n < 4 else 0.0, n)
    z, half = math.atanh(r), NORMAL / math.sqrt(n - 3)
    return Interval(r, max(r - math.tanh(z - half), math.tanh(z + half) - r), n)


def nearest(steps: Sequence[int], wanted: float) -> int:
    """The position in ``steps`` closest to ``wanted``: the evaluation for a stage of training."""
    return min(range(len(steps)), key=lambda i: abs(steps[i] - wanted))


def until(trace: Trace, share: float) -> Trace:
    """The first ``share`` of a run."""
    last = share * trace.rows[-1]["step"] + 1e-9
    count = sum(row["step"] <= last for row in trace.rows)
    return Trace(trace.rows[:count], trace.observed[:count])


class Arrival(NamedTuple):
    """What a run needed to reach the target, over what the baseline needed.

    Where it was not ``reached``, the ratio is that of the whole run: a lower bound.
    """

    ratio: float
    reached: bool


def arrivals(
    own: Sequence[Trace], base: Sequence[Trace], measure: Literal["steps", "time"]
) -> list[Arrival]:
    """For each seed: steps or time to the train loss at which the baseline's mean ended.

    The baseline's steps are those of the mean of its seeds; seconds are compared with the
    baseline's run of the same seed, which was trained side by side.
    """
    rows = [trace.rows for trace in base]
    target, mean = target_loss(rows), curve(rows)
    beside = {each[0]["seed"]: curve([each]) for each in rows}
    found = []
    for trace in own:
        seed, each = trace.rows[0]["seed"], curve([trace.rows])
        ratio = getattr(to_target(each, mean, target, beside=beside[seed], whole=True), measure)
        reached = ratio is not None and arrival(each, target) is not None
        found.append(Arrival(math.nan if ratio is None else ratio, reached))
    return found
