"""What a chart shows, as plain values: drawn by ``report.png`` and by ``report.interactive``."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

__all__ = [
    *("CROWD", "FEW", "Bar", "Chart", "Line", "Look", "Panel", "Strip", "Stretch"),
    *("clipped", "drawable", "first_shown", "logarithmic", "looks", "y_range"),
]

FEW = 12  # points; so few are marked, since a line alone would not show where they are
CROWD = 7  # labels; with more of them bands are paler
MUCH = 20.0  # largest over smallest value from which a logarithmic axis is easier to read
EARLY = 0.1  # of a line: the first steps, which a chart leaves out unless all is asked for
ENOUGH = 4  # points of every line after the first steps, to leave those out
WORTH = 0.7  # of the y axis: what is after the first steps spans less, else nothing is left out

COLOURS = 6  # besides the baseline's grey
DASHES = ("solid", "dashdot", "dot", "dash")
# A name has the same look in every report. Scores are solid, rivals and controls are dashed.
KNOWN = {
    "auto": (1, "solid"),
    "history": (2, "solid"),
    "loss": (3, "solid"),
    "approx": (4, "solid"),
    "upper_bound": (5, "solid"),
    "gnorm": (6, "solid"),
    "infobatch": (2, "dashdot"),
    "ordered": (3, "dashdot"),
    "closeness": (4, "dashdot"),
    "selective-backprop": (5, "dashdot"),
    "online-selection": (6, "dashdot"),
    "random-subset": (1, "dot"),
    "with-replacement": (1, "dashdot"),
}


@dataclass(frozen=True)
class Line:
    """A curve, and where known the band around it.

    ``like``: the line whose colour it shares, drawn dotted; for the same thing measured
    differently. ``mark``: the position of a point to emphasise, or ``spot`` where that is none of
    the points; ``note`` is the text beside it.
    """

    label: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    like: str | None = None
    mark: int | None = None
    note: str = ""
    spot: tuple[float, float] | None = None

    @property
    def marked(self) -> tuple[float, float] | None:
        """The place to emphasise."""
        return self.spot if self.mark is None else (self.x[self.mark], self.y[self.mark])


@dataclass(frozen=True)
class Bar:
    """A horizontal bar (None: nothing was measured), a dot per seed, and the number as text."""

    label: str
    length: float | None
    dots: list[float]
    text: str


@dataclass(frozen=True)
class Stretch:
    """A sampler's mode from one step to another, and why."""

    start: float
    end: float
    mode: str
    why: str


@dataclass(frozen=True)
class Strip:
    """The modes of one run, side by side along the x axis; ``name`` is short."""

    label: str
    name: str
    parts: list[Stretch]


@dataclass(frozen=True)
class Panel:
    """One pair of axes, with lines, with bars or with strips.

    ``log``: of the y axis. ``level``: a value to compare with, drawn across the panel (for bars,
    from top to bottom), and ``level_text`` says what it is. ``unit``: follows each y value.
    """

    title: str
    x: str
    y: str
    lines: list[Line] = field(default_factory=list)
    log: bool = False
    level: float | None = None
    unit: str = ""
    bars: list[Bar] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)
    level_text: str = ""


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
    """The look of each label, in the order in which they appear.

    A label alone decides its look: by the table of known names, or by its hash. Only where two of
    one chart would look alike, the later one gets the next look that is free.
    """
    like: dict[str, str | None] = {}
    for panel in chart.panels:
        like |= {line.label: line.like for line in panel.lines}
        like |= {bar.label: None for bar in panel.bars}
        like |= {strip.label: None for strip in panel.strips}
    own = [label for label, other in like.items() if not other and label != chart.baseline]
    found = {chart.baseline: Look(0, "dash")}
    for label in sorted(own, key=lambda label: label not in KNOWN):  # known names first
        free = (look for look in _wanted(label) if look not in found.values())
        found[label] = next(free, next(_wanted(label)))
    return {
        label: Look(found[other].colour, "dot") if other else found[label]
        for label, other in like.items()
    }


def _wanted(label: str) -> Iterator[Look]:
    """The look of a label, then the alternatives: its colour with other dashes, other colours.

    A method with options has the colour of the method without.
    """
    name, _, options = label.partition(":")
    colour, dash = KNOWN.get(name, (1 + _hash(name) % COLOURS, "solid"))
    first = DASHES.index(dash) + (1 + _hash(options) % (len(DASHES) - 1) if options else 0)
    for shift in range(COLOURS):
        for turn in range(len(DASHES)):
            yield Look(1 + (colour - 1 + shift) % COLOURS, DASHES[(first + turn) % len(DASHES)])


def _hash(text: str) -> int:
    """The same in every process, which ``hash`` is not."""
    return crc32(text.encode("utf-8", "surrogatepass"))


# ----------------------------------------------------------------------------------------- ranges


def clipped(panel: Panel) -> bool:
    """Whether the y axis leaves out what only the first steps need, unless all is asked for.

    A loss falls most in the first steps, and what differs between methods comes later.
    """
    if not panel.lines or any(len(line.x) - first_shown(line) < ENOUGH for line in panel.lines):
        return False
    return _span(panel, whole=False) < WORTH * _span(panel, whole=True)


def first_shown(line: Line) -> int:
    """The place of the first point after the first steps."""
    return math.ceil(EARLY * (len(line.x) - 1))


def logarithmic(lines: Sequence[Line]) -> bool:
    """Whether values after the first steps span so much that a logarithmic axis is better."""
    whole = any(len(line.x) - first_shown(line) < ENOUGH for line in lines)
    positive = [value for line in lines for value in _values(line, whole) if value > 0]
    return bool(positive) and max(positive) / min(positive) > MUCH


def y_range(panel: Panel) -> tuple[float, float] | None:
    """The y axis without what only the first steps need; None where nothing is left out."""
    if not clipped(panel):
        return None
    low, high = _ends(panel, whole=False)
    if panel.log:
        margin = 1.01 * (high / low) ** 0.04
        return low / margin, high * margin
    margin = 0.05 * (high - low) or 0.05 * abs(high)
    return low - margin, high + margin


def _span(panel: Panel, whole: bool) -> float:
    """How much of the y axis the values take."""
    low, high = _ends(panel, whole)
    return math.log(high / low) if panel.log else high - low


def _ends(panel: Panel, whole: bool) -> tuple[float, float]:
    """The least and the greatest value on the y axis: lines, bands, marks and level."""
    values = [] if panel.level is None else [panel.level]
    for line in panel.lines:
        y, low, high = drawable(line, panel.log)
        values += _values(Line(line.label, line.x, y, low, high), whole)
        values += [] if line.marked is None else [line.marked[1]]
    usable = [value for value in values if math.isfinite(value) and (value > 0 or not panel.log)]
    return (min(usable), max(usable)) if usable else (1.0, 1.0)


def _values(line: Line, whole: bool) -> list[float]:
    """All finite values of a line and its band, or those after the first steps."""
    first = 0 if whole else first_shown(line)
    sides = (line.y, line.low or [], line.high or [])
    return [value for side in sides for value in side[first:] if math.isfinite(value)]


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
