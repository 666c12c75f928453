"""The charts of a report: test results, train loss, budgets, and the cost of a step."""

from dataclasses import replace
from statistics import fmean
from typing import Any, Literal

from salience.compare.budgets import AtBudget, Budgets, SameError
from salience.compare.charts import Bar, Chart, Line, Panel
from salience.compare.measures import Measure
from salience.compare.reading import Comparison
from salience.compare.report import numbers
from salience.compare.report.curves import TRAIN, measured, shown_as, switching
from salience.compare.summary import Curve, arrival, by_seed, step_seconds

__all__ = ["charts", "others"]

WORST = "test_error_worst"


def charts(found: Comparison) -> list[Chart]:
    """The charts that a report is about, the baseline first in each."""
    swept = [] if found.budgets is None else [_budgets(found.budgets, found)]
    worst = [_plain("worst", WORST, found)] if _has_worst(found) else []
    methods, task = [*found.summary["methods"]], found.summary["task"]
    strips = switching("auto", found.rows, methods, task)
    switched = [] if strips is None else [strips]
    return [
        *swept,
        _plain("test", found.primary, found),
        *worst,
        _to_target(found),
        *switched,
        _costs(found),
    ]


def others(found: Comparison) -> list[Chart]:
    """Every other measure that the rows have."""
    measures = {**TRAIN, **found.measures}
    shown = {found.primary, "train_loss", *([WORST] if _has_worst(found) else [])}
    return [_plain(f"other-{name}", name, found) for name in measures if name not in shown]


def _has_worst(found: Comparison) -> bool:
    return found.primary != WORST and all(WORST in row for row in found.rows)


def _plain(name: str, column: str, found: Comparison, **more: Any) -> Chart:
    measures = {**TRAIN, **found.measures}
    measure = measures.get(column, Measure(column, column.partition("_")[2].replace("_", " ")))
    methods = [*found.summary["methods"]]
    return measured(name, found.rows, methods, column, measure, _seeds(found), **more)


def _seeds(found: Comparison) -> str:
    n = found.summary["methods"][found.summary["baseline"]]["n"]
    return f"{found.summary['task']}: {f'mean and range of {n} seeds' if n > 1 else 'one seed'}"


def _to_target(found: Comparison) -> Chart:
    """The train loss, the target, and where each method reached it: with the table's ratios."""
    target, base = found.summary["target_train_loss"], found.summary["baseline"]
    if not target > 0:
        return _plain("curves", "train_loss", found)

    def marked(name: str, curve: Curve) -> tuple[int | None, dict[str, str]]:
        method = found.summary["methods"][name]
        ratios = {
            "steps": method["steps_to_target_ratio"],
            "seconds": method["time_to_target_ratio"],
        }
        own = {on: numbers.ratio(ratio) for on, ratio in ratios.items() if ratio is not None}
        return arrival(curve, target), {} if name == base else own

    text = f"target {numbers.loss(target)}"
    chart = _plain("curves", "train_loss", found, level=target, level_text=text, marked=marked)
    about = f"dotted: where {base} ended ({numbers.loss(target)})"
    return replace(chart, title=f"{chart.title}; {about}, dots: where each first reached it")


def _budgets(budgets: Budgets, found: Comparison) -> Chart:
    """The test result at the end of each budget, against its time; and that of the worst class."""
    base = found.summary["baseline"]
    methods = {name: budgets["methods"].get(name, []) for name in found.summary["methods"]}
    with_worst = all("worst" in each for line in methods.values() for each in line)
    wanted: dict[Literal["end", "worst"], str] = {"end": budgets["measure"]}
    wanted |= {"worst": WORST} if with_worst and budgets["measure"] != WORST else {}
    panels = []
    for key, column in wanted.items():
        measure = found.measures.get(column, Measure("", column.replace("_", " ")))
        shown, scale = shown_as(column, measure), 100.0 if measure.unit == "%" else 1.0
        ends = [scale * each[key]["mean"] for each in methods[base]]
        lines = [_swept(name, line, key, scale) for name, line in methods.items()]
        if key == "end" and ends:
            lines = [_at_same(line, budgets["same_error"], ends[-1], base) for line in lines]
        panels.append(
            Panel(
                title=f"{shown[:1].upper()}{shown[1:]} against training time",
                x=f"training time, as a share of the longest of {base}",
                y=shown,
                lines=lines,
                level=ends[-1] if ends else None,
                level_text=f"{base}: {ends[-1]:.3g}{measure.unit}" if ends else "",
                unit=measure.unit,
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


def _at_same(line: Line, same: dict[str, SameError], level: float, base: str) -> Line:
    """Marked where it comes to the baseline's result, with the share of time the table has."""
    found = same.get(line.label)
    if found is None or found["share"] is None or line.label == base:
        return line
    text = ("at most " if found["at_most"] else "") + numbers.ratio(found["share"])
    at = line.y[0] if found["at_most"] else level
    return replace(line, spot=(found["share"], at), note=text)


def _costs(found: Comparison) -> Chart:
    summary, base = found.summary, found.summary["baseline"]
    alone = {name: step_seconds(by_seed(found.rows, name)) for name in summary["methods"]}
    unit = fmean(alone[base]) if alone[base] else 0.0
    bars = []
    for name, method in summary["methods"].items():
        ratio, final = method["step_cost_ratio"], method["final"]
        dots = [seconds / unit for seconds in alone[name]] if unit > 0 else []
        text = "not measured"
        if ratio is not None and final["step"] > 0:  # 1.20x, 3.1 ms
            milliseconds = 1000 * final["seconds"]["mean"] / final["step"]
            text = f"{numbers.ratio(ratio)}, {milliseconds:.3g} ms"
        bars.append(Bar(name, ratio, dots, text))
    panel = Panel("Cost of a step", f"cost of a step, over that of {base}", "", bars=bars, level=1)
    title = f"{summary['task']}: training time of a step over that of {base}"
    n = summary["methods"][base]["n"]
    return Chart("cost", title + ("; dots are single seeds" if n > 1 else ""), [panel], base)
