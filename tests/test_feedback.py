"""Which losses belong to which draw: consumers that fetch ahead, split, shuffle, peek and leave."""

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from parts import make_dataset
from salience import ImportanceLoader, LossError, UsageError
from salience.feedback import weighted_mean

N, BATCH = 60, 6


def make(slots: bool = True, **options: Any) -> ImportanceLoader:
    """Examples are their own index; scores are known, so that weights differ."""
    options = {"score": "history", "k": 1, "smoothing": 0.1, **options}
    loader = ImportanceLoader(TensorDataset(torch.arange(N)), BATCH, slots=slots, **options)
    loader._sampler.update(torch.arange(N), loss_of(torch.arange(N)))
    return loader


def loss_of(indices: Tensor) -> Tensor:
    return (indices * 37 % 11).float() + 0.5


class Watched:
    """Iterates over a loader and remembers the weight of each example of each batch."""

    def __init__(self, loader: ImportanceLoader) -> None:
        self.loader = loader
        self.weights: dict[int, float] = {}  # by slot
        self.trained: list[Tensor] = []  # indices of each batch that was handed out

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, slots in self.loader:
            assert x.tolist() == self.loader.indices.tolist()
            self.trained.append(x)
            self.weights |= dict(zip(slots.tolist(), self.loader.weights.tolist(), strict=True))
            yield x, slots

    def mean(self, x: Tensor, slots: Tensor, step: float = 1.0) -> None:
        """Weighs some examples, and compares with what it remembers."""
        losses = loss_of(x) * step
        expected = sum(
            self.weights[slot] * loss
            for slot, loss in zip(slots.tolist(), losses.tolist(), strict=True)
        )
        found = float(self.loader.mean(losses, slots))
        assert found == pytest.approx(expected / len(x), rel=1e-5)

    def check_learned(self, factor: float = 1.0) -> None:
        """The losses have landed at their own examples."""
        self.loader.state_dict()
        self.loader._feedback.flush()
        indices = torch.cat(self.trained).unique()
        found = self.loader._sampler.score.score(indices, None)
        torch.testing.assert_close(found, loss_of(indices) * factor)


# ------------------------------------------------------------------------ consumers, with slots


def one_ahead(watched: Watched) -> None:
    previous = None
    for batch in watched:
        if previous is not None:
            watched.mean(*previous, 2.0)
        previous = batch
        if len(watched.trained) == len(watched.loader):  # the last one, before the epoch ends
            watched.mean(*batch, 2.0)


def four_then_four(watched: Watched) -> None:
    batches = iter(watched)
    for _ in range(2):
        four = list(itertools.islice(batches, 4))
        for batch in four:
            watched.mean(*batch, 2.0)
    for batch in batches:
        watched.mean(*batch, 2.0)


def shuffled_micro_batches(watched: Watched) -> None:
    batches = iter(watched)
    for _ in range(5):
        two = list(itertools.islice(batches, 2))
        x, slots = (torch.cat(parts) for parts in zip(*two, strict=True))
        order = torch.randperm(len(x))
        for part in order.split(4):
            watched.mean(x[part], slots[part], 2.0)


def one_example_at_a_time(watched: Watched) -> None:
    for x, slots in watched:
        for i in range(len(x)):
            watched.mean(x[i : i + 1], slots[i : i + 1], 2.0)


CONSUMERS = [one_ahead, four_then_four, shuffled_micro_batches, one_example_at_a_time]


@pytest.mark.parametrize("deferred", [None, True])
@pytest.mark.parametrize(
    ("consumer", "workers"), [*((consumer, 0) for consumer in CONSUMERS), (four_then_four, 2)]
)
def test_with_slots_every_consumer_gets_the_right_weights(
    consumer: Any, workers: int, deferred: bool | None
) -> None:
    loader = make(num_workers=workers)
    loader.deferred = deferred
    watched = Watched(loader)
    consumer(watched)
    watched.check_learned(2.0)
    assert len(watched.trained) == 10
    assert not loader._feedback.waiting
    assert loader._sampler.step == 11  # one is the warm-up
    assert len({*watched.weights.values()}) > 5
    assert loader._sampler.outstanding == {}


@pytest.mark.parametrize("deferred", [None, True])
def test_a_consumer_that_peeks_and_leaves(deferred: bool | None) -> None:
    loader = make()
    loader.deferred = deferred
    peeked, slots = next(iter(loader))
    watched = Watched(loader)
    for x, again in watched:
        if len(watched.trained) == 1:
            assert (x.tolist(), again.tolist()) == (peeked.tolist(), slots.tolist())
        watched.mean(x, again)
    assert len(watched.trained) == len(loader)
    assert loader.epoch == 1


# --------------------------------------------------------------------- consumers, without slots


def test_without_slots_fetching_ahead_is_refused() -> None:
    loader = make(slots=False)
    batches = iter(loader)
    (first,), (_,) = next(batches), next(batches)
    before = loader._sampler.state_dict()["score"]["mean"]
    with pytest.raises(UsageError, match=r"2 batches are outstanding.*slots=True.*loader\.skip"):
        loader.mean(loss_of(first))
    assert torch.equal(before, loader._sampler.state_dict()["score"]["mean"])


def test_without_slots_four_then_four_is_refused() -> None:
    loader = make(slots=False)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    with pytest.raises(UsageError, match="4 batches are outstanding"):
        loader.mean(torch.ones(BATCH))


def test_without_slots_micro_batches_are_refused() -> None:
    loader = make(slots=False)
    next(iter(loader))
    with pytest.raises(LossError, match=r"shape \[3\] for a batch of 6"):
        loader.mean(torch.ones(3))


def test_after_skip_the_others_are_weighed() -> None:
    loader = make(slots=False)
    batches = iter(loader)
    next(batches)
    first = loader.weights
    next(batches)
    left_out = loader.indices
    loader.skip()
    found = float(loader.mean(torch.ones(BATCH)))
    assert found == pytest.approx(float(first.mean()))
    assert loader._sampler.step == 2
    with pytest.raises(UsageError, match=r"skip\(\) needs a batch"):
        loader.skip()
    assert len(list(batches)) == 8
    assert len(left_out) == BATCH


def test_skipped_batches_do_not_come_again() -> None:
    loader, twin = make(slots=False), make(slots=False)
    batches = iter(loader)
    next(batches)
    loader.skip()
    twin.load_state_dict(loader.state_dict())
    assert len(list(twin)) == 9


@pytest.mark.parametrize("slots", [None, torch.arange(BATCH)])
def test_mean_before_any_batch(slots: Tensor | None) -> None:
    for loader in (make(), make(slots=False)):
        with pytest.raises(UsageError, match="iterate over the loader first"):
            loader.mean(torch.ones(BATCH), slots)
        with pytest.raises(UsageError, match="not passed to mean"):
            loader.skip()


# ------------------------------------------------------------------------------------------ slots


def test_slots_that_cannot_be() -> None:
    loader = make()
    batches = iter(loader)
    _, first = next(batches)
    _, second = next(batches)
    losses = torch.ones(BATCH)
    for wrong, message in (
        (first + 10 * BATCH, "belongs to no batch"),
        (torch.cat([first[:5], first[:1]]), "weighed before: name each once"),
        (first.float(), "whole numbers"),
        (first[:3], r"shape \[3\]|got shape"),
    ):
        with pytest.raises((UsageError, LossError), match=message):
            loader.mean(losses, wrong)
    assert len(loader._feedback.waiting) == 2
    loader.mean(losses, first)
    loader.mean(losses, second)
    with pytest.raises(UsageError, match=r"slot \d+ belongs to no batch that waits"):
        loader.mean(losses, first)
    assert loader._sampler.step == 3


def test_part_of_a_batch_is_weighed_once() -> None:
    loader = make()
    _, slots = next(iter(loader))
    loader.mean(torch.ones(4), slots[:4])
    with pytest.raises(UsageError, match="weighed before"):
        loader.mean(torch.ones(4), slots[2:])
    assert len(loader._feedback.waiting) == 1
    loader.mean(torch.ones(2), slots[4:])
    assert loader._sampler.step == 2


@pytest.mark.parametrize("deferred", [None, True])
def test_part_of_a_batch_weighed_again_at_once_is_recorded_once(deferred: bool | None) -> None:
    """SAM on micro-batches."""
    loader = make()
    loader.deferred = deferred
    x, slots = next(iter(loader))
    for part in (slice(0, 3), slice(3, 6)):
        first = float(loader.mean(loss_of(x[part]), slots[part]))
        again = float(loader.mean(loss_of(x[part]) * 2, slots[part]))
        assert again == pytest.approx(2 * first)
    loader._feedback.flush()
    assert loader._sampler.step == 2
    torch.testing.assert_close(loader._sampler.score.score(x, None), loss_of(x))


def test_places_beyond_a_short_batch_are_refused() -> None:
    loader = ImportanceLoader(TensorDataset(torch.arange(8)), 6, score="uniform", slots=True)
    batches = iter(loader)
    _, first = next(batches)
    loader.mean(torch.ones(6), first)
    _, short = next(batches)
    assert len(short) == 2
    with pytest.raises(UsageError, match="belongs to no batch"):
        loader.mean(torch.ones(3), torch.arange(int(short[0]), int(short[0]) + 3))
    loader.mean(torch.ones(2), short)
    with pytest.raises(UsageError, match="belongs to no batch"):
        loader.mean(torch.ones(3), torch.arange(int(short[0]), int(short[0]) + 3))


def test_deferred_unknown_slots_weigh_nothing_and_are_told_at_the_next_step() -> None:
    loader = make()
    loader.deferred = True
    _, slots = next(iter(loader))
    assert float(loader.mean(torch.ones(BATCH), slots + 600)) == 0.0
    with pytest.raises(UsageError, match="belongs to no batch"):
        loader.mean(torch.ones(BATCH), slots)


def test_slots_of_every_kind_of_batch() -> None:
    for score in ("uniform", "history"):
        loader = ImportanceLoader(make_dataset(20), 6, score=score, slots=True)
        numbers = []
        for x, y, slots in loader:
            assert len(x) == len(y) == len(slots)
            assert slots.dtype == torch.int64
            numbers += slots.tolist()
            loader.mean(torch.ones(len(x)), slots)
        assert len({*numbers}) == len(numbers)


# -------------------------------------------------------------------------- again, divisor, bad


@pytest.mark.parametrize("deferred", [None, True])
@pytest.mark.parametrize("with_slots", [False, True])
def test_weighed_again_nothing_is_recorded(with_slots: bool, deferred: bool | None) -> None:
    """LBFGS and SAM evaluate the same batch several times."""
    loader = make(with_slots)
    loader.deferred = deferred
    for batch in itertools.islice(loader, 3):
        x, slots = batch if with_slots else (batch[0], None)
        losses = loss_of(x)
        first = float(loader.mean(losses, slots))
        for factor in (2.0, 3.0):
            again = float(loader.mean(losses * factor, slots))
            assert again == pytest.approx(factor * first, rel=1e-6)
    loader._feedback.flush()
    assert loader._sampler.step == 4
    torch.testing.assert_close(loader._sampler.score.score(x, None), loss_of(x))


def test_lbfgs_trains() -> None:
    data = make_dataset(24)
    model = torch.nn.Linear(6, 3)
    loader = ImportanceLoader(data, 8, score="history")
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for x, y in loader:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
            loss = loader.mean(losses)
            loss.backward()
            return loss.detach()

        optimizer.step(closure)
    assert loader._sampler.step == 3


@pytest.mark.parametrize("with_slots", [False, True])
@pytest.mark.parametrize("divisor", [24.0, torch.tensor(24.0)])
def test_the_divisor_replaces_the_batch_size(with_slots: bool, divisor: Any) -> None:
    loader = make(with_slots)
    batch = next(iter(loader))
    slots = batch[1] if with_slots else None
    mean = loader.mean(torch.ones(BATCH), slots, divisor)
    assert float(mean) == pytest.approx(float(loader.weights.sum()) / 24)
    uniform = ImportanceLoader(make_dataset(12), 6, score="uniform")
    next(iter(uniform))
    assert float(uniform.mean(torch.ones(6), divisor=divisor)) == pytest.approx(6 / 24)


def test_gradients_are_the_weights_over_the_divisor() -> None:
    losses = torch.rand(5, requires_grad=True)
    weights = torch.rand(5)
    weighted_mean(losses, weights, 8).backward()
    torch.testing.assert_close(losses.grad, weights / 8)


@pytest.mark.parametrize("with_slots", [False, True])
def test_a_bad_loss_changes_nothing_and_the_batch_can_still_be_used(with_slots: bool) -> None:
    loader = make(with_slots)
    batches = iter(loader)
    batch = next(batches)
    x, slots = batch if with_slots else (batch[0], None)
    before = loader._sampler.state_dict()["score"]["mean"]
    bad = loss_of(x)
    bad[3] = math.nan
    with pytest.raises(LossError, match=rf"step 2 example {int(x[3])}: nan"):
        loader.mean(bad, slots)
    assert torch.equal(before, loader._sampler.state_dict()["score"]["mean"])
    loader.mean(loss_of(x) * 3, slots)
    torch.testing.assert_close(loader._sampler.score.score(x, None), loss_of(x) * 3)


def test_losses_of_another_order_land_at_their_examples() -> None:
    """Weights differ, so an exchange of two examples would show."""
    watched = Watched(make())
    shuffle = random.Random(3)
    for x, slots in watched:
        order = list(range(len(x)))
        shuffle.shuffle(order)
        watched.mean(x[order], slots[order], 4.0)
    watched.check_learned(4.0)


def test_losses_may_be_changed_in_place_after_the_mean() -> None:
    loader = ImportanceLoader(make_dataset(40), 8, score="history")
    next(iter(loader))
    losses = torch.full((8,), 2.0)
    loader.mean(losses)
    losses.zero_()
    assert loader.metrics()["mean_loss"] == pytest.approx(2.0)
