"""The charts of a report: curves of train loss and test measure, and the cost of a step."""

from dataclasses import replace
from statistics import fmean
from typing import Literal

from salience.compare.budgets import AtBudget, Budgets
from salience.compare.charts import Bar, Chart, Line, Panel, logarithmic
from salience.compare.reading import Comparison
from salience.compare.report import numbers
from salience.compare.summary import (
    Curve,
    Summary,
    arrival,
    by_seed,
    curve,
    step_seconds,
)

__all__ = ["charts"]

AXES = {"steps": "steps", "seconds": "seconds of training"}


def charts(found: Comparison) -> list[Chart]:
    """All charts of a comparison, the baseline first in each."""
    target = found.summary["target_train_loss"]
    swept = [] if found.budgets is None else [_budgets(found.budgets, found)]
    return [
        *swept,
        _pair("curves", found, "train_loss", target if target > 0 else None),
        _pair("test", found, found.primary, None),
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
    lines = {
        on: [_line(each, curves[each], on, target, found.summary) for each in curves] for on in AXES
    }
    panels = [
        Panel(
            title=f"{shown.capitalize()} against {on}",
            x=AXES[on],
            y=shown,
            lines=lines[on],
            log=logarithmic(lines["steps"]),
            level=target,
            level_text="" if target is None else f"target {numbers.loss(target)}",
            unit=unit,
        )
        for on in AXES
    ]
    title = _title(found.summary, target)
    return Chart(name, title, panels, baseline=found.summary["baseline"], share_y=True)


def _line(name: str, found: Curve, on: str, target: float | None, summary: Summary) -> Line:
    """The mark is where the target was reached, with the ratio that the table has for it."""
    x = found.steps if on == "steps" else found.seconds
    line = Line(name, x, found.mean, found.low, found.high)
    mark = None if target is None else arrival(found, target)
    if mark is None:
        return line
    method = summary["methods"][name]
    ratio = method["steps_to_target_ratio" if on == "steps" else "time_to_target_ratio"]
    own = ratio is not None and name != summary["baseline"]
    return replace(line, mark=mark, note=numbers.ratio(ratio) if own else "")


def _title(summary: Summary, target: float | None) -> str:
    n = summary["methods"][summary["baseline"]]["n"]
    seeds = f"mean and range of {n} seeds" if n > 1 else "one seed"
    text = f"{summary['task']}: {seeds}"
    if target is None:
        return text
    base, loss = summary["baseline"], numbers.loss(target)
    return f"{text}; dotted: where {base} ended ({loss}), dots: where each first reached it"


def _budgets(budgets: Budgets, found: Comparison) -> Chart:
    """The test result at the end of each budget, against its time; and that of the worst class."""
    measure, base = budgets["measure"], found.summary["baseline"]
    methods = {name: budgets["methods"].get(name, []) for name in found.summary["methods"]}
    with_worst = all("worst" in each for line in methods.values() for each in line)
    wanted: dict[str, Literal["end", "worst"]] = {measure.replace("_", " "): "end"}
    wanted |= {"test error of the worst class": "worst"} if with_worst else {}
    unit, scale = ("%", 100.0) if measure == "test_error" else ("", 1.0)
    panels = []
    for shown, key in wanted.items():
        ends = [each[key]["mean"] for each in methods[base]]
        panels.append(
            Panel(
                title=f"{shown.capitalize()} against training time",
                x=f"training time, as a share of the longest of {base}",
                y=shown,
                lines=[_swept(name, line, key, scale) for name, line in methods.items()],
                level=scale * ends[-1] if ends else None,
                level_text=f"{base}: {scale * ends[-1]:.3g}{unit}" if ends else "",
                unit=unit,
            )
        )
    several = found.summary["methods"][base]["n"] > 1
    seeds = "mean and standard deviation over seeds" if several else "one seed"
    title = f"{found.summary['task']}: whole trainings within budgets, {seeds}"
    return Chart("budgets", f"{title}; dotted: where {base} ended", panels, baseline=base)


def _swept(name: str, line: list[AtBudget], key: Literal["end", "worst"], scale: float) -> Line:
    mean = [scale * each[key]["mean"] for each in line]
    std = [scale * (each[key]["std"] or 0.0) for each in line]
    low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
    return Line(name, [each["time"] for each in line], mean, low, high)


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
