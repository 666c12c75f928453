"""The summary as a table for the terminal: one column per method, one row per measure."""

from rich import box
from rich.table import Table

from salience.compare.report import numbers
from salience.compare.summary import Final, MethodSummary, Summary, tested_by

__all__ = ["summary_table"]


def summary_table(summary: Summary) -> Table:
    """A rich table of the summary; ratios are over the baseline."""
    methods = summary["methods"]
    table = Table(box=box.SIMPLE_HEAD, title=_title(summary), caption=_caption(summary))
    table.title_style, table.caption_style = "bold", "dim"
    table.title_justify = table.caption_justify = "left"
    table.add_column("")
    for name in methods:
        table.add_column(name, justify="right", no_wrap=True)
    columns = [_column(method) for method in methods.values()]
    for measure, *cells in zip(_measures(summary), *columns, strict=True):
        table.add_row(measure, *cells)
    return table


def _measures(summary: Summary) -> tuple[str, ...]:
    test = tested_by(summary["methods"][summary["baseline"]]["final"])
    ends = ("final train loss", "worst train loss", test.replace("_", " "))
    return (*ends, "cost of a step", "steps to target", "  each seed alone", "time to target")


def _column(method: MethodSummary) -> list[str]:
    final = method["final"]
    return [
        numbers.spread(final["train_loss"]),
        numbers.spread(final["train_max_loss"]),
        _test(final),
        numbers.ratio(method["step_cost_ratio"]),
        numbers.ratio(method["steps_to_target_ratio"]),
        _seeds(method["seeds_to_target"]),
        numbers.ratio(method["time_to_target_ratio"]),
    ]


def _test(final: Final) -> str:
    measure = tested_by(final)
    if measure == "test_error":
        return numbers.spread(final[measure], scale=100) + "%"
    return numbers.spread(final[measure])


def _seeds(ratios: list[float | None]) -> str:
    """The range over seeds, and how many of them got there when not all did."""
    reached = sorted(value for value in ratios if value is not None)
    if not reached:
        return f"0 of {len(ratios)}"
    text = f"{numbers.ratio(reached[0])} to {numbers.ratio(reached[-1])}"
    return text if len(reached) == len(ratios) else f"{len(reached)} of {len(ratios)}: {text}"


def _title(summary: Summary) -> str:
    final = summary["methods"][summary["baseline"]]["final"]
    seeds = final["train_loss"]["n"]
    evidence = f"mean ± standard deviation of {seeds} seeds" if seeds > 1 else "one seed, no spread"
    return f"{summary['task']}, {final['step']} steps, {evidence}"


def _caption(summary: Summary) -> str:
    target = numbers.loss(summary["target_train_loss"])
    base = summary["baseline"]
    return f"target: train loss {target}, where {base} ended (its ratios are 1)"
