"""What users give to samplers, checked before anything is made of it."""

import math
import operator
import os
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from salience.errors import ArgumentError
from salience.functional import Scheme

__all__ = [
    "BadLoss",
    "check_arguments",
    "check_sharding",
    "folder_of",
    "host_indices",
    "pool_size",
    "whole_number",
    "whole_numbers",
]

BadLoss = Literal["raise", "skip"]


def host_indices(indices: Any, n: int | None) -> Tensor:
    """int64 [batch] on the host, within the dataset."""
    given: Tensor = torch.as_tensor(indices, device="cpu")
    if given.ndim != 1 or given.is_floating_point() or given.dtype == torch.bool:
        raise ArgumentError(
            f"indices must be whole numbers of shape [batch]; "
            f"got {given.dtype} of shape {list(given.shape)}"
        )
    outside = (given < 0) | (given >= n) if n is not None else given < 0
    if bool(outside.any()):
        value = int(given[outside][0])
        raise ArgumentError(f"index {value} is out of range for a dataset of {n} examples")
    return given.to(torch.int64)


def pool_size(batch: int, presample: float | None, by_index: bool) -> int | None:
    """Candidates per draw; None for the whole dataset."""
    if presample is None:
        presample = None if by_index else 2
    elif not (isinstance(presample, int | float) and 1 <= presample < math.inf):
        raise ArgumentError(
            f"presample must be a number >= 1 (the pool is that many batches) or None; "
            f"got {presample!r}"
        )
    return None if presample is None else round(presample * batch)


def whole_numbers(n: Any, batch_size: Any, seed: Any) -> tuple[int | None, int, int]:
    """Python's and NumPy's whole numbers, and nothing else."""
    size = None if n is None else whole_number("the dataset size", n)
    return size, whole_number("batch_size", batch_size, least=1), whole_number("seed", seed)


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    wanted = "a whole number" + ("" if least is None else f" >= {least}")
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{name} must be {wanted}; got {value!r}")
    number = operator.index(value)
    if least is not None and number < least:
        raise ArgumentError(f"{name} must be {wanted}; got {value!r}")
    return number


def check_arguments(n: int | None, k: float, draw: str, on_bad_loss: str) -> None:
    if n is not None and not 1 <= n <= 2**32:
        what = "is empty" if n < 1 else "is too large"
        raise ArgumentError(f"the dataset {what} ({n} examples): give between 1 and 2^32 examples")
    if not (isinstance(k, int | float) and math.isfinite(k) and k <= 1):
        raise ArgumentError(f"k must be a finite number <= 1 (1 is unbiased); got {k!r}")
    if draw not in get_args(Scheme):
        raise ArgumentError(f"draw must be one of {', '.join(get_args(Scheme))}; got {draw!r}")
    if on_bad_loss not in get_args(BadLoss):
        raise ArgumentError(
            f"on_bad_loss must be one of {', '.join(get_args(BadLoss))}; got {on_bad_loss!r}"
        )


def check_sharding(shard: Any, score: Any, by_index: bool, presample: float | None) -> None:
    """Only scores that are known by index, drawn from all examples of a rank."""
    if not (isinstance(shard, bool) or shard == "own"):
        raise ArgumentError(
            f"shard must be False, True (each rank draws from its part of the dataset) or 'own' "
            f"(each rank is given a dataset of its own); got {shard!r}"
        )
    if shard and (score == "auto" or not by_index or presample is not None):
        given = f"presample={presample!r}" if presample is not None else f"score {score!r}"
        default = ", the default" if presample is None and score == "auto" else ""
        raise ArgumentError(
            f"shard={shard!r} does not go with {given}{default}: use score='history', 'approx' or "
            f"'uniform' without presample, or leave shard out"
        )
    if shard is True and not isinstance(score, str):
        raise ArgumentError(
            f"shard=True does not go with a score of your own ({type(score).__name__}), which "
            f"knows examples by their place in the whole dataset: give each rank its part of the "
            f"dataset and a score for that part, with shard='own'"
        )


def folder_of(memory: Any, score: Any) -> Path | None:
    """Where what is kept of each example is to lie; None: nowhere but in this process."""
    if memory is None:
        return None
    if not isinstance(memory, str | os.PathLike):
        raise ArgumentError(f"memory must be a folder or None; got {memory!r}")
    if score not in ("auto", "history", "uniform"):
        raise ArgumentError(
            f"memory={str(memory)!r} does not go with score {score!r}: use score='auto' or "
            f"'history', or leave memory out"
        )
    return None if score == "uniform" else Path(memory)  # which keeps nothing
