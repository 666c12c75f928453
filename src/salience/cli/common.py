"""What the commands share: options, one sentence for what is refused, and running a comparison."""

import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from salience.cli.progress import say, watch
from salience.compare.check import Checked
from salience.compare.plan import Plan, finish, start
from salience.compare.reading import Comparison, read_comparison
from salience.compare.report import numbers
from salience.compare.report.page import write_report
from salience.compare.report.table import terminal
from salience.compare.report.words import outcome, sentences
from salience.compare.user_code import debug, debugging
from salience.errors import SalienceError

__all__ = [
    *("INTERRUPTED", "DataDir", "Debug", "Jobs", "OneSentence", "Replace", "Resume", "Seed"),
    *("Seeds", "Threads", "interruptible", "list_files", "run", "show", "typed"),
]

INTERRUPTED = 130  # the status after Ctrl-C
DataDir = Annotated[Path | None, typer.Option(help="Where the data is; by default SALIENCE_DATA.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue what is in the directory, or add seeds.")
]
Jobs = Annotated[int, typer.Option(help="Processes of one thread each; seeds are distributed.")]
Threads = Annotated[int | None, typer.Option(help="Threads for torch, with a single job.")]
Seed = Annotated[int, typer.Option(help="The first seed.")]
Seeds = Annotated[int, typer.Option(help="Runs per method.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the whole traceback of an error.", callback=debug)
]
Replace = Annotated[bool, typer.Option("--replace", help="Start over: remove what is in it.")]


class OneSentence(TyperGroup):
    """What Salience refuses on purpose ends as one sentence; a bug keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SalienceError as error:
            print(f"salience: {error}", file=sys.stderr)
            if debugging():
                traceback.print_exception(error)
            raise typer.Exit(2) from error


def typed() -> str:
    """The command as it was typed, without the path of the program."""
    module = Path(sys.argv[0]).name == "__main__.py"
    return shlex.join([*(["python", "-m"] if module else []), "salience", *sys.argv[1:]])


def run(
    plan: Plan, out: Path, settings: Mapping[str, Any], about: str = "", **options: Any
) -> None:
    """Train with live progress, then print the table and write the report.

    ``about``: what is trained, before the plan is told. ``options`` are those of
    ``salience.compare.plan.start``.
    """
    console = Console()

    def tell(checked: Checked) -> None:
        """The plan, and the time it takes by the first look at the task."""
        seconds = plan.expected_seconds(checked, options.get("jobs", 1))
        expected = f"Expected time: {numbers.duration(seconds)}."
        console.print(Text(" ".join(filter(None, [about, announced(plan), expected]))))
        say(console, f"Results: {out}\n")

    with interruptible(out), start(plan, out, settings, told=tell, **options) as rows:
        runs = dict.fromkeys(plan.methods, len(plan.seeds) * len(plan.shares))
        watch(rows, runs, plan.evaluations, console)
        finish(plan, out)
        show(read_comparison(out), console)
        data = ("summary.json", "runs.jsonl", "hardest.json", "config.json")
        list_files(console, [*write_report(out), *(out / name for name in data)])


def show(found: Comparison, console: Console) -> None:
    """The tables, the verdict, and what there is to say of each method."""
    for part in terminal(found, console.width):
        console.print(part)
    for sentence in (outcome(found), *sentences(found)):
        console.print(Text(f"\n{sentence}"))


def announced(plan: Plan) -> str:
    """The plan: who, how often and how long."""
    seeds, shares = len(plan.seeds), len(plan.shares)
    runs = len(plan.methods) * seeds * shares
    length = f"{plan.steps:,} steps" if plan.steps else f"{plan.seconds:g} s of training"
    each = f"{len(plan.methods)} methods x {seeds} seed{'s' * (seeds > 1)}"
    each += f" x {shares} budgets of at most {length}" if shares > 1 else f", {length} each"
    return f"{runs} runs: {', '.join(plan.methods)} ({each}), side by side."


@contextmanager
def interruptible(out: Path) -> Iterator[None]:
    """After Ctrl-C, say in which state things are and what to type to continue."""
    try:
        yield
    except KeyboardInterrupt:
        words = [word for word in shlex.split(typed()) if word not in ("--replace", "--resume")]
        command = shlex.join([*words, "--resume"])
        text = "interrupted before anything was written"
        if (out / "config.json").exists():
            text = f"interrupted; what was measured is in {out}. To continue:\n\n  {command}\n"
        print(f"\nsalience: {text}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def list_files(console: Console, files: Iterable[Path]) -> None:
    """What was written, a path a line."""
    say(console, "\nWritten:")
    for file in files:
        say(console, f"  {file}")
