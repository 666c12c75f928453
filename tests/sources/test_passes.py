"""Shuffled passes: each example once, and with many classes every batch has its share of them."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from salience import ImportanceLoader, ImportanceSampler
from salience.errors import ArgumentError
from salience.sources.passes import BATCHES, Passes, Strata, by_frequency


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stratified(classes: torch.Tensor, batch_size: int, seed: int = 0) -> Passes:
    source = generator(seed)
    return Passes(len(classes), source, Strata(classes, batch_size, source))


def batches_of_a_pass(sampler: ImportanceSampler, n: int) -> list[torch.Tensor]:
    batches: list[torch.Tensor] = []
    while sum(map(len, batches)) < n:
        batches.append(sampler.draw().indices)
    return batches


# ------------------------------------------------------------------------------------------ plain


@given(st.integers(1, 50), st.lists(st.integers(1, 70), min_size=1, max_size=12))
def test_whatever_is_taken_each_comes_once_per_pass(n: int, counts: list[int]) -> None:
    passes = Passes(n, generator())
    taken = torch.cat([passes.take(count) for count in counts])
    assert len(taken) == sum(counts)
    for part in taken.split(n):
        assert len(part.unique()) == len(part)


def test_without_whole_a_piece_ends_with_the_pass() -> None:
    passes = Passes(10, generator())
    assert [len(passes.take(4, whole=False)) for _ in range(6)] == [4, 4, 2, 4, 4, 2]


def test_ending_a_pass_begins_another() -> None:
    passes = Passes(30, generator())
    passes.take(7)
    passes.end()
    assert sorted(passes.take(30).tolist()) == list(range(30))


def test_two_passes_are_not_the_same() -> None:
    for passes in (Passes(64, generator()), stratified(torch.arange(64) // 2, 16)):
        orders = [passes.take(64) for _ in range(4)]
        assert not any(torch.equal(a, b) for a, b in pairwise(orders))


# ------------------------------------------------------------------------------------- stratified


def test_classes_are_numbered_from_the_most_frequent_on() -> None:
    assert by_frequency(torch.tensor([3, 1, 1, 0, 3, 1])).tolist() == [1, 0, 0, 2, 1, 0]


def test_as_many_classes_as_places_come_once_each() -> None:
    classes = torch.arange(24) % 6
    for batch in Strata(classes, 6, generator()).order(24, 7).span(0, 24).reshape(4, 6):
        # Strata begin at a random place: neighbouring classes share one, none comes thrice.
        assert torch.bincount(classes[torch.from_numpy(batch)]).max() <= 2


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=120), st.integers(1, 20), st.integers(0, 99)
)
def test_each_comes_once_and_every_batch_has_its_share(
    given_classes: list[int], size: int, seed: int
) -> None:
    classes = torch.tensor(given_classes, dtype=torch.int64)
    order = stratified(classes, size, seed).take(len(classes))
    assert sorted(order.tolist()) == list(range(len(classes)))
    batches = len(classes) // size
    for batch in classes[order[: batches * size]].view(batches, size):
        for c in batch.unique():
            # Those of a class lie in a row (the first may wrap around), so they are all of some
            # strata and a part of four more.
            share = float((classes == c).sum()) / len(classes) * size
            assert abs(int((batch == c).sum()) - share) < 5


def test_pieces_are_those_of_the_whole() -> None:
    n, size = 40 * BATCHES, 8
    strata = Strata(torch.arange(n) % 40, size, generator())
    whole = strata.order(n, 3).span(0, n).copy()
    pieces = strata.order(n, 3)
    for start, stop in ((0, 8), (8, 24), (16, 20), (n - 8, n), (300, 308)):
        assert pieces.span(start, stop).tolist() == whole[start:stop].tolist()


def test_every_example_is_as_likely_at_every_place() -> None:
    """Also in the short batch at the end, and in both halves of a batch."""
    n, rounds = 10, 2000
    passes = stratified(torch.arange(n) // 2, 4)
    places = torch.zeros(n, n)
    for _ in range(rounds):
        places[passes.take(n), torch.arange(n)] += 1
    expected = rounds / n
    assert ((places - expected).abs() < 5 * expected**0.5).all()


# ----------------------------------------------------------------------------------- auto uses them


def test_auto_gives_many_classes_their_share_in_every_batch() -> None:
    classes = torch.arange(240) % 24
    halves = by_frequency(classes) < 12

    def counts(**options: torch.Tensor) -> list[int]:
        batches = batches_of_a_pass(ImportanceSampler(240, 12, **options), 240)
        return [int(halves[batch].sum()) for batch in batches]

    assert all(abs(count - 6) <= 1 for count in counts(labels=classes))
    assert any(abs(count - 6) > 1 for count in counts())


@pytest.mark.parametrize("classes", [None, torch.arange(240) % 12])
def test_with_few_classes_or_none_its_batches_are_those_of_uniform(
    classes: torch.Tensor | None,
) -> None:
    ours = batches_of_a_pass(ImportanceSampler(240, 12, labels=classes), 240)
    uniform = batches_of_a_pass(ImportanceSampler(240, 12, score="uniform"), 240)
    assert all(torch.equal(a, b) for a, b in zip(ours, uniform, strict=True))


def test_uniform_stays_ordinary_shuffling_whatever_the_classes() -> None:
    classes = torch.arange(240)
    ours = batches_of_a_pass(ImportanceSampler(240, 12, score="uniform", labels=classes), 240)
    uniform = batches_of_a_pass(ImportanceSampler(240, 12, score="uniform"), 240)
    assert all(torch.equal(a, b) for a, b in zip(ours, uniform, strict=True))


def test_the_loader_finds_the_classes_by_itself() -> None:
    classes = torch.arange(250) % 25
    dataset = TensorDataset(torch.zeros(250, 1), classes)
    upper = by_frequency(classes) >= 15
    loader = ImportanceLoader(dataset, batch_size=10, drop_last=True)
    for _ in range(2):  # each epoch is a pass of its own
        counts = []
        for _ in loader:
            counts.append(int(upper[loader.indices].sum()))
            loader.mean(torch.ones(10))
        assert len(counts) == 25
        assert all(abs(count - 4) <= 1 for count in counts)


# ---------------------------------------------------------------------------------------- growing


def test_a_pass_under_way_ends_over_the_old_examples() -> None:
    passes = Passes(10, generator())
    taken = [passes.take(4)]
    passes.extend(16)
    taken.append(passes.take(6))
    assert passes.size == 10
    assert sorted(torch.cat(taken).tolist()) == list(range(10))
    assert sorted(passes.take(16).tolist()) == list(range(16))
    assert passes.size == 16


def test_between_passes_the_new_examples_come_at_once() -> None:
    for begin in (lambda passes: passes.end(), lambda passes: passes.take(6)):
        passes = Passes(10, generator())
        passes.take(4)
        begin(passes)
        passes.extend(16)
        assert sorted(passes.take(16).tolist()) == list(range(16))


def test_the_order_of_the_pass_under_way_does_not_change() -> None:
    ours, theirs = Passes(10, generator()), Passes(10, generator())
    ours.take(4), theirs.take(4)
    ours.extend(11)
    ours.load_state_dict(ours.state_dict())
    assert ours.take(6).tolist() == theirs.take(6).tolist()


def test_strata_hold_the_new_examples_from_the_next_pass_on() -> None:
    n, more, size = 240, 480, 12
    classes = torch.cat([torch.arange(n) % 24, 24 + torch.arange(more - n) % 24])
    passes = stratified(classes[:n], size)
    first = passes.take(60)
    passes.extend(more, classes)
    assert sorted(torch.cat([first, passes.take(n - 60)]).tolist()) == list(range(n))
    order = passes.take(more)
    assert sorted(order.tolist()) == list(range(more))
    for batch in classes[order].view(-1, size):
        assert abs(int((batch < 24).sum()) - 6) <= 1  # each half of the classes has its share


def test_strata_need_the_new_classes() -> None:
    with pytest.raises(ArgumentError, match="classes of all 300 examples"):
        stratified(torch.arange(240) % 24, 12).extend(300)


def test_a_state_of_strata_fits_the_examples() -> None:
    state = stratified(torch.arange(20), 4).state_dict()
    with pytest.raises(ValueError, match="strata of 20 examples for 30"):
        stratified(torch.arange(30), 4).load_state_dict(state)
