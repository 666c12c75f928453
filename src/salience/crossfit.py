"""Reference losses: those of small models that were not trained on the examples they judge."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from salience.arguments import whole_number
from salience.batches.nested import move
from salience.errors import ArgumentError, LossError
from salience.scores.criterion import LossFunction, as_loss, per_example

__all__ = ["cross_fit"]

Advance = Callable[[], None]
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def cross_fit(
    dataset: Dataset[Any],
    make_model: Callable[[], nn.Module],
    loss: Any,
    *,
    folds: int = 2,
    epochs: int = 5,
    batch_size: int = 128,
    optimizer: MakeOptimizer | None = None,
    seed: int = 0,
    progress: bool = True,
    **dataloader_options: Any,
) -> Tensor:
    """float32 [N]: the loss of each example under models that were not trained on it.

    The examples are cut at random into ``folds`` parts. A model of ``make_model()`` is trained on
    each part, and each example gets the mean of its losses under the models of the other parts::

        reference = cross_fit(dataset, lambda: nn.Linear(784, 10), F.cross_entropy)
        loader = ImportanceLoader(dataset, 128, reference=reference)

    ``loss`` is a criterion or a callable ``(model, batch) -> per-example losses``. ``optimizer``
    makes one of the parameters; None: Adam with a learning rate of 1e-3. Everything follows from
    ``seed``; the random numbers of the caller stay as they are. With ``progress``, there is a bar
    if rich is installed. Other options go to ``DataLoader``.
    """
    n: int = len(dataset)  # type: ignore[arg-type]
    folds, epochs = whole_number("folds", folds, 2), whole_number("epochs", epochs, 1)
    size = whole_number("batch_size", batch_size, 1)
    if n < folds:
        raise ArgumentError(f"{n} examples cannot be cut into {folds} folds: use fewer folds")
    parts = _random_parts(n, folds, seed)
    fit = _Fit(dataset, as_loss(loss), size, dataloader_options)
    sums = torch.zeros(n, dtype=torch.float64, device="cpu")
    with _bar(sum(fit.steps(part, n, epochs) for part in parts) if progress else 0) as advance:
        for fold, part in enumerate(parts):
            others = torch.cat([other for other in parts if other is not part]).sort().values
            with _seeded(seed, fold):
                model = make_model()
                fit.train(model, (optimizer or _adam)(model.parameters()), part, epochs, advance)
                sums[others] += fit.losses(model, others, advance)
    return _checked(sums / (folds - 1)).to(torch.float32)


def _random_parts(n: int, folds: int, seed: int) -> list[Tensor]:
    """[N / folds] indices each, in order."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    order = torch.randperm(n, generator=generator, device="cpu")
    return [part.sort().values for part in order.tensor_split(folds)]


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


@dataclass(frozen=True)
class _Fit:
    """One small model: trained on some examples, asked about others."""

    dataset: Dataset[Any]
    loss: LossFunction
    batch_size: int
    options: dict[str, Any]  # of the DataLoader

    def train(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        part: Tensor,
        epochs: int,
        advance: Advance,
    ) -> None:
        model.train()
        # A last, short batch could be a single example, which BatchNorm refuses.
        batches = self._batches(part, shuffle=True, drop_last=len(part) > self.batch_size)
        for _ in range(epochs):
            for size, batch in zip(self._sizes(part), batches, strict=False):
                optimizer.zero_grad()
                torch.autograd.backward(self._losses(model, batch, size).mean())
                optimizer.step()
                advance()

    def losses(self, model: nn.Module, part: Tensor, advance: Advance) -> Tensor:
        """float64 [len(part)], on the host."""
        model.eval()
        found = []
        with torch.no_grad():
            for size, batch in zip(self._sizes(part), self._batches(part), strict=True):
                found.append(self._losses(model, batch, size).to("cpu", torch.float64))
                advance()
        return torch.cat(found)

    def steps(self, part: Tensor, n: int, epochs: int) -> int:
        """How often ``train`` and ``losses`` of the others advance."""
        others = n - len(part)
        trained = max(len(part) // self.batch_size, 1) * epochs
        return trained + -(-others // self.batch_size)

    def _batches(self, part: Tensor, **options: Any) -> DataLoader[Any]:
        # Seeds for its workers come from here too.
        generator = torch.Generator(device="cpu").manual_seed(torch.initial_seed())
        given: dict[str, Any] = {"generator": generator, **self.options, **options}
        return DataLoader(Subset(self.dataset, part.tolist()), self.batch_size, **given)

    def _sizes(self, part: Tensor) -> list[int]:
        size, n = self.batch_size, len(part)
        return [min(size, n - start) for start in range(0, n, size)]

    def _losses(self, model: nn.Module, batch: Any, size: int) -> Tensor:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        return per_example(self.loss(model, move(batch, device)), size)


def _checked(losses: Tensor) -> Tensor:
    bad = (~losses.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise LossError(
            f"the models that were fitted give example {bad[0]} the loss {float(losses[bad[0]]):g}"
            f"{f', and {len(bad) - 1} more such' if len(bad) > 1 else ''}: look at it, and lower "
            f"the learning rate with optimizer="
        )
    return losses


@contextmanager
def _seeded(*seed: int) -> Iterator[None]:
    """All random numbers from ``seed``; afterwards they go on where they were."""
    words = np.random.SeedSequence([number % 2**64 for number in seed]).generate_state(1, np.uint32)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            torch.manual_seed(int(words[0]))
            random.seed(int(words[0]))
            np.random.seed(int(words[0]))  # noqa: NPY002
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def _bar(steps: int) -> Iterator[Advance]:
    """A progress bar of as many steps, if rich is installed; none for 0 steps."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        steps = 0
    if not steps:
        yield lambda: None
        return
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("cross-fitting", total=steps)
        yield lambda: progress.advance(task)
