"""What comes back from a score of the user's own, made right or refused."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from salience.errors import ArgumentError

__all__ = ["check_scores"]

REMEDY = "return one real number >= 0 per example, such as its loss"


def check_scores(
    scores: Any, n: int, name: str = "scores", *, unknown: bool = False, values: bool = True
) -> Tensor:
    """``scores`` as float32 or float64 [n], without a gradient.

    ``unknown``: nan is allowed and means that nothing is known yet. Values are looked at, if
    ``values``, on the host only, for reading them elsewhere would wait for the accelerator.
    """
    if not isinstance(scores, Tensor):
        raise ArgumentError(
            f"{name} must be a tensor of shape [{n}]; got {type(scores).__name__}: "
            "return torch.as_tensor(...)"
        )
    if scores.shape != (n,):
        raise ArgumentError(f"{name} must have shape [{n}]; got {list(scores.shape)}: {REMEDY}")
    if scores.is_complex():
        raise ArgumentError(f"{name} must be real numbers; got {scores.dtype}: {REMEDY}")
    real: Tensor = scores.detach()
    if real.dtype not in (torch.float32, torch.float64):
        real = real.to(torch.float32)
    if values and n and real.device.type == "cpu":
        _refuse_values(real.numpy(), name, unknown)
    return real


def _refuse_values(values: Any, name: str, unknown: bool) -> None:
    if values.min() >= 0 and values.max() < np.inf:  # false for nan
        return
    bad = ~((values >= 0) & (values < np.inf))
    if unknown:
        bad &= ~np.isnan(values)
    if bad.any():
        place = int(bad.argmax())
        raise ArgumentError(
            f"{name} must be finite and >= 0; {name}[{place}] = {values[place]:g} "
            f"(pool of {len(values)}): {REMEDY}"
        )
