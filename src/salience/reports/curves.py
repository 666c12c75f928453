"""The curves as a picture: train loss against steps and against seconds, for every method."""

from collections.abc import Sequence
from io import BytesIO
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from salience.experiments.summary import Summary
from salience.experiments.training import Row
from salience.reports import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["curves_png"]

# Okabe and Ito's colours, which every kind of colour vision tells apart; grey is the baseline.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
BASELINE = "#555555"
INK = "#222222"
LEAST = 1e-12  # a loss of exactly zero has no place on a logarithmic axis


class Curve(NamedTuple):
    """One method, over its seeds: means, and the range from the best seed to the worst."""

    steps: list[int]
    seconds: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def curves_png(rows: Sequence[Row], summary: Summary) -> bytes:
    """The figure as a PNG file; nothing of matplotlib's global state is touched."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    by_steps, by_seconds = figure.subplots(1, 2, sharey=True)
    curves = {name: _curve(rows, name) for name in summary["methods"]}
    for axes, on in ((by_steps, "steps"), (by_seconds, "seconds")):
        _draw(axes, curves, on, summary)
    by_steps.set_ylabel("train loss (whole training set)", color=INK)
    by_steps.legend(frameon=False, loc="upper right", labelcolor=INK)
    _title(figure, summary)
    png = BytesIO()
    figure.savefig(png, format="png", dpi=144)
    return png.getvalue()


def _draw(axes: "Axes", curves: dict[str, Curve], on: str, summary: Summary) -> None:
    colours = iter(COLOURS * len(curves))
    for name, curve in curves.items():
        is_baseline = name == summary["baseline"]
        colour = BASELINE if is_baseline else next(colours)
        x = curve.steps if on == "steps" else curve.seconds
        axes.fill_between(x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(x, curve.mean, "--" if is_baseline else "-", color=colour, lw=2, label=name)
        for place in _arrival(curve, summary["target_train_loss"]):
            axes.plot(x[place], curve.mean[place], "o", color=colour, markeredgecolor="white", ms=8)
    axes.axhline(summary["target_train_loss"], color=INK, linewidth=0.8, linestyle=":")
    axes.set_xlabel({"steps": "steps", "seconds": "seconds of training"}[on], color=INK)
    _tidy(axes)


def _arrival(curve: Curve, target: float) -> list[int]:
    """Where the mean is at or below the target for the first time; empty where it never is."""
    return [i for i, mean in enumerate(curve.mean) if mean <= target][:1]


def _tidy(axes: "Axes") -> None:
    axes.set_yscale("log")
    axes.margins(x=0.01)
    axes.grid(True, which="major", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _title(figure: "Figure", summary: Summary) -> None:
    n = summary["methods"][summary["baseline"]]["n"]
    seeds = f"mean and range of {n} seeds" if n > 1 else "one seed"
    target = numbers.loss(summary["target_train_loss"])
    figure.suptitle(
        f"{summary['task']}: {seeds}; dotted: where {summary['baseline']} ended ({target})",
        fontsize=11,
        color=INK,
    )


def _curve(rows: Sequence[Row], method: str) -> Curve:
    """Over seeds, at the steps where every seed was evaluated."""
    at: dict[int, list[Row]] = {}
    for row in rows:
        if row["method"] == method:
            at.setdefault(row["step"], []).append(row)
    seeds = max(map(len, at.values()))
    steps = sorted(step for step, found in at.items() if len(found) == seeds)
    losses = [[max(row["train_loss"], LEAST) for row in at[step]] for step in steps]
    return Curve(
        steps,
        [fmean(row["seconds"] for row in at[step]) for step in steps],
        *_statistics(losses),
    )


def _statistics(losses: list[list[float]]) -> tuple[Any, Any, Any]:
    return [fmean(group) for group in losses], [*map(min, losses)], [*map(max, losses)]
