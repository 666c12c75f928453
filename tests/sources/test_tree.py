"""The sum tree against cumulated sums over everything."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience.sources import tree as tree_module
from salience.sources.tree import SumTree


def fill(tree: SumTree, column: int, values: Any) -> None:
    tree.column(column)[:] = values
    tree.sum_up()


@pytest.fixture(params=[(8, 3), (16, 8192)], ids=["deep", "as shipped"])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    fan, top = request.param
    monkeypatch.setattr(tree_module, "FAN", fan)
    monkeypatch.setattr(tree_module, "TOP", top)


@pytest.mark.usefixtures("shape")
@pytest.mark.parametrize("n", [1, 2, 3, 5, 63, 64, 65, 1000, 4097, 9999])
@pytest.mark.parametrize(("unknown", "floor"), [(0.0, 0.0), (0.0, 0.3), (2.0, 0.0), (2.0, 0.3)])
def test_find_agrees_with_searching_the_cumulated_masses(
    n: int, unknown: float, floor: float
) -> None:
    random = np.random.default_rng(n)
    tree = SumTree(n, columns=2)
    scores = random.random(n) * (random.random(n) < 0.6)
    scores[n // 2] = 1.0
    flags = (random.random(n) < 0.3).astype(float)
    fill(tree, 0, scores)
    fill(tree, 1, flags)
    for _ in range(20):
        at = random.integers(0, n, 16)
        values = random.random(16)
        scores[at] = values
        tree.put(0, at, values)
    rates = (1.0, unknown)
    mass = scores + unknown * flags + floor
    ends = np.cumsum(mass)
    points = random.random(300)
    away_from_ends = np.abs(points[:, None] * ends[-1] - ends).min(axis=1) > 1e-9
    expected = ends.searchsorted(points * ends[-1], side="right")
    found = tree.find(points * ends[-1], rates, floor)
    np.testing.assert_array_equal(found[away_from_ends], expected[away_from_ends])
    assert (mass[found] > 0).all()
    np.testing.assert_allclose(tree.mass(found, rates, floor), mass[found])
    assert tree.total(rates) + n * floor == pytest.approx(mass.sum())


@pytest.mark.usefixtures("shape")
@given(
    masses=st.lists(st.sampled_from([0.0, 1e-300, 1e-9, 1.0, 1e9]), min_size=1, max_size=70),
    point=st.one_of(st.floats(0, 1, exclude_max=True), st.just(np.nextafter(1.0, 0.0))),
)
def test_what_has_no_mass_is_never_found(masses: list[float], point: float) -> None:
    if sum(masses) == 0:
        return
    tree = SumTree(len(masses), columns=1)
    fill(tree, 0, np.array(masses))
    (found,) = tree.find(np.array([point]) * tree.total((1.0,)), (1.0,), 0.0)
    assert masses[found] > 0


def test_sums_stay_exact_after_many_updates() -> None:
    random = np.random.default_rng(0)
    n = 100_000
    tree = SumTree(n, columns=1)
    for _ in range(2000):
        tree.put(0, random.integers(0, n, 64), 10.0 ** random.uniform(-12, 12, 64))
    tree.put(0, np.arange(n), np.ones(n))
    assert tree.total((1.0,)) == n


def test_filling_gives_the_same_bits_as_putting() -> None:
    values = np.random.default_rng(0).random(70_000)
    filled, put = SumTree(len(values), columns=1), SumTree(len(values), columns=1)
    fill(filled, 0, values)
    for part in np.array_split(np.random.default_rng(1).permutation(len(values)), 50):
        put.put(0, part, values[part])
    for ours, theirs in zip(filled._levels, put._levels, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])


@pytest.mark.usefixtures("shape")
@pytest.mark.parametrize("n", [1, 5, 65, 1000, 9999])
@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_nodes_can_be_laid_in_another_order(n: int, floor: float) -> None:
    random = np.random.default_rng(n)
    tree = SumTree(n, columns=1)
    scores = random.random(n) * (random.random(n) < 0.6)
    scores[n // 2] = 1.0
    fill(tree, 0, scores)
    order = random.permutation(tree.top)
    width = tree_module.FAN ** (len(tree._levels) - 1)
    line = np.concatenate([np.arange(n)[node * width : (node + 1) * width] for node in order])
    ends = np.cumsum(scores[line] + floor)
    points = random.random(300) * ends[-1]
    away_from_ends = np.abs(points[:, None] - ends).min(axis=1) > 1e-9
    found = tree.find(points, (1.0,), floor, order)
    expected = line[ends.searchsorted(points, side="right")]
    np.testing.assert_array_equal(found[away_from_ends], expected[away_from_ends])


@pytest.mark.usefixtures("shape")
@pytest.mark.parametrize(("n", "more"), [(1, 1), (3, 40), (60, 64), (1000, 1001), (9000, 140_000)])
def test_a_tree_that_has_grown_is_the_same_as_a_new_one(n: int, more: int) -> None:
    values = np.random.default_rng(n).random(n)
    grown, new = SumTree(n, columns=2), SumTree(more, columns=2)
    fill(grown, 1, values)
    grown.extend(more)
    new.column(1)[:n] = values
    new.sum_up()
    assert grown.n == more
    for ours, theirs in zip(grown._levels, new._levels, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("size", [100, 3000, 40_000])
def test_putting_many_at_once_gives_the_same_sums(size: int) -> None:
    """Few are read block by block; where most sums of a level change, all are added up."""
    n = 300_000
    random = np.random.default_rng(size)
    tree, plain = SumTree(n, columns=1), random.random(n)
    fill(tree, 0, plain)
    at = random.integers(0, n, size)
    plain[at] = values = random.random(size)
    plain[at] = values
    tree.put(0, at, values)
    expected = SumTree(n, columns=1)
    fill(expected, 0, plain)
    for ours, theirs in zip(tree._levels, expected._levels, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])


@pytest.mark.parametrize("width", [8, 16, 32])
def test_flags_are_counted_row_by_row(width: int) -> None:
    full = np.tri(width + 1, width, -1) > 0  # none, one, ..., all
    flags = np.concatenate([full, np.random.default_rng(0).random((100, width)) < 0.5])
    assert tree_module._count(flags).tolist() == flags.sum(axis=1).tolist()


def test_blocks_begin_with_a_cache_line() -> None:
    tree = SumTree(70_000, columns=2)
    assert all(part.ctypes.data % 64 == 0 for level in tree._levels for part in level)


def test_a_point_that_rounding_left_outside_its_row_goes_to_the_last_entry_with_mass() -> None:
    rows = np.zeros((3, tree_module.FAN))
    rows[:, :2] = 1.0
    child, left = tree_module._find_in_rows(rows, np.array([2.0, 1.0, 0.5]))
    assert child.tolist() == [1, 1, 0]
    assert left.tolist() == [np.nextafter(2.0, 0.0) - 1.0, 0.0, 0.5]


@pytest.mark.usefixtures("shape")
def test_no_point_finds_the_padding() -> None:
    random = np.random.default_rng(0)
    n = 10 * tree_module.TOP + 1  # all but the first entry of the last block are padding
    tree = SumTree(n, columns=1)
    for floor in random.random(200):
        end = tree._top_masses((1.0,), floor).cumsum()[-1]
        assert tree.find(np.array([np.nextafter(end, 0.0)]), (1.0,), floor).tolist() == [n - 1]
