"""From rows to curves, and how each method looks: shared by pictures and pages."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from salience.compare.summary import Summary, tested_by
from salience.compare.training import Row

__all__ = [
    "TRAIN",
    "Curve",
    "Look",
    "Measure",
    "arrival",
    "curve",
    "is_logarithmic",
    "looks",
    "step_costs",
    "tested",
]

LEAST = 1e-12  # a loss of exactly zero has no place on a logarithmic axis
MUCH = 20.0  # the largest over the smallest value from which an axis is logarithmic
COLOURS = 6
DASHES = ("solid", "dot", "dashdot")  # one after the other, when there are more than six methods


class Curve(NamedTuple):
    """One method, over its seeds: means, and the range from the best seed to the worst."""

    steps: list[float]
    seconds: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


class Measure(NamedTuple):
    """A column of the rows that can be drawn."""

    key: str
    title: str
    unit: str = ""
    scale: float = 1.0


class Look(NamedTuple):
    """Colour 1 to 6, or 0 for the baseline's grey, and the dashes of the line."""

    colour: int
    dash: str


TRAIN = Measure("train_loss", "Train loss")
TESTS = {
    "test_error": Measure("test_error", "Test error", "%", 100.0),
    "test_perplexity": Measure("test_perplexity", "Test perplexity"),
}


def tested(rows: Sequence[Row]) -> Measure:
    """What the task was tested by."""
    return TESTS[tested_by(rows[0])]


def looks(names: Iterable[str], baseline: str) -> dict[str, Look]:
    """The baseline grey and dashed; the others six colours in turn, then with other dashes."""
    others = [name for name in names if name != baseline]
    found = {
        name: Look(1 + place % COLOURS, DASHES[place // COLOURS % len(DASHES)])
        for place, name in enumerate(others)
    }
    return {baseline: Look(0, "dash"), **found}


def curve(rows: Sequence[Row], method: str, measure: Measure = TRAIN) -> Curve:
    """Over seeds, as far as every seed was evaluated.

    The seeds' evaluations are matched by their number. Runs of equal steps are evaluated at the
    same steps; runs of equal time at the same share of it, where the mean of the steps is shown.
    """
    groups = [*zip(*_runs(rows, method), strict=False)]
    values = [[measure.scale * _value(row, measure) for row in group] for group in groups]
    return Curve(
        [fmean(row["step"] for row in group) for group in groups],
        [fmean(row["seconds"] for row in group) for group in groups],
        [fmean(group) for group in values],
        [_end(min, group) for group in values],
        [_end(max, group) for group in values],
    )


def _runs(rows: Iterable[Row], method: str) -> list[list[Row]]:
    """The rows of each seed, in the order of steps, a step once."""
    runs: dict[int, dict[int, Row]] = {}
    for row in rows:
        if row["method"] == method:
            runs.setdefault(row["seed"], {})[row["step"]] = row
    return [[run[step] for step in sorted(run)] for run in runs.values()]


def _value(row: Row, measure: Measure) -> float:
    value = row.get(measure.key)
    if not isinstance(value, int | float):
        return math.nan
    return max(value, LEAST) if measure is TRAIN else float(value)


def _end(choose: Callable[[list[float]], float], group: list[float]) -> float:
    return math.nan if any(map(math.isnan, group)) else choose(group)


def arrival(found: Curve, target: float) -> int | None:
    """Where the mean is at or below the target for the first time."""
    return next((place for place, mean in enumerate(found.mean) if mean <= target), None)


def is_logarithmic(curves: Mapping[str, Curve]) -> bool:
    """Whether the values span much, and none of them is zero."""
    ends = [value for each in curves.values() for value in each.low + each.high]
    finite = [value for value in ends if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > MUCH


def step_costs(rows: Sequence[Row], summary: Summary) -> dict[str, list[float]]:
    """Seconds of training per step of each seed's whole run; empty where nothing was trained."""
    last = {name: [run[-1] for run in _runs(rows, name)] for name in summary["methods"]}
    return {
        name: [row["seconds"] / row["step"] for row in ends if row["step"]]
        for name, ends in last.items()
    }
