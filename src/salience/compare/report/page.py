"""The report of a comparison: ``report.html`` (one file), ``report.md`` and the figures."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from salience.compare.directory import write
from salience.compare.reading import Comparison, read_comparison
from salience.compare.report import table, words
from salience.compare.report.figures import charts
from salience.compare.report.hardest import cards
from salience.compare.report.interactive import render
from salience.compare.report.markdown import markdown
from salience.compare.report.png import chart_png

__all__ = ["html", "write_report"]

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
    """The page."""
    return render("report.html.jinja", charts(found), **_content(found))


def _content(found: Comparison) -> dict[str, Any]:
    """What the template shows, as plain text and numbers."""
    return {
        "title": words.title(found),
        "compared": words.compared(found),
        "outcome": words.outcome(found),
        "finished": found.finished,
        "best": words.best(found.summary),
        "baseline": found.summary["baseline"],
        "facts": words.facts(found),
        "setting": words.setting(found.config),
        "columns": table.columns(found),
        "lines": table.cells(found),
        "under_table": table.note(found),
        "sentences": words.sentences(found),
        "hardest": cards(found.hardest),
        "open_methods": OPEN_METHODS,
        "command": _text(found.config.get("command")),
        "config": [*_flat(found.config)],
    }


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as lines: ("optimizer name", "Adam")."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flat(each, f"{key} {name}".strip())
    elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        for place, each in enumerate(value, start=1):
            yield from _flat(each, f"{key} {place}")
    elif value not in (None, [], {}):
        yield key, ", ".join(map(_text, value)) if isinstance(value, list) else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
