"""Collated pools of any shape and nesting: move them, measure them, pick examples out of them."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from salience.errors import ArgumentError

__all__ = ["move", "pick", "pool_size"]


def move(batch: Any, device: torch.device) -> Any:
    """The same nesting with every tensor on ``device``."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if _is_container(batch):
        return _rebuilt(batch, lambda _, part: move(part, device))
    return batch


def pool_size(batch: Any) -> int:
    """How many examples a collated pool holds: the length of its first tensor."""
    for part in _leaves(batch):
        if isinstance(part, Tensor | np.ndarray) and part.ndim:
            return len(part)
    raise ArgumentError(
        f"cannot tell how many examples a pool of type {type(batch).__name__} holds: "
        f"it has no tensor with an example dimension"
    )


def pick(batch: Any, positions: Tensor, size: int, name: str = "batch") -> Any:
    """The examples at ``positions`` of a pool of ``size``, in the pool's own nesting.

    Tensors and arrays must have the examples first; a list or tuple with one entry per example
    is picked from as well; numbers, strings and None that stand alone belong to all and stay.
    Only lists of Python objects need the positions on the host: with those, an accelerator is
    waited for.
    """
    if isinstance(batch, Tensor | np.ndarray):
        _refuse_shape(batch, size, name)
        if isinstance(batch, Tensor):
            return batch.index_select(0, positions.to(batch.device, non_blocking=True))
        return batch[positions.cpu().numpy()]
    if _is_per_example(batch, size):
        chosen = [batch[i] for i in positions.tolist()]
        return chosen if isinstance(batch, list) else tuple(chosen)
    if _is_container(batch):
        return _rebuilt(batch, lambda key, part: pick(part, positions, size, f"{name}[{key!r}]"))
    if batch is None or isinstance(batch, str | bytes | int | float | complex):
        return batch
    raise ArgumentError(
        f"cannot pick examples from {name} of type {type(batch).__name__}: collate into tensors, "
        f"lists, tuples or dicts, or use a score known by index ('history', 'approx')"
    )


def _refuse_shape(part: Any, size: int, name: str) -> None:
    if part.ndim == 0 or len(part) != size:
        raise ArgumentError(
            f"cannot pick examples from {name} of shape {list(part.shape)}: the first dimension "
            f"must be the {size} examples of the pool; collate it that way, or use a score known "
            f"by index ('history', 'approx')"
        )


def _is_container(batch: Any) -> bool:
    return isinstance(batch, Mapping | list | tuple)


def _is_per_example(batch: Any, size: int) -> bool:
    """A plain list with one entry per example, as collates return for strings or ragged tensors."""
    if not isinstance(batch, list | tuple) or len(batch) != size or hasattr(batch, "_fields"):
        return False
    return not any(isinstance(part, Tensor) and part.ndim and len(part) == size for part in batch)


def _rebuilt(batch: Any, fn: Callable[[Any, Any], Any]) -> Any:
    """The same kind of container with ``fn(key, part)`` in place of each part."""
    if isinstance(batch, Mapping):
        out: Any = copy.copy(batch)
        for key in batch:
            out[key] = fn(key, batch[key])
        return out
    parts = [fn(i, part) for i, part in enumerate(batch)]
    if hasattr(batch, "_fields"):  # a named tuple
        return type(batch)(*parts)
    return type(batch)(parts)


def _leaves(batch: Any) -> list[Any]:
    if not _is_container(batch):
        return [batch]
    parts = batch.values() if isinstance(batch, Mapping) else batch
    return [leaf for part in parts for leaf in _leaves(part)]
