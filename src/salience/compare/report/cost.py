"""What a step costs with each method, as a picture: bars, and a line where the baseline is."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from salience.compare.report.curves import INK, PALETTE, new_figure, plain, png, tidy
from salience.compare.report.series import looks, step_costs
from salience.compare.summary import MethodSummary, Summary
from salience.compare.training import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Cost", "cost_png", "costs"]


class Cost(NamedTuple):
    """Training time of a step: over the baseline's, of each seed alone, and in milliseconds."""

    name: str
    ratio: float | None
    seeds: list[float]
    milliseconds: float | None

    def label(self) -> str:
        """1.20x, 3.1 ms."""
        if self.ratio is None:
            return "not measured"
        return f"{self.ratio:.2f}x" + (f", {self.milliseconds:.3g} ms" if self.milliseconds else "")


def costs(rows: Sequence[Row], summary: Summary) -> list[Cost]:
    """One entry per method, the baseline first."""
    alone = step_costs(rows, summary)
    base = alone[summary["baseline"]]
    unit = sum(base) / len(base) if base and sum(base) > 0 else None
    return [
        Cost(
            name,
            summary["methods"][name]["step_cost_ratio"],
            [seconds / unit for seconds in alone[name]] if unit else [],
            _milliseconds(summary["methods"][name]),
        )
        for name in looks(summary["methods"], summary["baseline"])
    ]


def _milliseconds(method: MethodSummary) -> float | None:
    seconds, step = method["final"].get("seconds"), method["final"]["step"]
    return 1000 * seconds["mean"] / step if seconds and step else None


def cost_png(rows: Sequence[Row], summary: Summary) -> bytes:
    """The figure as a PNG file."""
    found = costs(rows, summary)
    figure = new_figure(8, 1.2 + 0.42 * len(found))
    axes = figure.subplots()
    _bars(axes, found, summary)
    axes.axvline(1, color=PALETTE[0], linewidth=1.2, linestyle="--")
    axes.set_xlabel(f"cost of a step, over that of {plain(summary['baseline'])}", color=INK)
    figure.suptitle(f"{plain(summary['task'])}: dots are seeds alone", fontsize=11, color=INK)
    return png(figure)


def _bars(axes: "Axes", found: list[Cost], summary: Summary) -> None:
    styles = looks(summary["methods"], summary["baseline"])
    for place, cost in enumerate(found):
        colour = PALETTE[styles[cost.name].colour]
        axes.barh(place, cost.ratio or 0, height=0.62, color=colour, alpha=0.55)
        axes.plot(cost.seeds, [place] * len(cost.seeds), "o", color=colour, mec="white", ms=5)
        end = max([cost.ratio or 0, *cost.seeds])
        axes.annotate(
            cost.label(), (end, place), (8, 0), textcoords="offset points", va="center", color=INK
        )
    tidy(axes, grid="x")
    axes.set_yticks(range(len(found)), [plain(cost.name) for cost in found])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max(1.0, *(max([c.ratio or 0, *c.seeds]) for c in found)))
    axes.tick_params(axis="y", length=0)
