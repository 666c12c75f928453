"""From rows to numbers: what each method ended at, cost, and needed to match the baseline.

The target is the train loss at which the baseline ended, the mean of its seeds. A method reaches it
at the first evaluation at which the mean train loss of its seeds is at or below the target. Nothing
is interpolated between evaluations, so what a method needed is rounded up, for the baseline as well
(which may pass its own final loss before the end). Where the target is not reached there is no
ratio: ``None``. All arithmetic of reports and figures about the target is here.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

import numpy as np

from salience.compare.measures import Better
from salience.compare.paired import Differences, best_of, differences, t_95
from salience.compare.run import Row

__all__ = [
    *("Curve", "Final", "MethodSummary", "Spread", "Summary", "ToTarget"),
    *("arrival", "by_seed", "curve", "ended_at", "longest", "spread", "step_seconds"),
    *("summarize", "target_loss", "tested_by", "time_range", "to_target"),
]

OLDER = ("test_error", "test_perplexity")  # primary where a directory does not say
RARE = "test_error_rare"  # in rows only


class Spread(TypedDict):
    """A number with its evidence; ``std`` (of a sample) is None for a single seed."""

    mean: float
    std: float | None
    n: int


class Final(TypedDict):
    """The last evaluation of each seed, and the whole training time; other measures likewise."""

    step: int
    seconds: Spread
    train_loss: Spread
    train_max_loss: Spread
    test_loss: Spread
    test_error: NotRequired[Spread]
    test_error_worst: NotRequired[Spread]  # of the class with the highest error
    test_perplexity: NotRequired[Spread]  # in its place for language models


class MethodSummary(TypedDict):
    """One method; each ratio is over the baseline, so less than 1 is less time or fewer steps.

    ``examples_ratio`` is of those trained on in a step. ``time_to_target_range`` is the 95 %
    interval of the time ratio. ``seeds_to_target``: for each seed alone, its steps to the target
    over the baseline's. ``best``: the primary measure at the best evaluation of each run.
    ``differences``: to the baseline, seed by seed.
    """

    step_cost_ratio: float | None
    examples_ratio: float
    time_to_target_ratio: float | None
    time_to_target_range: list[float] | None
    steps_to_target_ratio: float | None
    seeds_to_target: list[float | None]
    final: Final
    best: Spread
    differences: Differences | None
    n: int


class Summary(TypedDict):
    """What ``summary.json`` holds.

    ``primary``: the column of rows that methods are tested by, and ``better`` its direction.
    """

    task: str
    baseline: str
    primary: str
    better: Better
    target_train_loss: float
    methods: dict[str, MethodSummary]


def summarize(
    rows: Sequence[Row],
    baseline: str = "uniform",
    measure: str | None = None,
    better: Better = "lower",
) -> Summary:
    """The summary of one task's rows, which hold at least the ``baseline``.

    ``measure`` is the primary one, as rows name it, and ``better`` its direction; None: as older
    rows have it. Where there are several budgets, it is the summary of the largest.
    """
    rows = longest(rows)
    runs = {name: by_seed(rows, name) for name in dict.fromkeys(row["method"] for row in rows)}
    target = target_loss(runs[baseline])
    measure = measure or tested_by(rows[0])
    methods = {
        name: _compared(own, runs[baseline], target, measure, better) for name, own in runs.items()
    }
    return Summary(
        task=rows[0]["task"],
        baseline=baseline,
        primary=measure,
        better=better,
        target_train_loss=target,
        methods=methods,
    )


def _compared(
    runs: list[list[Row]],
    baseline: list[list[Row]],
    target: float,
    measure: str,
    better: Better,
) -> MethodSummary:
    base = curve(baseline)
    found = to_target(curve(runs), base, target)
    alone = [to_target(curve([run]), base, target).steps for run in runs]
    cost, unit = step_seconds(runs), step_seconds(baseline)
    return MethodSummary(
        step_cost_ratio=fmean(cost) / fmean(unit) if cost and sum(unit) else None,
        examples_ratio=_examples(runs) / _examples(baseline),
        time_to_target_ratio=found.time,
        time_to_target_range=time_range(runs, baseline, found.time),
        steps_to_target_ratio=found.steps,
        seeds_to_target=alone,
        final=_final(runs),
        best=spread([best_of(run, measure, better) for run in runs]),
        differences=differences(runs, baseline, measure, better),
        n=len(runs),
    )


# ------------------------------------------------------------------------------ rows and curves


def longest(rows: Sequence[Row]) -> list[Row]:
    """The rows of the largest budget; all of them where there are no budgets."""
    most = max((row.get("budget", 1.0) for row in rows), default=1.0)
    return [row for row in rows if row.get("budget", 1.0) == most]


def by_seed(rows: Iterable[Row], method: str) -> list[list[Row]]:
    """The runs of a method, each in the order of its steps, a step once."""
    runs: dict[int, dict[int, Row]] = {}
    for row in rows:
        if row["method"] == method:
            runs.setdefault(row["seed"], {})[row["step"]] = row
    return [[run[step] for step in sorted(run)] for run in runs.values()]


class Curve(NamedTuple):
    """A measure over the seeds of one method: means, and the range from least to greatest."""

    steps: list[float]
    seconds: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def curve(runs: Sequence[Sequence[Row]], measure: str = "train_loss") -> Curve:
    """Over the seeds, evaluation by evaluation, as far as every seed was evaluated.

    Runs of equal steps are evaluated at the same steps; runs of equal time at the same share of
    it, where the mean of the steps is given. A measure that a row lacks is nan.
    """
    groups = [*zip(*runs, strict=False)]
    values = [[_value(row.get(measure)) for row in group] for group in groups]
    return Curve(
        [_mean([row["step"] for row in group]) for group in groups],
        [_mean([row["seconds"] for row in group]) for group in groups],
        [*map(_mean, values)],
        [float(np.min(group)) for group in values],  # nan where one of them is
        [float(np.max(group)) for group in values],
    )


def _mean(values: Sequence[float]) -> float:
    """Not a number where there is no sum: beyond all floats, or of infinities of both signs."""
    try:
        return fmean(values)
    except (OverflowError, ValueError):
        return math.nan


def _value(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


# ---------------------------------------------------------------------------------- the target


def target_loss(baseline: Sequence[Sequence[Row]]) -> float:
    """The train loss at which the baseline ended, the mean of its seeds."""
    return fmean(run[-1]["train_loss"] for run in baseline)


def arrival(found: Curve, target: float) -> int | None:
    """The first evaluation at which the mean is at or below the target."""
    return next((place for place, mean in enumerate(found.mean) if mean <= target), None)


class ToTarget(NamedTuple):
    """Steps and training time to the target over the baseline's; None where there is no ratio."""

    steps: float | None
    time: float | None


def to_target(
    own: Curve, base: Curve, target: float, *, beside: Curve | None = None, whole: bool = False
) -> ToTarget:
    """What ``own`` needed to reach the target over what the baseline needed.

    Steps are h / H and time is (t / b(h)) x (h / H), where t and h are the seconds and steps to
    the target, b(h) the baseline's seconds for the same number of steps, and H the baseline's
    steps to the target. b(h) was measured side by side with t, while t / b(H) would credit a
    method that is done early with whatever slowed the machine down afterwards. On a steady
    machine both are the same number.

    ``beside``: the curve that b(h) is taken from, if not ``base``. ``whole``: a curve that does
    not reach the target counts with its last evaluation, which gives lower bounds.
    """
    at, goal = arrival(own, target), arrival(base, target)
    if at is None and whole:
        at = len(own.steps) - 1
    if at is None or goal is None or base.steps[goal] == 0:  # ended no lower than it began
        return ToTarget(None, None)
    steps, seconds = own.steps[at] / base.steps[goal], own.seconds[at]
    other = beside or base
    same = dict(zip(other.steps, other.seconds, strict=True)).get(own.steps[at])
    if same:
        return ToTarget(steps, seconds / same * steps)
    whole_time = base.seconds[goal]
    return ToTarget(steps, seconds / whole_time if whole_time else None)


def time_range(
    runs: Sequence[Sequence[Row]], baseline: Sequence[Sequence[Row]], ratio: float | None
) -> list[float] | None:
    """The 95 % interval of the time ratio; None for a single seed and where a seed has no ratio.

    Student's, of the logarithms of the ratios of single seeds: each run against the baseline's run
    with the same seed, to the loss at which that one ended. It is laid around ``ratio``. Times to
    the target are known up to one evaluation, so s is at least what that alone gives.
    """
    theirs = {run[0]["seed"]: run for run in baseline}
    pairs = [(curve([run]), curve([theirs[run[0]["seed"]]])) for run in runs if _seed(run, theirs)]
    ratios = [to_target(own, base, base.mean[-1]).time for own, base in pairs]
    known = [math.log(each) for each in ratios if each]
    if not ratio or len(known) < max(len(ratios), 2):
        return None
    rough = fmean(_rounding(*pair) for pair in pairs)
    half = t_95(len(known) - 1) * max(stdev(known), rough) / math.sqrt(len(known))
    return [ratio * math.exp(-half), ratio * math.exp(half)]


def _seed(run: Sequence[Row], others: dict[int, Sequence[Row]]) -> bool:
    return run[0]["seed"] in others


def _rounding(own: Curve, base: Curve) -> float:
    """The standard deviation of the logarithm of a ratio from rounding up to evaluations."""
    parts = []
    for each in (own, base):
        at = arrival(each, base.mean[-1])
        if at:
            parts.append((each.steps[at] - each.steps[at - 1]) / each.steps[at])
    return math.sqrt(sum(part**2 for part in parts) / 12)


# ------------------------------------------------------------------------------ costs and ends


def step_seconds(runs: Sequence[Sequence[Row]]) -> list[float]:
    """Training time of a step in each seed's whole run; nothing for a run without steps."""
    return [run[-1]["seconds"] / run[-1]["step"] for run in runs if run[-1]["step"]]


def _examples(runs: Sequence[Sequence[Any]]) -> float:
    """Trained on in a step, in the mean; 1 where that is not known."""
    found = [run[-1].get("examples", 0) / max(run[-1]["step"], 1) for run in runs]
    return fmean(found) or 1.0


def _final(runs: list[list[Row]]) -> Final:
    last: list[Any] = [run[-1] for run in runs]
    measures = ["seconds", "train_loss", "train_max_loss"]
    measures += [
        name
        for name in last[0]
        if name.startswith(("test_", "validation_")) and all(name in row for row in last)
    ]
    spreads = {name: spread([row[name] for row in last]) for name in measures if name != RARE}
    return cast(Final, {"step": min(row["step"] for row in last), **spreads})


def ended_at(final: Final, measure: str) -> Spread:
    """Any measure at the end, by its column in rows."""
    return cast(dict[str, Spread], final)[measure]


def tested_by(measured: Row | Final) -> str:
    """The primary measure where a directory does not say: an error, a perplexity, or the loss."""
    return next((name for name in OLDER if name in measured), "test_loss")


def spread(values: list[float]) -> Spread:
    """Mean and standard deviation."""
    mean = fmean(values)
    known = len(values) > 1 and math.isfinite(mean)
    return Spread(mean=mean, std=stdev(values) if known else None, n=len(values))
