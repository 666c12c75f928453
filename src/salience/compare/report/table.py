"""The summary as a table, the same for the page, for Markdown and for the terminal."""

from typing import TYPE_CHECKING

from salience.compare.reading import Comparison
from salience.compare.report import numbers
from salience.compare.summary import MethodSummary, tested_by

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["cells", "columns", "note", "rich_table"]

OPEN = "open"  # a ratio of a comparison that is not finished


def columns(found: Comparison) -> list[str]:
    """The head of the table, the name of the method first."""
    measure = tested_by(found.rows[0]).replace("_", " ").capitalize()
    end = "Train loss at the end" if found.finished else "Train loss so far"
    ratios = ["Steps to target", "Single seeds", "Time to target", "Cost of a step", "Seeds"]
    return ["Method", end, "Worst train loss", measure, *ratios]


def cells(found: Comparison) -> list[list[str]]:
    """One line per method, the baseline first: mean ± standard deviation, ratios, seeds."""
    methods = found.summary["methods"]
    return [[name, *_line(method, found.finished)] for name, method in methods.items()]


def _line(method: MethodSummary, finished: bool) -> list[str]:
    final = method["final"]
    measure = tested_by(final)
    cost = method["step_cost_ratio"]
    return [
        numbers.spread(final["train_loss"]),
        numbers.spread(final["train_max_loss"]),
        numbers.spread(final[measure], percent=measure == "test_error"),
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
    if not found.finished:
        return f"{spread}Ratios to the target stay open until the comparison is finished."
    target = numbers.loss(summary["target_train_loss"])
    return f"{spread}Target: train loss {target}, where {base} ended. Ratios are over {base}."


def rich_table(found: Comparison) -> "Table":
    """For the terminal: one column per method."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, caption=note(found), caption_justify="left")
    table.add_column("", no_wrap=True)
    for name in found.summary["methods"]:
        table.add_column(name, justify="right", overflow="fold")
    for row in [*zip(columns(found), *cells(found), strict=True)][1:]:
        table.add_row(*row)
    return table
