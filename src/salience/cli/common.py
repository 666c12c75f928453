"""What the commands share: options, one sentence for what is refused, and running a comparison."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from salience.cli.progress import watch
from salience.compare.plan import Plan, finish, start
from salience.compare.reading import read_comparison
from salience.compare.report.page import write_report
from salience.compare.report.table import rich_budgets, rich_table
from salience.compare.report.words import outcome, sentences
from salience.errors import SalienceError

__all__ = [
    *("DataDir", "Jobs", "OneSentence", "Resume", "Seed", "Seeds", "Threads"),
    *("list_files", "run", "say"),
]

DataDir = Annotated[Path | None, typer.Option(help="Where the data is; by default SALIENCE_DATA.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what is in the directory.")]
Jobs = Annotated[int, typer.Option(help="Processes of one thread each; seeds are distributed.")]
Threads = Annotated[int | None, typer.Option(help="Threads for torch, with a single job.")]
Seed = Annotated[int, typer.Option(help="The first seed.")]
Seeds = Annotated[int, typer.Option(help="Runs per method.")]


class OneSentence(TyperGroup):
    """What Salience refuses on purpose ends as one sentence; a bug keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SalienceError as error:
            print(f"salience: {error}", file=sys.stderr)
            raise typer.Exit(2) from error


def run(
    plan: Plan, out: Path, settings: Mapping[str, Any], announcement: str = "", **options: Any
) -> None:
    """Train with live progress, then print the table and write the report.

    ``options`` are those of ``salience.compare.plan.start``.
    """
    console = Console()
    rows = start(plan, out, settings, **options)
    if announcement:
        console.print(announcement, highlight=False)
    runs = dict.fromkeys(plan.methods, len(plan.seeds) * len(plan.shares))
    watch(rows, runs, plan.evaluations, console)
    finish(plan, out)
    found = read_comparison(out)
    console.print(rich_table(found))
    if (budgets := rich_budgets(found)) is not None:
        console.print(budgets)
    console.print(f"{outcome(found)}\n", highlight=False)
    for sentence in sentences(found):
        console.print(sentence, highlight=False)
    data = ("summary.json", "runs.jsonl", "hardest.json", "config.json")
    list_files(console, [*write_report(out), *(out / name for name in data)])


def list_files(console: Console, files: Iterable[Path]) -> None:
    """What was written, a path a line."""
    console.print("\nWritten:", highlight=False)
    for file in files:
        say(console, f"  {file}")


def say(to: Console, line: str) -> None:
    """A line as it is."""
    # soft_wrap: a path cut in two cannot be clicked or copied
    to.print(line, highlight=False, markup=False, soft_wrap=True)
