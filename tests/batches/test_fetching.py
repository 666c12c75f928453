"""What DataLoader is asked to fetch: in order, and with random numbers of its own per batch."""

import pickle
import random
import weakref
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from salience import ImportanceLoader
from salience.batches.fetching import Fetched, Requests, Seeded

N, BATCH = 24, 4


class Augmented(Dataset[Any]):
    """Each example with random numbers from the three generators that transforms use."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        noise = [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002
        return i, torch.tensor(noise, dtype=torch.float64)


def make(**options: Any) -> ImportanceLoader:
    options = {"score": "history", "num_workers": 2, **options}
    return ImportanceLoader(Augmented(), BATCH, **options)


def follow(loader: ImportanceLoader, batches: Any) -> list[Any]:
    rows = []
    for i, noise in batches:
        loader.mean(i.float())
        rows.append((i.tolist(), noise.tolist()))
    return rows


@pytest.mark.parametrize("done", [1, 3, 6])
def test_augmentation_is_the_same_after_a_resume(done: int) -> None:
    whole, loader, twin = make(), make(), make()
    rows = [row for _ in range(2) for row in follow(whole, whole)]
    assert len({str(noise) for _, noise in rows}) == len(rows) == 12  # it is random
    follow(loader, islice(loader, done))
    twin.load_state_dict(loader.state_dict())
    found = [row for _ in range(2 - twin.epoch) for row in follow(twin, twin)]
    assert found == rows[done:]


def test_a_batch_that_was_not_weighed_comes_again_as_it_was() -> None:
    loader, twin = make(), make()
    batches = iter(loader)
    follow(loader, islice(batches, 2))
    i, noise = next(batches)
    twin.load_state_dict(loader.state_dict())
    (again,) = follow(twin, islice(twin, 1))
    assert again == (i.tolist(), noise.tolist())


def test_another_seed_is_another_augmentation() -> None:
    first, second = (follow(one, one) for one in (make(score="uniform"), make(seed=1)))
    assert not {str(noise) for _, noise in first} & {str(noise) for _, noise in second}


def test_indices_are_a_list_that_seeds_where_it_arrives() -> None:
    indices = Seeded([3, 1, 2])
    indices.seed = 7
    assert indices == [3, 1, 2]
    numbers = []
    for _ in range(2):
        assert pickle.loads(pickle.dumps(indices)) == [3, 1, 2]
        numbers.append((float(torch.rand(())), np.random.rand(), random.random()))  # noqa: NPY002
    assert numbers[0] == numbers[1]


def test_without_workers_nothing_is_seeded() -> None:
    """There the random numbers are the user's own."""
    loader = make(num_workers=0)
    torch.manual_seed(0)
    batches = iter(loader)
    _, noise = next(batches)
    torch.manual_seed(0)
    expected = [float(torch.rand(())) for _ in range(BATCH)]
    assert noise[:, 0].tolist() == pytest.approx(expected)


class Waiting:
    """Batches that are asked for one after the other."""

    def __init__(self) -> None:
        self.batches = [[0, 5], [2], None]

    def next(self) -> list[int] | None:
        return self.batches.pop(0)


def test_requests_are_a_batch_sampler() -> None:
    waiting = Waiting()
    requests = Requests(waiting.next, 2)
    assert len(requests) == 2
    assert list(requests) == [[0, 5], [2]]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_those_of_dataloader(workers: int) -> None:
    ours, theirs = Waiting(), Waiting()

    def loader(waiting: Waiting) -> DataLoader[Any]:
        requests = Requests(waiting.next, 2)
        return DataLoader(list(range(10)), batch_sampler=requests, num_workers=workers)

    found = [batch.tolist() for batch in Fetched(loader(ours))]
    assert found == [batch.tolist() for batch in loader(theirs)] == [[0, 5], [2]]


def test_a_loader_that_is_no_longer_used_is_gone_at_once() -> None:
    """Found by the collector of cycles, persistent workers are waited for: ten seconds."""
    gone = []
    for score in ("history", "auto"):
        loader = make(score=score, num_workers=0)
        follow(loader, islice(loader, 2))
        weakref.finalize(loader, gone.append, score)
        del loader
    assert gone == ["history", "auto"]
