"""What a figure shows, as plain values: experiments fill it in, reports draw it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Chart", "Line", "Panel", "Table", "cells"]


@dataclass(frozen=True)
class Line:
    """A curve, and where known how far around it the values lie.

    ``like``: the line whose colour it shares, drawn dotted; for the same thing seen another way.
    """

    label: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    like: str | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes; ``log`` is for the y axis, ``level`` a horizontal line to compare with."""

    title: str
    x: str
    y: str
    lines: list[Line]
    log: bool = False
    level: float | None = None


@dataclass(frozen=True)
class Chart:
    """A figure: a name for its files, a title that says what it was made from, its panels."""

    name: str
    title: str
    panels: list[Panel]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Table:
    """Numbers in rows, for CSV; None where there is no number."""

    name: str
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)


def cells(chart: Chart) -> Table:
    """Every point of a chart as one row: what the CSV file beside the figure holds."""
    columns = ["panel", "line", "x", "y", "low", "high"]
    rows = [
        [panel.title, line.label, *point]
        for panel in chart.panels
        for line in panel.lines
        for point in zip(
            line.x, line.y, _filled(line.low, line), _filled(line.high, line), strict=True
        )
    ]
    return Table(chart.name, columns, rows)


def _filled(values: Sequence[float] | None, line: Line) -> Sequence[float | None]:
    return [None] * len(line.x) if values is None else values
