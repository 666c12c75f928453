"""What a chart shows, as plain values: drawn by ``report.png`` and by ``report.interactive``."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["CROWD", "FEW", "Bar", "Chart", "Line", "Look", "Panel", "drawable", "looks"]

COLOURS = 6  # besides the baseline's grey
DASHES = ("solid", "dot", "dashdot")  # one after the other, for more than six labels
FEW = 12  # points; so few are marked, since a line alone would not show where they are
CROWD = 7  # labels; with more of them bands are paler


@dataclass(frozen=True)
class Line:
    """A curve, and where known the band around it.

    ``like``: the line whose colour it shares, drawn dotted; for the same thing measured
    differently. ``mark``: the position of a point to emphasise.
    """

    label: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    like: str | None = None
    mark: int | None = None


@dataclass(frozen=True)
class Bar:
    """A horizontal bar (None: nothing was measured), a dot per seed, and the number as text."""

    label: str
    length: float | None
    dots: list[float]
    text: str


@dataclass(frozen=True)
class Panel:
    """One pair of axes, with lines or with bars.

    ``log``: of the y axis. ``level``: a value to compare with, drawn across the panel (for bars,
    from top to bottom). ``unit``: follows each y value.
    """

    title: str
    x: str
    y: str
    lines: list[Line] = field(default_factory=list)
    log: bool = False
    level: float | None = None
    unit: str = ""
    bars: list[Bar] = field(default_factory=list)


@dataclass(frozen=True)
class Chart:
    """A figure: a name for its files, a title that says what it was made from, its panels.

    ``share_y``: whether the panels have the same y axis.
    """

    name: str
    title: str
    panels: list[Panel]
    baseline: str = "uniform"
    share_y: bool = False


class Look(NamedTuple):
    """How a label is drawn in all panels: colour 1 to 6, or 0 for the baseline's grey, and dashes.

    ``dash`` is solid, dash, dot or dashdot.
    """

    colour: int
    dash: str


def looks(chart: Chart) -> dict[str, Look]:
    """The look of each label, in the order in which they appear."""
    like: dict[str, str | None] = {}
    for panel in chart.panels:
        like |= {line.label: line.like for line in panel.lines}
        like |= {bar.label: None for bar in panel.bars}
    own = [label for label, other in like.items() if not other and label != chart.baseline]
    found = {
        label: Look(1 + place % COLOURS, DASHES[place // COLOURS % len(DASHES)])
        for place, label in enumerate(own)
    }
    found[chart.baseline] = Look(0, "dash")
    return {
        label: Look(found[other].colour, "dot") if other else found[label]
        for label, other in like.items()
    }


def drawable(line: Line, log: bool) -> tuple[list[float], list[float], list[float]]:
    """y, low and high as they can be drawn; without a band, low and high are empty.

    A logarithmic axis has no place for values <= 0: a line has a gap there, and a band ends at a
    third of the lowest point of its line.
    """
    band = (line.low or [], line.high or [])
    if not log:
        return line.y, *band
    floor = min((y for y in line.y if y > 0), default=1.0) / 3
    low, high = ([max(value, floor) for value in side] for side in band)
    return [y if y > 0 else math.nan for y in line.y], low, high
