"""States of ranks that each have a part of the examples: put together, and cut for other ranks."""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from salience.distributed import Ranks

__all__ = ["Sharding", "ids_of", "size_of", "state_of_shard"]

Sharding = bool | Literal["own"]
"""False: no shards. True: rank r of W has the examples r, r + W, ... "own": those it is given."""


def size_of(n: int, sharding: Sharding, ranks: Ranks) -> int:
    """How many of the ``n`` examples that it is given are this rank's."""
    return len(range(ranks.rank, n, ranks.world)) if sharding is True else n


def ids_of(sizes: list[int], sharding: Sharding, rank: int) -> NDArray[np.int64]:
    """The numbers of a rank's examples among those of all ranks."""
    if sharding is True:
        return np.arange(rank, sum(sizes), len(sizes))
    return np.arange(sizes[rank]) + sum(sizes[:rank])


def state_of_shard(
    parts: list[dict[str, Any]], ranks: Ranks, sizes: list[int], sharding: Sharding
) -> dict[str, Any]:
    """The state of one rank from those of as many ranks, or of others.

    For another number of ranks: what each example has taught, with fresh random numbers and
    nothing drawn ahead.
    """
    if len(parts) == ranks.world:
        return parts[ranks.rank]
    before = [int(part["examples"]) for part in parts]
    if sum(before) != sum(sizes):
        raise ValueError(f"{sum(before)} examples were saved, {sum(sizes)} are here")
    mine = ids_of(sizes, sharding, ranks.rank)
    rank_of, place = _places(before, sharding)
    scores = [part["score"] for part in parts]
    score = {name: _picked(scores, name, before, rank_of[mine], place[mine]) for name in scores[0]}
    fresh: dict[str, Any] = {"score": score, "source": None, "rng": None, "outstanding": []}
    skipped = sum(int(part["skipped"]) for part in parts) if ranks.rank == 0 else 0
    return {**parts[0], **fresh, "skipped": skipped}


def _places(sizes: list[int], sharding: Sharding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each example, whose it was and where."""
    rank_of, place = np.empty((2, sum(sizes)), dtype=np.int64)
    for rank, size in enumerate(sizes):
        ids = ids_of(sizes, sharding, rank)
        rank_of[ids], place[ids] = rank, np.arange(size)
    return rank_of, place


def _picked(
    states: list[dict[str, Any]],
    name: str,
    sizes: list[int],
    rank_of: NDArray[np.int64],
    place: NDArray[np.int64],
) -> Any:
    """Of what there is one of per example, that of some examples; of anything else, the first."""
    values = [state[name] for state in states]
    first = values[0]
    if not isinstance(first, Tensor) or any(
        value.ndim == 0 or len(value) != size for value, size in zip(values, sizes, strict=True)
    ):
        return first
    picked = first.new_empty(len(place), *first.shape[1:])
    for rank, value in enumerate(values):
        here = np.flatnonzero(rank_of == rank)
        picked[torch.from_numpy(here)] = value[torch.from_numpy(place[here])]
    return picked
