"""The report of a comparison: ``report.html`` (one file), ``report.md`` and the figures."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from salience.compare.directory import write
from salience.compare.reading import Comparison, read_comparison
from salience.compare.report import table, words
from salience.compare.report.figures import charts, others
from salience.compare.report.hardest import cards
from salience.compare.report.headers import explained
from salience.compare.report.interactive import render
from salience.compare.report.png import chart_png

__all__ = ["escape", "html", "markdown", "write_report"]

FIGURES = {
    "budgets.png": "Test results of whole trainings against their time",
    "test.png": "Test results against steps and against seconds",
    "worst.png": "Test error of the worst class against steps and against seconds",
    "curves.png": "Train loss against steps and against seconds",
    "auto.png": "When auto was on, and how",
    "cost.png": "Cost of a step",
}
SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&$!])")  # what Markdown or HTML would obey
OPEN_METHODS = 3  # up to so many methods are described and shown unfolded


def write_report(directory: Path) -> list[Path]:
    """Read a run directory, write its report there, and return the paths of the files.

    Everything comes from ``config.json``, ``runs.jsonl`` and ``hardest.json``.
    """
    found = read_comparison(Path(directory))
    content: dict[str, str | bytes] = {"report.html": html(found), "report.md": markdown(found)}
    content |= {f"{chart.name}.png": chart_png(chart) for chart in charts(found)}
    return [write(Path(directory) / name, each) for name, each in content.items()]


def html(found: Comparison) -> str:
    """The whole of ``report.html``."""
    content = {
        "title": words.title(found),
        "compared": words.compared(found),
        "outcome": words.outcome(found),
        "finished": found.finished,
        "best": words.best(found.summary),
        "baseline": found.summary["baseline"],
        "facts": words.facts(found),
        "setting": words.setting(found.config),
        "columns": explained(table.columns(found)),
        "lines": table.cells(found),
        "under_table": table.note(found),
        **_budgets(found),
        "budget_columns": explained(_budgets(found)["budget_columns"]),
        "sentences": words.sentences(found),
        "hardest": cards(found.hardest),
        "open_methods": OPEN_METHODS,
        "command": _text(found.config.get("command", "")),
        "config": [*_flat(found.config)],
    }
    main, more = charts(found), others(found)
    return render("report.html.jinja", [*main, *more], main=main, more=more, **content)


def _budgets(found: Comparison) -> dict[str, Any]:
    """The table of budgets; empty where there are none."""
    swept = found.budgets
    return {
        "budget_columns": [] if swept is None else table.budget_columns(swept),
        "budget_lines": [] if swept is None else table.budget_cells(swept),
        "under_budgets": "" if swept is None else table.budget_note(found),
    }


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as lines: ("optimizer name", "Adam")."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _flat(each, f"{key} {name}".strip())
    elif value not in (None, []):
        yield key, ", ".join(map(_text, value)) if isinstance(value, list) else _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def markdown(found: Comparison) -> str:
    """The whole of ``report.md``; figures are links to files beside it."""
    settings, swept = json.dumps(found.config, indent=2, ensure_ascii=False), _budgets(found)
    drawn = {f"{chart.name}.png" for chart in charts(found)}
    # A fence longer than any in the text.
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", settings))])
    parts = [
        f"# {escape(words.title(found))}",
        escape(words.compared(found)),
        f"**{escape(words.outcome(found))}**",
        "\n".join(f"- {escape(sentence)}" for sentence in words.sentences(found)),
        "## Summary",
        _markdown_table(table.columns(found), table.cells(found)),
        escape(table.note(found)),
        "## Budgets" if found.budgets is not None else "",
        _markdown_table(swept["budget_columns"], swept["budget_lines"]),
        escape(swept["under_budgets"]),
        "## Figures",
        "\n\n".join(f"![{about}]({name})" for name, about in FIGURES.items() if name in drawn),
        "## Configuration",
        escape(", ".join(words.setting(found.config))),
        f"{fence}json\n{settings}\n{fence}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(columns: list[str], cells: list[list[str]]) -> str:
    """Names to the left, numbers to the right; nothing without columns."""
    rules = [":--", *["--:"] * (len(columns) - 1)]
    lines = [[escape(cell) for cell in line] for line in [columns, *cells]]
    whole = [lines[0], rules, *lines[1:]] if columns else []
    return "\n".join(f"| {' | '.join(line)} |" for line in whole)


def escape(text: str) -> str:
    """Text on one line, with everything shown that Markdown or HTML would obey."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))
