"""``salience reproduce``: one command per figure and table of the paper."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from salience.cli.common import DataDir, Jobs, Resume, Threads, interruptible, list_files
from salience.cli.progress import watch
from salience.paper.reproduce import finish, prepare
from salience.paper.stages import Settings
from salience.paper.targets import TARGETS

__all__ = ["EXAMPLES", "reproduce"]

EXAMPLES = """Examples:

salience reproduce fig1b --data-dir data --scale 0.1 --model small --seeds 3

salience reproduce table1 --data-dir data  (the whole table as in the paper: days on a CPU)

salience reproduce table1 --task mnist --data-dir data --scale 0.5 --model small --seeds 3

salience reproduce cifar10 --data-dir data --scale 0.1 --model small --resume
"""


def reproduce(
    target: Annotated[str, typer.Argument(help=f"One of {', '.join(TARGETS)}.")],
    scale: Annotated[
        float, typer.Option(help="Share of the paper's schedule, above 0 up to 1.")
    ] = 1.0,
    model: Annotated[str, typer.Option(help="The networks: paper, small or tiny.")] = "paper",
    seeds: Annotated[
        int | None, typer.Option(help="Runs per method; by default the paper's number.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Of a target with several tasks, only this one.")
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[
        Path, typer.Option(help="Where to write; targets in one place share their runs.")
    ] = Path("runs/paper"),
    resume: Resume = False,
    jobs: Jobs = 1,
    threads: Threads = None,
) -> None:
    """Run what a figure or table of the paper shows, and tell which of its claims hold here."""
    settings, console = Settings(scale, model, seeds, threads, task), Console()
    with interruptible(out / target):
        for stage in prepare(target, settings, out, data_dir=data_dir, jobs=jobs, resume=resume):
            console.print(stage.stated, highlight=False)
            watch(stage.rows(jobs), stage.runs, stage.evaluations, console)
        outcome = finish(target, out, task)
    console.print(f"\n{outcome.paragraph}", highlight=False)
    list_files(console, outcome.files)
