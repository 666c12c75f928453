"""Shared settings, small networks, and ``auto`` turned on."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from salience.scores import NEED_MODEL
from salience.sources import auto

# Machines that run tests are shared: a slow moment is not a failure.
settings.register_profile(
    "salience", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("salience")


@pytest.fixture(autouse=True)
def _same_start() -> None:
    torch.manual_seed(0)


@pytest.fixture
def dataset() -> TensorDataset:
    """Forty examples of six features in three classes."""
    return make_dataset(40)


@pytest.fixture
def model() -> nn.Module:
    """A small classifier for ``dataset``, with dropout and batch normalisation."""
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    )


@pytest.fixture
def auto_turns_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` turns on at its third step and stays on."""
    monkeypatch.setattr(auto, "EVERY", 3)
    monkeypatch.setattr(auto, "ON", 0.0)
    monkeypatch.setattr(auto, "OFF", 0.0)


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
