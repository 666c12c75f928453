"""One network, one method, one seed: a training run that can be advanced and evaluated.

Every comparison is made of these runs. The loop is the one of the README, so what is measured is
what users get.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NotRequired, TypedDict, cast, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from salience.compare.measures import Tally
from salience.compare.methods import Method
from salience.compare.rivals import Batches
from salience.compare.task import Task, constant

__all__ = ["MEASURED", "Row", "Run", "warm_up"]

EVALUATION_BATCH = 512
WARM_UP_STEPS = 5
PARTS = ("model", "optimizer", "loader")  # of a run, that have a state
# Measurements choose their examples by this seed, which no run is given. With the seed of a run
# they would be the very first ones that uniform sampling trains on.
MEASURED = 7_291_646_310


class Row(TypedDict):
    """One evaluation: a line of ``runs.jsonl``.

    Other measures of the task are there as ``test_NAME``, and with a validation set all of them as
    ``validation_NAME`` too.
    """

    task: str
    method: str
    k: float
    seed: int
    budget: NotRequired[float]  # the share of the whole length that the training has
    step: int
    seconds: float  # of training; evaluation is not counted
    examples: int  # trained on so far, repetitions included
    train_loss: float  # mean over the training set (or its probe), layers in evaluation mode
    train_max_loss: float
    test_loss: float
    test_error: NotRequired[float]  # share of wrong answers, 0 to 1
    test_error_worst: NotRequired[float]  # the highest of any class, for tasks that have classes
    test_error_rare: NotRequired[float]  # the same among rare classes, for tasks that have them
    test_perplexity: NotRequired[float]  # exp(test_loss), for language models


@final
class Run:
    """One training run. Methods with the same seed start from the same weights.

    The run keeps its own random state (initial weights, dropout), so that runs that are
    interleaved do not influence each other. ``steps`` or ``seconds`` is the length of the training,
    and ``budget`` the share that this is of the longest training with which it is compared, where
    lengths are compared.
    """

    def __init__(
        self,
        task: Task,
        method: Method,
        seed: int,
        *,
        steps: int | None = None,
        seconds: float | None = None,
        budget: float | None = None,
    ) -> None:
        self.task, self.method, self.seed = task, method, seed
        self.step = self.examples = 0
        self.seconds = 0.0
        self.train_losses: Tensor = torch.empty(0)  # [probe], of the last evaluation
        self.budget, self._length = budget, (steps, seconds)
        self._random = torch.Generator().manual_seed(seed).get_state()
        with self._own_randomness():
            self.model = task.model()
        self.optimizer = task.optimizer(self.model.parameters())
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self.loader = method.loader(task, self.model, seed, budget or 1.0, self.done)
        self._batches = _endless(self.loader)
        self._train = _probe(task.train if task.evaluated is None else task.evaluated, task.probe)
        self._test = _probe(task.test, task.probe)
        self._validation = None if task.validation is None else _probe(task.validation, task.probe)

    def train_index(self, place: int) -> int:
        """The position in the training set of entry ``place`` of ``train_losses``."""
        return self._train.indices[place] if isinstance(self._train, Subset) else place

    def advance_to(self, share: float) -> None:
        """Train until this share of the length has passed, 0 to 1."""
        steps, seconds = self._length
        if seconds is None:
            remaining = round(share * (steps or 0)) - self.step
            if remaining > 0:
                self.advance(remaining)
            return
        while self.seconds < share * seconds:
            self.advance(1)

    def advance(self, steps: int) -> None:
        """Train for ``steps`` more steps; only this counts as training time."""
        self.model.train()
        with self._own_randomness():
            started = time.perf_counter()
            for _ in range(steps):
                self._train_step()
            self.seconds += time.perf_counter() - started

    def _train_step(self) -> None:
        if self.task.schedule is not constant:
            factor = self.task.schedule(self.done())
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = factor * rate
        x, y = next(self._batches)
        losses = self.task.loss(self.model(x), y)
        self.loader.mean(losses).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.examples += len(losses)

    def done(self) -> float:
        """The share of the length that has passed, 0 to 1; 0 for a run without one."""
        steps, seconds = self._length
        if seconds is not None:
            return min(self.seconds / seconds, 1.0)
        return min(self.step / steps, 1.0) if steps else 0.0

    def evaluate(self) -> Row:
        """Losses and errors, without changing anything that the training depends on."""
        self.train_losses = self._measure(self._train, Tally(())).losses
        row = {
            "task": self.task.name,
            "method": self.method.name,
            "k": self.method.k,
            "seed": self.seed,
            **({} if self.budget is None else {"budget": self.budget}),
            "step": self.step,
            "seconds": self.seconds,
            "examples": self.examples,
            "train_loss": float(self.train_losses.mean()),
            "train_max_loss": float(self.train_losses.max()),
            **self.test(self._test),
            **({} if self._validation is None else self.test(self._validation, "validation")),
        }
        return cast(Row, row)

    def test(self, dataset: Dataset[Any], prefix: str = "test") -> dict[str, float]:
        """The loss and all measures over a data set, named as in a row."""
        found = self._measure(dataset, Tally(self.task.measures, self.task.rare))
        return {f"{prefix}_{name}": value for name, value in found.values().items()}

    @torch.inference_mode()
    def _measure(self, dataset: Dataset[Any], tally: Tally) -> Tally:
        self.model.eval()
        for x, y in _in_order(dataset, self.task.collate):
            output = self.model(x)
            tally.add(self.task.loss(output, y), output, y)
        return tally

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            yield
            self._random = torch.get_rng_state()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly, for ``torch.load(weights_only=True)``."""
        return {
            "step": self.step,
            "examples": self.examples,
            "seconds": self.seconds,
            "random": self._random,
            **{name: getattr(self, name).state_dict() for name in PARTS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken."""
        self.step, self.examples = state["step"], state["examples"]
        self.seconds, self._random = state["seconds"], state["random"]
        for name in PARTS:
            getattr(self, name).load_state_dict(state[name])
        self._batches = _endless(self.loader)


def warm_up(task: Task, methods: Iterable[Method]) -> None:
    """Let torch initialise itself before anything is timed; else the first run would pay for it."""
    for method in methods:
        run = Run(task, method, seed=0)
        run.advance(WARM_UP_STEPS)
        run.evaluate()


def _endless(loader: Batches) -> Iterator[Any]:
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
    """Batches for evaluation. Tensors are split in place, which is faster than collating them."""
    if isinstance(dataset, TensorDataset):
        return zip(*(torch.split(t, EVALUATION_BATCH) for t in dataset.tensors), strict=True)
    return DataLoader(dataset, EVALUATION_BATCH, collate_fn=collate)
