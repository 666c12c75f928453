"""The report of a comparison: ``report.html`` (one file), ``report.md`` and the figures."""

import json
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from salience.compare.report import words
from salience.compare.report.cost import Cost, cost_png, costs
from salience.compare.report.curves import curves_png, tested_png
from salience.compare.report.hardest import cards
from salience.compare.report.markdown import markdown
from salience.compare.report.plotly_charts import chart_title, charts, script_json
from salience.compare.report.reading import Comparison, read_comparison
from salience.compare.report.series import TRAIN, looks, tested
from salience.errors import ArgumentError

__all__ = ["html", "write_report"]

DASH_ARRAYS = {"solid": "none", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3"}
OPEN_METHODS = 3  # up to so many methods are told and shown unfolded


def write_report(directory: Path) -> list[Path]:
    """Read a run directory, write its report there, and name the files.

    Everything comes from ``config.json``, ``runs.jsonl``, ``summary.json`` and ``hardest.json``.
    """
    found = read_comparison(Path(directory))
    content = {
        "report.html": html(found).encode(),
        "report.md": markdown(found).encode(),
        "curves.png": curves_png(found.rows, found.summary),
        "test.png": tested_png(found.rows, found.summary),
        "cost.png": cost_png(found.rows, found.summary),
    }
    return [_write(Path(directory) / name, written) for name, written in content.items()]


def _write(path: Path, content: bytes) -> Path:
    """All or nothing, so that nobody opens half a page."""
    partial = path.with_name(f"{path.name}.part")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise ArgumentError(
            f"cannot write {path} ({error.strerror or error}): make room there, or copy the run "
            f"directory to where you may write"
        ) from error
    return path


def html(found: Comparison) -> str:
    """The page. Whatever came from the data is escaped, in text, attributes and scripts alike."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    scripts = [get_plotlyjs(), _beside("report.js")]
    return environment.from_string(_beside("report.html.jinja")).render(
        **_content(found),
        policy=_policy(scripts),
        style=Markup(_beside("report.css")),
        scripts=[Markup(script) for script in scripts],
        figures=Markup(script_json(charts(found.rows, found.summary))),
    )


def _content(found: Comparison) -> dict[str, Any]:
    """What the template shows, as plain text and numbers."""
    return {
        "title": words.title(found),
        "compared": words.compared(found),
        "outcome": words.outcome(found),
        "finished": found.finished,
        "best": words.best(found.summary),
        "facts": words.facts(found),
        "setting": words.setting(found.config),
        "columns": words.summary_columns(found),
        "lines": words.summary_cells(found),
        "under_table": words.under_table(found),
        "sentences": words.sentences(found),
        "methods": _legend(found),
        "sections": _sections(found),
        "baseline": found.summary["baseline"],
        "seeds": found.summary["methods"][found.summary["baseline"]]["n"],
        "costs": _bars(costs(found.rows, found.summary)),
        "hardest": cards(found.hardest),
        "open_methods": OPEN_METHODS,
        "command": _text(found.config.get("command")),
        "config": [*_flat(found.config)],
    }


def _legend(found: Comparison) -> list[dict[str, Any]]:
    styles = looks(found.summary["methods"], found.summary["baseline"])
    return [
        {"name": name, "colour": look.colour, "dashes": DASH_ARRAYS[look.dash]}
        for name, look in styles.items()
    ]


def _sections(found: Comparison) -> list[dict[str, Any]]:
    """A measure each, with its charts."""
    return [
        {
            "title": measure.title,
            "charts": [
                (f"{measure.key}-{on}", chart_title(measure, on)) for on in ("steps", "seconds")
            ],
            "target": measure is TRAIN and found.summary["target_train_loss"] > 0,
        }
        for measure in (TRAIN, tested(found.rows))
    ]


def _bars(found: list[Cost]) -> dict[str, Any]:
    """Lengths in percent of the longest bar, and where the baseline is."""
    longest = max([1.0, *(value for cost in found for value in [cost.ratio or 0, *cost.seeds])])
    lines = [
        {
            "name": cost.name,
            "label": cost.label(),
            "length": f"{100 * (cost.ratio or 0) / longest:.2f}",
            "seeds": [f"{100 * value / longest:.2f}" for value in cost.seeds],
        }
        for cost in found
    ]
    return {"lines": lines, "baseline": f"{100 / longest:.2f}"}


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


def _policy(scripts: list[str]) -> str:
    """Only these scripts run, and nothing is fetched from anywhere."""
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        f"base-uri 'none'; form-action 'none'"
    )


def _beside(name: str) -> str:
    """A file of this folder."""
    return files("salience.compare.report").joinpath(name).read_text(encoding="utf-8")
