"""Classes found in datasets, and classes that users pass."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from salience.batches.labels import as_labels, find_labels
from salience.errors import ArgumentError

CLASSES = [3, 1, 4, 1]


class Carries(Dataset):
    """A dataset with attributes and a length; its examples are never loaded."""

    def __init__(self, size=4, **attributes):
        self.size = size
        self.__dict__.update(attributes)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        pytest.fail(f"example {index} was loaded")


class Masks:
    """An array on disk with more than a number for each example: too large to be read."""

    shape = (4, 512, 512)

    def __array__(self, *_, **__):
        pytest.fail("the masks were read")  # no Exception, so nothing hides it


class Broken(Carries):
    """A dataset that cannot say what its targets are."""

    @property
    def targets(self):
        raise RuntimeError("the file is gone")


class Stream(IterableDataset):
    """Examples without a length, and so without a table of classes."""

    targets = CLASSES

    def __iter__(self):
        pytest.fail("the stream was opened")


def tensors(*targets):
    return TensorDataset(torch.zeros(len(CLASSES), 2), *map(torch.as_tensor, targets))


def read_only():
    array = np.array(CLASSES)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "dataset",
    [
        Carries(targets=CLASSES),
        Carries(labels=CLASSES),
        Carries(targets=None, labels=CLASSES),
        Carries(targets=tuple(CLASSES)),
        Carries(targets=np.array(CLASSES, dtype=np.uint16)),
        Carries(targets=np.array(CLASSES)[:, None]),
        Carries(targets=read_only()),
        Carries(targets=torch.tensor(CLASSES, dtype=torch.uint8)),
        Carries(targets=torch.tensor(CLASSES)[:, None]),
        Carries(targets=[torch.tensor(c) for c in CLASSES]),
        Carries(targets=[np.int64(c) for c in CLASSES]),
        Carries(targets=CLASSES, labels=[0, 0, 0, 0]),
        tensors(CLASSES),
        tensors(torch.zeros(4, 5), CLASSES),
        Subset(Carries(6, targets=[0, 3, 9, 1, 4, 1]), [1, 3, 4, 5]),
        Subset(Carries(6, targets=[0, 3, 9, 1, 4, 1]), torch.tensor([1, 3, 4, -1])),
        Subset(Subset(Carries(targets=[1, 4, 3, 1]), [2, 0, 1, 3]), range(4)),
        ConcatDataset([Carries(2, labels=[3, 1]), Carries(2, targets=np.array([4, 1]))]),
        ConcatDataset([Subset(tensors(CLASSES), [0]), Carries(3, targets=[1, 4, 1])]),
    ],
)
def test_classes_are_found(dataset):
    found = find_labels(dataset)
    assert found.dtype == torch.int64
    assert found.tolist() == CLASSES


def test_bool_targets_are_two_classes():
    assert find_labels(Carries(targets=[True, False, True, True])).tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize(
    "dataset",
    [
        Carries(),
        Carries(targets=[0.5, 1.0, 2.0, 3.0]),
        Carries(targets=torch.tensor(CLASSES).float()),
        Carries(targets=[0.5, 1.0, 2.0, 3.0], labels=CLASSES),
        Carries(targets=torch.eye(4, dtype=torch.int64)),
        Carries(targets=torch.ones(4, 1, 1, dtype=torch.int64)),
        Carries(targets=["cat", "dog", "cat", "dog"]),
        Carries(targets=np.array(["cat", "dog", "cat", "dog"])),
        Carries(targets=[{"boxes": 1}] * 4),
        Carries(targets=[[1], [2, 3], [4], [5]]),
        Carries(targets=[[[1, 2], [3]]] * 4),
        Carries(targets=[]),
        Carries(targets={0: 3, 1: 1, 2: 4, 3: 1}),
        Carries(targets=Masks()),
        Broken(),
        Subset(Carries(targets=CLASSES), [9]),
        Carries(labels="cats"),
        Carries(labels=lambda: CLASSES),
        Carries(targets=CLASSES + CLASSES),
        TensorDataset(torch.tensor(CLASSES)),
        tensors(torch.rand(4)),
        Subset(Carries(), [0]),
        ConcatDataset([Carries(targets=CLASSES), Carries()]),
        Stream(),
        [1, 2, 3],
    ],
)
def test_where_nothing_is_certain_there_are_no_classes(dataset):
    assert find_labels(dataset) is None


@pytest.mark.parametrize(
    "labels",
    [
        [30, -10, 30, 99],
        np.array([30, -10, 30, 99], dtype=np.int16),
        torch.tensor([30, -10, 30, 99], dtype=torch.int32),
        torch.tensor([30.0, -10.0, 30.0, 99.0]),
        torch.tensor([[30], [-10], [30], [99]]),
    ],
)
def test_any_integers_become_class_numbers_without_gaps(labels):
    classes, count, values = as_labels(labels, 4)
    assert classes.tolist() == [1, 0, 1, 2]
    assert classes.dtype == torch.int64
    assert count == 3
    assert values.tolist() == [-10, 30, 99]


def test_the_caller_keeps_its_own_tensor():
    given = torch.tensor([5, 6])
    classes, *_ = as_labels(given, 2)
    classes += 1
    assert given.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        ([1, 2, 3], "3 for 4 examples"),
        ([1, 2, 2.5, 3], "labels[2] = 2.5"),
        ([1, float("nan"), 2, 3], "labels[1] = nan"),
        ([1, 2, 3, float("inf")], "labels[3] = inf"),
        (torch.eye(4), "[4, 4]"),
        (torch.tensor(3), "[]"),
        (torch.tensor([1j, 2, 3, 4]), "complex64"),
        (["cat", "dog", "cat", "dog"], "['cat', 'dog', 'cat', 'dog']"),
        ("cats", "'cats'"),
        (None, "None"),
        ({0: 1, 1: 2, 2: 1, 3: 2}, "{0: 1, 1: 2, 2: 1, 3: 2}"),
        ({3, 1, 4, 5}, "{1, 3, 4, 5}"),
        (torch.zeros(4, device="meta"), "meta"),
    ],
)
def test_labels_that_cannot_be_classes_are_refused_with_value_and_remedy(labels, shown):
    with pytest.raises(ArgumentError) as caught:
        as_labels(labels, 4)
    message = str(caught.value)
    assert shown in message
    assert "pass" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "given",
    [CLASSES, np.array(CLASSES), torch.tensor(CLASSES), [torch.tensor(c) for c in CLASSES]],
)
def test_classes_are_on_the_host_whatever_the_default_device(given):
    with torch.device("meta"):
        found = find_labels(Subset(Carries(targets=given), [3, 2, 1, 0]))
        classes = as_labels(given, 4).labels
    assert found.tolist() == CLASSES[::-1]
    assert classes.tolist() == [1, 0, 2, 0]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), min_size=1, max_size=40))
def test_classes_are_numbered_without_gaps_in_the_order_of_their_values(values: list[int]) -> None:
    found = as_labels(values, len(values))
    distinct = sorted(set(values))
    assert found.number == len(distinct)
    assert found.labels.tolist() == [distinct.index(value) for value in values]
