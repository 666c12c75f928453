"""The interactive charts: plain data for plotly.js, without a colour or a letter of markup.

A colour is the name of a CSS variable ("--series-1"); the page puts in its value, which differs
between light and dark. Names are written so that plotly, which takes some tags for its own, shows
them as they are.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

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

__all__ = ["chart_title", "charts", "label", "script_json"]

FEW = 50.0  # the largest over the smallest value up to which an axis has 2 and 5 besides 1 and 10
LONGEST = 32  # characters of a name beside the pointer; the legend has all of it
CROWD = 7  # methods; more than these have paler bands
AXES = {"steps": "steps", "seconds": "seconds of training"}


def charts(rows: Sequence[Row], summary: Summary) -> dict[str, dict[str, Any]]:
    """Name of a chart -> its traces and layout; train and test, against steps and seconds."""
    styles = looks(summary["methods"], summary["baseline"])
    made = {}
    for measure in (TRAIN, tested(rows)):
        curves = {name: curve(rows, name, measure) for name in styles}
        for on in AXES:
            traces = _traces(curves, styles, on, measure)
            if measure is TRAIN:
                traces += _goal(curves, styles, on, summary["target_train_loss"])
            made[f"{measure.key}-{on}"] = {
                "data": traces,
                "layout": _layout(on, measure, curves),
            }
    return made


def chart_title(measure: Measure, on: str) -> str:
    """What a chart shows, for its caption."""
    return f"{measure.title} against {on}"


def _traces(
    curves: dict[str, Curve], styles: dict[str, Look], on: str, measure: Measure
) -> list[dict[str, Any]]:
    """Bands first, so that lines lie over all of them."""
    bands = [_band(place, each, styles, on) for place, each in enumerate(curves.items())]
    lines = [_line(place, each, styles, on, measure) for place, each in enumerate(curves.items())]
    return [band for band in bands if band["x"]] + lines


def _band(place: int, named: tuple[str, Curve], styles: dict[str, Look], on: str) -> dict[str, Any]:
    """From the best seed to the worst: there along one side and back along the other."""
    name, found = named
    x = getattr(found, on)
    known = [i for i, (a, b) in enumerate(zip(found.low, found.high, strict=True)) if a < b]
    back = known[::-1]
    return {
        "meta": place,
        "x": [x[i] for i in known + back],
        "y": [found.high[i] for i in known] + [found.low[i] for i in back],
        "mode": "lines",
        "fill": "toself",
        "fillcolor": _colour(styles[name]),
        "line": {"width": 0, "color": _colour(styles[name])},
        "opacity": 0.2 if len(styles) <= CROWD else 0.07,
        "hoverinfo": "skip",
    }


def _line(
    place: int, named: tuple[str, Curve], styles: dict[str, Look], on: str, measure: Measure
) -> dict[str, Any]:
    name, found = named
    spread = any(a < b for a, b in zip(found.low, found.high, strict=True))
    between = " (%{customdata[0]:.3~g} to %{customdata[1]:.3~g})" if spread else ""
    return {
        "meta": place,
        "name": label(name),
        "x": getattr(found, on),
        "y": found.mean,
        "customdata": [[*ends] for ends in zip(found.low, found.high, strict=True)],
        "mode": "lines",
        "line": {"color": _colour(styles[name]), "dash": styles[name].dash, "width": 2.4},
        "hovertemplate": "%{y:.3~g}" + measure.unit + between,
        "hoverlabel": {"namelength": -1},
    }


def _goal(
    curves: dict[str, Curve], styles: dict[str, Look], on: str, target: float
) -> list[dict[str, Any]]:
    """The target, and where each method met it first."""
    ends = [x for found in curves.values() for x in getattr(found, on)]
    if not target > 0 or not ends:
        return []
    line = {"color": "--ink-soft", "dash": "dot", "width": 1.2}
    goal = {"x": [min(ends), max(ends)], "y": [target, target], "mode": "lines", "line": line}
    marks = [_met(place, each, styles, on, target) for place, each in enumerate(curves.items())]
    return [{**goal, "hoverinfo": "skip"}, *(mark for mark in marks if mark["x"])]


def _met(
    place: int, named: tuple[str, Curve], styles: dict[str, Look], on: str, target: float
) -> dict[str, Any]:
    name, found = named
    at = arrival(found, target)
    x, y = ([], []) if at is None else ([getattr(found, on)[at]], [found.mean[at]])
    ring = {"color": "--card", "width": 2}
    marker = {"color": _colour(styles[name]), "size": 11, "line": ring}
    return {"meta": place, "x": x, "y": y, "mode": "markers", "marker": marker, "hoverinfo": "skip"}


def _layout(on: str, measure: Measure, curves: dict[str, Curve]) -> dict[str, Any]:
    axis = {
        "gridcolor": "--line",
        "linecolor": "--line",
        "zeroline": False,
        "automargin": True,
        "tickfont": {"size": 12.5},
    }
    return {
        "showlegend": False,
        "hovermode": "x unified" if on == "steps" else "closest",
        "margin": {"l": 48, "r": 10, "t": 8, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 13, "color": "--ink-soft"},
        "hoverlabel": {"bgcolor": "--card", "bordercolor": "--line", "font": {"color": "--ink"}},
        "xaxis": {**axis, "title": {"text": AXES[on], "font": {"size": 13}}, **_reach(curves, on)},
        "yaxis": {**axis, **_scale(curves, measure), "ticksuffix": measure.unit},
    }


def _reach(curves: dict[str, Curve], on: str) -> dict[str, Any]:
    """From zero to a little beyond the last point, so that marks at the end are whole."""
    last = max((x for found in curves.values() for x in getattr(found, on)), default=0.0)
    return {"range": [0, 1.02 * last]} if last > 0 else {"rangemode": "tozero"}


def _scale(curves: dict[str, Curve], measure: Measure) -> dict[str, Any]:
    """A logarithmic axis with a line for each power of ten, and more where it spans few."""
    if not is_logarithmic(curves):
        return {"rangemode": "tozero" if measure.unit == "%" else "normal"}
    values = [v for each in curves.values() for v in each.low + each.high if math.isfinite(v)]
    few = not values or max(values) / min(values) < FEW
    return {"type": "log", "tickformat": "~g", "dtick": "D2" if few else 1}


def _colour(look: Look) -> str:
    return f"--series-{look.colour}"


def label(text: str) -> str:
    """A short text for plotly: what looks like a tag or an entity is shown, not obeyed."""
    line = " ".join(text.split())
    line = line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def script_json(value: Any) -> str:
    """JSON for inside a script element, where no text may look like the element's end."""
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _finite(value: Any) -> Any:
    """The same with five digits, and None (a gap in a curve) for what is not finite."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
