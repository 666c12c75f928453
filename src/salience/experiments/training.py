"""One network, one method, one seed: a training run that can be advanced and evaluated.

Everything a comparison does is made of these runs. The loop is the one of the README, so what is
measured is what users get.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypedDict, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, TensorDataset

from salience.errors import ArgumentError
from salience.loader import ImportanceLoader

__all__ = ["Method", "Row", "Run", "Task", "interleave", "warm_up"]

EVALUATION_BATCH = 512
WARM_UP_STEPS = 5


@dataclass(frozen=True)
class Task:
    """What is learned: data whose batches are (input, target), network, loss and optimizer.

    ``loss`` and ``wrong`` take (output, target) and answer for each example: how bad, and whether
    it counts as an error.
    """

    name: str
    train: Dataset[Any]
    test: Dataset[Any]
    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    loss: Callable[[Tensor, Tensor], Tensor]
    wrong: Callable[[Tensor, Tensor], Tensor]
    batch_size: int


@dataclass(frozen=True)
class Method:
    """How examples are chosen: a name for tables, the bias k, further options of the loader."""

    name: str
    k: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def loader(self, task: Task, seed: int) -> ImportanceLoader:
        # Without short batches at the end of a pass, a step costs and teaches the same for all.
        loader = ImportanceLoader(
            task.train, task.batch_size, k=self.k, seed=seed, drop_last=True, **self.options
        )
        if len(loader) == 0:
            raise ArgumentError(
                f"batch_size {task.batch_size} is larger than the training set of task "
                f"{task.name!r}: make the batch smaller"
            )
        return loader


class Row(TypedDict):
    """One evaluation: a line of ``runs.jsonl``."""

    task: str
    method: str
    k: float
    seed: int
    step: int
    seconds: float  # of training; evaluation is not counted
    examples: int  # trained on so far, repetitions included
    train_loss: float  # mean over the training set, layers in evaluation mode
    train_max_loss: float
    test_loss: float
    test_error: float  # share of wrong answers, 0 to 1


@final
class Run:
    """One training run. Methods with the same seed start from the same weights.

    The run keeps its own random state (initial weights, dropout), so it goes the same way alone
    as it does interleaved with others.
    """

    def __init__(self, task: Task, method: Method, seed: int) -> None:
        self.task, self.method, self.seed = task, method, seed
        self.step = self.examples = 0
        self.seconds = 0.0
        self._random = torch.Generator().manual_seed(seed).get_state()
        with self._own_randomness():
            self.model = task.model()
        self.optimizer = task.optimizer(self.model.parameters())
        self.loader = method.loader(task, seed)
        self._batches = _endless(self.loader)

    def advance(self, steps: int) -> None:
        """Train for ``steps`` more steps, on the clock."""
        self.model.train()
        with self._own_randomness():
            started = time.perf_counter()
            for _ in range(steps):
                self._train_step()
            self.seconds += time.perf_counter() - started

    def _train_step(self) -> None:
        x, y = next(self._batches)
        losses = self.task.loss(self.model(x), y)
        self.loader.mean(losses).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.examples += len(losses)

    def evaluate(self) -> Row:
        """Losses and errors on all the data, off the clock; training continues undisturbed."""
        self.model.eval()
        train_losses, _ = self._measure(self.task.train)
        test_losses, test_wrong = self._measure(self.task.test)
        return Row(
            task=self.task.name,
            method=self.method.name,
            k=self.method.k,
            seed=self.seed,
            step=self.step,
            seconds=self.seconds,
            examples=self.examples,
            train_loss=float(train_losses.mean()),
            train_max_loss=float(train_losses.max()),
            test_loss=float(test_losses.mean()),
            test_error=float(test_wrong.mean()),
        )

    @torch.inference_mode()
    def _measure(self, dataset: Dataset[Any]) -> tuple[Tensor, Tensor]:
        """Per example: the loss, and 1 where the answer is wrong. Both float64 [n]."""
        losses, wrong = [], []
        for x, y in _in_order(dataset):
            output = self.model(x)
            losses.append(self.task.loss(output, y).double())
            wrong.append(self.task.wrong(output, y).double())
        return torch.cat(losses), torch.cat(wrong)

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            yield
            self._random = torch.get_rng_state()


def interleave(runs: Sequence[Run], steps: int, evaluations: int) -> Iterator[Row]:
    """Take all runs to ``steps`` together, block by block, and evaluate each after each block.

    Whatever else the machine does meanwhile slows all runs alike, and the order turns round after
    each block, so that no run always comes first.
    """
    yield from (run.evaluate() for run in runs)
    for block, goal in enumerate(_goals(steps, evaluations)):
        for run in runs if block % 2 == 0 else reversed(runs):
            run.advance(goal - run.step)
            yield run.evaluate()


def warm_up(task: Task, methods: Iterable[Method]) -> None:
    """Let torch set itself up before the clock starts; else the first run would pay for all."""
    for method in methods:
        run = Run(task, method, seed=0)
        run.advance(WARM_UP_STEPS)
        run.evaluate()


def _goals(steps: int, evaluations: int) -> list[int]:
    """The steps after which to evaluate: evenly spaced, the last one ``steps``."""
    blocks = min(steps, evaluations)
    return [steps * (block + 1) // blocks for block in range(blocks)]


def _endless(loader: ImportanceLoader) -> Iterator[Any]:
    while True:
        yield from loader


def _in_order(dataset: Dataset[Any]) -> Iterable[Any]:
    """Batches for evaluation. Tensors are cut where they lie; collating them again takes longer."""
    if isinstance(dataset, TensorDataset):
        return zip(*(torch.split(t, EVALUATION_BATCH) for t in dataset.tensors), strict=True)
    return DataLoader(dataset, EVALUATION_BATCH)
