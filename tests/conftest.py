"""Shared settings, small networks, and ``auto`` turned on."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import nn
from torch.utils.data import TensorDataset

from parts import force_auto, force_worth, make_dataset

# Machines that run tests are shared: a slow moment is not a failure.
settings.register_profile(
    "salience", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("salience")


@pytest.fixture(autouse=True)
def _same_start(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)

    def keep(where: Any, name: str, _: Any) -> None:
        monkeypatch.setattr(where, name, getattr(where, name))

    force_auto("off", put=keep)  # what a test changes is put back
    force_worth(0, put=keep)


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
def auto_turns_on() -> None:
    """``auto`` turns on at its first look and stays on; it looks at every third draw."""
    force_auto("focused")
