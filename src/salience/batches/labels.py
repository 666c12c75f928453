"""The class of each example, without loading one: found in the dataset, or given and checked."""

import math
from collections.abc import Mapping, Set
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from salience.errors import ArgumentError

__all__ = ["Labels", "as_labels", "class_values", "find_labels", "narrow"]

INTEGERS = (
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


class Labels(NamedTuple):
    """Class numbers 0 .. ``number`` - 1."""

    labels: Tensor  # [n] int64
    number: int
    values: Tensor  # [number] int64: what the user calls these classes


def find_labels(dataset: Any) -> Tensor | None:
    """The classes [N] int64 that ``dataset`` carries as ``targets``, ``labels`` or ``tensors``.

    Of ``tensors``, the last of two or more. ``Subset`` and ``ConcatDataset`` are looked through.
    None where there are none to be sure of: real-valued targets (regression), one-hot rows or any
    other shape than [N] or [N, 1], another length than the dataset's, targets that cannot be read.
    It never raises, and does not read targets that are more than a number each (masks on disk).

    >>> from torch.utils.data import TensorDataset
    >>> find_labels(TensorDataset(torch.zeros(3, 8), torch.tensor([[7], [9], [7]])))
    tensor([7, 9, 7])
    """
    # Attributes may be properties of any kind, and only some scores need the classes.
    with suppress(Exception):
        return _find(dataset)
    return None


def as_labels(labels: Any, n: int) -> Labels:
    """One integer per example, of any values, as class numbers without gaps.

    >>> as_labels([30, 10, 30], 3)
    Labels(labels=tensor([1, 0, 1]), number=2, values=tensor([10, 30]))
    """
    values = _tensor(labels)
    if values is None:
        raise ArgumentError(
            f"labels must be integers, one per example; got {_short(labels)}: "
            "pass a list, an array or a tensor of class numbers"
        )
    values = _whole(_one_column(values))
    if len(values) != n:
        raise ArgumentError(
            f"labels must have one entry per example; got {len(values)} for {n} examples: "
            "pass the classes of this very dataset, in its order"
        )
    return _numbered(values)


def class_values(labels: Any) -> Tensor:
    """The distinct classes, in the order of the numbers that ``as_labels`` gives them.

    >>> class_values([30, 10, 30])
    tensor([10, 30])
    """
    values = _tensor(labels)
    assert values is not None
    distinct: Tensor = torch.unique(_whole(_one_column(values)))
    return distinct


def narrow(classes: Tensor) -> Tensor:
    """Class numbers >= 0 in as few bytes as hold them; a copy.

    >>> narrow(torch.tensor([0, 255])).dtype, narrow(torch.tensor([0, 256])).dtype
    (torch.uint8, torch.int16)
    """
    most = int(classes.max())
    fits = (t for t in (torch.uint8, torch.int16, torch.int32) if most <= torch.iinfo(t).max)
    return classes.to(next(fits, torch.int64), copy=True)


def _numbered(values: Tensor) -> Labels:
    """Without gaps, in the order of the values."""
    least = values.min()
    if int(values.max()) - int(least) > 4 * len(values):  # too far apart for a table
        distinct, classes = torch.unique(values, return_inverse=True)
        return Labels(classes, len(distinct), distinct)
    present = torch.bincount(values - least) > 0
    found = least + present.nonzero().flatten()
    return Labels((present.cumsum(0) - 1)[values - least], len(found), found)


def _find(dataset: Any) -> Tensor | None:
    if isinstance(dataset, Subset):
        return _of_subset(dataset)
    if isinstance(dataset, ConcatDataset):
        return _of_parts(dataset)
    carried = _carried(dataset)
    classes = _integers(_tensor(carried)) if carried is not None and _single(carried) else None
    return classes if classes is not None and len(classes) == len(dataset) else None


def _of_subset(subset: Subset[Any]) -> Tensor | None:
    whole = _find(subset.dataset)
    if whole is None:
        return None
    return whole[torch.as_tensor(list(subset.indices), dtype=torch.int64, device="cpu")]


def _of_parts(dataset: ConcatDataset[Any]) -> Tensor | None:
    """All parts or nothing: classes for some examples only would say nothing about the others."""
    found = [_find(part) for part in dataset.datasets]
    parts = [part for part in found if part is not None]
    return torch.cat(parts) if len(parts) == len(found) else None


def _carried(dataset: Any) -> Any:
    """What the dataset holds as its answers; the first attribute present decides."""
    for name in ("targets", "labels"):
        if (found := getattr(dataset, name, None)) is not None:
            return found
    tensors = getattr(dataset, "tensors", None)
    return tensors[-1] if isinstance(tensors, list | tuple) and len(tensors) >= 2 else None


def _single(values: Any) -> bool:
    """Whether there is one number for each example, from the shape or the first one alone."""
    shape = getattr(values, "shape", None)
    rest = shape[1:] if isinstance(shape, tuple) else np.shape(values[0])
    return len(rest) < 2 and math.prod(rest) == 1


def _tensor(values: Any) -> Tensor | None:
    """A list, an array or a tensor, as a tensor on the host; None where it is not numbers.

    The keys of a mapping are not classes, and a set has no order.
    """
    if values is None or isinstance(values, str | bytes | Mapping | Set):
        return None
    try:
        if isinstance(values, Tensor):
            return values.detach().cpu()
        # Arrays, columns of data frames and the like are copied, because torch warns of arrays
        # that it may not write to.
        values = np.array(values) if hasattr(values, "__array__") else list(values)
        return torch.tensor(values, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return None


def _integers(values: Tensor | None) -> Tensor | None:
    """Integers of shape [N] or [N, 1] as int64 [N]; None for anything else."""
    if values is None or values.dtype not in INTEGERS:
        return None
    if values.dim() == 2 and values.shape[1] == 1:
        values = values.squeeze(1)
    return values.long() if values.dim() == 1 else None


def _one_column(values: Tensor) -> Tensor:
    if values.dim() == 2 and values.shape[1] == 1:
        return values.squeeze(1)
    if values.dim() != 1:
        raise ArgumentError(
            f"labels must have shape [N] or [N, 1]; got {list(values.shape)}: "
            "for one-hot rows pass labels.argmax(1)"
        )
    return values


def _whole(values: Tensor) -> Tensor:
    """Whole numbers as int64; a fraction is no class."""
    if values.is_complex():
        raise ArgumentError(f"labels must be whole numbers; got {values.dtype}: pass class numbers")
    if values.is_floating_point() and len(fractions := _fractions(values)):
        place = int(fractions[0])
        raise ArgumentError(
            f"labels must be whole numbers; got labels[{place}] = {values[place].item():g}: "
            "pass class numbers, or leave labels out for regression"
        )
    return values.long()


def _fractions(values: Tensor) -> Tensor:
    """Positions of what is no whole number, nan and infinity among them."""
    return (~values.isfinite() | (values != values.trunc())).nonzero()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
