"""A first look at a task: a few steps with each method, before anything is written or takes long.

What is wrong with a task is refused here with one sentence. What the steps took gives the time that
the whole comparison will take.
"""

import math
import time
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from salience.compare.methods import Method
from salience.compare.run import Run
from salience.compare.task import Task
from salience.compare.user_code import user_code
from salience.errors import ArgumentError

__all__ = ["Checked", "check_task", "described"]

STEPS = 6  # with each method, of which the first is not timed
ENOUGH = 2.0  # seconds; slow methods take fewer steps
SEED = 7_001_313  # of no run


class Checked(NamedTuple):
    """What the first look found.

    ``step_seconds``: training time of a step, by method. ``evaluation_seconds``: of one evaluation.
    ``examples``: the size of each set by its name. ``parameters``: how many weights are trained.
    ``batch``: what a batch is, in words. ``values``: loss and measures of the sets before training.
    """

    step_seconds: dict[str, float]
    evaluation_seconds: float
    examples: dict[str, int]
    parameters: int
    batch: str
    values: dict[str, float]

    def expected_seconds(
        self,
        *,
        seeds: int,
        evaluations: int,
        steps: int | None = None,
        seconds: float | None = None,
        shares: Iterable[float] = (1.0,),
        jobs: int = 1,
    ) -> float:
        """The time of a whole comparison, if it goes on as it began."""
        shares = [*shares]
        whole = [
            (seconds or 0.0) if steps is None else steps * each
            for each in self.step_seconds.values()
        ]
        evaluating = (evaluations + 1) * self.evaluation_seconds
        of_a_seed = sum(share * train + evaluating for share in shares for train in whole)
        return of_a_seed * math.ceil(seeds / jobs)


def check_task(task: Task, methods: Iterable[Method], *, seconds: float | None = None) -> Checked:
    """Refuse a task that cannot be trained and tested; measure what a step and a test take.

    ``seconds``: the length of the runs to come, where it is a time and not a number of steps.
    """
    first, *others = methods
    examples = _sizes(task)
    with user_code(f"the model or optimizer of task {task.name!r}"):
        length: dict[str, Any] = {"seconds": seconds} if seconds else {"steps": STEPS}
        run = Run(task, first, SEED, **length)
    batch = _check_batch(run)
    with user_code(f"evaluating task {task.name!r}"):
        began = time.perf_counter()
        row: Mapping[str, Any] = run.evaluate()
        evaluation = time.perf_counter() - began
    values = {k: v for k, v in row.items() if k.startswith(("train_", "test_", "validation_"))}
    _check_finite(task, values)
    return Checked(
        step_seconds={each.name: _step_seconds(task, each, length) for each in (first, *others)},
        evaluation_seconds=evaluation,
        examples=examples,
        parameters=sum(p.numel() for p in run.model.parameters() if p.requires_grad),
        batch=batch,
        values=values,
    )


def _sizes(task: Task) -> dict[str, int]:
    """How many examples each set has; a stream and an empty set are refused."""
    sets = {"train": task.train, "test": task.test, "validation": task.validation}
    found = {}
    for name, dataset in sets.items():
        if dataset is None:
            continue
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ArgumentError(
                f"the {name} set of task {task.name!r} is a {type(dataset).__name__} without "
                f"indices: comparisons need a dataset with __len__ and __getitem__"
            )
        with user_code(f"len() of the {name} set"):
            found[name] = len(dataset)
        if not found[name]:
            raise ArgumentError(f"the {name} set of task {task.name!r} is empty")
    return found


# ------------------------------------------------------------------------------------- one batch


def _check_batch(run: Run) -> str:
    """Read a batch, look at its losses and gradients, and say what it is."""
    task = run.task
    with user_code(f"reading a training batch of task {task.name!r}"), run.randomness():
        batch = next(iter(run.loader))
    text = described(batch)
    run.model.train()
    with user_code(f"the model or loss on a batch {text}"), run.randomness():
        losses = task.batch_losses(run.model, batch)
    _check_losses(task, losses, text)
    _refuse_broadcast(run, batch)
    with user_code("the backward pass"):
        run.loader.mean(losses).backward()  # type: ignore[no-untyped-call]
    _check_gradients(run)
    return text


def _check_losses(task: Task, losses: Tensor, text: str) -> None:
    if losses.shape != (task.batch_size,):
        raise ArgumentError(
            f"the loss gave {len(losses)} values for a batch of {task.batch_size} examples "
            f"{text}: it must give one per example, first dimension first"
        )
    if not losses.requires_grad:
        raise ArgumentError(
            "the loss does not depend on the model's weights: compute it from the model's outputs, "
            "without detach() or no_grad()"
        )
    bad = (~losses.detach().isfinite() | (losses.detach() < 0)).nonzero().flatten().tolist()
    if bad:
        raise ArgumentError(
            f"the loss of {len(bad)} of {len(losses)} examples in the first batch is negative or "
            f"not finite, such as {losses[bad[0]].item():g}: losses must be 0 or more (add a "
            f"constant, or look for log(0) and division by 0)"
        )


def _refuse_broadcast(run: Run, batch: Any) -> None:
    """Outputs [B, 1] and targets [B] broadcast to [B, B]: losses of all pairs."""
    task = run.task
    if task.losses is not None:
        return
    with torch.no_grad(), run.randomness():
        outputs, targets = task.predict(run.model, batch)
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return
    alone = targets.is_floating_point() and {*outputs.shape[1:]} == {1} and targets.ndim == 1
    with torch.no_grad():
        broadcast = alone and task.criterion(outputs, targets).ndim > 1
    if broadcast:
        raise ArgumentError(
            f"outputs of shape {[*outputs.shape]} and targets of shape {[*targets.shape]} "
            f"broadcast: give the model's output .squeeze(1), or targets of shape "
            f"{[*outputs.shape]}"
        )


def _check_gradients(run: Run) -> None:
    given = {name: p for name, p in run.model.named_parameters() if p.requires_grad}
    if not given:
        raise ArgumentError("the model has no weights to train: all have requires_grad=False")
    held = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
    reached = [p for p in given.values() if p.grad is not None and id(p) in held]
    if not reached:
        raise ArgumentError(
            "no weight of the optimizer gets a gradient: make it from the parameters that it is "
            "given, as in optimizer=lambda parameters: torch.optim.Adam(parameters)"
        )
    for name, p in given.items():
        if p.grad is not None and not p.grad.isfinite().all():
            raise ArgumentError(
                f"the gradient of {name} is not finite in the first step: look for a square root "
                f"or logarithm of 0, or train with a smaller learning rate"
            )


def described(batch: Any) -> str:
    """A batch in words: (float32 [64, 20], int64 [64])."""
    if isinstance(batch, Tensor | np.ndarray):
        return f"{str(batch.dtype).removeprefix('torch.')} {[*batch.shape]}"
    if isinstance(batch, Mapping):
        return f"{{{', '.join(f'{key}: {described(batch[key])}' for key in batch)}}}"
    if isinstance(batch, tuple | list) and len(batch) <= 8:
        return f"({', '.join(map(described, batch))})"
    size = f" of {len(batch)}" if hasattr(batch, "__len__") else ""
    return f"{type(batch).__name__}{size}"


# -------------------------------------------------------------------------------- tests and time


def _check_finite(task: Task, values: Mapping[str, float]) -> None:
    for name, value in values.items():
        if not math.isfinite(value):
            raise ArgumentError(
                f"{name} of task {task.name!r} is {value:g} before training: look at the examples "
                f"of this set, or at the metric"
            )


def _step_seconds(task: Task, method: Method, length: dict[str, Any]) -> float:
    """The median time of a step."""
    with user_code(f"training a few steps with {method.name}"):
        run = Run(task, method, SEED, **length)
        took: list[float] = []
        while len(took) < STEPS and (len(took) < 2 or sum(took) < ENOUGH):
            before = run.seconds
            run.advance(1)
            took.append(run.seconds - before)
    return median(took[1:])
