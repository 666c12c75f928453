"""Shared settings, small networks, and ``auto`` turned on."""

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import nn
from torch.utils.data import TensorDataset

from parts import make_dataset
from salience.sources import auto

# Machines that run tests are shared: a slow moment is not a failure.
settings.register_profile(
    "salience", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("salience")


@pytest.fixture(autouse=True)
def _same_start(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    for name in ("EVERY", "ON", "OFF"):  # what a test changes is put back
        monkeypatch.setattr(auto, name, getattr(auto, name))


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
    """``auto`` turns on at its first look and stays on; it looks at every third draw."""
    monkeypatch.setattr(auto, "EVERY", 3)
    monkeypatch.setattr(auto, "ON", 0.0)
    monkeypatch.setattr(auto, "OFF", 0.0)
