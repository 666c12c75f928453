"""The figures of a target: for each a PNG and an interactive page, drawn from the same data."""

import html
import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from salience.compare.charts import Chart, Line, Panel, Table
from salience.compare.records import refused
from salience.compare.report.curves import INK, PALETTE, logarithmic, new_figure, png, tidy
from salience.paper.reproduce import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["chart_html", "chart_png", "table_markdown", "write_figures"]

BASELINE = "uniform"
FEW = 12  # points; so few are marked, for a line alone would not show where they are
BAND = 0.14  # opacity
TITLE_WIDTH = 110  # characters
DASHES: dict[str, Any] = {"solid": "-", "dash": "--", "dot": ":"}


class Look(NamedTuple):
    """How a line is drawn: the same in every panel of a chart, on paper and on the screen."""

    colour: str
    dash: str  # solid, dash or dot


def write_figures(outcome: Outcome) -> list[Path]:
    """Draw everything of a finished target into its directory; the files written."""
    contents: dict[str, bytes] = {}
    for chart in outcome.charts:
        contents[f"{chart.name}.png"] = chart_png(chart)
        contents[f"{chart.name}.html"] = chart_html(chart, outcome.paragraph).encode()
    for table in outcome.tables:
        if "paper mean" in table.columns:
            contents[f"{table.name}.md"] = table_markdown(table, outcome.paragraph).encode()
    with refused(outcome.directory):
        for name, content in contents.items():
            (outcome.directory / name).write_bytes(content)
    return [outcome.directory / name for name in contents]


def looks(chart: Chart) -> dict[str, Look]:
    """Grey and dashed for the baseline, a colour for each other label, dotted for its likeness."""
    lines = {line.label: line for panel in chart.panels for line in panel.lines}
    own = [label for label, line in lines.items() if line.like is None and label != BASELINE]
    colours = {label: PALETTE[1 + i % (len(PALETTE) - 1)] for i, label in enumerate(own)}
    colours[BASELINE] = PALETTE[0]
    return {
        label: Look(
            colours[line.like or label],
            "dot" if line.like else "dash" if label == BASELINE else "solid",
        )
        for label, line in lines.items()
    }


# ------------------------------------------------------------------------------------------- PNG


def chart_png(chart: Chart) -> bytes:
    """The figure as a PNG file; nothing of matplotlib's global state is touched."""
    count, styles = len(chart.panels), looks(chart)
    columns = max(1, min(len(styles), 2 * count))
    rows = math.ceil(len(styles) / columns)
    figure = new_figure(5.4 * max(count, 1.4), 4.6 + 0.24 * rows)
    for axes, panel in zip(figure.subplots(1, count, squeeze=False)[0], chart.panels, strict=True):
        _draw(axes, panel, styles)
    if len(styles) > 1:
        figure.legend(
            [_handle(look) for look in styles.values()],
            list(styles),
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            labelcolor=INK,
        )
    figure.suptitle("\n".join(textwrap.wrap(chart.title, TITLE_WIDTH)), fontsize=10, color=INK)
    return png(figure)


def _draw(axes: "Axes", panel: Panel, styles: dict[str, Look]) -> None:
    for line in panel.lines:
        colour, dash = styles[line.label]
        y, low, high = _drawable(line, panel.log)
        if low and high:
            axes.fill_between(line.x, low, high, color=colour, alpha=BAND, linewidth=0)
        marker = "o" if len(line.x) <= FEW else ""
        axes.plot(line.x, y, DASHES[dash], color=colour, lw=1.8, marker=marker, markersize=4)
    if panel.level is not None:
        axes.axhline(panel.level, color=INK, linewidth=0.8, linestyle=":")
    axes.set_title(panel.title, fontsize=10, color=INK)
    axes.set_xlabel(panel.x, color=INK)
    axes.set_ylabel(panel.y, color=INK)
    if panel.log:
        logarithmic(axes)
    tidy(axes)


def _handle(look: Look) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=look.colour, linestyle=DASHES[look.dash], linewidth=1.8)


def _drawable(line: Line, log: bool) -> tuple[list[float], list[float], list[float]]:
    """y, low and high. On a logarithmic axis nothing is at or below zero: a line has a gap
    there, and a band ends at a third of the lowest point of its line.
    """
    bands = (line.low or [], line.high or [])
    if not log:
        return line.y, *bands
    floor = min((y for y in line.y if y > 0), default=1.0) / 3
    low, high = ([max(value, floor) for value in band] for band in bands)
    return [y if y > 0 else math.nan for y in line.y], low, high


# ------------------------------------------------------------------------------------------ HTML


def chart_html(chart: Chart, text: str = "") -> str:
    """One page that needs nothing else: the figure to zoom and point into, and the outcome."""
    from plotly.graph_objects import Figure
    from plotly.subplots import make_subplots

    titles = [_escaped(panel.title) for panel in chart.panels]
    figure: Figure = make_subplots(rows=1, cols=len(chart.panels), subplot_titles=titles)
    styles, shown = looks(chart), set[str]()
    for column, panel in enumerate(chart.panels, start=1):
        for trace in _traces(panel, styles, shown):
            figure.add_trace(trace, row=1, col=column)
        if panel.level is not None:
            figure.add_hline(
                panel.level, line={"color": INK, "width": 1, "dash": "dot"}, col=column
            )
        figure.update_xaxes(title_text=_escaped(panel.x), col=column)
        kind = {"type": "log", "tickformat": "~g"} if panel.log else {"type": "linear"}
        figure.update_yaxes(title_text=_escaped(panel.y), **kind, col=column)
    figure.update_layout(
        template="plotly_white", height=520, title=_broken(chart.title), margin={"t": 120}
    )
    page: str = figure.to_html(include_plotlyjs=True, div_id=chart.name)
    return _with_text(page, chart.title, text)


def _traces(panel: Panel, styles: dict[str, Look], shown: set[str]) -> Iterator[dict[str, Any]]:
    """A band and a line for each label; the legend names a label once."""
    for line in panel.lines:
        look = styles[line.label]
        y, low, high = _drawable(line, panel.log)
        group = {"legendgroup": line.label, "name": _escaped(line.label)}
        if low and high:
            yield {**group, **_band(line.x, low, high, look.colour)}
        yield {
            **group,
            "type": "scatter",
            "x": line.x,
            "y": y,
            "mode": "lines+markers" if len(line.x) <= FEW else "lines",
            "line": {"color": look.colour, "dash": look.dash, "width": 2},
            "showlegend": line.label not in shown,
        }
        shown.add(line.label)


def _band(
    x: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str
) -> dict[str, Any]:
    """There along the upper edge and back along the lower one."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return {
        "type": "scatter",
        "x": [*x, *reversed(x)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},{BAND})",
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _with_text(page: str, title: str, text: str) -> str:
    """A title for the browser, and the outcome below the figure."""
    style = f"max-width:60em;margin:1em auto;font:15px/1.5 sans-serif;color:{INK}"
    below = f'<p style="{style}">{_escaped(text)}</p></body>' if text else "</body>"
    head = f"<head><title>{_escaped(title)}</title>"
    before, _, after = page.rpartition("</body>")
    return before.replace("<head>", head, 1) + below + after


def _broken(title: str) -> str:
    return "<br>".join(_escaped(line) for line in textwrap.wrap(title, TITLE_WIDTH))


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


# ------------------------------------------------------------------------------------- the table


def table_markdown(table: Table, text: str) -> str:
    """Table 1 as the paper lays it out, each cell ours and the paper's."""
    place = {column: i for i, column in enumerate(table.columns)}
    methods = list(dict.fromkeys(row[place["method"]] for row in table.rows))
    head = ["", "epoch", "step", *methods]
    lines = [_row(head), _row(["---"] * len(head))]
    for start in range(0, len(table.rows), len(methods)):
        group = table.rows[start : start + len(methods)]
        task, epoch, step = (str(group[0][place[key]]) for key in ("task", "epoch", "step"))
        lines.append(_row([task, epoch, step, *(_cell(row, place) for row in group)]))
    below = (
        "Mean ± standard deviation; in brackets the paper's. Errors in percent, perplexity for ptb."
    )
    return "\n".join([*lines, "", below, "", text, ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(row: Sequence[Any], place: dict[str, int]) -> str:
    mean, std, paper, around = (row[place[k]] for k in ("mean", "std", "paper mean", "paper std"))
    ours = f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"
    return f"{ours} ({paper:g} ± {around:g})"
