"""The charts of a report: curves of train loss and test measure, and the cost of a step."""

import math
from statistics import fmean

from salience.compare.charts import Bar, Chart, Line, Panel
from salience.compare.reading import Comparison
from salience.compare.report import numbers
from salience.compare.summary import (
    Curve,
    Summary,
    arrival,
    by_seed,
    curve,
    step_seconds,
    tested_by,
)

__all__ = ["charts"]

MUCH = 20.0  # largest over smallest value from which a logarithmic axis is easier to read
AXES = {"steps": "steps", "seconds": "seconds of training"}


def charts(found: Comparison) -> list[Chart]:
    """All charts of a comparison, the baseline first in each."""
    target = found.summary["target_train_loss"]
    return [
        _pair("curves", found, "train_loss", target if target > 0 else None),
        _pair("test", found, tested_by(found.rows[0]), None),
        _costs(found),
    ]


def _pair(name: str, found: Comparison, measure: str, target: float | None) -> Chart:
    """Against steps and against seconds; errors in percent."""
    shown = measure.replace("_", " ")
    unit, scale = ("%", 100.0) if measure == "test_error" else ("", 1.0)
    curves = {}
    for method in found.summary["methods"]:
        steps, seconds, *values = curve(by_seed(found.rows, method), measure)
        scaled = ([scale * value for value in each] for each in values)
        curves[method] = Curve(steps, seconds, *scaled)
    drawn = (value for each in curves.values() for value in each.low + each.high)
    positive = [value for value in drawn if math.isfinite(value) and value > 0]
    log = bool(positive) and max(positive) / min(positive) > MUCH
    panels = [
        Panel(
            title=f"{shown.capitalize()} against {on}",
            x=AXES[on],
            y=shown,
            lines=[_line(each, curves[each], on, target) for each in curves],
            log=log,
            level=target,
            unit=unit,
        )
        for on in AXES
    ]
    title = _title(found.summary, target)
    return Chart(name, title, panels, baseline=found.summary["baseline"], share_y=True)


def _line(name: str, found: Curve, on: str, target: float | None) -> Line:
    x = found.steps if on == "steps" else found.seconds
    mark = None if target is None else arrival(found, target)
    return Line(name, x, found.mean, found.low, found.high, mark=mark)


def _title(summary: Summary, target: float | None) -> str:
    n = summary["methods"][summary["baseline"]]["n"]
    seeds = f"mean and range of {n} seeds" if n > 1 else "one seed"
    text = f"{summary['task']}: {seeds}"
    if target is None:
        return text
    base, loss = summary["baseline"], numbers.loss(target)
    return f"{text}; dotted: where {base} ended ({loss}), dots: where each first reached it"


def _costs(found: Comparison) -> Chart:
    summary, base = found.summary, found.summary["baseline"]
    alone = {name: step_seconds(by_seed(found.rows, name)) for name in summary["methods"]}
    unit = fmean(alone[base]) if alone[base] else 0.0
    bars = []
    for name, method in summary["methods"].items():
        ratio, final = method["step_cost_ratio"], method["final"]
        dots = [seconds / unit for seconds in alone[name]] if unit > 0 else []
        text = "not measured"
        if ratio is not None:  # 1.20x, 3.1 ms
            milliseconds = 1000 * final["seconds"]["mean"] / final["step"]
            text = f"{numbers.ratio(ratio)}, {milliseconds:.3g} ms"
        bars.append(Bar(name, ratio, dots, text))
    panel = Panel("Cost of a step", f"cost of a step, over that of {base}", "", bars=bars, level=1)
    title = f"{summary['task']}: training time of a step over that of {base}"
    n = summary["methods"][base]["n"]
    return Chart("cost", title + ("; dots are single seeds" if n > 1 else ""), [panel], base)
