"""The same training in shorter budgets: error against time, and the same error in less of it.

Each budget is a share of the whole length; the whole schedule runs within it. The time of a method
at budget b is b x (its seconds / the baseline's seconds at the same budget), in units of the
baseline's whole training: runs of one budget were measured side by side, those of different budgets
were not.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NotRequired, TypedDict, cast

import numpy as np

from salience.compare.measures import Better
from salience.compare.paired import Differences, best_of, differences
from salience.compare.run import Row
from salience.compare.summary import Spread, Summary, by_seed, spread, summarize, tested_by

__all__ = [
    *("AtBudget", "Budgets", "SameError", "SweptSummary", "budget_of", "budgets_of"),
    *("reached_at", "same_error", "summarize_all", "sweep"),
]

Array = np.ndarray[Any, np.dtype[np.float64]]

RESAMPLES = 2000
RESAMPLING_SEED = 0
WORST = "test_error_worst"


class AtBudget(TypedDict):
    """One method at one budget: its time, the test measure, and differences to the baseline.

    ``time`` is in units of the baseline's whole training. ``best`` is that of each run's own.
    """

    budget: float
    time: float
    end: Spread
    best: Spread
    worst: NotRequired[Spread]
    differences: Differences | None


class SameError(TypedDict):
    """The share of the baseline's time in which a method comes to the same test measure.

    ``share`` is None where it does not within its budgets. ``at_most``: it did so within the
    smallest budget already, whose time this is. ``low`` and ``high``: 95 % of resampled seeds; None
    where a limit is not reached, and for a single seed. ``reached``: of the resamples, how many
    reached it.
    """

    share: float | None
    at_most: bool
    low: float | None
    high: float | None
    reached: float | None
    n: int


class Budgets(TypedDict):
    """All methods at all budgets, in ascending order."""

    measure: str
    shares: list[float]
    methods: dict[str, list[AtBudget]]
    same_error: dict[str, SameError]


class SweptSummary(Summary):
    """What ``summary.json`` holds; without ``budgets`` where there is only one."""

    budgets: NotRequired[Budgets]


def summarize_all(
    rows: Sequence[Row],
    baseline: str = "uniform",
    measure: str | None = None,
    better: Better = "lower",
) -> SweptSummary:
    """The summary of the whole budget, and where there are others, of all."""
    found = cast(SweptSummary, summarize(rows, baseline, measure, better))
    if len(budgets_of(rows)) > 1:
        found["budgets"] = sweep(rows, baseline, measure, better)
    return found


def budget_of(row: Row) -> float:
    """Rows without one are of the whole budget."""
    return float(row.get("budget", 1.0))


def budgets_of(rows: Sequence[Row]) -> list[float]:
    return sorted({budget_of(row) for row in rows})


# -------------------------------------------------------------------------------------- the sweep


def sweep(
    rows: Sequence[Row],
    baseline: str = "uniform",
    measure: str | None = None,
    better: Better = "lower",
) -> Budgets:
    """Every method at every budget, as far as it and the baseline were trained there."""
    shares, measure = budgets_of(rows), measure or tested_by(rows[0])
    names = [*dict.fromkeys(row["method"] for row in rows)]
    runs = {
        (name, share): by_seed([row for row in rows if budget_of(row) == share], name)
        for name in names
        for share in shares
    }
    methods = {
        name: [
            _at_budget(runs[name, share], runs[baseline, share], share, measure, better)
            for share in shares
            if runs[name, share] and runs[baseline, share]
        ]
        for name in names
    }
    same = {name: _same_error(runs, name, baseline, shares, measure, better) for name in names}
    return Budgets(measure=measure, shares=shares, methods=methods, same_error=same)


def _at_budget(
    runs: list[list[Row]],
    baseline: list[list[Row]],
    share: float,
    measure: str,
    better: Better,
) -> AtBudget:
    last: list[Any] = [run[-1] for run in runs]
    found = AtBudget(
        budget=share,
        time=share * _cost(runs, baseline),
        end=spread([row[measure] for row in last]),
        best=spread([best_of(run, measure, better) for run in runs]),
        differences=differences(runs, baseline, measure, better),
    )
    if all(WORST in row for row in last):
        found["worst"] = spread([row[WORST] for row in last])
    return found


def _cost(runs: list[list[Row]], baseline: list[list[Row]]) -> float:
    """Seconds over the baseline's; 1 where no time was measured."""
    own, base = (fmean(run[-1]["seconds"] for run in each) for each in (runs, baseline))
    return own / base if base > 0 else 1.0


# --------------------------------------------------------------------- the same error in less time


def _same_error(
    runs: dict[tuple[str, float], list[list[Row]]],
    name: str,
    baseline: str,
    shares: list[float],
    measure: str,
    better: Better,
) -> SameError:
    """Of the seeds that both finished at every budget. Values that rise count as errors below 0."""
    own, base = (_table(runs, each, shares) for each in (name, baseline))
    seeds = [seed for seed in own if seed in base]
    if not seeds:
        return SameError(share=None, at_most=False, low=None, high=None, reached=None, n=0)
    errors, seconds = (_values(own, seeds, name) for name in (measure, "seconds"))
    theirs, base_seconds = (_values(base, seeds, name) for name in (measure, "seconds"))
    sign = -1.0 if better == "higher" else 1.0
    return same_error(sign * errors, sign * theirs[:, -1], seconds, base_seconds, np.array(shares))


def _values(table: dict[int, list[Any]], seeds: list[int], name: str) -> Array:
    """[seeds, budgets]"""
    return np.array([[row[name] for row in table[seed]] for seed in seeds], dtype=np.float64)


def _table(
    runs: dict[tuple[str, float], list[list[Row]]], name: str, shares: list[float]
) -> dict[int, list[Row]]:
    """The last row of each budget, for the seeds that have one of each."""
    found: dict[int, list[Row]] = {}
    for share in shares:
        for run in runs[name, share]:
            found.setdefault(run[-1]["seed"], []).append(run[-1])
    return {seed: rows for seed, rows in found.items() if len(rows) == len(shares)}


def same_error(
    errors: Array, target: Array, seconds: Array, base_seconds: Array, shares: Array
) -> SameError:
    """The share of time to the mean of ``target``, and its interval over resampled seeds.

    ``errors``, ``seconds`` and ``base_seconds`` [seeds, budgets] are the method's errors and
    times and the baseline's times; ``target`` [seeds] are the baseline's errors with the whole
    budget. Resampling takes both runs of a seed together.
    """

    def found(chosen: Any) -> float:
        base = base_seconds[chosen].mean(0)
        cost = np.where(base > 0, seconds[chosen].mean(0) / np.where(base > 0, base, 1.0), 1.0)
        share = reached_at(shares * cost, errors[chosen].mean(0), float(target[chosen].mean()))
        return math.inf if share is None else share

    n = len(target)
    every = np.arange(n)
    whole = found(every)
    at_most = bool(errors.mean(0)[0] <= target.mean())
    result = SameError(
        share=_finite(whole), at_most=at_most, low=None, high=None, reached=None, n=n
    )
    if n < 2:
        return result
    random = np.random.default_rng(RESAMPLING_SEED)
    ordered = sorted(found(random.choice(every, n)) for _ in range(RESAMPLES))
    result["low"] = _finite(ordered[round(0.025 * RESAMPLES)])
    result["high"] = _finite(ordered[round(0.975 * RESAMPLES) - 1])
    result["reached"] = sum(map(math.isfinite, ordered)) / RESAMPLES
    return result


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def reached_at(times: Array, errors: Array, target: float) -> float | None:
    """The first time at which the curve of errors is at ``target``; None where it never is.

    Between budgets the curve is linear in the logarithm of time. Before the first budget nothing is
    known: a curve that is at or below the target there gives that budget's time. Nor is anything
    known after a budget whose training diverged: the next budget's time is given.
    """
    if errors[0] <= target:
        return float(times[0])
    for i in range(1, len(times)):
        if errors[i] <= target:
            if not math.isfinite(errors[i - 1]):
                return float(times[i])
            along = (errors[i - 1] - target) / (errors[i - 1] - errors[i])
            low, high = math.log(times[i - 1]), math.log(times[i])
            return math.exp(low + along * (high - low))
    return None
