"""One network, one method, one seed: a training run that can be advanced and evaluated.

Every comparison is made of these runs. The loop is the one of the README, so what is measured is
what users get.
"""

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any, NotRequired, TypedDict, cast, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from salience import functional
from salience.compare.measures import Tally
from salience.compare.methods import Method
from salience.compare.randomness import Randomness, fixed
from salience.compare.rates import Rates
from salience.compare.rivals import Batches
from salience.compare.task import Task

__all__ = ["MEASURED", "Row", "Run", "warm_up"]

EVALUATION_BATCH = 256
WARM_UP_STEPS = 5
BLOCK = 16  # steps between two looks at the clock on an accelerator, which each look waits for
PARTS = ("model", "optimizer", "loader", "rates", "scaler", "randomness")  # that have a state
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
    loss_gain: NotRequired[float]  # how many times fewer examples draws by loss would need
    test_loss: float
    test_error: NotRequired[float]  # share of wrong answers, 0 to 1
    test_error_worst: NotRequired[float]  # the highest of any class, for tasks that have classes
    test_error_rare: NotRequired[float]  # the same among rare classes, for tasks that have them
    test_perplexity: NotRequired[float]  # exp(test_loss), for language models
    sampler: NotRequired[dict[str, Any]]  # what ``auto`` decided, and why


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
        self.randomness = Randomness(seed, task.place)
        with self.randomness():
            self.model = task.network()
        self.optimizer = task.optimizer(self.model.parameters())
        self.rates = Rates(task.schedule, self.optimizer, steps)
        self.scaler = torch.amp.GradScaler(task.place.type, enabled=task.amp == "fp16")
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
            self.advance(1 if self.task.place.type == "cpu" else BLOCK)

    def advance(self, steps: int) -> None:
        """Train for ``steps`` more steps; only this counts as training time."""
        self.model.train()
        with self.randomness():
            started = self._now()
            for _ in range(steps):
                self._train_step()
            self.seconds += self._now() - started

    def _now(self) -> float:
        """The clock, once the device has done what it was asked to."""
        if self.task.place.type != "cpu":
            getattr(torch, self.task.place.type).synchronize()
        return time.perf_counter()

    def _train_step(self) -> None:
        self.rates.before_step(self.done())
        losses = self.task.batch_losses(self.model, next(self._batches))
        self.scaler.scale(self.loader.mean(losses)).backward()  # type: ignore[no-untyped-call]
        if self._step_taken():
            self.rates.after_step()
        self.optimizer.zero_grad()
        self.step += 1
        self.examples += len(losses)

    def _step_taken(self) -> bool:
        """Step, unless half precision overflowed: then the gradients are dropped."""
        if not self.scaler.is_enabled():
            self.optimizer.step()
            return True
        self.scaler.step(self.optimizer)
        scale = self.scaler.get_scale()
        self.scaler.update()
        return self.scaler.get_scale() >= scale

    def done(self) -> float:
        """The share of the length that has passed, 0 to 1; 0 for a run without one."""
        steps, seconds = self._length
        if seconds is not None:
            return min(self.seconds / seconds, 1.0)
        return min(self.step / steps, 1.0) if steps else 0.0

    def evaluate(self) -> Row:
        """Losses and measures, without changing anything that the training depends on.

        Except that the method is told the loss on the validation set, where there is one.
        """
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
            "loss_gain": self._loss_gain(),
            **self.test(self._test),
            **self._validate(),
        }
        decision: dict[str, Any] = getattr(self.loader, "decision", dict)()
        return cast(Row, {**row, **({"sampler": decision} if decision else {})})

    def _loss_gain(self) -> float:
        """v of the evaluated train losses with half their mean added, as draws by loss have it."""
        q = functional.smooth(self.train_losses, self.train_losses.mean() / 2)
        return float(functional.variance_reduction(q))

    def _validate(self) -> dict[str, float]:
        if self._validation is None:
            return {}
        found = self.test(self._validation, "validation")
        tell = getattr(self.loader, "validation", None)
        if tell is not None and math.isfinite(found["validation_loss"]):
            tell(found["validation_loss"])
        return found

    def test(self, dataset: Dataset[Any], prefix: str = "test") -> dict[str, float]:
        """The loss and all measures over a data set, named as in a row."""
        found = self._measure(dataset, Tally(self.task.measures, self.task.rare))
        return {f"{prefix}_{name}": value for name, value in found.values().items()}

    @torch.inference_mode()
    def _measure(self, dataset: Dataset[Any], tally: Tally) -> Tally:
        self.model.eval()
        # Augmented examples are the same at each evaluation, and after a resume.
        with fixed(MEASURED, self.task.place):
            for batch in _in_order(dataset, self.task):
                self.task.examine(self.model, batch, tally)
        return tally

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly, for ``torch.load(weights_only=True)``."""
        return {
            "step": self.step,
            "examples": self.examples,
            "seconds": self.seconds,
            **{name: getattr(self, name).state_dict() for name in PARTS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken."""
        self.step, self.examples = state["step"], state["examples"]
        self.seconds = state["seconds"]
        for name in PARTS:
            getattr(self, name).load_state_dict(state[name])
        self._batches = _endless(self.loader)


def warm_up(task: Task, methods: Iterable[Method], seconds: float | None = None) -> None:
    """Let torch initialise itself before anything is timed; else the first run would pay for it."""
    length: dict[str, Any] = {"seconds": seconds} if seconds else {"steps": WARM_UP_STEPS}
    for method in methods:
        run = Run(task, method, seed=0, **length)
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


def _in_order(dataset: Dataset[Any], task: Task) -> Iterable[Any]:
    """Batches for evaluation. Tensors are split in place, which is faster than collating them."""
    size = min(EVALUATION_BATCH, 4 * task.batch_size)
    if isinstance(dataset, TensorDataset) and task.collate is None:
        return zip(*(torch.split(t, size) for t in dataset.tensors), strict=True)
    return DataLoader(
        dataset,
        size,
        collate_fn=task.collate,
        num_workers=task.workers,
        generator=torch.Generator().manual_seed(MEASURED),
    )
