"""Batches chosen from pools, where the model is."""

import torch
from torch import nn

from salience.pools import to_model


def test_a_batch_comes_to_where_the_model_is() -> None:
    batch = {"x": torch.zeros(3, 2), "name": ["a", "b", "c"]}
    moved = to_model(nn.Linear(2, 1, device="meta"), batch)
    assert moved["x"].device.type == "meta"
    assert moved["name"] == ["a", "b", "c"]
    assert to_model(None, batch) is batch
    assert to_model(nn.ReLU(), batch) is batch
