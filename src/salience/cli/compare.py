"""``salience compare`` and ``salience report``: does importance sampling pay on this task?"""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from salience.cli.common import one_sentence, tell

if TYPE_CHECKING:
    from typer import Typer

    from salience.compare.plan import Plan

__all__ = ["add"]

EXAMPLES = """Examples:

salience compare digits

salience compare mnist --data-dir data --steps 5000 --methods uniform,history

salience compare cifar10 --seconds 600 --schedule cosine --jobs 2 --out runs/cifar

salience compare path/to/file.py:make_task --methods uniform,auto,loss:k=1

salience compare mnist --steps 5000 --resume  (after an interruption)
"""


def add(app: "Typer") -> None:
    """Put the commands into ``app``."""
    import typer

    from salience.cli.options import DataDir, Jobs, Resume, Threads
    from salience.compare.methods import METHOD_NAMES
    from salience.paper.tasks import TASK_NAMES

    @app.command(epilog=EXAMPLES)
    def compare(
        task: Annotated[
            str,
            typer.Argument(help=f"{', '.join(TASK_NAMES)}, or path/to/file.py:make_task"),
        ],
        methods: Annotated[
            str,
            typer.Option(
                help=f"Of {', '.join(METHOD_NAMES)}; with options as in loss:k=1:presample=4."
            ),
        ] = "uniform,history,approx,loss",
        seeds: Annotated[int, typer.Option(help="Runs per method.")] = 3,
        steps: Annotated[
            int | None, typer.Option(help="Steps of each run; by default the paper's number.")
        ] = None,
        seconds: Annotated[
            float | None, typer.Option(help="Training time of each run, instead of steps.")
        ] = None,
        model: Annotated[str, typer.Option(help="The network: small or paper.")] = "small",
        schedule: Annotated[
            str | None,
            typer.Option(help="constant, stepped or cosine; by default the paper's for the task."),
        ] = None,
        evaluations: Annotated[int, typer.Option(help="Evaluations of each run.")] = 50,
        data_dir: DataDir = None,
        out: Annotated[
            Path | None, typer.Option(help="Where to write; by default runs/TASK.")
        ] = None,
        resume: Resume = False,
        jobs: Jobs = 1,
        threads: Threads = None,
        seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
        checkpoint_seconds: Annotated[
            float, typer.Option(help="Save an unfinished run at an evaluation this long after.")
        ] = 20.0,
    ) -> None:
        """Train with each method, side by side, and tell what pays in equal time."""
        from salience.compare.demo import seeds_from
        from salience.compare.methods import parse_methods
        from salience.compare.plan import Plan
        from salience.paper.tasks import STEPS, make_task

        with one_sentence():
            length = STEPS.get(task, 5000) if steps is None and seconds is None else steps
            plan = Plan(
                make_task=partial(
                    make_task,
                    task,
                    size=model,  # type: ignore[arg-type]
                    data_dir=data_dir,
                    schedule=schedule,
                ),
                methods=tuple(method.name for method in parse_methods(methods)),
                seeds=tuple(seeds_from(seed, seeds)),
                steps=length,
                seconds=seconds,
                evaluations=min(evaluations, length) if length else evaluations,
                threads=1 if jobs > 1 else threads,
                checkpoint_seconds=checkpoint_seconds,
            )
            _compare(plan, task, model, schedule, out or _default_out(task), resume, jobs)

    @app.command()
    def report(
        directory: Annotated[Path, typer.Argument(help="What a comparison wrote to.")],
    ) -> None:
        """Write report.html, report.md and the figures of a comparison again."""
        from salience.compare.report.page import write_report

        with one_sentence():
            for file in write_report(directory):
                print(file)


def _compare(
    plan: "Plan",
    task: str,
    model: str,
    schedule: str | None,
    out: Path,
    resume: bool,
    jobs: int,
) -> None:
    from rich.console import Console

    from salience.cli.progress import watch
    from salience.compare.plan import compare
    from salience.compare.results import Results

    console = Console()
    plan.check(jobs)
    plan.make_task()  # what cannot be made is refused before anything is written
    settings = {"command": _command(), "task": task, "model": model, "schedule": schedule}
    results = Results(out, plan, settings, jobs=jobs, resume=resume)
    rows = compare(plan, out, jobs)
    runs = dict.fromkeys(plan.methods, len(plan.seeds))
    for row in watch(rows, runs, plan.evaluations, console):
        results.row(row)
    summary = results.finish()
    from salience.compare.report.page import write_report

    tell(console, summary, [*write_report(out), *results.files])


def _command() -> str:
    """As it was typed, without the path of the program."""
    return shlex.join(["salience", *sys.argv[1:]])


def _default_out(task: str) -> Path:
    return Path("runs") / (Path(task.partition(":")[0]).stem if ":" in task else task)
