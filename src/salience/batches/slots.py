"""Slots: the numbers of the draws that a batch came from, travelling in the batch itself."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from salience.batches.nested import with_items
from salience.errors import ArgumentError

__all__ = ["KEY", "attach"]

KEY = "salience_slot"


def attach(batch: Any, slots: Tensor) -> Any:
    """``batch`` with ``slots`` [B] int64: a new key of a mapping, or one more element.

    A list, tuple or mapping stays of its type, a named tuple becomes a plain tuple, and a tensor x
    the list [x, slots]. The batch itself is not changed.

    >>> attach({"x": 1}, 2)
    {'x': 1, 'salience_slot': 2}
    """
    if isinstance(batch, Tensor):
        return [batch, slots]
    if isinstance(batch, Mapping):
        if KEY in batch:
            raise ArgumentError(f"the batch has a key {KEY!r} of its own: rename it")
        return with_items(batch, {KEY: slots})
    if isinstance(batch, list | tuple):
        kind = tuple if hasattr(batch, "_fields") else type(batch)
        return kind([*batch, slots])
    raise ArgumentError(
        f"slots cannot be added to a batch of type {type(batch).__name__}: collate into a dict, "
        "list, tuple or tensor, or use slots=False"
    )
