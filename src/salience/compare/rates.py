"""The learning rate of a run: by the share of the training that is done, or by a scheduler."""

import inspect
from typing import Any, final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from salience.compare.task import SCHEDULES, Schedule, constant
from salience.errors import ArgumentError

__all__ = ["Rates"]


@final
class Rates:
    """Sets the learning rates of an optimizer before each step, or lets a scheduler do so after it.

    ``schedule`` is a name, a function from the share of the training that is done to a factor, or
    what makes one of torch's schedulers: a function of (optimizer), or of (optimizer, steps) with
    the number of steps of this run.
    """

    def __init__(self, schedule: Any, optimizer: Optimizer, steps: int | None) -> None:
        self._optimizer = optimizer
        self._initial = [group["lr"] for group in optimizer.param_groups]
        self._factor: Schedule | None = None
        self._scheduler: LRScheduler | None = None
        if isinstance(schedule, str):
            schedule = SCHEDULES[schedule]
        if _gives_a_factor(schedule):
            self._factor = None if schedule is constant else schedule
        else:
            self._scheduler = _made(schedule, optimizer, steps)

    def before_step(self, done: float) -> None:
        """``done``: the share of the training that has passed."""
        if self._factor is not None:
            factor = self._factor(done)
            for group, rate in zip(self._optimizer.param_groups, self._initial, strict=True):
                group["lr"] = factor * rate

    def after_step(self) -> None:
        if self._scheduler is not None:
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._scheduler is None else self._scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state)


def _gives_a_factor(schedule: Any) -> bool:
    """Whether it takes a share and returns a number, which a scheduler's function cannot do."""
    if _needed(schedule) != 1:
        return False
    try:
        return isinstance(schedule(0.0), int | float)
    except Exception:
        return False


def _needed(schedule: Any) -> int:
    """How many arguments it must be given."""
    parameters = inspect.signature(schedule).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)


def _made(schedule: Any, optimizer: Optimizer, steps: int | None) -> LRScheduler:
    needed = _needed(schedule)
    if needed > 1 and steps is None:
        raise ArgumentError(
            "a schedule of (optimizer, steps) needs a number of steps: give --steps, not --seconds"
        )
    made = schedule(optimizer, steps) if needed > 1 else schedule(optimizer)
    if not isinstance(made, LRScheduler):
        raise ArgumentError(
            f"schedule must be one of {', '.join(SCHEDULES)}, a function from the share of the "
            f"training (0 to 1) to a factor, or one that makes a torch scheduler from the "
            f"optimizer; it returned {type(made).__name__}"
        )
    return made
