"""Small parts that several test files build on."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from salience.scores import NEED_MODEL


def make_dataset(n: int) -> TensorDataset:
    """``n`` examples of six features in three classes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 6, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (n,), generator=generator))


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Per-example losses, as users write them."""
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def needs(score: str, model: nn.Module) -> dict[str, Any]:
    """What a score needs beside the dataset."""
    return {"model": model, "loss": cross_entropy} if score in NEED_MODEL else {}


def frozen(tree: Any) -> Any:
    """A nested state as plain values, tensors as their bytes: equal if and only if bitwise so."""
    if isinstance(tree, dict):
        return {key: frozen(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [frozen(value) for value in tree]
    if isinstance(tree, Tensor):
        return (str(tree.dtype), tuple(tree.shape), tree.detach().numpy().tobytes())
    return tree
