"""One network, one method, one seed: a training run that can be advanced and evaluated.

Everything a comparison does is made of these runs. The loop is the one of the README, so what is
measured is what users get.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from salience import ImportanceLoader
from salience.errors import ArgumentError

__all__ = [
    "MEASURED",
    "Method",
    "Row",
    "Run",
    "Schedule",
    "Task",
    "constant",
    "interleave",
    "warm_up",
]

EVALUATION_BATCH = 512
WARM_UP_STEPS = 5
# Measurements choose their examples by this seed, which nobody gives a run. By the seed of a run
# they would be the very first ones that uniform sampling with that seed trains on.
MEASURED = 7_291_646_310

Schedule = Callable[[float], float]
"""From the share of the training that is done to a factor of the learning rate."""


def constant(done: float) -> float:  # noqa: ARG001
    """The same learning rate throughout."""
    return 1.0


@dataclass(frozen=True)
class Task:
    """What is learned: data whose batches are (input, target), network, loss and optimizer.

    ``loss`` and ``wrong`` take (output, target) and answer for each example: how bad, and whether
    it counts as an error; without ``wrong`` the test measure is the perplexity. ``probe``: how
    many examples of each set an evaluation looks at, always the same ones (None: all).
    ``show``: an example for people, as an image tensor [C, H, W] in 0 .. 1 or as text.
    ``rare``: of targets, which are rare; evaluations then also give the error among those.
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

    def losses(self, model: nn.Module, batch: Any) -> Tensor:
        """Per-example losses of a batch, as scores that need the model want them."""
        x, y = batch
        return self.loss(model(x), y)


@dataclass(frozen=True)
class Method:
    """How examples are chosen: a name for tables, the bias k, further options of the loader.

    ``score`` makes a score of its own kind from the task and the model.
    """

    name: str
    k: float
    options: Mapping[str, Any] = field(default_factory=dict)
    score: Callable[[Task, nn.Module], Any] | None = None

    def loader(self, task: Task, model: nn.Module, seed: int) -> ImportanceLoader:
        options = dict(self.options)
        if self.score is not None:
            options["score"] = self.score(task, model)
        # Without short batches at the end of a pass, a step costs and teaches the same for all.
        loader = ImportanceLoader(
            task.train,
            task.batch_size,
            k=self.k,
            seed=seed,
            model=model,
            loss=task.losses,
            drop_last=True,
            collate_fn=task.collate,
            **options,
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
    train_loss: float  # mean over the training set (or its probe), layers in evaluation mode
    train_max_loss: float
    test_loss: float
    test_error: NotRequired[float]  # share of wrong answers, 0 to 1
    test_error_rare: NotRequired[float]  # the same among rare classes, for tasks that have them
    test_perplexity: NotRequired[float]  # exp(test_loss), for language models


@final
class Run:
    """One training run. Methods with the same seed start from the same weights.

    The run keeps its own random state (initial weights, dropout), so it goes the same way alone
    as it does interleaved with others. ``steps`` or ``seconds`` is the whole length, for the
    schedule of the learning rate.
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        seed: int,
        *,
        steps: int | None = None,
        seconds: float | None = None,
    ) -> None:
        self.task, self.method, self.seed = task, method, seed
        self.step = self.examples = 0
        self.seconds = 0.0
        self.train_losses: Tensor = torch.empty(0)  # [probe], of the last evaluation
        self._budget = (steps, seconds)
        self._random = torch.Generator().manual_seed(seed).get_state()
        with self._own_randomness():
            self.model = task.model()
        self.optimizer = task.optimizer(self.model.parameters())
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self.loader = method.loader(task, self.model, seed)
        self._batches = _endless(self.loader)
        self._train = _probe(task.train, task.probe)
        self._test = _probe(task.test, task.probe)

    def train_index(self, place: int) -> int:
        """The position in the training set of entry ``place`` of ``train_losses``."""
        return self._train.indices[place] if isinstance(self._train, Subset) else place

    def advance(self, steps: int) -> None:
        """Train for ``steps`` more steps, on the clock."""
        self.model.train()
        with self._own_randomness():
            started = time.perf_counter()
            for _ in range(steps):
                self._train_step()
            self.seconds += time.perf_counter() - started

    def _train_step(self) -> None:
        if self.task.schedule is not constant:
            self._set_rate()
        x, y = next(self._batches)
        losses = self.task.loss(self.model(x), y)
        self.loader.mean(losses).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.examples += len(losses)

    def _set_rate(self) -> None:
        factor = self.task.schedule(self.done())
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = factor * rate

    def done(self) -> float:
        """The share of the budget that is used, 0 to 1; 0 for a run without one."""
        steps, seconds = self._budget
        if seconds is not None:
            return min(self.seconds / seconds, 1.0)
        return min(self.step / steps, 1.0) if steps else 0.0

    def evaluate(self) -> Row:
        """Losses and errors off the clock; training continues undisturbed."""
        self.model.eval()
        self.train_losses, *_ = self._measure(self._train)
        test_losses, test_wrong, rare = self._measure(self._test)
        row = Row(
            task=self.task.name,
            method=self.method.name,
            k=self.method.k,
            seed=self.seed,
            step=self.step,
            seconds=self.seconds,
            examples=self.examples,
            train_loss=float(self.train_losses.mean()),
            train_max_loss=float(self.train_losses.max()),
            test_loss=float(test_losses.mean()),
        )
        if self.task.wrong is None:
            row["test_perplexity"] = math.exp(min(row["test_loss"], 700.0))
        else:
            row["test_error"] = float(test_wrong.mean())
            if self.task.rare is not None:
                row["test_error_rare"] = float(test_wrong[rare].mean())
        return row

    @torch.inference_mode()
    def _measure(self, dataset: Dataset[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Per example: the loss, 1 where the answer is wrong, whether it is rare. All [n]."""
        losses, wrong, rare = [], [], []
        for x, y in _in_order(dataset, self.task.collate):
            output = self.model(x)
            losses.append(self.task.loss(output, y).double())
            if self.task.wrong is not None:
                wrong.append(self.task.wrong(output, y).double())
            if self.task.rare is not None:
                rare.append(self.task.rare(y))
        return _joined(losses), _joined(wrong), _joined(rare)

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            yield
            self._random = torch.get_rng_state()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on exactly, for ``torch.load(weights_only=True)``."""
        return {
            "step": self.step,
            "examples": self.examples,
            "seconds": self.seconds,
            "random": self._random,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.step, self.examples = state["step"], state["examples"]
        self.seconds, self._random = state["seconds"], state["random"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        self._batches = _endless(self.loader)


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


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.empty(0)


def _goals(steps: int, evaluations: int) -> list[int]:
    """The steps after which to evaluate: evenly spaced, the last one ``steps``."""
    blocks = min(steps, evaluations)
    return [steps * (block + 1) // blocks for block in range(blocks)]


def _endless(loader: ImportanceLoader) -> Iterator[Any]:
    while True:
        yield from loader


def _probe(dataset: Dataset[Any], size: int | None) -> Dataset[Any]:
    """The examples an evaluation looks at: all, or the same random ``size`` of them every time."""
    n = len(dataset)  # type: ignore[arg-type]
    if size is None or size >= n:
        return dataset
    chosen = torch.randperm(n, generator=torch.Generator().manual_seed(MEASURED))[:size]
    return Subset(dataset, chosen.sort().values.tolist())


def _in_order(dataset: Dataset[Any], collate: Callable[[Any], Any] | None) -> Iterable[Any]:
    """Batches for evaluation. Tensors are cut where they lie; collating them again takes longer."""
    if isinstance(dataset, TensorDataset):
        return zip(*(torch.split(t, EVALUATION_BATCH) for t in dataset.tensors), strict=True)
    return DataLoader(dataset, EVALUATION_BATCH, collate_fn=collate)
