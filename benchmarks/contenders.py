"""What is measured: Salience, and what else draws G of N examples, as a user would write it.

Every contender has ``step``, the work of one training step without the network: a batch of indices,
and the losses that come back. ``epoch`` is the number of steps that share what is done at the first
of them (1: every step is alike), and ``first`` tells whether the last step was such a one.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from costs import DrawLoop
from torch import Tensor
from torch.utils.data import DistributedSampler, RandomSampler, WeightedRandomSampler

__all__ = ["BASELINES", "OURS", "UNIFORM", "WEIGHTED", "Contender", "contender"]

OURS = ("history", "history:draw=multinomial", "auto:off", "auto:on")
RANKS = 2  # of DistributedSampler


class Contender(Protocol):
    """One way to draw."""

    epoch: int
    first: bool

    def prepare(self) -> None:
        """Bring it to where a step costs what it will cost from then on."""

    def step(self) -> None:
        """Draw a batch, take its losses."""


class Salience:
    """``ImportanceSampler``."""

    epoch, first = 1, False

    def __init__(self, name: str, n: int, batch: int) -> None:
        self.loop = DrawLoop(name, n, batch)
        self.prepare, self.step = self.loop.prepare, self.loop.step


class Losses:
    """Positive numbers in the place of a network's losses."""

    def __init__(self, batch: int) -> None:
        self._losses, self._done = [3 * torch.rand(batch) + 0.1 for _ in range(64)], 0

    def next(self) -> Tensor:
        self._done += 1
        return self._losses[self._done % 64]


class EachStep:
    """Weights that change at every step, and a draw from all of them at every step."""

    epoch, first = 1, False

    def __init__(self, n: int, batch: int) -> None:
        self.n, self.batch, self.losses = n, batch, Losses(batch)

    def prepare(self) -> None:
        for _ in range(2):
            self.step()


class Multinomial(EachStep):
    """``torch.multinomial`` of a tensor of weights."""

    def __init__(self, n: int, batch: int) -> None:
        super().__init__(n, batch)
        self.weights = torch.ones(n)

    def step(self) -> None:
        indices = torch.multinomial(self.weights, self.batch, replacement=True)
        self.weights[indices] = self.losses.next()


class Choice(EachStep):
    """``numpy.random.Generator.choice``, which wants probabilities that sum to 1."""

    def __init__(self, n: int, batch: int) -> None:
        super().__init__(n, batch)
        self.weights, self.rng = np.ones(n), np.random.default_rng(0)

    def step(self) -> None:
        p = self.weights / self.weights.sum()
        indices = self.rng.choice(self.n, self.batch, p=p)
        self.weights[indices] = self.losses.next().numpy()


class RebuiltEachStep(EachStep):
    """A new ``WeightedRandomSampler`` at every step, of weights that it need not convert."""

    def __init__(self, n: int, batch: int) -> None:
        super().__init__(n, batch)
        self.weights = torch.ones(n, dtype=torch.float64)

    def step(self) -> None:
        indices = list(WeightedRandomSampler(self.weights, self.batch))
        self.weights[torch.tensor(indices)] = self.losses.next().double()


class EachEpoch:
    """Batches of a sampler that does most of its work when an epoch begins."""

    def __init__(self, n: int, batch: int, per_rank: int | None = None) -> None:
        self.n, self.epoch, self.first = n, max(n // batch, 1), False
        self.rows = per_rank or batch
        self._indices: Iterator[int] = iter(())
        self._left = 0

    def sampler(self) -> Iterable[int]:
        raise NotImplementedError

    def prepare(self) -> None:
        pass

    def batch(self) -> list[int]:
        self.first = self._left == 0
        if self.first:
            self._indices = iter(())  # an epoch ends before the next begins
            self._indices, self._left = iter(self.sampler()), self.epoch
        self._left -= 1
        return list(islice(self._indices, self.rows))

    def step(self) -> None:
        self.batch()


class RebuiltEachEpoch(EachEpoch):
    """A new ``WeightedRandomSampler`` at every epoch: weights are up to an epoch old."""

    def __init__(self, n: int, batch: int) -> None:
        super().__init__(n, batch)
        self.weights, self.losses = torch.ones(n, dtype=torch.float64), Losses(batch)

    def sampler(self) -> Iterable[int]:
        return WeightedRandomSampler(self.weights, self.n)

    def step(self) -> None:
        indices = self.batch()
        self.weights[torch.tensor(indices)] = self.losses.next()[: len(indices)].double()


class Shuffled(EachEpoch):
    """``RandomSampler``: no weights at all."""

    def sampler(self) -> Iterable[int]:
        return RandomSampler(range(self.n))


class Distributed(EachEpoch):
    """``DistributedSampler`` on one of two ranks: no weights at all, its rows of the batch."""

    def __init__(self, n: int, batch: int) -> None:
        super().__init__(n, batch, batch // RANKS)

    def sampler(self) -> Iterable[int]:
        return DistributedSampler(range(self.n), num_replicas=RANKS, rank=0)


WEIGHTED = {
    "torch.multinomial": Multinomial,
    "numpy choice": Choice,
    "WeightedRandomSampler, each step": RebuiltEachStep,
    "WeightedRandomSampler, each epoch": RebuiltEachEpoch,
}
UNIFORM = {"RandomSampler": Shuffled, "DistributedSampler": Distributed}
BASELINES = {**WEIGHTED, **UNIFORM}


def contender(name: str, n: int, batch: int) -> Contender:
    """By its name: one of ``BASELINES``, or a method of Salience."""
    return BASELINES[name](n, batch) if name in BASELINES else Salience(name, n, batch)
