"""Many ranks, one sampler: which rows are whose, and what travels between the ranks.

Every rank holds the same sampler and draws the same global batch. It trains on its own rows and
sends the losses of these to all others, so all learn the same. Losses travel over a gloo group of
their own, from host to host: in the background, and apart from the gradients.
"""

import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from salience.draw import Draw
from salience.errors import LossError, UsageError
from salience.feedback import Arrived, Arriving, Means, Seen, bad_losses

__all__ = ["Exchange", "Ranks", "average", "checksum", "counted", "current_ranks", "rows_of"]

Floats = NDArray[np.float64]
Payload = Callable[[Arrived], NDArray[np.generic]]
MeansOf = Callable[[Draw, Tensor], Means]

HEADER = 3  # words of a message before its payload: number, checksum and pool of the draw
MEANS = len(Means._fields)


class Ranks(NamedTuple):
    """Which of how many processes this one is."""

    rank: int = 0
    world: int = 1

    def own(self, rows: Tensor) -> Tensor:
        """This rank's part of rows that are as many as a multiple of the ranks."""
        size = len(rows) // self.world
        return rows[self.rank * size : (self.rank + 1) * size]


def current_ranks() -> Ranks:
    """(0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size())
    return Ranks()


def counted(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def rows_of(draw: Draw, ranks: Ranks) -> Draw:
    """The rows of ``draw`` that one rank trains on; equally many on every rank.

    Where the ranks do not divide the n rows, the last ranks repeat the last row with weight 0.
    Gradients are averaged over W ranks, so a rank with b rows has to take W/n times the sum over
    them: b W/n times their mean, which is ``scale``.
    """
    if ranks.world == 1:
        return draw
    n, size = len(draw), -(-len(draw) // ranks.world)
    if n == size * ranks.world:
        return draw.map(ranks.own)
    places = torch.arange(ranks.rank * size, (ranks.rank + 1) * size, device="cpu")
    part = draw.map(lambda x: x[places.clamp(max=n - 1)])
    part.weights = part.weights * (places < n)
    part.scale, part.uniform = size * ranks.world / n, False
    return part


def checksum(*tensors: Tensor) -> int:
    """One int32 of all their bytes."""
    value = 0
    for tensor in tensors:
        value = zlib.crc32(np.ascontiguousarray(tensor.numpy()).data, value)
    return value - 2**32 if value >= 2**31 else value


# --------------------------------------------------------------------------- between the processes


def average(values: Tensor) -> None:
    """In place, over all ranks, where the values are: like the gradients of the model."""
    dist.all_reduce(values)
    values /= dist.get_world_size()


@final
class Gather:
    """A message that is on its way from every rank to every other."""

    def __init__(self, number: int, outbox: Tensor, world: int) -> None:
        self.number, self._outbox = number, outbox
        self._inbox = outbox.new_empty(world, len(outbox))
        self._work: Any = None
        self.thread: Future[None] | None = None  # that starts it and waits for it

    def start(self, group: Any, payload: NDArray[np.generic]) -> None:
        words = np.ascontiguousarray(payload).view(np.int32)
        self._outbox.numpy()[HEADER : HEADER + len(words)] = words
        self._work = dist.all_gather(list(self._inbox), self._outbox, group=group, async_op=True)

    def wait(self) -> None:
        self._work.wait()

    def result(self) -> NDArray[np.int32]:
        """What was sent, one row per rank; waits for the last of them."""
        self.wait() if self.thread is None else self.thread.result()
        inbox = self._inbox.numpy()
        _check_headers(self.number, inbox[:, :HEADER])
        return inbox[:, HEADER:]


@final
class Rows:
    """The losses of a whole draw, gathered from all ranks."""

    def __init__(self, draw: Draw, gather: Gather) -> None:
        self._draw, self._gather = draw, gather
        self.number = draw.number

    def result(self) -> Arrived:
        """Padding is left out."""
        n, payloads = len(self._draw), self._gather.result()
        size = -(-n // len(payloads))
        rows = np.ascontiguousarray(payloads[:, :size]).view(np.float32)
        return Arrived(self._draw, torch.from_numpy(rows.reshape(-1)[:n]))


@final
class Pooled:
    """This rank's own losses, with the means over all ranks."""

    def __init__(self, local: Arriving, gather: Gather, draw: Draw | None) -> None:
        self._local, self._gather, self._draw = local, gather, draw
        self.number = local.number

    def result(self) -> Arrived:
        numbers = np.ascontiguousarray(self._gather.result()).view(np.float64)
        means, rows = np.split(numbers, [MEANS], axis=1)
        draw, losses, *_ = self._local.result()
        self._refuse(means[:, 0] == np.inf, bool(bad_losses(losses).any()))
        known = means[np.isfinite(means[:, 0])]
        found = Means(*known.mean(axis=0).tolist()) if len(known) else None
        seen = _seen(self.number, rows) if rows.size else None
        return Arrived(draw if self._draw is None else self._draw, losses, found, seen)

    def _refuse(self, bad: NDArray[np.bool_], here: bool) -> None:
        """Losses of other ranks; whoever takes those of this one reports them with their values."""
        if bad.any() and not here:
            raise LossError(
                f"losses must be finite and >= 0; at draw {self.number} rank "
                f"{_listed(np.flatnonzero(bad))} had others: its own error names the examples"
            )


def _losses(local: Arrived) -> NDArray[np.generic]:
    losses: NDArray[np.float32] = local.losses.numpy()
    return losses


def _means(of: MeansOf, skip_bad: bool, local: Arrived) -> NDArray[np.generic]:
    """Of the losses that are good; nan where none is, infinite where that is an error."""
    good = ~bad_losses(local.losses)
    if not (skip_bad or bool(good.all())):
        return np.full(MEANS, np.inf)
    if not bool(good.any()):
        return np.full(MEANS, np.nan)
    return np.array(of(local.draw.map(lambda x: x[good]), local.losses[good]))


def _means_and_rows(of: MeansOf, skip_bad: bool, size: int, local: Arrived) -> Floats:
    """The same, with index, 1 / (M p) and loss of up to ``size`` examples; nan behind them."""
    rows = np.full((size, 3), np.nan)
    good = ~bad_losses(local.losses)
    draw, losses = local.draw.map(lambda x: x[good]), local.losses[good]
    if len(losses):
        parts = (draw.indices.numpy(), draw.inverse().numpy(), losses.numpy())
        rows[: len(losses)] = np.stack(parts, axis=1)
    return np.concatenate([_means(of, skip_bad, local).astype(np.float64), rows.reshape(-1)])


def _seen(number: int, rows: Floats) -> Seen:
    """What all ranks have sent by ``_means_and_rows``, as one draw."""
    of_rank = rows.reshape(len(rows), -1, 3)
    there = ~np.isnan(of_rank[..., 0])
    counts = there.sum(axis=1)
    # Every rank counts alike, however many of its draws were merged.
    share = counts.sum() / (max(np.count_nonzero(counts), 1) * np.maximum(counts, 1))
    inverse = (of_rank[..., 1] * share[:, None])[there]
    indices, losses = of_rank[..., 0][there], of_rank[..., 2][there]
    ones = torch.ones(len(losses), dtype=torch.float32, device="cpu")
    p = torch.from_numpy(1 / inverse)
    draw = Draw(number, torch.from_numpy(indices.astype(np.int64)), ones, p, ones, pool=1)
    return Seen(draw, torch.from_numpy(losses.astype(np.float32)))


@final
class Exchange:
    """Gathers one short message per draw from all ranks, without waiting for it.

    ``settings`` have to be the same on all ranks, and so do the number and checksum of each draw:
    ranks that have drifted apart raise an error rather than train on.
    """

    def __init__(self, ranks: Ranks, settings: dict[str, Any]) -> None:
        self._ranks = ranks
        self._group = dist.new_group(backend="gloo")
        self._thread: ThreadPoolExecutor | None = None
        self._check_settings(settings)

    def all(self, value: Any) -> list[Any]:
        """The value of every rank, in order; waits for them."""
        found: list[Any] = [None] * self._ranks.world
        self._in_turn(partial(dist.all_gather_object, found, value, group=self._group))
        return found

    def rows(self, draw: Draw, local: Arriving, words: int) -> Arriving:
        """The losses of a whole ``draw`` from those of this rank's rows, at most ``words``."""
        check = checksum(draw.indices, draw.weights)
        return Rows(draw, self._send(local, check, words, _losses, draw.pool))

    def numbers(self, own: list[float]) -> list[list[float]]:
        """The numbers of every rank; waits for them, for a fraction of the time of ``all``."""
        outbox = torch.tensor(own, dtype=torch.float64, device="cpu")
        inbox = outbox.new_empty(self._ranks.world, len(own))
        self._in_turn(partial(dist.all_gather, list(inbox), outbox, group=self._group))
        found: list[list[float]] = inbox.tolist()
        return found

    def _in_turn(self, call: Callable[[], Any]) -> None:
        """After everything that was sent before, as on all other ranks."""
        if self._thread is None:
            call()
        else:
            self._thread.submit(call).result()

    def means(
        self,
        local: Arriving,
        means: MeansOf,
        check: int,
        draw: Draw | None = None,
        *,
        skip_bad: bool = False,
        rows: int = 0,
    ) -> Arriving:
        """This rank's own losses, with ``means`` averaged over all ranks.

        ``draw`` takes the place of that of ``local``. Bad losses of one rank are an error on all
        of them, unless they are skipped. With ``rows``, the most that a rank has, the losses of all
        ranks come as well.
        """
        payload: Payload = partial(_means, means, skip_bad)
        if rows:
            payload = partial(_means_and_rows, means, skip_bad, rows)
        return Pooled(local, self._send(local, check, 2 * (MEANS + 3 * rows), payload), draw)

    def _send(
        self, local: Arriving, check: int, words: int, payload: Payload, pool: int = 0
    ) -> Gather:
        """Start to gather ``payload(local)``.

        Losses on their way from an accelerator are waited for in a thread, and so is everything
        that follows, to keep the order.
        """
        outbox = torch.zeros(HEADER + words, dtype=torch.int32, device="cpu")
        outbox[0], outbox[1], outbox[2] = local.number % 2**31, check, pool % 2**31
        gather = Gather(local.number, outbox, self._ranks.world)
        if self._thread is None and not isinstance(local, Arrived):
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="salience")
        if self._thread is None:
            gather.start(self._group, payload(local.result()))
        else:
            gather.thread = self._thread.submit(self._send_late, gather, local, payload)
        return gather

    def _send_late(self, gather: Gather, local: Arriving, payload: Payload) -> None:
        gather.start(self._group, payload(local.result()))
        gather.wait()

    def _check_settings(self, settings: dict[str, Any]) -> None:
        others = self.all(settings)
        for name in settings:
            values = [other.get(name) for other in others]
            if any(value != values[0] for value in values):
                raise UsageError(
                    f"the ranks differ in {name} (rank by rank: {_listed(values)}): "
                    f"give the same to all of them"
                )


def _check_headers(number: int, headers: NDArray[np.int32]) -> None:
    if (headers == headers[0]).all():
        return
    numbers = headers[:, 0]
    if (numbers != numbers[0]).any():
        raise UsageError(
            f"the ranks are at different draws (rank by rank: {_listed(numbers)}): each rank "
            f"has to weigh, skip and leave the same batches, in the same order"
        )
    pools = headers[:, 2]
    if (pools != pools[0]).any():
        raise UsageError(
            f"the ranks drew from datasets of different sizes at draw {number} (rank by rank: "
            f"{_listed(pools)}): call extend() on all of them, after the same step"
        )
    raise UsageError(
        f"the ranks drew different examples at draw {number}: give all of them the same seed, "
        f"dataset, options and state, and the same num_workers and prefetch_factor"
    )


def _listed(values: Any, most: int = 8) -> str:
    shown = ", ".join(repr(v) if isinstance(v, str) else str(v) for v in list(values)[:most])
    return shown + (", ..." if len(values) > most else "")
