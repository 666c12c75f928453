"""From rows to a verdict: what each method ended at, cost, and needed to match the baseline.

The target is the train loss at which the baseline ended, the mean of its seeds. A method reaches it
at the first evaluation at which the mean train loss of its seeds is at or below the target. Nothing
is interpolated between evaluations, so what a method needed is rounded up, for the baseline as well
(which may pass its own final loss before the end). Where the target is not reached there is no
ratio: ``None``.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Literal, NamedTuple, NotRequired, TypedDict

from salience.compare.training import Row

__all__ = [
    "Final",
    "MethodSummary",
    "Spread",
    "Summary",
    "TestMeasure",
    "summarize",
    "tested_by",
]

TestMeasure = Literal["test_error", "test_perplexity"]


class Spread(TypedDict):
    """A number with its evidence; ``std`` (of a sample) is None for a single seed."""

    mean: float
    std: float | None
    n: int


class Final(TypedDict):
    """The last evaluation of each seed, and the whole training time."""

    step: int
    seconds: Spread
    train_loss: Spread
    train_max_loss: Spread
    test_loss: Spread
    test_error: NotRequired[Spread]
    test_perplexity: NotRequired[Spread]  # in its place for language models


class MethodSummary(TypedDict):
    """One method; each ratio is over the baseline, so less than 1 is less time or fewer steps.

    ``seeds_to_target``: for each seed alone, its steps to the target over the baseline's.
    """

    step_cost_ratio: float | None
    time_to_target_ratio: float | None
    steps_to_target_ratio: float | None
    seeds_to_target: list[float | None]
    final: Final
    n: int


class Summary(TypedDict):
    """What ``summary.json`` holds."""

    task: str
    baseline: str
    target_train_loss: float
    methods: dict[str, MethodSummary]


class Point(NamedTuple):
    """A mean over seeds at one evaluation."""

    step: int
    seconds: float
    train_loss: float


def summarize(rows: Sequence[Row], baseline: str = "uniform") -> Summary:
    """The summary of one task's rows, which hold at least the ``baseline``."""
    runs = {name: _by_seed(rows, name) for name in dict.fromkeys(row["method"] for row in rows)}
    target = _final(runs[baseline])["train_loss"]["mean"]
    methods = {name: _compare(seeds, runs[baseline], target) for name, seeds in runs.items()}
    return Summary(
        task=rows[0]["task"], baseline=baseline, target_train_loss=target, methods=methods
    )


def _compare(runs: list[list[Row]], baseline: list[list[Row]], target: float) -> MethodSummary:
    base_curve = _mean_curve(baseline)
    own, base = _reach(_mean_curve(runs), target), _reach(base_curve, target)
    alone = [_reach(_mean_curve([run]), target) for run in runs]
    return MethodSummary(
        step_cost_ratio=_ratio(_step_seconds(runs), _step_seconds(baseline)),
        time_to_target_ratio=_time_ratio(own, base, base_curve),
        steps_to_target_ratio=_ratio(own and own.step, base and base.step),
        seeds_to_target=[_ratio(point and point.step, base and base.step) for point in alone],
        final=_final(runs),
        n=len(runs),
    )


def _time_ratio(own: Point | None, base: Point | None, base_curve: list[Point]) -> float | None:
    """Time to the target over the baseline's, (t / b(h)) x (h / H).

    t and h are the method's seconds and steps to the target, b(h) the baseline's seconds for the
    same number of steps, H the baseline's steps to the target. b(h) was measured side by side
    with t; t / b(H) would credit a method that is done early with whatever slowed the machine
    down afterwards. On a steady machine both are the same number.
    """
    if own is None or base is None or base.step == 0:  # ended no lower than it began
        return None
    beside = next((point.seconds for point in base_curve if point.step == own.step), None)
    cost = _ratio(own.seconds, beside)
    return _ratio(own.seconds, base.seconds) if cost is None else cost * own.step / base.step


def _by_seed(rows: Iterable[Row], method: str) -> list[list[Row]]:
    """The runs of a method, each in the order of its steps."""
    runs: dict[int, list[Row]] = {}
    for row in rows:
        if row["method"] == method:
            runs.setdefault(row["seed"], []).append(row)
    return [sorted(run, key=lambda row: row["step"]) for run in runs.values()]


def _mean_curve(runs: list[list[Row]]) -> list[Point]:
    """Means over the seeds, evaluation by evaluation, as far as every seed has come.

    With a budget of seconds, seeds are not at the same step when they are evaluated: then the
    step is a mean too.
    """
    return [
        Point(
            round(fmean(row["step"] for row in group)),
            fmean(row["seconds"] for row in group),
            fmean(row["train_loss"] for row in group),
        )
        for group in zip(*runs, strict=False)
    ]


def _reach(curve: list[Point], target: float) -> Point | None:
    """The first evaluation at or below the target."""
    return next((point for point in curve if point.train_loss <= target), None)


def _step_seconds(runs: list[list[Row]]) -> float | None:
    """Mean training time of a step, over all seeds."""
    return _ratio(sum(run[-1]["seconds"] for run in runs), sum(run[-1]["step"] for run in runs))


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _final(runs: list[list[Row]]) -> Final:
    last = [run[-1] for run in runs]
    final = Final(
        step=min(row["step"] for row in last),
        seconds=_spread([row["seconds"] for row in last]),
        train_loss=_spread([row["train_loss"] for row in last]),
        train_max_loss=_spread([row["train_max_loss"] for row in last]),
        test_loss=_spread([row["test_loss"] for row in last]),
    )
    measure = tested_by(last[0])
    final[measure] = _spread([row[measure] for row in last])
    return final


def tested_by(measured: Row | Final) -> TestMeasure:
    """What a task is tested by: errors, or perplexity for language models."""
    return "test_error" if "test_error" in measured else "test_perplexity"


def _spread(values: list[float]) -> Spread:
    mean = fmean(values)
    known = len(values) > 1 and math.isfinite(mean)
    return Spread(mean=mean, std=stdev(values) if known else None, n=len(values))
