"""The loader as a DataLoader: its attributes, its epochs, copies of it, small datasets."""

import copy
import pickle
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

from parts import cross_entropy, make_dataset, needs
from salience import ImportanceLoader
from salience.batches.rows import collate
from salience.presets import NAMES
from salience.scores import NEED_MODEL

N, BATCH = 30, 4
STEPS = 8


def make(score: str = "history", n: int = N, **options: Any) -> ImportanceLoader:
    return ImportanceLoader(TensorDataset(torch.arange(n)), BATCH, score=score, **options)


def follow(loader: ImportanceLoader, batches: Any = None) -> list[Any]:
    """Train on what comes; which examples, and their weights."""
    rows = []
    for (x,) in loader if batches is None else batches:
        rows.append((x.tolist(), loader.weights.tolist()))
        loader.mean((x * 7 % 5).float() + 0.1)
    return rows


# ---------------------------------------------------------------------------- like a DataLoader


def test_attributes() -> None:
    data = TensorDataset(torch.arange(N))
    loader = ImportanceLoader(
        data, BATCH, num_workers=1, collate_fn=default_collate, drop_last=True
    )
    assert loader.dataset is data
    assert (loader.batch_size, loader.num_workers, loader.drop_last) == (BATCH, 1, True)
    assert loader.collate_fn is default_collate
    assert len(loader) == 7
    plain = ImportanceLoader(data, BATCH)
    assert (plain.num_workers, plain.drop_last, len(plain), plain.epoch) == (0, False, STEPS, 0)
    assert plain.collate_fn is collate


def test_of_pools() -> None:
    pools = DataLoader(make_dataset(20), batch_size=10)
    loader = ImportanceLoader.from_loader(pools, 5, model=nn.Linear(6, 3), loss=cross_entropy)
    assert loader.dataset is pools.dataset
    assert loader.collate_fn is pools.collate_fn
    assert (loader.num_workers, loader.batch_size) == (0, 5)
    shown = "ImportanceLoader(a stream, batch_size=5, score='loss', k=0.5)"
    assert repr(loader) == shown


def test_what_is_shown() -> None:
    shown = "ImportanceLoader(30 examples, batch_size=4, score='auto', k=0.25)"
    assert repr(make("auto", k=0.25)) == shown


def test_whole_numbers_of_numpy() -> None:
    data = TensorDataset(torch.arange(N))
    ours = ImportanceLoader(
        data, np.int64(BATCH), steps_per_epoch=np.int64(5), seed=np.int64(3), score="history"
    )
    plain = ImportanceLoader(data, BATCH, steps_per_epoch=5, seed=3, score="history")
    assert type(ours.batch_size) is int
    rows = follow(ours)
    assert rows == follow(plain)
    assert len(ours) == len(rows) == 5
    state = ours.state_dict()
    plain.load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_left_before_mean_has_no_part_in_the_next(workers: int) -> None:
    loader = make("uniform", num_workers=workers)
    for step, (x,) in enumerate(loader):
        if step == 3:
            break
        loader.mean(x + 1.0)
    assert sorted(i for batch, _ in follow(loader) for i in batch) == list(range(N))
    assert loader.epoch == 2


@pytest.mark.parametrize("left", [1, 5, STEPS])
def test_a_state_of_an_epoch_that_was_ended_early_begins_the_next(left: int) -> None:
    """As a framework that limits the length of epochs tells it."""
    loader, fresh = make(), make()
    follow(loader, islice(loader, left))
    loader._end_early()
    fresh.load_state_dict(loader.state_dict())
    assert follow(fresh) == follow(loader)
    assert fresh.epoch == loader.epoch == 2


@pytest.mark.parametrize("slots", [False, True])
def test_as_dataloader_yields_the_same(slots: bool) -> None:
    ours, twin = make(slots=slots), make(slots=slots)
    view = ours.as_dataloader()
    assert isinstance(view, DataLoader)
    assert len(view) == STEPS
    for _ in range(2):
        rows = []
        for ours_batch, twin_batch in zip(view, twin, strict=True):
            assert [part.tolist() for part in ours_batch] == [part.tolist() for part in twin_batch]
            rows.append(ours.weights.tolist())
            assert ours.weights.tolist() == twin.weights.tolist()
            for loader, batch in ((ours, ours_batch), (twin, twin_batch)):
                loader.mean(batch[0].float(), batch[1] if slots else None)
        assert len(rows) == STEPS
    assert ours.epoch == twin.epoch == 2


def test_a_view_takes_nothing_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    for _ in make("uniform").as_dataloader():
        pass
    assert torch.equal(before, torch.get_rng_state())


# ------------------------------------------------------------------------------ small datasets


@pytest.mark.parametrize("score", NAMES)
@pytest.mark.parametrize("presample", [None, 2])
def test_a_dataset_smaller_than_the_batch(score: str, presample: int | None) -> None:
    data, model = make_dataset(5), nn.Linear(6, 3)
    options = {"score": score, "presample": presample, **needs(score, model)}
    loader = ImportanceLoader(data, 8, **options)
    assert len(loader) == 1
    for _ in range(3):
        sizes = []
        for x, y in loader:
            sizes.append(len(x))
            loader.mean(cross_entropy(model, (x, y)))
        assert len(sizes) == 1
        assert sizes[0] <= 5
    if score in ("uniform", "auto"):
        assert sizes == [5]
    dropping = ImportanceLoader(data, 8, drop_last=True, **options)
    assert len(dropping) == 0
    assert list(dropping) == []


# ------------------------------------------------------------------------------------- epochs


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("score", ["uniform", "history", "auto"])
def test_peeking_changes_nothing(score: str, workers: int) -> None:
    whole = make(score)
    if workers:
        whole = make(score, num_workers=workers)
    peeking = make(score, num_workers=workers)
    for _ in range(2):
        (peeked,) = next(iter(peeking))
        assert peeking.epoch == whole.epoch
        rows = follow(peeking)
        assert rows[0][0] == peeked.tolist()
        assert rows == follow(whole)


@pytest.mark.parametrize("score", [*NEED_MODEL])
def test_peeking_at_a_pool_changes_nothing(score: str) -> None:
    data, model = make_dataset(24), nn.Linear(6, 3)
    rows = []
    for peeks in (0, 2):
        loader = ImportanceLoader(data, 4, score=score, **needs(score, model))
        for _ in range(peeks):
            next(iter(loader))
        one = []
        for x, y in loader:
            loader.mean(cross_entropy(model, (x, y)).detach())
            one.append((loader.indices.tolist(), loader.weights.tolist()))
        rows.append(one)
    assert rows[0] == rows[1]
    assert len(rows[0]) == 6


@pytest.mark.parametrize("score", ["uniform", "history"])
def test_leaving_in_the_middle_begins_a_new_epoch(score: str) -> None:
    loader = make(score)
    follow(loader, islice(loader, 3))
    assert loader.epoch == 0
    rows = follow(loader)
    assert len(rows) == STEPS
    assert loader.epoch == 2
    if score == "uniform":
        assert sorted(i for indices, _ in rows for i in indices) == list(range(N))


def test_leaving_after_the_last_batch_begins_the_next_epoch() -> None:
    loader, whole = make("uniform"), make("uniform")
    follow(loader, islice(loader, STEPS))  # the iteration itself has not ended
    follow(whole)
    assert follow(loader) == follow(whole)
    assert loader.epoch == whole.epoch == 2


def test_epochs_are_counted_and_resumed() -> None:
    loader, twin = make("uniform"), make("uniform")
    for epoch in range(3):
        assert loader.epoch == epoch
        twin.load_state_dict(loader.state_dict())
        assert twin.epoch == epoch
        follow(loader)
    follow(loader, islice(loader, 2))
    twin.load_state_dict(loader.state_dict())
    assert twin.epoch == 3
    assert len(follow(twin)) == STEPS - 2
    assert twin.epoch == 4


def test_a_state_saved_at_the_last_batch_begins_the_next_epoch() -> None:
    loader, twin = make("uniform"), make("uniform")
    for (x,) in loader:
        loader.mean(x.float())
        state = loader.state_dict()
    twin.load_state_dict(state)
    assert twin.epoch == 1
    assert follow(twin) == follow(loader)


def test_a_resumed_loader_that_is_left_begins_a_new_epoch() -> None:
    loader, twin = make("uniform"), make("uniform")
    follow(loader, islice(loader, 3))
    twin.load_state_dict(loader.state_dict())
    follow(twin, islice(twin, 2))
    assert sorted(i for indices, _ in follow(twin) for i in indices) == list(range(N))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [0, 3, STEPS])
def test_peeking_after_a_resume_changes_nothing(done: int, workers: int) -> None:
    """As keras does when it builds a model whose weights were loaded."""
    loader, twin = make(num_workers=workers), make(num_workers=workers)
    batches = iter(loader)
    follow(loader, islice(batches, done))
    twin.load_state_dict(loader.state_dict())
    for _ in range(2):
        next(iter(twin))
    rest = follow(loader, batches)
    assert follow(twin) == (rest or follow(loader))
    assert follow(twin) == follow(loader)
    assert twin.epoch == loader.epoch


# ------------------------------------------------------------------------------------- copies

COPIES: list[Callable[[Any], Any]] = [
    copy.deepcopy,
    lambda loader: pickle.loads(pickle.dumps(loader)),
]


@pytest.mark.parametrize("copied", COPIES, ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("score", ["uniform", "history", "approx", "auto"])
@pytest.mark.parametrize("done", [0, 3, STEPS])
@pytest.mark.parametrize("deferred", [None, True])
def test_a_copy_goes_on_where_the_loader_is(
    copied: Any, score: str, done: int, deferred: bool | None
) -> None:
    loader = make(score)
    loader.deferred = deferred
    batches = iter(loader)
    follow(loader, islice(batches, done))
    twin = copied(loader)
    rest = follow(loader, batches)
    if rest or not done:
        assert follow(twin) == rest
    assert follow(twin) == follow(loader)
    assert twin.epoch == loader.epoch == 2


@pytest.mark.parametrize("copied", COPIES, ids=["deepcopy", "pickle"])
def test_a_copy_with_batches_handed_out_and_pools_ahead(copied: Any) -> None:
    model = nn.Linear(6, 3)
    loader = ImportanceLoader(
        make_dataset(24), 4, score="loss", model=model, loss=cross_entropy, num_workers=1
    )

    def train(loader: ImportanceLoader, batches: Any) -> list[Any]:
        rows = []
        for x, y in batches:
            loader.mean(cross_entropy(model, (x, y)).detach())
            rows.append((loader.indices.tolist(), loader.weights.tolist()))
        return rows

    batches = iter(loader)
    train(loader, islice(batches, 2))
    x, y = next(batches)
    handed = (loader.indices.tolist(), loader.weights.tolist())
    twin = copied(loader)
    loader.mean(cross_entropy(model, (x, y)).detach())
    assert train(twin, twin) == [handed, *train(loader, batches)]


@pytest.mark.parametrize("copied", COPIES, ids=["deepcopy", "pickle"])
def test_a_copy_of_a_loader_whose_workers_stay(copied: Any) -> None:
    loader = make("history", num_workers=1, persistent_workers=True)
    follow(loader)
    twin = copied(loader)
    assert follow(twin) == follow(loader)


# ---------------------------------------------------------------- consumers that see the end first


def losses_of(x: torch.Tensor) -> torch.Tensor:
    return (x * 7 % 5).float() + 0.1


def fetched_in_groups(loader: ImportanceLoader, ahead: int) -> list[Any]:
    """Fetch ``ahead`` batches, past the end of the epoch if need be, then train on each."""
    rows, batches = [], iter(loader)
    while group := list(islice(batches, ahead)):
        for x, slots in group:
            loader.mean(losses_of(x), slots)
            rows.append(x.tolist())
    return rows


@pytest.mark.parametrize("deferred", [None, True])
@pytest.mark.parametrize("ahead", [3, 5, 20])
def test_batches_are_weighed_after_the_end_was_seen(ahead: int, deferred: bool | None) -> None:
    loader = make(slots=True)
    loader.deferred = deferred
    for epoch in range(3):
        assert loader.state_dict()["loader"]["epoch"] == epoch
        assert len(fetched_in_groups(loader, ahead)) == STEPS
    state = loader.state_dict()
    assert (state["loader"]["epoch"], state["loader"]["done"]) == (3, 0)
    assert torch.isfinite(torch.tensor(loader.metrics()["mean_loss"]))


@pytest.mark.parametrize("trained", range(4))
def test_a_state_between_the_end_and_the_last_losses(trained: int) -> None:
    def begin(loader: ImportanceLoader) -> list[Any]:
        batches = list(loader)  # all of them, and the end
        for x, slots in batches[: STEPS - 3 + trained]:
            loader.mean(losses_of(x), slots)
        return batches

    ours, twin = make(slots=True), make(slots=True)
    rest = begin(ours)[STEPS - 3 + trained :]
    begin(twin)
    resumed = make(slots=True)
    resumed.load_state_dict(twin.state_dict())
    copied = copy.deepcopy(twin)
    for x, slots in rest:
        ours.mean(losses_of(x), slots)
    for other in (resumed, copied):
        if rest:
            assert fetched_in_groups(other, 1) == [x.tolist() for x, _ in rest]
        assert other.epoch == ours.epoch == 1
    expected = fetched_in_groups(ours, 2)
    assert fetched_in_groups(resumed, 2) == fetched_in_groups(copied, 2) == expected


def test_the_last_batch_may_be_weighed_again_after_the_end() -> None:
    loader = make(slots=True)
    batches = list(loader)
    for x, slots in batches:
        loader.mean(losses_of(x), slots)
    x, slots = batches[-1]
    again = loader.mean(losses_of(x), slots)
    assert again == pytest.approx(float((loader.weights * losses_of(x)).mean()))


def test_an_epoch_in_which_nothing_is_weighed_does_not_come_again() -> None:
    loader = make("uniform", slots=True)
    epochs = [[x.tolist() for x, _ in loader] for _ in range(3)]
    assert loader.epoch == 2  # the third ends when the fourth begins
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_stream_that_was_fetched_ahead_ends_its_epoch() -> None:
    pools = DataLoader(make_dataset(24), batch_size=8)
    loader = ImportanceLoader.from_loader(
        pools, 4, model=nn.Linear(6, 3), loss=cross_entropy, slots=True
    )
    batches = list(loader)
    assert loader.state_dict()["loader"]["epoch"] == 0
    for x, _, slots in batches:
        loader.mean(x.abs().sum(1), slots)
    assert loader.epoch == 1
    state = loader.state_dict()["loader"]
    assert state == {"epoch": 1, "done": 0, "steps": None, "pools": [], "late": []}
