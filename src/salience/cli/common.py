"""What the commands share."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from salience.errors import SalienceError

if TYPE_CHECKING:
    from rich.console import Console

    from salience.compare.plan import Plan

__all__ = ["REFUSED", "list_files", "one_sentence", "run_comparison"]

REFUSED = 2  # exit status


@contextmanager
def one_sentence() -> Iterator[None]:
    """What Salience refuses on purpose ends as one sentence; a bug keeps its traceback."""
    import typer

    try:
        yield
    except SalienceError as error:
        print(f"salience: {error}", file=sys.stderr)
        raise typer.Exit(REFUSED) from error


def run_comparison(
    plan: "Plan", out: Path, settings: Mapping[str, Any], announcement: str = "", **options: Any
) -> None:
    """Train with live progress, then print the table and write the report.

    ``options`` are those of ``salience.compare.plan.start``.
    """
    from rich.console import Console

    from salience.cli.progress import watch
    from salience.compare.plan import finish, start
    from salience.compare.reading import read_comparison
    from salience.compare.report.page import write_report
    from salience.compare.report.table import rich_table
    from salience.compare.report.words import sentences

    console = Console()
    rows = start(plan, out, settings, **options)
    if announcement:
        console.print(announcement, highlight=False)
    runs = dict.fromkeys(plan.methods, len(plan.seeds))
    for _ in watch(rows, runs, plan.evaluations, console):
        pass  # rows are saved as they come
    finish(plan, out)
    found = read_comparison(out)
    console.print(rich_table(found))
    for sentence in sentences(found):
        console.print(sentence, highlight=False)
    data = ("summary.json", "runs.jsonl", "hardest.json", "config.json")
    list_files(console, [*write_report(out), *(out / name for name in data)])


def list_files(console: "Console", files: Sequence[Path]) -> None:
    """What was written, a path a line."""
    console.print("\nWritten:", highlight=False)
    for file in files:
        # soft_wrap: a path cut in two cannot be clicked or copied
        console.print(f"  {file}", highlight=False, markup=False, soft_wrap=True)
