"""A whole run of ``auto`` that turns on by itself: pauses and resumes change nothing."""

import io
import random
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, get_worker_info

from salience import ImportanceLoader

STEPS, BATCH, N = 2000, 32, 3000
PER_EPOCH = -(-N // BATCH)


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Four classes; in workers, with noise from their random numbers."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(N, 10, generator=generator)
        self.y = (self.x @ torch.randn(10, 4, generator=generator)).argmax(1)

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        noise = 0.05 * torch.randn(10) if get_worker_info() else 0.0
        return self.x[i] + noise, self.y[i]


class Trained:
    """A network, its optimizer and its loader; what was drawn, and when it turned on."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.rows: list[tuple[list[int], list[float]]] = []
        self.active: list[bool] = []
        self.build()

    def build(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 3e-3)
        self.loader = ImportanceLoader(Noisy(), BATCH, num_workers=self.workers, seed=5)

    def step(self, x: Tensor, y: Tensor) -> None:
        losses = cross_entropy(self.model(x), y, reduction="none")
        self.rows.append((self.loader.indices.tolist(), self.loader.weights.tolist()))
        self.loader.mean(losses).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.active.append(self.loader._sampler.active)

    def parts(self) -> tuple[Any, Any, Any]:
        return self.model, self.optimizer, self.loader

    def resume(self) -> None:
        """Through a file, into new objects."""
        file = io.BytesIO()
        torch.save([part.state_dict() for part in self.parts()], file)
        file.seek(0)
        self.build()
        for part, state in zip(self.parts(), torch.load(file, weights_only=True), strict=True):
            part.load_state_dict(state)

    def run(self, resumes: frozenset[int] = frozenset(), pause: bool = False) -> "Trained":
        pauses = random.Random(1)
        while len(self.rows) < STEPS:
            for x, y in self.loader:
                self.step(x, y)
                if pause:
                    time.sleep(pauses.uniform(0, 0.005))
                if len(self.rows) in resumes:
                    self.resume()
                    break
                if len(self.rows) == STEPS:
                    break
        return self


@pytest.mark.parametrize("workers", [0, 2])
def test_pauses_and_ten_resumes_change_nothing(workers: int) -> None:
    whole = Trained(workers).run()
    assert not whole.active[PER_EPOCH]
    assert sum(whole.active) > STEPS // 2
    # Nine at random, and the last step of an epoch.
    resumes = frozenset([*random.Random(workers).sample(range(1, STEPS), 9), 7 * PER_EPOCH])
    other = Trained(workers).run(resumes, pause=workers == 0)
    assert other.rows == whole.rows
    for one, two in zip(other.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, two)
