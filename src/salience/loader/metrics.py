"""What the last steps looked like, computed only when somebody asks."""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from salience import functional

__all__ = ["Seen", "Window"]

STEPS = 64


class Seen(NamedTuple):
    """One step: its draw and the losses that came back, all on the host."""

    indices: Tensor
    weights: Tensor
    inverse: Tensor
    scores: Tensor
    counts: Tensor
    losses: Tensor


@final
class Window:
    """The last ``STEPS`` steps. Appending keeps references and computes nothing."""

    def __init__(self) -> None:
        self._steps: deque[Seen] = deque(maxlen=STEPS)

    def append(self, seen: Seen) -> None:
        self._steps.append(seen)

    def summary(self) -> dict[str, float]:
        """Averages over the window; nan before the first step."""
        steps = list(self._steps)
        return {
            "variance_reduction": _variance_reduction(steps),
            "effective_sample_size": _average(
                [functional.effective_sample_size(s.weights) for s in steps]
            ),
            "unique_fraction": _average([_unique_fraction(s) for s in steps]),
            "tracking": _average(
                [functional.tracking_coefficient(s.scores, s.losses) for s in steps]
            ),
        }


def _variance_reduction(steps: list[Seen]) -> float:
    """N sum L^2 / (sum L)^2 of the whole dataset, estimated from the weighted batches."""
    if not steps:
        return math.nan
    inverse = torch.cat([s.inverse for s in steps])
    losses = torch.cat([s.losses for s in steps]).to(inverse.dtype)
    mean = (inverse * losses).sum() / inverse.sum()
    square = (inverse * losses * losses).sum() / inverse.sum()
    return float(square / mean**2) if mean > 0 else 1.0


def _unique_fraction(step: Seen) -> float:
    return len(torch.unique(step.indices)) / float(step.counts.sum())


def _average(values: Sequence[Tensor | float]) -> float:
    return sum(float(value) for value in values) / len(values) if values else math.nan
