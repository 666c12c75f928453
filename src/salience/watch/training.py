"""A training of the user's own, from the lines that a ``Log`` writes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from salience.compare.charts import Chart, Line, Panel, Stretch, Strip, logarithmic
from salience.compare.report import numbers
from salience.compare.report.curves import add_mode

__all__ = ["Training"]

MOST_NAMES = 24
MOST_RUNS = 8  # the last ones
MOST_POINTS = 1000  # of a line; with more of them, two become one
PARTS = ("train_", "test_", "validation_", "val_")


@dataclass
class _Series:
    """The points of one value; bands keep what was lost when points were joined."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, x: float, y: float) -> None:
        for side, value in ((self.x, x), (self.y, y), (self.low, y), (self.high, y)):
            side.append(value)
        if len(self.x) > MOST_POINTS:
            self._join()

    def _join(self) -> None:
        """Two neighbours become one: their mean, and the range of both. The last stays alone."""
        n = (len(self.x) - 1) // 2 * 2
        pairs = range(0, n, 2)
        self.x[:n] = [self.x[i + 1] for i in pairs]
        self.y[:n] = [(self.y[i] + self.y[i + 1]) / 2 for i in pairs]
        self.low[:n] = [min(self.low[i], self.low[i + 1]) for i in pairs]
        self.high[:n] = [max(self.high[i], self.high[i + 1]) for i in pairs]


@dataclass
class _Run:
    """One training: from a first line to a last."""

    steps: int | None = None
    step: float = 0.0
    seconds: float = 0.0
    series: dict[str, _Series] = field(default_factory=dict)
    latest: dict[str, float] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    ended: bool = False


@final
class Training:
    """The runs of a log, the last one in front."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    title = "Training"

    def add(self, row: Mapping[str, Any]) -> None:
        if "log" in row:
            self._begin(row)
        elif row.get("end") is True and self._runs:
            self._runs[-1].ended = True
        elif (step := _number(row.get("step"))) is not None:
            self._record(row, step)

    def _begin(self, row: Mapping[str, Any]) -> None:
        steps, first = _number(row.get("steps")), _number(row.get("first"))
        if not (first and self._runs):  # else it continues the last
            self._runs = [*self._runs, _Run()][-MOST_RUNS:]
        run = self._runs[-1]
        run.ended = False
        run.steps = int(steps) if steps is not None and steps >= 1 else None

    def _record(self, row: Mapping[str, Any], step: float) -> None:
        if not self._runs:
            self._runs.append(_Run())
        run, values, sampler = self._runs[-1], row.get("values"), row.get("sampler")
        run.step, run.seconds = step, _number(row.get("seconds")) or run.seconds
        for name, value in values.items() if isinstance(values, dict) else ():
            if name not in run.series and len(run.series) >= MOST_NAMES:
                continue
            number = math.nan if value is None else _number(value)
            if number is not None:
                run.series.setdefault(name, _Series()).add(step, number)
                run.latest[name] = number
        if run.stretches:
            run.stretches[-1] = replace(run.stretches[-1], end=step)
        if isinstance(sampler, dict):
            add_mode(run.stretches, step, step, sampler)

    # ------------------------------------------------------------------------------- what is shown

    def progress(self) -> float | None:
        if not self._runs or not self._runs[-1].steps:
            return None
        run = self._runs[-1]
        return 1.0 if run.ended else min(1.0, run.step / (run.steps or 1))

    def lead(self) -> str:
        if not self._runs:
            return "Nothing has been logged yet."
        run = self._runs[-1]
        length = f" of {run.steps:,}" if run.steps else ""
        which = f"run {len(self._runs)}, " if len(self._runs) > 1 else ""
        speed = f", {run.step / run.seconds:,.3g} steps a second" if run.seconds > 0 else ""
        return f"{which}step {run.step:,.0f}{length}{speed}"

    def charts(self) -> list[Chart]:
        """Values that belong together in one: train_loss and test_loss."""
        grouped: dict[str, list[Line]] = {}
        for place, run in enumerate(self._runs, start=1):
            for name, series in run.series.items():
                shown = name.replace("_", " ") + (f" (run {place})" if len(self._runs) > 1 else "")
                band = any(a < b for a, b in zip(series.low, series.high, strict=True))
                sides = (series.low, series.high) if band else (None, None)
                line = Line(shown, series.x, series.y, *sides)
                grouped.setdefault(_group(name), []).append(line)
        charts = [
            Chart(
                f"value-{place}",
                "",
                [Panel(_upper(group), "steps", group, lines=lines, log=logarithmic(lines))],
                baseline="",
            )
            for place, (group, lines) in enumerate(grouped.items())
        ]
        return [*charts, *self._switching()]

    def _switching(self) -> list[Chart]:
        run = self._runs[-1] if self._runs else _Run()
        if not run.stretches:
            return []
        strip = Strip("sampler", "sampler", run.stretches)
        return [Chart("auto", "", [Panel("What the sampler did", "steps", "", strips=[strip])], "")]

    def table(self) -> dict[str, Any]:
        """The last values of the last run."""
        run = self._runs[-1] if self._runs else _Run()
        lines = [[name.replace("_", " "), _shown(value)] for name, value in run.latest.items()]
        if run.stretches:
            last = run.stretches[-1]
            lines.append(["sampler", last.why])
        return {"columns": ["Value", "Now"] if lines else [], "lines": lines}

    def ended(self, _: Path) -> bool:
        return bool(self._runs) and self._runs[-1].ended


def _group(name: str) -> str:
    """What a value measures, without the data it is of."""
    part = next((each for each in PARTS if name.startswith(each)), "")
    return name.removeprefix(part).replace("_", " ") or name


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shown(value: float) -> str:
    return numbers.loss(value) if math.isfinite(value) else "not finite"


def _number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
