"""Orders that are computed from a key: each place once, random, the same in any pieces."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from salience.sources import permutation
from salience.sources.permutation import CHUNK, STORED, Permutation, round_keys, scramble

LARGE = STORED + 1


@settings(max_examples=60)
@given(n=st.integers(1, 3000), key=st.integers(0, 2**62 - 1))
def test_a_scrambled_range_is_a_permutation(n: int, key: int) -> None:
    found = scramble(np.arange(n, dtype=np.uint32), n, round_keys(key))
    assert sorted(found.tolist()) == list(range(n))


def test_sizes_and_keys_may_differ_by_place() -> None:
    sizes = np.array([5, 9, 1, 16], dtype=np.uint32)
    keys = [np.array([1, 2, 3, 4], dtype=np.uint32) * np.uint32(i + 7) for i in range(8)]
    columns = [[] for _ in sizes]
    for step in range(16):
        at = np.flatnonzero(step < sizes)
        x = np.full(len(at), step, dtype=np.uint32)
        found = scramble(x, sizes[at], [key[at] for key in keys])
        for column, value in zip(at, found, strict=True):
            columns[column].append(int(value))
    assert [sorted(column) for column in columns] == [list(range(size)) for size in sizes]


def test_a_large_order_holds_each_place_once() -> None:
    order = Permutation(LARGE, key=5).span(0, LARGE)
    assert (np.bincount(order, minlength=LARGE) == 1).all()
    assert order.dtype == np.int64


@pytest.mark.parametrize("n", [1000, LARGE])
def test_pieces_are_those_of_the_whole(n: int) -> None:
    whole = Permutation(n, key=9).span(0, n).copy()
    pieces = Permutation(n, key=9)
    for start, stop in ((0, 10), (10, 900), (700, 950), (3, 4), (n - 5, n), (0, min(n, 3 * CHUNK))):
        np.testing.assert_array_equal(pieces.span(start, stop), whole[start:stop])


@pytest.mark.parametrize("n", [1000, LARGE])
def test_another_key_is_another_order(n: int) -> None:
    orders = [Permutation(n, key).span(0, 200).tolist() for key in range(6)]
    assert len({tuple(order) for order in orders}) == 6


def test_small_keys_and_neighbours_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example is equally likely at every place, and so are its neighbours."""
    monkeypatch.setattr(permutation, "STORED", 0)
    n, rounds = 11, 2000
    places, next_to = np.zeros((n, n)), np.zeros((n, n))
    for key in range(rounds):
        order = Permutation(n, key).span(0, n)
        places[order, np.arange(n)] += 1
        next_to[order[:-1], order[1:]] += 1
    assert (abs(places - rounds / n) < 5 * (rounds / n) ** 0.5).all()
    np.fill_diagonal(next_to, rounds / n)
    assert (abs(next_to - rounds / n) < 5 * (rounds / n) ** 0.5).all()
