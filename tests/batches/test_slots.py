"""Slots travel in the batch, whatever it is, and the user's object stays as it was."""

from collections import OrderedDict, UserDict, namedtuple
from types import MappingProxyType

import numpy as np
import pytest
import torch

from salience.batches.slots import attach
from salience.errors import ArgumentError

SLOTS = torch.tensor([4, 9])
X = torch.zeros(2, 3)
Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, MappingProxyType])
def test_a_mapping_gets_a_key(kind):
    batch = kind({"x": X})
    got = attach(batch, SLOTS)
    assert type(got) is kind
    assert list(got) == ["x", "salience_slot"]
    assert got["salience_slot"] is SLOTS
    assert list(batch) == ["x"]


class Listed(list):
    pass


@pytest.mark.parametrize("kind", [list, tuple, Listed])
def test_a_sequence_gets_one_more_element(kind):
    batch = kind([X, "text"])
    got = attach(batch, SLOTS)
    assert type(got) is kind
    assert got[0] is X
    assert got[2] is SLOTS
    assert len(batch) == 2


def test_a_named_tuple_becomes_a_tuple_and_a_tensor_a_list():
    assert attach(Pair(X, 1), SLOTS) == (X, 1, SLOTS)
    assert type(attach(Pair(X, 1), SLOTS)) is tuple
    got = attach(X, SLOTS)
    assert isinstance(got, list)
    assert got[0] is X
    assert got[1] is SLOTS


@pytest.mark.parametrize("batch", [None, "text", 3, object(), np.zeros(2)])
def test_anything_else_is_refused(batch):
    with pytest.raises(ArgumentError, match=f"of type {type(batch).__name__}: collate into"):
        attach(batch, SLOTS)


def test_a_key_of_the_users_own_is_not_overwritten():
    with pytest.raises(ArgumentError, match="'salience_slot' of its own: rename"):
        attach({"salience_slot": 1}, SLOTS)
