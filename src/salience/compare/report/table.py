"""The summary as a table, the same for the page, for Markdown and for the terminal."""

from typing import TYPE_CHECKING

from salience.compare.budgets import AtBudget, Budgets
from salience.compare.reading import Comparison
from salience.compare.report import numbers
from salience.compare.summary import MethodSummary, ended_at

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = [
    *("budget_cells", "budget_columns", "budget_note", "cells", "columns", "note"),
    "terminal",
]

DIFFERENCE = "Difference in equal time"
OPEN = "open"  # a ratio of a comparison that is not finished


def columns(found: Comparison) -> list[str]:
    """The head of the table: the name of the method, test results, train results, costs."""
    measure = f"Test {found.measures[found.primary].label}"
    tests = [measure, DIFFERENCE, "Best of the run"]
    tests += ["Worst class"] if _has_classes(found) else []
    tests += ["Same test result in"] if found.budgets is not None else []
    end = "Train loss at the end" if found.finished else "Train loss so far"
    ratios = ["Steps to target", "Single seeds", "Time to target", "Cost of a step", "Seeds"]
    return ["Method", *tests, end, "Worst train loss", *ratios]


def _has_classes(found: Comparison) -> bool:
    return all("test_error_worst" in each["final"] for each in found.summary["methods"].values())


def cells(found: Comparison) -> list[list[str]]:
    """One line per method, the baseline first: mean ± standard deviation, ratios, seeds."""
    methods = found.summary["methods"]
    return [
        [name, *_tests(name, found), *_line(method, found.finished)]
        for name, method in methods.items()
    ]


def _tests(name: str, found: Comparison) -> list[str]:
    method = found.summary["methods"][name]
    final, pairs = method["final"], method["differences"]
    percent = found.measures[found.primary].unit == "%"
    line = [numbers.spread(ended_at(final, found.primary), percent)]
    if name == found.summary["baseline"] or pairs is None:
        line.append("")
    else:
        line.append(numbers.difference(pairs["equal_time"], percent) if found.finished else OPEN)
    line.append(numbers.spread(method["best"], percent))
    if _has_classes(found):
        line.append(numbers.spread(final["test_error_worst"], percent=True))
    if found.budgets is not None:
        line.append(
            numbers.same_error(found.budgets["same_error"][name]) if found.finished else OPEN
        )
    return line


def _line(method: MethodSummary, finished: bool) -> list[str]:
    final, cost = method["final"], method["step_cost_ratio"]
    return [
        numbers.spread(final["train_loss"]),
        numbers.spread(final["train_max_loss"]),
        numbers.ratio(method["steps_to_target_ratio"]) if finished else OPEN,
        _seeds(method["seeds_to_target"]) if finished else OPEN,
        numbers.ratio(method["time_to_target_ratio"]) if finished else OPEN,
        "not measured" if cost is None else numbers.ratio(cost),
        str(method["n"]),
    ]


def _seeds(ratios: list[float | None]) -> str:
    """The range over seeds; how many reached the target, when not all did."""
    reached = sorted(value for value in ratios if value is not None)
    if not reached:
        return "none"
    low, high = numbers.ratio(reached[0]), numbers.ratio(reached[-1])
    text = low if low == high else f"{low} to {high}"
    return text if len(reached) == len(ratios) else f"{text} ({len(reached)} of {len(ratios)})"


def note(found: Comparison) -> str:
    """What the numbers of the table are."""
    summary = found.summary
    base = summary["baseline"]
    several = summary["methods"][base]["n"] > 1
    spread = "Mean ± standard deviation over seeds. " if several else "One seed, no spread. "
    unit = " in points" if found.measures[found.primary].unit == "%" else ""
    if not found.finished:
        return f"{spread}Ratios to the target stay open until the comparison is finished."
    target = numbers.loss(summary["target_train_loss"])
    pairs = f"{DIFFERENCE}: to {base} with the same seed{unit}, and its 95% interval. "
    return (
        f"{spread}{pairs if several else ''}Target: train loss {target}, where {base} ended. "
        f"Ratios are over {base}."
    )


# --------------------------------------------------------------------------------------- budgets


def budget_columns(budgets: Budgets) -> list[str]:
    """The head of the table of budgets."""
    return ["Method", *(numbers.percent(share) for share in budgets["shares"]), "Same in"]


def budget_cells(budgets: Budgets) -> list[list[str]]:
    """One line per method: at each budget the test result, and the difference to the baseline."""
    percent = budgets["measure"] == "test_error"
    return [
        [
            name,
            *(_at(share, line, percent, baseline=not place) for share in budgets["shares"]),
            numbers.same_error(budgets["same_error"][name]),
        ]
        for place, (name, line) in enumerate(budgets["methods"].items())
    ]


def _at(share: float, line: list[AtBudget], percent: bool, *, baseline: bool) -> str:
    each = next((each for each in line if each["budget"] == share), None)
    if each is None:
        return ""
    end = numbers.spread(each["end"], percent)
    pairs = each["differences"]
    if baseline or pairs is None:
        return end
    return f"{end}; {numbers.difference(pairs['end'], percent)}"


def budget_note(found: Comparison) -> str:
    """What the numbers of the table of budgets are."""
    base = found.summary["baseline"]
    return (
        f"The whole training with its schedule within each share of the length: the result at the "
        f"end, and the difference to {base} with the same seed after as many steps, with its 95% "
        f"interval. Methods with costlier steps took longer, which the chart and Same in count. "
        f"Same in: the share of the time of {base} in which the mean result equals that of {base} "
        f"at its whole length, linear in log time between budgets, with a 95% interval over "
        f"resampled seeds."
    )


# --------------------------------------------------------------------------------------- terminal

NAME = 20  # characters of a method's name in a line of its column head


def terminal(found: Comparison, width: int) -> list["Table | Text"]:
    """The table, and that of budgets, with their notes, for a terminal or a log of this width.

    One column per method. Where not all of them fit, further tables follow, each with the baseline.
    """
    from rich.text import Text

    shown: list[Table | Text] = [*_tables(columns(found), cells(found), width), Text(note(found))]
    if found.budgets is not None:
        budgets = _tables(budget_columns(found.budgets), budget_cells(found.budgets), width)
        shown += [*budgets, Text(budget_note(found))]
    return shown


# Where a cell may be broken: the fewer places, the better, unless it takes more tables.
PARTS = {"; ": "\n", " (": "\n("}
BREAKS = (PARTS, PARTS | {" to ": "\nto "}, PARTS | {" to ": "\nto ", " ± ": "\n± "})


def _tables(head: list[str], lines: list[list[str]], width: int) -> list["Table"]:
    """``lines`` as columns, in as few tables as possible."""
    layouts = [_layout(head, lines, width, breaks) for breaks in BREAKS]
    return min(layouts, key=len)


def _layout(
    head: list[str], lines: list[list[str]], width: int, breaks: dict[str, str]
) -> list["Table"]:
    """Side by side as many as fit, the first one in every table."""
    base, *others = ([_broken(cell, breaks) for cell in line] for line in lines)
    tables, group = [], [base]
    for line in others:
        if len(group) > 1 and _wide(_table(head, [*group, line])) > width:
            tables.append(_table(head, group))
            group = [base]
        group.append(line)
    return [*tables, _table(head, group)]


def _broken(cell: str, breaks: dict[str, str]) -> str:
    for at, broken in breaks.items():
        cell = cell.replace(at, broken)
    return cell


def _table(head: list[str], lines: list[list[str]]) -> "Table":
    """Labels to the left, a column per line, as wide as its content."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("", no_wrap=True)
    for name, *content in lines:
        widest = max(len(part) for cell in content for part in cell.split("\n"))
        width = max(widest, min(len(name), NAME))
        table.add_column(Text(name), justify="right", overflow="fold", width=width)
    for label, *row in [*zip(head, *lines, strict=True)][1:]:
        table.add_row(Text(label), *map(Text, row))
    return table


def _wide(table: "Table") -> int:
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=10_000)
    return Measurement.get(console, console.options, table).maximum
