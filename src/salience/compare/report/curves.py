"""The curves as pictures: losses and test results against steps and against seconds."""

import re
import warnings
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from salience.compare.report import numbers
from salience.compare.report.series import (
    TRAIN,
    Curve,
    Look,
    Measure,
    arrival,
    curve,
    is_logarithmic,
    looks,
    tested,
)
from salience.compare.summary import Summary
from salience.compare.training import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "INK",
    "PALETTE",
    "curves_png",
    "logarithmic",
    "new_figure",
    "plain",
    "png",
    "tested_png",
    "tidy",
]

# Grey for the baseline, then Okabe and Ito's colours, which every colour vision tells apart.
PALETTE = ("#555555", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
INK = "#222222"
CROWD = 7  # methods; more than these have paler bands
LONGEST = 40  # characters of a name
LEGEND_WIDTH = 120  # characters


def curves_png(rows: Sequence[Row], summary: Summary) -> bytes:
    """The train loss as a PNG file, with the target and where each method met it."""
    return _pair(rows, summary, TRAIN)


def tested_png(rows: Sequence[Row], summary: Summary) -> bytes:
    """The test error, or the perplexity, as a PNG file."""
    return _pair(rows, summary, tested(rows))


def _pair(rows: Sequence[Row], summary: Summary, measure: Measure) -> bytes:
    """Against steps on the left, against seconds on the right."""
    styles = looks(summary["methods"], summary["baseline"])
    curves = {name: curve(rows, name, measure) for name in styles}
    figure = new_figure(10, 4.4 + 0.22 * _legend_lines(curves))
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, on in ((left, "steps"), (right, "seconds")):
        _draw(axes, curves, styles, on)
        _mark(axes, curves, styles, on, summary, measure)
        axes.set_xlabel({"steps": "steps", "seconds": "seconds of training"}[on], color=INK)
        tidy(axes)
    if is_logarithmic(curves):
        logarithmic(left)
    unit = f" ({measure.unit})" if measure.unit else ""
    left.set_ylabel(measure.title.lower() + unit, color=INK)
    _legend(figure, left, curves)
    figure.suptitle(_title(summary, measure), fontsize=11, color=INK)
    return png(figure)


def _draw(axes: "Axes", curves: dict[str, Curve], styles: dict[str, Look], on: str) -> None:
    """A line for the mean of each method, on a band from its best seed to its worst."""
    pale = 0.16 if len(curves) <= CROWD else 0.06
    for name, found in curves.items():
        x = found.steps if on == "steps" else found.seconds
        colour, dash = PALETTE[styles[name].colour], DASHES[styles[name].dash]
        axes.fill_between(x, found.low, found.high, color=colour, alpha=pale, linewidth=0)
        axes.plot(x, found.mean, dash, color=colour, linewidth=2)


def _mark(
    axes: "Axes",
    curves: dict[str, Curve],
    styles: dict[str, Look],
    on: str,
    summary: Summary,
    measure: Measure,
) -> None:
    """The target, and where each mean is at or below it for the first time."""
    target = summary["target_train_loss"]
    if measure is not TRAIN or not target > 0:
        return
    axes.axhline(target, color=INK, linewidth=0.8, linestyle=":")
    for name, found in curves.items():
        place = arrival(found, target)
        if place is not None:
            x = found.steps if on == "steps" else found.seconds
            colour = PALETTE[styles[name].colour]
            axes.plot(x[place], found.mean[place], "o", color=colour, mec="white", ms=8)


def _legend(figure: "Figure", axes: "Axes", curves: dict[str, Curve]) -> None:
    figure.legend(
        [line for line in axes.get_lines() if line.get_linewidth() == 2][: len(curves)],
        [plain(name) for name in curves],
        loc="outside lower center",
        ncols=_legend_columns(curves),
        frameon=False,
        labelcolor=INK,
        handlelength=2.6,
    )


def _legend_columns(curves: dict[str, Curve]) -> int:
    widest = max(len(plain(name)) for name in curves) + 8
    return max(1, min(len(curves), LEGEND_WIDTH // widest))


def _legend_lines(curves: dict[str, Curve]) -> int:
    return -(-len(curves) // _legend_columns(curves))


def _title(summary: Summary, measure: Measure) -> str:
    n = summary["methods"][summary["baseline"]]["n"]
    seeds = f"mean and range of {n} seeds" if n > 1 else "one seed"
    text = f"{plain(summary['task'])}: {seeds}"
    if measure is not TRAIN or not summary["target_train_loss"] > 0:
        return text
    target = numbers.loss(summary["target_train_loss"])
    return f"{text}; dotted: where {plain(summary['baseline'])} ended ({target})"


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure in inches; nothing of matplotlib's global state is touched."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def logarithmic(axes: "Axes") -> None:
    """A logarithmic axis for y, after everything is drawn, with plain numbers.

    Where it spans less than a power of ten, there are more of them.
    """
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    number = FuncFormatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(number)
    axes.yaxis.set_minor_formatter(number if high < 10 * low else NullFormatter())
    axes.tick_params(axis="y", which="minor", labelcolor=INK)


def tidy(axes: "Axes", grid: Any = "both") -> None:
    """Thin grid lines behind, no frame."""
    axes.margins(x=0.01)
    axes.grid(True, which="major", axis=grid, color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def png(figure: "Figure") -> bytes:
    """The figure as a PNG file. A letter that the font lacks is no reason to speak up."""
    content = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(content, format="png", dpi=144)
    return content.getvalue()


def plain(text: str) -> str:
    """A name as a label: on one line, not too long, and no formula whatever its dollar signs."""
    line = re.sub(r"[\s\x00-\x1f\x7f]+", " ", text).strip()
    short = line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
    return short.replace("$", r"\$")
