"""The report as Markdown, for papers and pull requests: sentences, table, figures, settings."""

import json
import re

from salience.compare.reading import Comparison
from salience.compare.report import table, words

__all__ = ["escape", "markdown"]

FIGURES = {
    "curves.png": "Train loss against steps and against seconds",
    "test.png": "Test results against steps and against seconds",
    "cost.png": "Cost of a step",
}
SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&$!])")


def markdown(found: Comparison) -> str:
    """The whole of ``report.md``; figures are links to files beside it."""
    parts = [
        f"# {escape(words.title(found))}",
        escape(words.compared(found)),
        f"**{escape(words.outcome(found))}**",
        "\n".join(f"- {escape(sentence)}" for sentence in words.sentences(found)),
        "## Summary",
        _table(table.columns(found), table.cells(found)),
        escape(table.note(found)),
        "## Figures",
        "\n\n".join(f"![{about}]({name})" for name, about in FIGURES.items()),
        "## Configuration",
        escape(", ".join(words.setting(found.config))),
        _fenced(json.dumps(found.config, indent=2, ensure_ascii=False)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(columns: list[str], lines: list[list[str]]) -> str:
    """Names to the left, numbers to the right."""
    rules = [":--", *["--:"] * (len(columns) - 1)]
    cells = [[escape(cell) for cell in line] for line in [columns, *lines]]
    return "\n".join(f"| {' | '.join(line)} |" for line in [cells[0], rules, *cells[1:]])


def escape(text: str) -> str:
    """Text on one line, with everything shown that Markdown or HTML would obey."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _fenced(text: str) -> str:
    """A code block whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}json\n{text}\n{fence}"
