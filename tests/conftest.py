"""Shared settings and small networks."""

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn
from torch.utils.data import TensorDataset

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
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 6, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (40,), generator=generator))


@pytest.fixture
def model() -> nn.Module:
    """A small classifier for ``dataset``, with dropout and batch normalisation."""
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    )


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Per-example losses, as users write them."""
    x, y = batch
    return nn.functional.cross_entropy(model(x), y, reduction="none")
