"""What is learned: data, network, loss and optimizer, and parts that many tasks share."""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from salience.batches.nested import move
from salience.compare.measures import Measure, Metrics, Tally, measures_of
from salience.compare.weights import load_weights
from salience.errors import ArgumentError
from salience.scores.criterion import as_criterion

__all__ = [
    *("SCHEDULES", "Amp", "Schedule", "Task", "adam", "constant", "cosine", "cross_entropy"),
    *("find_device", "onecycle", "stepped", "wrong"),
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


def adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Adam with the paper's learning rate."""
    return torch.optim.Adam(parameters, lr=1e-3)


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """One loss per example."""
    return nn.functional.cross_entropy(output, target, reduction="none")


def wrong(output: Tensor, target: Tensor) -> Tensor:
    """Whether the largest output is not the target's."""
    return output.argmax(1) != target


Amp = Literal["bf16", "fp16"]
TARGET_NAMES = ("labels", "label", "targets", "target", "y")  # of a batch that is a mapping


@dataclass(frozen=True)
class Task:
    """What is learned: data, network, loss and optimizer.

    Batches are (input, target), (input, ..., target), or mappings whose target is called labels,
    label, targets, target or y: the model is given the rest, as arguments or by name. For others,
    ``outputs`` takes (model, batch) and returns (outputs, targets).

    ``loss`` and ``wrong`` take (outputs, targets) and return one value per example: its loss, and
    whether it counts as an error. ``losses`` takes (model, batch) instead, for a loss that needs
    more. ``metrics`` are further measures of the test set, by name: functions of
    (outputs, targets), a ``Measure``, or only names of ready-made ones. The first is what verdicts
    go by; without any it is the error, and without ``wrong`` the test loss.

    ``validation``: a set to choose the best point of a run by, and for ``auto`` to look at.
    ``evaluated``: the training examples as evaluations see them, where ``train`` changes them at
    random each time (None: as they are in ``train``). ``probe``: how many examples of each set an
    evaluation looks at, always the same ones (None: all). ``collate`` and ``workers`` are those of
    DataLoader.

    ``schedule``: a name, a function from the share of the training that is done to a factor of the
    learning rate, or one of (optimizer) or (optimizer, steps) that makes a torch scheduler.
    ``checkpoint``: weights to start from, as a file or a state dict. ``device``: "cpu", "cuda",
    "auto" (an accelerator where there is one), or any other of torch. ``amp``: "bf16" or "fp16".

    ``show``: an example for people, as an image tensor [C, H, W] in 0 .. 1 or as text.
    ``rare``: of targets, which are rare; evaluations then also give the error among those.
    """

    name: str
    train: Dataset[Any]
    test: Dataset[Any]
    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] = adam
    loss: Callable[[Any, Any], Tensor] | None = None
    wrong: Callable[[Any, Any], Tensor] | None = None
    batch_size: int = 64
    collate: Callable[[Any], Any] | None = None
    schedule: Any = constant
    probe: int | None = None
    show: Callable[[int], Any] | None = None
    rare: Callable[[Tensor], Tensor] | None = None
    evaluated: Dataset[Any] | None = None
    metrics: Metrics | None = None
    validation: Dataset[Any] | None = None
    losses: Callable[[nn.Module, Any], Tensor] | None = None
    outputs: Callable[[nn.Module, Any], tuple[Any, Any]] | None = None
    workers: int = 0
    device: str = "cpu"
    amp: Amp | None = None
    checkpoint: Any = None

    def __post_init__(self) -> None:
        if self.loss is None and self.losses is None:
            raise ArgumentError(
                f"task {self.name!r} has no loss: give loss=function(outputs, targets) or "
                f"losses=function(model, batch), with one loss per example"
            )
        if self.batch_size < 1 or self.workers < 0:
            raise ArgumentError(
                f"batch_size must be at least 1 and workers at least 0; got {self.batch_size} and "
                f"{self.workers}"
            )
        if isinstance(self.schedule, str) and self.schedule not in SCHEDULES:
            raise ArgumentError(
                f"schedule must be one of {', '.join(SCHEDULES)}; got {self.schedule!r}"
            )
        if self.amp not in (None, *get_args(Amp)):
            raise ArgumentError(f"amp must be None, 'bf16' or 'fp16'; got {self.amp!r}")
        _ = self.measures, self.place  # refused now, not after an hour

    # ------------------------------------------------------------------------------ what follows

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """What it is tested by, the primary measure first."""
        return measures_of(self.metrics, self.wrong)

    @cached_property
    def place(self) -> torch.device:
        """The device that ``device`` names."""
        return find_device(self.device)

    @cached_property
    def criterion(self) -> Callable[[Any, Any], Tensor]:
        """The loss, with ``reduction="none"`` where it has such an option."""
        assert self.loss is not None
        return as_criterion(self.loss).function

    def network(self) -> nn.Module:
        """A new network, from the checkpoint if there is one, on the device."""
        model = self.model()
        if not isinstance(model, nn.Module):
            raise ArgumentError(
                f"model of task {self.name!r} must be a function that returns an nn.Module; it "
                f"returned {type(model).__name__}"
            )
        if self.checkpoint is not None:
            load_weights(model, self.checkpoint)
        return model.to(self.place)

    # ---------------------------------------------------------------------------------- batches

    def batch_losses(self, model: nn.Module, batch: Any) -> Tensor:
        """Losses [B] of a batch, of any nesting and on any device."""
        batch = self._here(batch)
        with self._precision():
            if self.losses is not None:
                return _per_example(self.losses(model, batch))
            return _per_example(self.criterion(*self._outputs(model, batch)))

    def examine(self, model: nn.Module, batch: Any, tally: Tally) -> None:
        """Add the losses of a batch, and outputs and targets where measures need them."""
        batch = self._here(batch)
        with self._precision():
            if self.losses is None:
                outputs, targets = self._outputs(model, batch)
                tally.add(_per_example(self.criterion(outputs, targets)), outputs, targets)
            else:
                losses = _per_example(self.losses(model, batch))
                both = self._outputs(model, batch) if tally.needs_outputs else (None, None)
                tally.add(losses, *both)

    def predict(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        """Outputs and targets of a batch."""
        with self._precision():
            return self._outputs(model, self._here(batch))

    def _outputs(self, model: nn.Module, batch: Any) -> tuple[Any, Any]:
        if self.outputs is not None:
            return _pair(self.outputs(model, batch))
        if isinstance(batch, Mapping):
            named = next((name for name in TARGET_NAMES if name in batch), None)
            if named is not None:
                rest = {key: batch[key] for key in batch if key != named}
                return _logits(model(**rest)), batch[named]
        elif isinstance(batch, tuple | list) and len(batch) > 1:
            *inputs, targets = batch
            return _logits(model(*inputs)), targets
        raise ArgumentError(
            f"a batch of task {self.name!r} is {_described(batch)}: which part is the target is "
            f"not known; give outputs=function(model, batch) that returns (outputs, targets)"
        )

    def _here(self, batch: Any) -> Any:
        return batch if self.place.type == "cpu" else move(batch, self.place)

    def _precision(self) -> AbstractContextManager[Any]:
        if self.amp is None:
            return nullcontext()
        kind = torch.bfloat16 if self.amp == "bf16" else torch.float16
        return torch.autocast(self.place.type, kind)


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is an accelerator where there is one, else the host."""
    if name == "auto":
        found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        return torch.device(next((each for each, there in found.items() if there), "cpu"))
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ArgumentError(f"device must be 'cpu', 'cuda' or 'auto'; got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"device {name!r} is not available here: use 'cpu' or 'auto'")
    return device


def _per_example(losses: Any) -> Tensor:
    """[B], from [B] or [B, T, ...]."""
    if not isinstance(losses, Tensor) or losses.ndim == 0:
        got = "a single number" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
        raise ArgumentError(
            f"the loss must give one value per example; it gave {got}: leave out the mean, such "
            f'as with reduction="none"'
        )
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


def _logits(output: Any) -> Any:
    """Of a model that returns more, as those of transformers do."""
    return getattr(output, "logits", output)


def _pair(found: Any) -> tuple[Any, Any]:
    if isinstance(found, tuple | list) and len(found) == 2:
        return found[0], found[1]
    raise ArgumentError(f"outputs must return (outputs, targets); it returned {_described(found)}")


def _described(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return f"a {type(batch).__name__} with {', '.join(map(repr, batch)) or 'nothing'}"
    size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
    return f"a {type(batch).__name__}{size}"
