"""The figures of a finished target as files: a PNG and an interactive page each, and Table 1."""

from pathlib import Path

from salience.compare.directory import write
from salience.compare.report.interactive import chart_html
from salience.compare.report.png import chart_png
from salience.paper.reproduce import Outcome
from salience.paper.table1 import COLUMNS, markdown

__all__ = ["write_figures"]


def write_figures(outcome: Outcome) -> list[Path]:
    """Draw everything into the directory of the target; the files written."""
    contents: dict[str, str | bytes] = {}
    for chart in outcome.found.charts:
        contents[f"{chart.name}.png"] = chart_png(chart)
        contents[f"{chart.name}.html"] = chart_html(chart, outcome.paragraph)
    for table in outcome.found.tables:
        if table.columns == COLUMNS:
            contents[f"{table.name}.md"] = markdown(table, outcome.paragraph)
    return [write(outcome.directory / name, content) for name, content in contents.items()]
