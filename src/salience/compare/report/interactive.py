"""Charts for a browser: data for plotly.js, and pages that need nothing but themselves.

A colour is the name of a CSS variable ("--series-1"); the page fills in its value, which differs
between light and dark. Labels are escaped, since plotly would interpret some tags.
"""

import json
import math
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from salience.compare.charts import CROWD, FEW, Chart, Line, Look, Panel, drawable, looks
from salience.compare.directory import finite

__all__ = ["chart_html", "figures", "render", "script_json"]

FEW_TICKS = 50.0  # largest over smallest value up to which an axis has 2 and 5 besides 1 and 10
LONGEST = 32  # characters of a label beside the pointer; the legend has all of it
DASH_ARRAYS = {"solid": "none", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3"}


# ------------------------------------------------------------------------------------------ pages


def chart_html(chart: Chart, text: str = "") -> str:
    """One self-contained page: the chart to zoom and point into, and a paragraph below it."""
    return render("chart.html.jinja", [chart], title=chart.title, text=text)


def render(template: str, charts: Sequence[Chart], **content: Any) -> str:
    """A page of this folder. Whatever came from data is escaped, in text and scripts alike."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=FunctionLoader(_beside),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = [get_plotlyjs(), _beside("report.js")]
    legend = [
        {"name": label, "colour": look.colour, "dashes": DASH_ARRAYS[look.dash]}
        for label, look in looks(charts[0]).items()
    ]
    every = {name: each for chart in charts for name, each in figures(chart).items()}
    return environment.get_template(template).render(
        **content,
        charts=charts,
        legend=legend,
        policy=_policy(scripts),
        style=Markup(_beside("report.css")),
        scripts=[Markup(script) for script in scripts],
        figures=Markup(script_json(every)),
    )


def _policy(scripts: list[str]) -> str:
    """Only these scripts run, and nothing is fetched from anywhere."""
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"base-uri 'none'; form-action 'none'"
    )


def _beside(name: str) -> str:
    """A file of this folder."""
    return files("salience.compare.report").joinpath(name).read_text(encoding="utf-8")


def script_json(value: Any) -> str:
    """JSON for inside a script element, where no text may look like the element's end.

    What is not finite is None, a gap in a line.
    """
    text = json.dumps(finite(value, digits=6), allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


# ---------------------------------------------------------------------------------------- figures


def figures(chart: Chart) -> dict[str, dict[str, Any]]:
    """The traces and the layout of each panel, by the id of its element."""
    styles = looks(chart)
    return {
        f"{chart.name}-{place}": {
            "data": [*(_bars if panel.bars else _lines)(panel, styles)],
            "layout": _layout(panel),
        }
        for place, panel in enumerate(chart.panels)
    }


def _lines(panel: Panel, styles: dict[str, Look]) -> Iterator[dict[str, Any]]:
    """Bands first and marks last; ``meta`` is the place in the legend, whose button hides it."""
    pale = 0.2 if len(styles) <= CROWD else 0.07
    every = [([*styles].index(line.label), line, styles[line.label]) for line in panel.lines]
    for place, line, look in every:
        yield {"meta": place, "opacity": pale, **_band(line, panel, look)}
    for place, line, look in every:
        yield {"meta": place, **_line(line, panel, look)}
    yield from _level(panel)
    for place, line, look in every:
        if line.mark is not None:
            ring = {"color": "--card", "width": 2}
            marker = {"color": _colour(look), "size": 11, "line": ring}
            at = {"x": [line.x[line.mark]], "y": [line.y[line.mark]]}
            yield {"meta": place, **at, "mode": "markers", "marker": marker, "hoverinfo": "skip"}


def _band(line: Line, panel: Panel, look: Look) -> dict[str, Any]:
    """From low to high: there along one side and back along the other."""
    _, low, high = drawable(line, panel.log)
    known = [i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a < b]
    return {
        "x": [line.x[i] for i in known + known[::-1]],
        "y": [high[i] for i in known] + [low[i] for i in known[::-1]],
        "mode": "lines",
        "fill": "toself",
        "fillcolor": _colour(look),
        "line": {"width": 0, "color": _colour(look)},
        "hoverinfo": "skip",
    }


def _line(line: Line, panel: Panel, look: Look) -> dict[str, Any]:
    y, low, high = drawable(line, panel.log)
    between = any(a < b for a, b in zip(low, high, strict=True))
    around = " (%{customdata[0]:.3~g} to %{customdata[1]:.3~g})" if between else ""
    return {
        "name": _label(line.label),
        "x": line.x,
        "y": y,
        "customdata": [[*ends] for ends in zip(low, high, strict=True)],
        "mode": "lines+markers" if len(line.x) <= FEW else "lines",
        "line": {"color": _colour(look), "dash": look.dash, "width": 2.4},
        "hovertemplate": "%{y:.3~g}" + panel.unit + around,
        "hoverlabel": {"namelength": -1},
    }


def _level(panel: Panel) -> Iterator[dict[str, Any]]:
    ends = [x for line in panel.lines for x in line.x]
    if panel.level is not None and ends and (panel.level > 0 or not panel.log):
        line = {"color": "--ink-soft", "dash": "dot", "width": 1.2}
        at = {"x": [min(ends), max(ends)], "y": [panel.level, panel.level]}
        yield {**at, "mode": "lines", "line": line, "hoverinfo": "skip"}


def _bars(panel: Panel, styles: dict[str, Look]) -> Iterator[dict[str, Any]]:
    """Labels and numbers are above the bars, where they have room on a narrow screen too."""
    for place, bar in enumerate(panel.bars):
        colour = _colour(styles[bar.label])
        shared = {"meta": [*styles].index(bar.label), "hoverinfo": "skip"}
        length = {"x": [bar.length or 0], "y": [place], "width": 0.36}
        pale = {"color": colour, "opacity": 0.5}
        yield {**shared, "type": "bar", "orientation": "h", **length, "marker": pale}
        dots = {"color": colour, "size": 8, "line": {"color": "--card", "width": 1}}
        at = {"x": bar.dots, "y": [place] * len(bar.dots)}
        yield {**shared, **at, "mode": "markers", "marker": dots}
        text = {"text": f"<b>{_label(bar.label)}</b>  {_label(bar.text)}", "cliponaxis": False}
        font = {"textposition": "top right", "textfont": {"color": "--ink", "size": 14}}
        yield {**shared, "x": [0], "y": [place - 0.26], "mode": "text", **text, **font}


def _layout(panel: Panel) -> dict[str, Any]:
    same_x = len({tuple(line.x) for line in panel.lines}) <= 1
    level = {"color": "--series-0", "width": 2, "dash": "dash"}
    ends = {"x0": panel.level, "x1": panel.level, "y0": 0, "y1": 1, "yref": "paper"}
    upright = {"type": "line", **ends, "line": level}
    return {
        "showlegend": False,
        "hovermode": "x unified" if same_x else "closest",
        "margin": {"l": 12 if panel.bars else 48, "r": 10, "t": 8, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 13, "color": "--ink-soft"},
        "hoverlabel": {"bgcolor": "--card", "bordercolor": "--line", "font": {"color": "--ink"}},
        "xaxis": {**_axis(panel.x), **_x_range(panel)},
        "yaxis": {**_axis(panel.y), **_y_scale(panel)},
        "shapes": [upright] if panel.bars and panel.level is not None else [],
    }


def _axis(title: str) -> dict[str, Any]:
    shared = {"gridcolor": "--line", "linecolor": "--line", "zeroline": False, "automargin": True}
    text = {"text": _label(title, 60), "font": {"size": 13}}
    return {**shared, "tickfont": {"size": 12.5}, "title": text}


def _x_range(panel: Panel) -> dict[str, Any]:
    """From zero to a little beyond the last point, so that marks at the end are whole."""
    points = [x for line in panel.lines for x in line.x]
    points += [x for bar in panel.bars for x in (bar.length or 0, panel.level or 0, *bar.dots)]
    last = max(points, default=0.0)
    return {"range": [0, 1.02 * last]} if last > 0 else {"rangemode": "tozero"}


def _y_scale(panel: Panel) -> dict[str, Any]:
    """A logarithmic axis has a tick for each power of ten, and more where it spans few."""
    if panel.bars:
        return {"range": [len(panel.bars) - 0.5, -0.95], "visible": False, "fixedrange": True}
    if not panel.log:
        return {"rangemode": "tozero" if panel.unit else "normal", "ticksuffix": panel.unit}
    drawn = (value for line in panel.lines for side in drawable(line, True) for value in side)
    values = [value for value in drawn if math.isfinite(value)]
    ticks = "D2" if not values or max(values) / min(values) < FEW_TICKS else 1
    return {"type": "log", "tickformat": "~g", "dtick": ticks, "ticksuffix": panel.unit}


def _colour(look: Look) -> str:
    return f"--series-{look.colour}"


def _label(text: str, longest: int = LONGEST) -> str:
    """A short text for plotly, in which tags and entities are shown as they are."""
    line = " ".join(text.split())
    line = line if len(line) <= longest else line[: longest - 1] + "…"
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
