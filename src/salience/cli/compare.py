"""``salience compare``: does importance sampling pay on this task?"""

from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer

from salience.cli.common import (
    DataDir,
    Debug,
    Jobs,
    Replace,
    Resume,
    Seed,
    Seeds,
    Threads,
    run,
    typed,
)
from salience.cli.tasks import STEPS, TASK_NAMES, resolve
from salience.compare.methods import METHOD_NAMES, parse_methods
from salience.compare.own import is_own, own_file
from salience.compare.plan import Plan, budgets_from, seeds_from
from salience.compare.task import SCHEDULES
from salience.paper.networks import SIZES

__all__ = ["EXAMPLES", "compare"]

OWN_STEPS = 5000  # of a user's own task

EXAMPLES = """Examples:

salience compare digits

salience compare mnist --data-dir data --steps 5000 --methods uniform,history

salience compare cifar10 --seconds 600 --schedule cosine --jobs 2 --out runs/cifar

salience compare my_task.py --methods uniform,auto,loss:k=1  (salience new writes one)

salience compare cifar10-crops --model tiny --budgets 0.25,0.5,0.75,1 --methods auto,infobatch

salience compare mnist --steps 5000 --resume  (after an interruption)
"""

Methods = Annotated[
    str,
    typer.Option(help=f"Of {', '.join(METHOD_NAMES)}; with options as in loss:k=1:presample=4."),
]


def compare(
    task: Annotated[
        str, typer.Argument(help=f"{', '.join(TASK_NAMES)}, or path/to/file.py (see salience new)")
    ],
    methods: Methods = "uniform,auto,history,loss",
    seeds: Seeds = 3,
    steps: Annotated[
        int | None, typer.Option(help="Steps of each run; by default the paper's number.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Training time of each run, instead of steps.")
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(help="Train within these shares of the length too, as in 0.25,0.5,0.75,1."),
    ] = None,
    model: Annotated[str, typer.Option(help=f"The network: {', '.join(SIZES)}.")] = "small",
    schedule: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(SCHEDULES)}; by default the task's own."),
    ] = None,
    evaluations: Annotated[int, typer.Option(help="Evaluations of each run.")] = 50,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; by default runs/TASK.")] = None,
    resume: Resume = False,
    replace: Replace = False,
    jobs: Jobs = 1,
    threads: Threads = None,
    seed: Seed = 0,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Seconds between checkpoints of a run, at evaluations.")
    ] = 20.0,
    debug: Debug = False,  # noqa: ARG001 - it acts as soon as it is read
) -> None:
    """Train with each method, side by side, and report what pays in equal time."""
    length = STEPS.get(task, OWN_STEPS) if steps is None and seconds is None else steps
    shares = None if budgets is None else budgets_from(budgets)
    shortest = round(length * min(shares or (1.0,))) if length else 0
    plan = Plan(
        make_task=partial(resolve, task, model, data_dir, schedule),
        methods=tuple(method.name for method in parse_methods(methods)),
        seeds=seeds_from(seed, seeds),
        steps=length,
        seconds=seconds,
        evaluations=min(evaluations, max(1, shortest)) if length else evaluations,
        threads=1 if jobs > 1 else threads,
        checkpoint_seconds=checkpoint_seconds,
        budgets=shares,
    )
    settings = {"command": typed(), "task": task, "model": model, "schedule": schedule}
    file = own_file(task) if is_own(task) else None
    settings |= _checksum(file)
    name = task if file is None else file.stem
    run(plan, out or Path("runs") / name, settings, jobs=jobs, resume=resume, replace=replace)


def _checksum(file: Path | None) -> dict[str, str]:
    """Of the file of a user's own task: what was trained with another one is not resumed."""
    there = file is not None and file.is_file()
    return {"task_file": sha256(file.read_bytes()).hexdigest()} if file and there else {}
