"""What every framework is held to: a plain loop, what the model saw, and three mutants."""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from salience import Draw, ImportanceLoader, ImportanceSampler, feedback
from salience.feedback import Feedback

# Six batches an epoch: the last one is short, and an accumulation over 4 leaves a remainder of 2.
N, BATCH, EPOCHS, FEATURES, CLASSES = 22, 4, 3, 6, 3
STEPS = -(-N // BATCH)
PREFETCH = 2  # batches that DataLoader asks for per worker


class Examples(Dataset[Any]):
    """(x, y), of unequal difficulty; x begins with the example's own number."""

    def __init__(self, n: int = N) -> None:
        generator = torch.Generator().manual_seed(1)
        self.y = torch.arange(n) % CLASSES
        self.x = torch.randn(n, FEATURES, generator=generator) + 2 * F.one_hot(self.y, FEATURES)
        self.x[:, 0] = torch.arange(n)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]


class Watched(nn.Module):
    """A classifier that notes which examples it is trained on."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = nn.Sequential(nn.Linear(FEATURES - 1, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.note(x)
        return self.net(x[:, 1:])

    @torch.compiler.disable
    def note(self, x: Tensor) -> None:
        self.seen.append(x[:, 0].long().tolist())


@dataclass
class Trace:
    """What a training run did, batch by batch."""

    ids: list[list[int]] = field(default_factory=list)  # what the model saw
    weights: list[list[float]] = field(default_factory=list)  # what its losses were weighed with
    losses: list[list[float]] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)  # at the end

    def note(self, losses: Tensor, weights: Tensor | None) -> None:
        self.weights.append((torch.ones_like(losses) if weights is None else weights).tolist())
        self.losses.append(losses.detach().tolist())

    def finish(self, model: nn.Module) -> "Trace":
        """The model's own record, and its parameters as they are now."""
        self.ids = [list(batch) for m in model.modules() for batch in getattr(m, "seen", [])]
        self.parameters = [p.detach().clone() for p in model.parameters()]
        return self


def watch(monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Note every call of ``mean`` from now on; until ``monkeypatch.undo()`` or the next watch."""
    trace, original = Trace(), getattr(feedback.weighted_mean, "original", feedback.weighted_mean)

    def noted(losses: Tensor, weights: Tensor | None, *args: Any, **options: Any) -> Tensor:
        trace.note(losses, weights)
        return original(losses, weights, *args, **options)

    noted.original, noted.trace = original, trace  # type: ignore[attr-defined]
    monkeypatch.setattr(feedback, "weighted_mean", noted)
    return trace


def assert_same(trace: Trace, expected: Trace, tolerance: float = 0.0) -> None:
    """The same examples with the same weights in every batch, and the same model at the end."""
    assert trace.ids == expected.ids
    assert len(trace.weights) == len(expected.weights)
    for mine, theirs in zip(trace.weights, expected.weights, strict=True):
        assert mine == pytest.approx(theirs, abs=tolerance, rel=tolerance)
    for mine, theirs in zip(trace.parameters, expected.parameters, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def matters(trace: Trace) -> None:
    """A comparison with this run can fail: examples are drawn, and weighed, unequally."""
    assert len({round(w, 3) for batch in trace.weights for w in batch}) > 5
    drawn = [i for batch in trace.ids for i in batch]
    assert len({drawn.count(i) for i in drawn}) > 1


# ---------------------------------------------------------------------------------- a plain loop


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def plain_loop(
    loader: ImportanceLoader,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int = EPOCHS,
    ahead: int = 1,
    accumulate: int = 1,
    scale: Callable[[Sequence[Any], Tensor], float] = lambda *_: 1.0,
    scheduler: Any = None,
    by_hand: bool | None = None,
) -> None:
    """Fetch ``ahead`` batches, then train on each; a step after ``accumulate``, and at the end.

    ``scale`` gets the batches of one update and one of them: by what its mean is multiplied.
    ``by_hand``: only the loader's sampler is used, wherever its scores are known by index, so that
    a mistake in how the loader matches batches, weights and losses is not in both of two runs
    compared.
    """
    known = loader._sampler.by_index
    source = _by_hand if (known if by_hand is None else by_hand) else _by_loader
    for _ in range(epochs):
        batches, done = source(loader), 0
        while fetched := list(islice(batches, ahead)):
            for x, y, mean in fetched:
                loss = mean(F.cross_entropy(model(x), y, reduction="none"))
                (loss * scale(fetched, x)).backward()
                done += 1
                if done % accumulate == 0 or done == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
                    if scheduler is not None:
                        scheduler.step()


Batch = tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]


def _by_loader(loader: ImportanceLoader) -> Iterator[Batch]:
    """One epoch, as users write it; the loader has slots."""
    for x, y, slots in loader:
        yield x, y, partial(loader.mean, slots=slots)


def _by_hand(loader: ImportanceLoader) -> Iterator[Batch]:
    """One epoch of the sampler's own draws and updates."""
    sampler, late, left = loader._sampler, list[tuple[Draw, Tensor]](), len(loader)

    def learn() -> None:
        while late:
            sampler.update(*late.pop())

    def mean(draw: Draw, losses: Tensor) -> Tensor:
        nonlocal left
        learn()
        late.append((draw, losses.detach().clone()))
        left -= 1
        if not (left and loader.deferred):  # else with the next batch
            learn()
        trace = getattr(feedback.weighted_mean, "trace", None)
        if trace is not None:
            trace.note(losses, draw.weights)
        weights = draw.weights.to(losses.dtype)
        return losses.mean() if draw.uniform else torch.dot(losses, weights) / len(losses)

    for draw in draws(loader):
        x, y = default_collate([loader.dataset[i] for i in draw.indices.tolist()])
        yield x, y, partial(mean, draw)


def draws(loader: ImportanceLoader) -> Iterator[Draw]:
    """Workers are kept busy: so many batches are drawn before the first one is trained on."""
    loader._sampler.new_epoch()
    early, left = PREFETCH * loader.num_workers, len(loader)
    drawn = deque[Draw]()
    for number in range(left):
        wanted = min(left, number + 1 + early)
        while number + len(drawn) < wanted:
            drawn.append(loader._sampler.draw())
        yield drawn.popleft()


def make_loader(dataset: Any = None, batch_size: int = BATCH, **options: Any) -> ImportanceLoader:
    """As all suites use it: with slots, and draws that depend on every loss."""
    given = {"score": "history", "seed": 3, "slots": True, **options}
    return ImportanceLoader(Examples() if dataset is None else dataset, batch_size, **given)


class Replay:
    """A batch sampler for a *stock* DataLoader: batches recorded before, epoch by epoch."""

    def __init__(self, batches: list[list[int]], per_epoch: int = STEPS) -> None:
        self._epochs = [batches[i : i + per_epoch] for i in range(0, len(batches), per_epoch)]
        self._at = 0

    def __len__(self) -> int:
        return len(self._epochs[0])

    def __iter__(self) -> Iterator[list[int]]:
        self._at += 1
        return iter(self._epochs[self._at - 1])


# --------------------------------------------------------------------------------------- mutants


def weights_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws by importance, trained on as if they were uniform."""
    original = Feedback.hand_out

    def mutant(self: Feedback, draw: Draw) -> None:
        original(self, dataclasses.replace(draw, weights=torch.ones_like(draw.weights)))

    monkeypatch.setattr(Feedback, "hand_out", mutant)


def shifted_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch with the weights of the batch before it."""
    original, before = Feedback.hand_out, dict[int, Draw]()

    def mutant(self: Feedback, draw: Draw) -> None:
        last = before.get(id(self), draw)
        before[id(self)] = draw
        same = len(last) == len(draw)
        original(self, dataclasses.replace(last if same else draw, number=draw.number))

    monkeypatch.setattr(Feedback, "hand_out", mutant)


def losses_of_another_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is learned with the losses of the batch before it."""
    original, before = ImportanceSampler.take, dict[int, Tensor]()

    def mutant(self: ImportanceSampler, draw: Draw, losses: Tensor, *means: Any) -> None:
        last = before.get(id(self), losses)
        before[id(self)] = losses.clone()
        original(self, draw, last if len(last) == len(losses) else losses, *means)

    monkeypatch.setattr(ImportanceSampler, "take", mutant)


MUTANTS = [weights_of_one, shifted_draws, losses_of_another_batch]


def assert_caught(
    mutant: Callable[[pytest.MonkeyPatch], None],
    run: Callable[[], Trace],
    expected: Trace,
    monkeypatch: pytest.MonkeyPatch,
    tolerance: float = 1e-6,
) -> None:
    """The comparison that the suite makes fails for the mutant, and only for it."""
    assert_same(run(), expected, tolerance)
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        assert_same(run(), expected, tolerance)
