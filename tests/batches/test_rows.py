"""Rows read a batch at a time, and the batch of a single example."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from salience.batches.rows import Rows, collate, one_example

TENSORS = torch.arange(12.0).view(6, 2), torch.arange(6)


def test_rows_are_what_a_tensor_dataset_yields():
    options = {"batch_size": 4, "shuffle": False}
    expected = DataLoader(TensorDataset(*TENSORS), **options)
    for got, wanted in zip(
        DataLoader(Rows(TENSORS), collate_fn=collate, **options), expected, strict=True
    ):
        assert isinstance(got, list)
        assert all(map(torch.equal, got, wanted))


def test_stacked_rows_look_like_examples_to_any_other_collate():
    examples = Rows(TENSORS).__getitems__([5, 0])
    assert len(examples) == 2
    assert examples[0][1] == 5
    assert all(map(torch.equal, default_collate(list(examples)), collate(examples)))


class Random:
    """Draws from every generator that augmentations use."""

    def __getitem__(self, index):
        return index, torch.rand(1) + random.random() + np.random.rand()  # noqa: NPY002


@pytest.mark.parametrize(
    ("dataset", "collate_fn", "size"),
    [(Rows(TENSORS), collate, 2), (TensorDataset(*TENSORS), list, 1), (Random(), tuple, 1)],
)
def test_one_example_is_collated_as_a_batch_and_uses_no_random_numbers(dataset, collate_fn, size):
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    assert len(one_example(dataset, collate_fn)) == size
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # noqa: NPY002
