"""``salience compare``: does importance sampling pay on this task?"""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from salience.cli.common import one_sentence, run_comparison

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["add"]

EXAMPLES = """Examples:

salience compare digits

salience compare mnist --data-dir data --steps 5000 --methods uniform,history

salience compare cifar10 --seconds 600 --schedule cosine --jobs 2 --out runs/cifar

salience compare path/to/file.py:make_task --methods uniform,auto,loss:k=1

salience compare mnist --steps 5000 --resume  (after an interruption)
"""


def add(app: "Typer") -> None:
    """Put the command into ``app``."""
    import typer

    from salience.cli.options import DataDir, Jobs, Resume, Seed, Seeds, Threads
    from salience.cli.tasks import TASK_NAMES, resolve, steps_of
    from salience.compare.methods import METHOD_NAMES, parse_methods
    from salience.compare.plan import Plan, seeds_from

    @app.command(epilog=EXAMPLES)
    def compare(
        task: Annotated[
            str, typer.Argument(help=f"{', '.join(TASK_NAMES)}, or path/to/file.py:make_task")
        ],
        methods: Annotated[
            str,
            typer.Option(
                help=f"Of {', '.join(METHOD_NAMES)}; with options as in loss:k=1:presample=4."
            ),
        ] = "uniform,auto,history,loss",
        seeds: Seeds = 3,
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
        seed: Seed = 0,
        checkpoint_seconds: Annotated[
            float, typer.Option(help="Seconds between checkpoints of a run, at evaluations.")
        ] = 20.0,
    ) -> None:
        """Train with each method, side by side, and report what pays in equal time."""
        with one_sentence():
            length = steps_of(task) if steps is None and seconds is None else steps
            plan = Plan(
                make_task=partial(resolve, task, model, data_dir, schedule),
                methods=tuple(method.name for method in parse_methods(methods)),
                seeds=seeds_from(seed, seeds),
                steps=length,
                seconds=seconds,
                evaluations=min(evaluations, length) if length else evaluations,
                threads=1 if jobs > 1 else threads,
                checkpoint_seconds=checkpoint_seconds,
            )
            typed = shlex.join(["salience", *sys.argv[1:]])  # without the path of the program
            settings = {"command": typed, "task": task, "model": model, "schedule": schedule}
            run_comparison(plan, out or _default_out(task), settings, jobs=jobs, resume=resume)


def _default_out(task: str) -> Path:
    return Path("runs") / (Path(task.partition(":")[0]).stem if ":" in task else task)
