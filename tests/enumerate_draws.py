"""Exact expectations of a draw: every outcome with its probability, no sampling noise."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

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
