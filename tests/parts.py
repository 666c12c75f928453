"""Small parts that several test files build on."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from salience import recency
from salience import trust as trusting
from salience.scores import NEED_MODEL
from salience.sources import auto, worth


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


def force_auto(
    mode: str, *, trust: bool = False, every: int = 3, put: Callable[..., None] = setattr
) -> None:
    """``auto`` is in this mode from its first look on, and trusts or does not once it has seen all.

    As it is, most tests end long before it would turn on. ``conftest.py`` puts everything back.
    """
    put(auto, "EVERY", every)
    for name in ("ON", "OFF"):
        put(auto, name, math.inf if mode == "off" else 0.0)
        put(trusting, name, math.inf if trust else -math.inf)
    put(auto, "LEFT", -1.0)
    put(auto, "DOUBT", math.inf)
    put(recency, "ENOUGH", 0.0)
    put(recency, "FEW", 0)
    put(recency.Recency, "judge", _does_not)
    put(trusting, "FEWEST", 0)
    put(trusting, "LEAST", 0.0)
    put(trusting, "MOST", 1.0)
    put(trusting.Trust, "contradicts", True)


def _does_not(one: Any) -> None:
    one.memorises = False


def force_worth(gain: float, *, put: Callable[..., None] = setattr) -> None:
    """Pools are scored while v is above ``gain``, from the first loss on."""
    put(worth, "SETTLED", 0.0)
    for name in ("ON", "OFF"):
        put(worth, name, gain)


def auto_is(sampler: Any) -> tuple[str, bool]:
    """The mode of ``auto``, and whether it discounts suspects, of which it knows some."""
    source = sampler.source
    if source.trust is None or not source.trust.active:
        return source.mode, False
    return source.mode, 0 < source.trust.state_dict()["share"] < 1


def frozen(tree: Any) -> Any:
    """A nested state as plain values, tensors as their bytes: equal if and only if bitwise so."""
    if isinstance(tree, dict):
        return {key: frozen(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [frozen(value) for value in tree]
    if isinstance(tree, Tensor):
        return (str(tree.dtype), tuple(tree.shape), tree.detach().numpy().tobytes())
    return tree
