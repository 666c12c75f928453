"""Passes whose batches hold many classes in proportion: each example once, at a random place."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from salience import ImportanceLoader, ImportanceSampler
from salience.distribution.passes import ShuffledPasses, by_frequency, in_proportion


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def epoch(sampler: ImportanceSampler, n: int) -> list[torch.Tensor]:
    """The batches of one pass."""
    batches: list[torch.Tensor] = []
    while sum(map(len, batches)) < n:
        batches.append(sampler.draw().indices)
    return batches


def test_classes_are_numbered_from_the_most_frequent_on() -> None:
    assert by_frequency(torch.tensor([3, 1, 1, 0, 3, 1])).tolist() == [1, 0, 0, 2, 1, 0]


def test_as_many_classes_as_places_come_once_each() -> None:
    classes = torch.arange(24) % 6
    for batch in in_proportion(classes, 6, generator=generator()).split(6):
        assert sorted(classes[batch].tolist()) == list(range(6))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 12), max_size=120), st.integers(1, 20), st.integers(0, 99))
def test_each_comes_once_and_every_batch_has_its_share(
    given_classes: list[int], size: int, seed: int
) -> None:
    classes = torch.tensor(given_classes, dtype=torch.int64)
    order = in_proportion(classes, size, generator=generator(seed))
    assert sorted(order.tolist()) == list(range(len(classes)))
    batches = len(classes) // size
    full = classes[order[: batches * size]]
    for batch in full.view(batches, size):
        for c in batch.unique():
            # Those of a class lie in a row, so they are all of some parts and some of two more.
            share = int((full == c).sum()) / batches
            assert abs(int((batch == c).sum()) - share) < 2


def test_every_example_is_as_likely_at_every_place() -> None:
    """Also in the short batch at the end, and in both halves of a batch."""
    n, rounds = 10, 4000
    passes = ShuffledPasses(n, generator(), classes=torch.arange(n) // 2, batch_size=4)
    places = torch.zeros(n, n)
    for _ in range(rounds):
        places[passes.take(n), torch.arange(n)] += 1
    expected = rounds / n
    assert ((places - expected).abs() < 5 * expected**0.5).all()


def test_two_passes_are_not_the_same() -> None:
    passes = ShuffledPasses(64, generator(), classes=torch.arange(64) // 2, batch_size=16)
    orders = [passes.take(64) for _ in range(4)]
    assert not any(torch.equal(a, b) for a, b in pairwise(orders))


# ----------------------------------------------------------------------------------- auto uses them


def test_auto_gives_many_classes_their_share_in_every_batch() -> None:
    classes = torch.arange(240) % 24
    batches = epoch(ImportanceSampler(240, 12, labels=classes), 240)
    halves = by_frequency(classes) < 12
    assert [int(halves[batch].sum()) for batch in batches] == [6] * 20
    by_chance = epoch(ImportanceSampler(240, 12), 240)
    assert {int(halves[batch].sum()) for batch in by_chance} != {6}


@pytest.mark.parametrize("classes", [None, torch.arange(240) % 12])
def test_with_few_classes_or_none_its_batches_are_those_of_uniform(
    classes: torch.Tensor | None,
) -> None:
    ours = epoch(ImportanceSampler(240, 12, labels=classes), 240)
    uniform = epoch(ImportanceSampler(240, 12, score="uniform"), 240)
    assert all(torch.equal(a, b) for a, b in zip(ours, uniform, strict=True))


def test_uniform_stays_ordinary_shuffling_whatever_the_classes() -> None:
    classes = torch.arange(240)
    ours = epoch(ImportanceSampler(240, 12, score="uniform", labels=classes), 240)
    uniform = epoch(ImportanceSampler(240, 12, score="uniform"), 240)
    assert all(torch.equal(a, b) for a, b in zip(ours, uniform, strict=True))


def test_the_loader_finds_the_classes_by_itself() -> None:
    classes = torch.arange(250) % 25
    dataset = TensorDataset(torch.zeros(250, 1), classes)
    upper = by_frequency(classes) >= 15
    loader = ImportanceLoader(dataset, batch_size=10, drop_last=True)
    for _ in range(2):  # each epoch is a pass of its own
        assert [int(upper[loader.indices].sum()) for _ in loader] == [4] * 25


def test_it_resumes_exactly_in_the_middle_of_a_pass() -> None:
    classes = torch.arange(240) % 24
    first = ImportanceSampler(240, 12, labels=classes)
    for _ in range(7):
        first.draw()
    second = ImportanceSampler(240, 12, labels=classes, seed=1)
    second.load_state_dict(first.state_dict())
    for _ in range(30):
        assert torch.equal(first.draw().indices, second.draw().indices)
