"""What is learned: data, network, loss and optimizer, and parts that many tasks share."""

import importlib.util
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from salience.compare.measures import Measure, Metrics, measures_of
from salience.errors import ArgumentError

__all__ = [
    *("SCHEDULES", "Schedule", "Task", "adam", "constant", "cosine", "cross_entropy"),
    *("onecycle", "own_task", "stepped", "wrong"),
]

Schedule = Callable[[float], float]
"""From the fraction of the training that is done to a factor of the learning rate."""


def constant(done: float) -> float:  # noqa: ARG001
    """The same learning rate throughout."""
    return 1.0


def stepped(done: float) -> float:
    """A tenth of the learning rate for the last three tenths, as the paper did for CIFAR-10."""
    return 1.0 if done < 0.7 else 0.1


def cosine(done: float) -> float:
    """From the full learning rate to none along half a cosine."""
    return 0.5 * (1 + math.cos(math.pi * done))


WARM_UP = 0.3
LOWEST = 0.04  # where the warm-up begins


def onecycle(done: float) -> float:
    """Linear warm-up from a 25th over the first three tenths, then half a cosine to none."""
    if done < WARM_UP:
        return LOWEST + (1 - LOWEST) * done / WARM_UP
    return cosine((done - WARM_UP) / (1 - WARM_UP))


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "stepped": stepped,
    "cosine": cosine,
    "onecycle": onecycle,
}


@dataclass(frozen=True)
class Task:
    """What is learned: data whose batches are (input, target), network, loss and optimizer.

    ``loss`` and ``wrong`` take (output, target) and return one value per example: its loss, and
    whether it counts as an error. ``metrics`` are further measures of the test set, by name:
    functions of (outputs, targets), a ``Measure``, or only names of ready-made ones. The first is
    what verdicts go by; without any it is the error, and without ``wrong`` the test loss.
    ``validation``: a set to choose the best point of a run by, and for ``auto`` to look at.
    ``probe``: how many examples of each set an evaluation looks at, always the same ones (None:
    all). ``show``: an example for people, as an image tensor [C, H, W] in 0 .. 1 or as text.
    ``rare``: of targets, which are rare; evaluations then also give the error among those.
    ``evaluated``: the training examples as evaluations see them, where ``train`` changes them at
    random each time (None: as they are in ``train``).
    """

    name: str
    train: Dataset[Any]
    test: Dataset[Any]
    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor]
    wrong: Callable[[Tensor, Tensor], Tensor] | None
    batch_size: int
    collate: Callable[[Any], Any] | None = None
    schedule: Schedule = constant
    probe: int | None = None
    show: Callable[[int], Any] | None = None
    rare: Callable[[Tensor], Tensor] | None = None
    evaluated: Dataset[Any] | None = None
    metrics: Metrics | None = None
    validation: Dataset[Any] | None = None

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What it is tested by, the primary measure first."""
        return measures_of(self.metrics, self.wrong)

    def losses(self, model: nn.Module, batch: Any) -> Tensor:
        """Per-example losses of a batch, for scores that need the model."""
        x, y = batch
        return self.loss(model(x), y)


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Adam with the paper's learning rate."""
    return torch.optim.Adam(parameters, lr=1e-3)


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """One loss per example."""
    return nn.functional.cross_entropy(output, target, reduction="none")


def wrong(output: Tensor, target: Tensor) -> Tensor:
    """Whether the largest output is not the target's."""
    return output.argmax(1) != target


def own_task(spec: str) -> Task:
    """``path/to/file.py:make_task``: the Task that the function returns."""
    path, _, name = spec.rpartition(":")
    if not Path(path).is_file():
        raise ArgumentError(f"there is no file {path}: write path/to/file.py:make_task")
    make = getattr(_imported(path), name, None)
    if not callable(make):
        raise ArgumentError(f"{path} has no function {name!r}: name the one that returns a Task")
    task = make()
    if not isinstance(task, Task):
        raise ArgumentError(
            f"{spec} returned {type(task).__name__}: it must return a salience.compare.Task"
        )
    return task


def _imported(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
