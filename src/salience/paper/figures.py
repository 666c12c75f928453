"""The figures of a target: for each a PNG and an interactive page, drawn from the same data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from salience.compare.charts import Table
from salience.compare.directory import write
from salience.compare.report.interactive import chart_html
from salience.compare.report.png import chart_png
from salience.paper.reproduce import Outcome

__all__ = ["table_markdown", "write_figures"]


def write_figures(outcome: Outcome) -> list[Path]:
    """Draw everything of a finished target into its directory; the files written."""
    contents: dict[str, bytes] = {}
    for chart in outcome.charts:
        contents[f"{chart.name}.png"] = chart_png(chart)
        contents[f"{chart.name}.html"] = chart_html(chart, outcome.paragraph).encode()
    for table in outcome.tables:
        if "paper mean" in table.columns:
            contents[f"{table.name}.md"] = table_markdown(table, outcome.paragraph).encode()
    return [write(outcome.directory / name, content) for name, content in contents.items()]


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
