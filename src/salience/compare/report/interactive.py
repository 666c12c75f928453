"""Charts for a browser: what ``charts.js`` draws, and pages that need nothing but themselves.

A colour is a number, whose CSS variable differs between light and dark.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files
from typing import Any

from salience.compare.charts import (
    CROWD,
    FEW,
    Bar,
    Chart,
    Line,
    Look,
    Panel,
    Strip,
    clipped,
    drawable,
    first_shown,
    looks,
)
from salience.compare.directory import finite

__all__ = [
    *("SCRIPTS", "chart_html", "figures", "legend", "looks_of", "plain_json", "policy", "render"),
    *("script_json", "text_of"),
]

SCRIPTS = ("charts.js", "report.js")
DASH_ARRAYS = {"solid": "none", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3"}


# ------------------------------------------------------------------------------------------ pages


def chart_html(chart: Chart, text: str = "") -> str:
    """One self-contained page: the chart to zoom and point into, and a paragraph below it."""
    return render("chart.html.jinja", [chart], title=chart.title, text=text)


def render(
    template: str,
    charts: Sequence[Chart] = (),
    *,
    scripts: Sequence[str] = SCRIPTS,
    connect: str = "",
    **content: Any,
) -> str:
    """A page that needs nothing but itself. What came from data is escaped, in text and scripts.

    ``template`` and ``scripts`` are files beside this one, or "package:file". Templates extend
    ``base.html.jinja``, which has the style, the policy and the scripts. ``connect``: from where
    scripts may fetch; by default from nowhere.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FunctionLoader(text_of),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    programs = [text_of(name) for name in scripts]
    styles = looks_of(charts)
    every = {name: each for chart in charts for name, each in figures(chart, styles).items()}
    shown = {
        "charts": charts,
        "legend": legend(styles),
        "policy": policy(programs, connect),
        "style": Markup(text_of("report.css")),
        "scripts": [Markup(program) for program in programs],
        "figures": Markup(script_json(every)),
    }
    return environment.get_template(template).render(**{**shown, **content})


def looks_of(charts: Sequence[Chart]) -> dict[str, Look]:
    """One look for each label of all charts of a page, in the order of its legend."""
    if not charts:
        return {}
    panels = [panel for chart in charts for panel in chart.panels]
    return looks(replace(charts[0], panels=panels))


def legend(styles: Mapping[str, Look]) -> list[dict[str, Any]]:
    """What the buttons above the charts show."""
    return [
        {"name": label, "colour": look.colour, "dashes": DASH_ARRAYS[look.dash]}
        for label, look in styles.items()
    ]


def policy(scripts: Sequence[str], connect: str = "") -> str:
    """Only these scripts run, and nothing is fetched, or only from ``connect``."""
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    asked = f"connect-src {connect}; " if connect else ""
    return (
        f"default-src 'none'; script-src {allowed}; {asked}style-src 'unsafe-inline'; "
        f"img-src data:; base-uri 'none'; form-action 'none'"
    )


def text_of(name: str) -> str:
    """A file of this folder, or of another package as "package:file"."""
    package, _, file = name.rpartition(":")
    folder = files(package or "salience.compare.report")
    return folder.joinpath(file).read_text(encoding="utf-8")


def plain_json(value: Any) -> str:
    """JSON in as few characters as numbers need; what is not finite is None, a gap in a line."""
    return json.dumps(finite(value, digits=6), allow_nan=False, separators=(",", ":"))


def script_json(value: Any) -> str:
    """JSON for inside a script element, where no text may look like the element's end."""
    text = plain_json(value)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


# ---------------------------------------------------------------------------------------- figures


def figures(chart: Chart, styles: dict[str, Look]) -> dict[str, dict[str, Any]]:
    """What ``charts.js`` draws of each panel, by the id of its element."""
    return {
        f"{chart.name}-{place}": _figure(panel, styles) for place, panel in enumerate(chart.panels)
    }


def _figure(panel: Panel, styles: dict[str, Look]) -> dict[str, Any]:
    shared = {"x": panel.x, "y": panel.y, "unit": panel.unit, "level": panel.level}
    if panel.bars:
        return {**shared, "bars": [_bar(bar, styles) for bar in panel.bars]}
    if panel.strips:
        return {**shared, "strips": [_strip(strip, styles) for strip in panel.strips]}
    return {
        **shared,
        "level_text": panel.level_text,
        "log": panel.log,
        "clip": clipped(panel),
        "pale": 0.2 if len(styles) <= CROWD else 0.07,
        "lines": [_line(line, panel.log, styles) for line in panel.lines],
    }


def _look(label: str, styles: dict[str, Look]) -> dict[str, Any]:
    """``place`` is that in the legend, whose button hides it."""
    look = styles[label]
    dashes = DASH_ARRAYS[look.dash]
    return {
        "label": label,
        "place": [*styles].index(label),
        "colour": look.colour,
        "dashes": dashes,
    }


def _line(line: Line, log: bool, styles: dict[str, Look]) -> dict[str, Any]:
    y, low, high = drawable(line, log)
    values = {"x": line.x, "y": y, "low": low, "high": high}
    shown = {"points": len(line.x) <= FEW, "first": first_shown(line)}
    return {**_look(line.label, styles), **values, **shown, "mark": line.marked, "note": line.note}


def _bar(bar: Bar, styles: dict[str, Look]) -> dict[str, Any]:
    return {**_look(bar.label, styles), "length": bar.length, "dots": bar.dots, "text": bar.text}


def _strip(strip: Strip, styles: dict[str, Look]) -> dict[str, Any]:
    parts = [{"from": p.start, "to": p.end, "mode": p.mode, "why": p.why} for p in strip.parts]
    end = max((part.end for part in strip.parts), default=0.0)
    return {**_look(strip.label, styles), "short": strip.name, "parts": parts, "end": end}
