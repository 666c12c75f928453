"""Values of a saved state, checked before they are used.

Whatever is loaded may be damaged. What is not as it was saved is a ``ValueError``, which becomes a
``StateError`` where the state is loaded, with nothing changed; so nothing that was loaded can fail
later, at some draw.
"""

import math
import operator
from typing import Any

import torch
from torch import Tensor

__all__ = ["CHANCE", "LIMIT", "STEPS", "at_least_zero", "floats", "indices", "number", "whole"]

PIECE = 2**20  # values that are looked at together
LIMIT = 2**53
STEPS = 2**30  # of a training: with as many to come, they can still be counted in four bytes
CHANCE = 1e-100  # of what was drawn, at least: scores are float32 numbers, and their sum below 1e50
LARGEST = 1e150  # means of float32 numbers, multiplied by weights, stay far below


def whole(value: Any, least: int = 0, most: int = LIMIT) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{value!r} in place of a whole number")
    found = operator.index(value)
    if not least <= found <= most:
        raise ValueError(f"{found} is not between {least} and {most}")
    return found


def number(value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """A number within bounds, and no nan."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} in place of a number")
    found = float(value)
    if not least <= found <= most:
        raise ValueError(f"{found} is not between {least} and {most}")
    return found


def at_least_zero(value: Any) -> float:
    """A number >= 0, such as a mean of losses or weights."""
    return number(value, 0.0, LARGEST)


def indices(
    value: Any, n: int | None, length: int | None = None, dtype: torch.dtype = torch.int64
) -> Tensor:
    """Whole numbers [``length``] on the host, from 0 to ``n`` - 1; None: any."""
    found = _row(value, length)
    if found.dtype != dtype:
        raise ValueError(f"{found.dtype} in place of {dtype}")
    _check_bounds(found, 0, math.inf if n is None else n - 1, False)
    return found


def floats(
    value: Any,
    length: int | None = None,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    unknown: bool = False,
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    """Numbers [``length``], or of this ``shape``, on the host; nan only with ``unknown``."""
    found = _row(value, length, shape)
    if not found.is_floating_point():
        raise ValueError(f"{found.dtype} in place of floating-point numbers")
    _check_bounds(found, least, most, unknown)
    return found


def _row(value: Any, length: int | None, shape: tuple[int, ...] | None = None) -> Tensor:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta:
        raise ValueError(f"{type(value).__name__} in place of a tensor of values")
    if shape is None:
        fits = value.ndim == 1 and length in (None, len(value))
    else:
        fits = value.shape == shape
    if not fits:
        wanted = f"[{'any' if length is None else length}]" if shape is None else list(shape)
        raise ValueError(f"shape {list(value.shape)} in place of {wanted}")
    return value.detach().cpu()


def _check_bounds(values: Tensor, least: float, most: float, unknown: bool) -> None:
    """A part at a time: there is no further copy of what is kept of each example."""
    for part in torch.split(values.reshape(-1), PIECE):
        good = (part >= least) & (part <= most)
        if unknown:
            good |= part.isnan()
        if not bool(good.all()):
            bad = part[~good][0].item()
            raise ValueError(f"{bad} is not between {least} and {most}")
