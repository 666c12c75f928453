"""Charts as PNG files, drawn by matplotlib; none of its global state is touched."""

import math
import re
import textwrap
import warnings
from io import BytesIO
from typing import TYPE_CHECKING, Any

from salience.compare.charts import CROWD, FEW, Bar, Chart, Look, Panel, drawable, looks, y_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PALETTE", "chart_png"]

# Grey for the baseline, then the colours of Okabe and Ito, distinct with any colour vision.
PALETTE = ("#555555", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: dict[str, Any] = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MODES = {"off": "#D9DCE0", "focused": PALETTE[5]}
INK = "#222222"
LONGEST = 40  # characters of a label
WIDTH = 5.2  # of a panel, in inches


def chart_png(chart: Chart) -> bytes:
    """The chart as a PNG file."""
    from matplotlib.figure import Figure

    styles = looks(chart)
    lined = any(panel.lines for panel in chart.panels) and len(styles) > 1
    widest = max(len(_plain(label, LONGEST)) for label in styles) + 8
    columns = max(1, min(len(styles), 60 * len(chart.panels) // widest))  # of the legend
    flat = [len(panel.bars) or len(panel.strips) for panel in chart.panels]
    height = max(1.5 + 0.42 * rows if rows else 4.6 for rows in flat)
    height += 0.24 * lined * math.ceil(len(styles) / columns)
    size = (WIDTH * max(len(chart.panels), 1.5), height)
    figure = Figure(size, layout="constrained", facecolor="white")
    every = figure.subplots(1, len(chart.panels), squeeze=False, sharey=chart.share_y)[0]
    for place, (axes, panel) in enumerate(zip(every, chart.panels, strict=True)):
        draw = _draw_bars if panel.bars else _draw_strips if panel.strips else _draw_lines
        draw(axes, panel, styles)
        axes.set_title(_plain(panel.title, 80), fontsize=10, color=INK)
        axes.set_xlabel(panel.x, color=INK)
        if not (chart.share_y and place):
            axes.set_ylabel(panel.y, color=INK)
    if lined:
        _legend(figure, styles, columns)
    wrapped = textwrap.wrap(_plain(chart.title), round(11.5 * figure.get_figwidth()))
    figure.suptitle("\n".join(wrapped), fontsize=10, color=INK)
    content = BytesIO()
    with warnings.catch_warnings():  # a letter that the font lacks is no reason for one
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(content, format="png", dpi=144)
    return content.getvalue()


def _draw_lines(axes: "Axes", panel: Panel, styles: dict[str, Look]) -> None:
    pale = 0.16 if len(styles) <= CROWD else 0.06
    if panel.level is not None and (panel.level > 0 or not panel.log):
        axes.axhline(panel.level, color=INK, linewidth=0.8, linestyle=":")
        if panel.level_text:
            across = axes.get_yaxis_transform()
            _beside(axes, panel.level_text, (0.01, panel.level), (0, 3), xycoords=across)
    for line in panel.lines:
        colour, dash = PALETTE[styles[line.label].colour], DASHES[styles[line.label].dash]
        y, low, high = drawable(line, panel.log)
        if low and high:
            axes.fill_between(line.x, low, high, color=colour, alpha=pale, linewidth=0)
        marker = "o" if len(line.x) <= FEW else ""
        axes.plot(line.x, y, dash, color=colour, linewidth=2, marker=marker, markersize=4)
        if (at := line.marked) is not None and (at[1] > 0 or not panel.log):
            axes.plot(*at, "o", color=colour, mec="white", ms=9, clip_on=False, zorder=3)
            if line.note:
                _beside(axes, line.note, at, (0, -16), color=colour, ha="center")
    if panel.log:
        axes.set_yscale("log")
    if (ends := y_range(panel)) is not None:
        axes.set_ylim(*ends)
    if panel.log:
        _log_ticks(axes)
    if panel.unit:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}{panel.unit}")
    _tidy(axes)


def _draw_bars(axes: "Axes", panel: Panel, styles: dict[str, Look]) -> None:
    for place, bar in enumerate(panel.bars):
        colour = PALETTE[styles[bar.label].colour]
        axes.barh(place, bar.length or 0, height=0.62, color=colour, alpha=0.55)
        axes.plot(bar.dots, [place] * len(bar.dots), "o", color=colour, mec="white", ms=5)
        _beside(axes, bar.text, (_end(bar), place), (8, 0), va="center", fontsize=10)
    if panel.level is not None:
        axes.axvline(panel.level, color=PALETTE[0], linewidth=1.2, linestyle="--")
    _tidy(axes, grid="x")
    axes.set_yticks(range(len(panel.bars)), [_plain(bar.label, LONGEST) for bar in panel.bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max([panel.level or 0, *map(_end, panel.bars)]) or 1)
    axes.tick_params(axis="y", length=0)


def _draw_strips(axes: "Axes", panel: Panel, _: dict[str, Look]) -> None:
    from matplotlib.patches import Patch

    for place, strip in enumerate(panel.strips):
        for part in strip.parts:
            colour = MODES.get(part.mode, PALETTE[0])
            axes.barh(place, part.end - part.start, 0.7, part.start, color=colour)
    _tidy(axes, grid="x")
    axes.set_yticks(range(len(panel.strips)), [_plain(s.name, LONGEST) for s in panel.strips])
    axes.invert_yaxis()
    modes = dict.fromkeys(part.mode for strip in panel.strips for part in strip.parts)
    axes.legend(handles=[Patch(color=MODES.get(m, PALETTE[0]), label=_plain(m)) for m in modes])


def _beside(
    axes: "Axes", text: str, at: tuple[float, float], offset: tuple[float, float], **options: Any
) -> None:
    """Text so many points beside a place."""
    look = {"color": INK, "fontsize": 9, **options}
    axes.annotate(_plain(text, LONGEST), at, offset, textcoords="offset points", **look)


def _end(bar: Bar) -> float:
    return max([bar.length or 0, *bar.dots])


def _legend(figure: "Figure", styles: dict[str, Look], columns: int) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=PALETTE[look.colour], linestyle=DASHES[look.dash], linewidth=2)
        for look in styles.values()
    ]
    labels = [_plain(label, LONGEST) for label in styles]
    options = {"ncols": columns, "frameon": False, "labelcolor": INK, "handlelength": 2.6}
    figure.legend(lines, labels, loc="outside lower center", **options)


def _log_ticks(axes: "Axes") -> None:
    """Plain numbers on a logarithmic y axis, and more of them where it spans little.

    To be called after everything is drawn.
    """
    from matplotlib.ticker import LogLocator

    low, high = axes.get_ylim()
    subs = range(1, 10) if high < 5 * low else (1, 2, 5) if high < 100 * low else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def _tidy(axes: "Axes", grid: Any = "both") -> None:
    """Thin grid lines behind, no frame."""
    axes.margins(x=0.01)
    axes.grid(True, which="major", axis=grid, color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _plain(text: str, longest: int = 1000) -> str:
    """Text on one line, not too long, and no formula whatever its dollar signs."""
    line = re.sub(r"[\s\x00-\x1f\x7f]+", " ", text).strip()
    short = line if len(line) <= longest else line[: longest - 1] + "…"
    return short.replace("$", r"\$")
