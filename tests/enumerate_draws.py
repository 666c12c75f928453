"""Exact expectations of a draw: every outcome with its probability, no sampling noise."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from salience import functional
from salience.draw import Draw
from salience.functional import Scheme


def outcomes(p: Tensor, n: int, scheme: Scheme) -> Iterator[tuple[float, Tensor]]:
    """(probability, points) such that averaging over them is exact for a draw of n from p.

    Systematic: the draw changes only where n times the cumulated p crosses offset + integer, so
    one offset per interval between those places stands for all of it. Multinomial: the n points
    are independent and alike, so it is enough to put all of them on one example at a time: means
    over the batch are then exact.
    """
    ends = p.double().cumsum(0) / p.double().sum()
    if scheme == "systematic":
        breaks = torch.cat([torch.tensor([0.0, 1.0]).double(), (n * ends) % 1]).sort().values
        for low, high in pairwise(breaks):
            if high - low > 1e-14:
                yield float(high - low), (torch.arange(n) + (low + high) / 2) / n
    else:
        starts = torch.cat([torch.zeros(1).double(), ends[:-1]])
        for low, high in zip(starts, ends, strict=True):
            if high > low:
                yield float(high - low), ((low + high) / 2).expand(n).clone()


def with_points(points: Tensor, draw: Callable[[], Any]) -> Any:
    """What ``draw`` returns when these are its random numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "points", lambda *_, **__: points)
        return draw()


def expected_step(
    p: Tensor, batch: int, scheme: Scheme, draw: Callable[[], Draw], values: Tensor
) -> Tensor:
    """The exact mean over all outcomes of (1/B) sum_i alpha_i values_i."""
    total = torch.zeros_like(values[0])
    for chance, points in outcomes(p, batch, scheme):
        indices, weights = with_points(points, draw)
        total += chance * (weights.double() @ values[indices]) / len(weights)
    return total


def expected_visits_step(source: Any, p: Tensor, batch: int, values: Tensor) -> Tensor:
    """The same for ``EvenIntervals``, over the visits of one sweep, credits uniform in [0, 1).

    The sum is linear in how often each example is visited, so it is enough to average over one
    credit for all of them; it matters only where it carries some n p_i over a whole number. The
    jitter comes after the visits of the sweep.
    """
    m = len(p)
    n = source._number_of_visits(p, batch)
    total = torch.zeros_like(values[0])
    breaks = torch.cat([torch.tensor([0.0, 1.0]).double(), 1 - (n * p) % 1]).sort().values
    for low, high in pairwise(breaks):
        source.new_epoch()
        source._fresh = 0
        source._credit[:] = float(low + high) / 2
        source._plan(batch)
        indices, weights = source._queue.take(len(source._queue), 0, m)
        total += (high - low) * (weights.double() @ values[indices]) / n
    return total
