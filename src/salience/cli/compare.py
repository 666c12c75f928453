"""``salience compare``: does importance sampling pay on this task?"""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from salience.cli.common import DataDir, Jobs, Resume, Seed, Seeds, Threads, run
from salience.cli.tasks import STEPS, TASK_NAMES, resolve
from salience.compare.methods import METHOD_NAMES, parse_methods
from salience.compare.plan import Plan, seeds_from

__all__ = ["EXAMPLES", "compare"]

OWN_STEPS = 5000  # of a user's own task

EXAMPLES = """Examples:

salience compare digits

salience compare mnist --data-dir data --steps 5000 --methods uniform,history

salience compare cifar10 --seconds 600 --schedule cosine --jobs 2 --out runs/cifar

salience compare path/to/file.py:make_task --methods uniform,auto,loss:k=1

salience compare mnist --steps 5000 --resume  (after an interruption)
"""

Methods = Annotated[
    str,
    typer.Option(help=f"Of {', '.join(METHOD_NAMES)}; with options as in loss:k=1:presample=4."),
]


def compare(
    task: Annotated[
        str, typer.Argument(help=f"{', '.join(TASK_NAMES)}, or path/to/file.py:make_task")
    ],
    methods: Methods = "uniform,auto,history,loss",
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
    out: Annotated[Path | None, typer.Option(help="Where to write; by default runs/TASK.")] = None,
    resume: Resume = False,
    jobs: Jobs = 1,
    threads: Threads = None,
    seed: Seed = 0,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Seconds between checkpoints of a run, at evaluations.")
    ] = 20.0,
) -> None:
    """Train with each method, side by side, and report what pays in equal time."""
    length = STEPS.get(task, OWN_STEPS) if steps is None and seconds is None else steps
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
    name = Path(task.partition(":")[0]).stem if ":" in task else task
    run(plan, out or Path("runs") / name, settings, jobs=jobs, resume=resume)
