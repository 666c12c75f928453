"""``salience reproduce``: one command per figure and table of the paper."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from salience.cli.common import list_files, one_sentence

if TYPE_CHECKING:
    from typer import Typer

    from salience.paper.reproduce import Settings

__all__ = ["add"]

EXAMPLES = """Examples:

salience reproduce fig1b --data-dir data --scale 0.1 --model small --seeds 3

salience reproduce table1 --data-dir data  (the whole table as in the paper: days on a CPU)

salience reproduce table1 --task mnist --data-dir data --scale 0.5 --model small --seeds 3

salience reproduce cifar10 --data-dir data --scale 0.1 --model small --resume
"""


def add(app: "Typer") -> None:
    """Put the command into ``app``."""
    import typer

    from salience.cli.options import DataDir, Jobs, Resume, Threads
    from salience.paper.reproduce import TARGETS, Settings

    @app.command(epilog=EXAMPLES)
    def reproduce(
        target: Annotated[str, typer.Argument(help=f"One of {', '.join(TARGETS)}.")],
        scale: Annotated[
            float, typer.Option(help="Share of the paper's schedule, above 0 up to 1.")
        ] = 1.0,
        model: Annotated[str, typer.Option(help="The networks: paper or small.")] = "paper",
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
        settings = Settings(scale, model, seeds, threads, task)  # type: ignore[arg-type]
        with one_sentence():
            _reproduce(target, settings, data_dir, out, resume, jobs)


def _reproduce(
    target: str, settings: "Settings", data_dir: Path | None, out: Path, resume: bool, jobs: int
) -> None:
    from rich.console import Console

    from salience.cli.progress import watch
    from salience.paper.figures import write_figures
    from salience.paper.reproduce import finish, prepare

    console = Console()
    for stage in prepare(target, settings, out, data_dir=data_dir, jobs=jobs, resume=resume):
        console.print(stage.stated, highlight=False)
        for _ in watch(stage.rows(jobs), stage.runs, stage.evaluations, console):
            pass  # the stage saves the rows
    outcome = finish(target, out, settings.task)
    console.print(f"\n{outcome.paragraph}", highlight=False)
    list_files(console, [*write_figures(outcome), *outcome.files])
