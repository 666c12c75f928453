"""Tasks by name: the digits, those of the paper, and a user's own ``path/to/file.py:make_task``."""

from dataclasses import replace
from pathlib import Path

from salience.compare.digits import digits_task
from salience.compare.own import is_own, own_task
from salience.compare.task import SCHEDULES, Task
from salience.errors import ArgumentError
from salience.paper import tasks as paper
from salience.paper.networks import check_size

__all__ = ["STEPS", "TASK_NAMES", "resolve"]

TASK_NAMES = ("digits", *paper.TASK_NAMES)
STEPS = {**paper.STEPS, "digits": 1600}


def resolve(name: str, size: str, data_dir: Path | None, schedule: str | None) -> Task:
    """The task of that name; ``schedule`` None is the task's own."""
    if schedule is not None and schedule not in SCHEDULES:
        raise ArgumentError(f"schedule must be one of {', '.join(SCHEDULES)}; got {schedule!r}")
    check_size(size)
    task = _found(name, size, data_dir)
    return replace(
        task,
        schedule=task.schedule if schedule is None else SCHEDULES[schedule],
        probe=paper.PROBE if task.probe is None else task.probe,
    )


def _found(name: str, size: str, data_dir: Path | None) -> Task:
    if is_own(name):
        return own_task(name)
    if name == "digits":
        return digits_task()
    if name in TASK_NAMES:
        return paper.make_task(name, size=size, data_dir=data_dir)
    raise ArgumentError(
        f"task must be one of {', '.join(TASK_NAMES)} or path/to/file.py:make_task; got {name!r}"
    )
