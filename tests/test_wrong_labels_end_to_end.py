"""Digits with wrong labels, default settings: they are found while the network learns."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from salience import ImportanceLoader
from salience.compare.digits import digits


class Trained(NamedTuple):
    loader: ImportanceLoader
    wrong: Tensor  # positions
    trusted: list[bool]  # whether suspects were discounted, at each step


def train(share: float, seed: int, epochs: int = 40) -> Trained:
    x, y = digits(train=True).tensors
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.randperm(len(y), generator=generator)[: round(share * len(y))]
    y[wrong] = (y[wrong] + torch.randint(1, 10, (len(wrong),), generator=generator)) % 10
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    loader, trusted = ImportanceLoader(TensorDataset(x, y), 64, seed=seed), []
    for _ in range(epochs):
        for images, labels in loader:
            loss = loader.mean(cross_entropy(model(images), labels, reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trusted.append(loader._sampler.source.trust.active)
    return Trained(loader, wrong, trusted)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_fifth_of_wrong_labels_is_found_and_discounted(seed: int) -> None:
    loader, wrong, trusted = train(0.2, seed)
    assert sum(trusted) > len(trusted) / 3
    assert trusted[-1]
    right = set(loader.suspects(len(wrong)).tolist()) & set(wrong.tolist())
    assert len(right) >= 0.9 * len(wrong)
    named = set(loader.suspects().tolist())  # how many it finds by itself
    assert len(named & set(wrong.tolist())) >= 0.9 * max(len(named), len(wrong))


@pytest.mark.parametrize("seed", [0, 1])
def test_clean_labels_are_never_discounted(seed: int) -> None:
    loader, _, trusted = train(0.0, seed)
    assert not any(trusted)
    assert loader.suspects().tolist() == []
