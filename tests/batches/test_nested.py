"""Moving, measuring and picking: columns or examples by structure, never by equal sizes."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from salience.batches.nested import Layout, map_tensors, move, pick, pieces, pool_size
from salience.errors import ArgumentError

Pair = namedtuple("Pair", "x y")


@dataclass
class Data:
    x: torch.Tensor
    note: str = "same for all"


def same(a, b):
    if isinstance(a, torch.Tensor | np.ndarray):
        return type(a) is type(b) and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def zipped(batch):
    return tuple(zip(*batch, strict=True))


def as_list(batch):
    return list(batch)


DATASETS = {
    "rows and classes": lambda i: (torch.full((3,), float(i)), i),
    "two of a kind": lambda i: (torch.full((3,), float(i)), torch.full((3,), -float(i))),
    "nested columns": lambda i: ((torch.full((2,), i), torch.full((2,), -i)), i),
    "a mapping": lambda i: {"x": torch.full((2, 2), i), "name": f"example {i}"},
    "a named tuple": lambda i: Pair(torch.full((2,), i), i),
    "lists of strings": lambda i: (torch.full((2,), i), [f"a{i}", f"b{i}"]),
    "images and boxes": lambda i: (
        torch.full((3, 4, 4), i),
        {"boxes": torch.full((4, 4), i), "labels": torch.full((4,), i)},
    ),
    "images and tensors of boxes": lambda i: (torch.full((3, 4, 4), i), torch.full((4, 5), i)),
    "sequences": lambda i: torch.full((4, 2), i),
    "token lists": lambda i: ([i, i, i, i], i),
}


COLLATED = [
    (name, collate)
    for name in DATASETS
    for collate in (default_collate, zipped, as_list)
    if collate is not zipped or name not in ("sequences", "a mapping")  # zip needs tuples
]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("name", "collate"), COLLATED)
def test_picking_is_collating_the_chosen_examples(name, collate, size):
    rows = [DATASETS[name](i) for i in range(size)]
    layout = Layout(lambda: collate(rows[:1]))
    positions = torch.tensor([size - 1, 0, size // 2])[:size]
    got = pick(collate(rows), positions, size, layout)
    assert same(got, collate([rows[i] for i in positions.tolist()]))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("name", "collate"), COLLATED)
def test_pieces_are_the_examples_in_order_or_the_whole(name, collate, size):
    rows = [DATASETS[name](i) for i in range(size)]
    batch = collate(rows)
    found = pieces(batch, size, 2)
    assert sum(n for _, n in found) == size
    if len(found) == 1:
        assert found[0][0] is batch
        return
    for start, (piece, n) in zip(range(0, size, 2), found, strict=True):
        positions = torch.arange(start, start + n)
        assert same(piece, pick(batch, positions, size, Layout(lambda: collate(rows[:1]))))


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        ((torch.arange(5), {"y": torch.zeros(5, 2), "scale": 2.0, "note": None}), [2, 2, 1]),
        (Pair(torch.arange(5), Data(torch.zeros(5))), [2, 2, 1]),
        ((torch.arange(5), [torch.zeros(5, 1)] * 5), [5]),  # columns, or an entry per example?
        ((torch.arange(5), np.arange(5)), [5]),
        ((torch.arange(5), torch.arange(4)), [5]),
        ((torch.arange(5), torch.tensor(1.0)), [5]),
        ((torch.arange(5), object()), [5]),
        ((torch.arange(5), ["a", "b", "c", "d", "e"]), [5]),
        ((torch.arange(5), torch.zeros(5, 2).to_sparse()), [5]),
    ],
)
def test_only_dense_columns_are_cut(batch, sizes):
    found = pieces(batch, 5, 2)
    assert [n for _, n in found] == sizes
    if len(sizes) == 1:
        assert found[0][0] is batch
    else:
        assert torch.cat([piece[0] for piece, _ in found]).tolist() == [0, 1, 2, 3, 4]
        assert found[0][0][0].data_ptr() == batch[0].data_ptr()  # a view


@pytest.mark.parametrize("rows", [4, 7])
def test_tensors_with_as_many_rows_as_the_pool_has_examples(rows):
    boxes = [torch.full((rows, 4), float(i)) for i in range(4)]
    batch = (torch.zeros(4, 3, 8, 8), boxes)
    layout = Layout(lambda: (torch.zeros(1, 3, 8, 8), [torch.zeros(5, 4)]))
    picked = pick(batch, torch.tensor([2, 0]), 4, layout)
    assert [b.shape for b in picked[1]] == [(rows, 4)] * 2
    assert [b[0, 0].item() for b in picked[1]] == [2, 0]


def test_images_whose_channels_equal_the_pool():
    images, labels = tuple(torch.full((3, 2, 2), i) for i in range(3)), torch.arange(3)
    layout = Layout(lambda: (images[:1], labels[:1]))
    picked, chosen = pick((images, labels), torch.tensor([2]), 3, layout)
    assert [tuple(x.shape) for x in picked] == [(3, 2, 2)]
    assert picked[0][0, 0, 0] == chosen[0] == 2


def test_pairs_of_unlike_columns_in_a_pool_of_two_need_no_help():
    x, y = pick([torch.zeros(2, 3), torch.tensor([5, 6])], torch.tensor([1]), 2)
    assert tuple(x.shape) == (1, 3)
    assert y.tolist() == [6]


def test_what_an_earlier_batch_has_shown_decides():
    layout = Layout()
    ragged = [torch.ones(i + 1) for i in range(4)]
    pick([torch.zeros(4), ragged], torch.tensor([0]), 4, layout)
    equal = [torch.full((4,), i) for i in range(4)]
    assert pick([torch.zeros(4), equal], torch.tensor([3]), 4, layout)[1][0].tolist() == [3] * 4
    pair = [torch.ones(3), torch.ones(3)]
    assert pool_size({1: pair}) == 3
    assert pool_size({1: pair}, layout) == 2


def test_where_nothing_tells_there_is_an_error_and_no_guess():
    batch = {"boxes": [torch.zeros(4, 5)] * 4}
    with pytest.raises(ArgumentError, match=r"batch\['boxes'\], a list of 4 .* a dict or a named"):
        pick(batch, torch.tensor([1]), 4)


def test_one_example_is_collated_only_where_it_is_needed_and_once():
    calls = []
    layout = Layout(lambda: calls.append(1) or [torch.zeros(1, 5)] * 2)
    pick([torch.zeros(3, 5)] * 2, torch.tensor([1]), 3, layout)
    assert not calls
    layout.known.clear()
    for _ in range(3):
        pick([torch.zeros(2, 5)] * 2, torch.tensor([1]), 2, layout)
    assert len(calls) == 1


@pytest.mark.parametrize(
    "tokens", [[[1, 2, 3], [4, 5], [6]], [["a"], ["b", "c"], []], ["x", None, "y"], [1, 2.5, 3]]
)
def test_python_lists_have_one_entry_per_example(tokens):
    batch = {"x": torch.zeros(3, 2), "tokens": tokens}
    assert pick(batch, torch.tensor([2, 0]), 3)["tokens"] == [tokens[2], tokens[0]]


def test_what_stands_alone_stays():
    batch = [torch.arange(4), 3, "text", None, ["cat", "dog"]]
    picked = pick(batch, torch.tensor([3, 3]), 4)
    assert picked[0].tolist() == [3, 3]
    assert picked[1:] == batch[1:]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: {"x": x},
        lambda x: OrderedDict(x=x),
        lambda x: UserDict(x=x),
        lambda x: MappingProxyType({"x": x}),
        lambda x: Pair(x, x + 1),
        lambda x: (x, [x]),
        Data,
    ],
)
def test_any_nesting_keeps_its_type_and_the_original(wrap):
    batch, expected = wrap(torch.arange(5)), wrap(torch.tensor([4, 1]))
    for got in (pick(batch, torch.tensor([4, 1]), 5), move(batch, torch.device("meta"))):
        assert type(got) is type(batch)
    shapes, wanted = [], []
    map_tensors(lambda x: shapes.append(x.tolist()), pick(batch, torch.tensor([4, 1]), 5))
    map_tensors(lambda x: wanted.append(x.tolist()), expected)
    assert shapes == wanted
    map_tensors(lambda x: shapes.append(len(x)), batch)
    assert set(shapes[len(wanted) :]) == {5}


def test_moving_reaches_every_tensor():
    seen = []
    moved = move({"a": [torch.zeros(1), 3], "b": Data(torch.zeros(2))}, torch.device("meta"))
    map_tensors(lambda x: seen.append(x.is_meta), moved)
    assert seen == [True, True]
    assert moved["a"][1] == 3


def test_arrays_are_picked_as_tensors_are():
    got = pick({"x": np.arange(4)}, torch.tensor([3, 0]), 4)["x"]
    assert isinstance(got, np.ndarray)
    assert got.tolist() == [3, 0]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(7, 2), 7),
        ([torch.zeros(8, 3), torch.zeros(8)], 8),
        ([torch.zeros(8, 3), torch.zeros(8, 3)], 8),
        ({"id": ["a"] * 6, "x": np.zeros((6, 2))}, 6),
        ((tuple([torch.zeros(3, 4, 4)] * 8), torch.zeros(8)), 8),
        ((tuple([torch.zeros(3, 4, 4)] * 8), tuple([{"boxes": torch.zeros(2, 4)}] * 8)), 8),
        ([torch.zeros(4), torch.zeros(5), torch.zeros(6)], 3),
        ([(torch.zeros(3, 4), 1)] * 5, 3),  # the innermost, until a layout tells
        ({"scale": 2.0, "x": [torch.zeros(4, 1), torch.zeros(4)]}, 4),
        (Data(torch.zeros(9)), 9),
    ],
)
def test_the_size_is_the_length_that_all_parts_agree_on(batch, size):
    assert pool_size(batch) == size


@pytest.mark.parametrize("batch", [3, "text", [], {"n": torch.tensor(1)}, object()])
def test_a_pool_without_examples_is_refused(batch):
    with pytest.raises(ArgumentError, match=f"a pool of type {type(batch).__name__}"):
        pool_size(batch)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.zeros(6, 8), torch.zeros(8)), r"batch\[0\] of shape \[6, 8\].*the 8 examples"),
        ({"x": [torch.zeros(8), torch.tensor(1)]}, r"batch\['x'\]\[1\] of shape \[\]"),
        ((torch.zeros(8, 6), object()), r"batch\[1\] of type object: collate"),
    ],
)
def test_what_cannot_be_picked_from_is_named(batch, message):
    with pytest.raises(ArgumentError, match=message):
        pick(batch, torch.tensor([0, 1]), 8)
