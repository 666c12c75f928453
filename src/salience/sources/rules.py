"""From the scores of some examples to how often each is visited, and what it then weighs."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from salience import functional
from salience.smoothing import Smoothing
from salience.sources.scoring import distribution

__all__ = ["ByScore", "Rule", "Visits"]


class Visits(NamedTuple):
    """Of the M examples of a slice."""

    p: Tensor  # [M] float64
    weights: Tensor  # [M] float32


class Rule(Protocol):
    """How the examples of a slice are visited."""

    def __call__(self, scores: Tensor, most: float) -> Visits:
        """For known ``scores`` [M]; no p is larger than ``most``."""
        ...


class ByScore(NamedTuple):
    """p_i in proportion to s_i + c, weights (1 / (M p_i))^k."""

    smoothing: Smoothing
    k: float

    def __call__(self, scores: Tensor, most: float) -> Visits:
        p = distribution(scores, self.smoothing, most)
        return Visits(p, functional.weights(p, self.k).to(torch.float32))
