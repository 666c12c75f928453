"""States of ranks that each have a part of the examples: put together, and cut for other ranks."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from salience.distributed import Ranks
from salience.draw import Draw
from salience.feedback import Arrived, Means, bad_losses

__all__ = ["Sharding", "ids_of", "sizes_of", "state_of_shard"]

Ints = NDArray[np.int64]
Sharding = bool | Literal["own"]
"""False: no shards. True: rank r of W has the examples r, r + W, ... "own": those it is given."""


def sizes_of(n: int, world: int) -> list[int]:
    """How many of ``n`` examples each rank has, if rank r has r, r + W, ..."""
    return [len(range(rank, n, world)) for rank in range(world)]


def ids_of(places: Ints, sizes: list[int], sharding: Sharding, rank: int) -> Ints:
    """The numbers among all examples of those at ``places`` of a rank's shard."""
    if sharding is True:
        return places * len(sizes) + rank
    return places + sum(sizes[:rank])


def owners_of(ids: Ints, sizes: list[int], sharding: Sharding) -> tuple[Ints, Ints]:
    """Whose examples these are, and their places in the shards of those ranks."""
    if sharding is True:
        place, rank = np.divmod(ids, len(sizes))
        return rank, place
    starts = np.cumsum([0, *sizes])
    rank = np.searchsorted(starts, ids, side="right") - 1
    return rank, ids - starts[rank]


def state_of_shard(
    parts: list[dict[str, Any]], ranks: Ranks, sizes: list[int], sharding: Sharding
) -> dict[str, Any]:
    """The state of one rank, of shards of ``sizes``, from those of shards of other sizes.

    What each example has taught, with fresh random numbers and nothing drawn ahead.
    """
    before = [int(part["examples"]) for part in parts]
    if sum(before) != sum(sizes):
        raise ValueError(f"{sum(before)} examples were saved, {sum(sizes)} are here")
    mine = ids_of(np.arange(sizes[ranks.rank]), sizes, sharding, ranks.rank)
    at = owners_of(mine, before, sharding)
    state = {**parts[0], "source": None, "rng": None, "outstanding": []}
    for what in ("score", "focus", "record"):
        if what in state:
            learned = [part[what] for part in parts]
            names = learned[0]
            state[what] = {n: _picked([each[n] for each in learned], before, *at) for n in names}
    state["skipped"] = 0 if ranks.rank else sum(int(part["skipped"]) for part in parts)
    if "loader" in state:
        late = [part["loader"]["late"] for part in parts]
        cut = [_cut(step, before, ranks.rank, sizes, sharding) for step in _by_step(late)]
        state["loader"] = {**state["loader"], "late": [arrived.state() for arrived in cut]}
    return state


def _picked(values: list[Any], sizes: list[int], rank_of: Ints, place: Ints) -> Any:
    """Of what there is one of per example, that of some examples; of anything else, the first."""
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


def _by_step(late: list[list[Any]]) -> Iterator[list[Arrived]]:
    """Losses that were weighed and not learned yet, those of all ranks together."""
    for step in zip(*late, strict=True):
        yield [Arrived.from_state(*each) for each in step]


def _cut(
    step: list[Arrived], before: list[int], mine: int, sizes: list[int], sharding: Sharding
) -> Arrived:
    """Of the losses of one step, those of the examples that are now this rank's, maybe none."""
    rows: list[list[Tensor]] = []
    for rank, (draw, losses, *_) in enumerate(step):
        ids = ids_of(draw.indices.numpy(), before, sharding, rank)
        owner, place = owners_of(ids, sizes, sharding)
        here = torch.from_numpy(np.flatnonzero(owner == mine))
        # M p stays what it was, though M, the number of candidates, is now another one.
        p = draw.probabilities * (draw.pool / sizes[mine])
        rest = (torch.from_numpy(place), draw.weights, p, draw.scores.double(), losses)
        rows.append([part[here] for part in rest])
    indices, weights, p, scores, losses = (torch.cat(part) for part in zip(*rows, strict=True))
    draw = Draw(step[0].number, indices, weights, p, scores, sizes[mine])
    return Arrived(draw, losses, _means(step))


def _means(step: list[Arrived]) -> Means | None:
    """Those that all ranks have in common; one process alone has left them to be computed."""
    draw, losses, means, _ = step[0]
    good = ~bad_losses(losses)
    if means is not None or len(step) > 1 or not bool(good.any()):
        return means
    mean = draw.map(lambda x: x[good]).unbiased_mean(losses[good])
    return Means(mean, mean)
