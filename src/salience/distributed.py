"""Many ranks, one sampler: which rows are whose, and what travels between the ranks.

Every rank holds the same sampler and draws the same global batch. It trains on its own rows and
sends the losses of these to all others, so all learn the same. Losses travel over a gloo group of
their own, from host to host: in the background, and apart from the gradients.
"""

import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from salience.draw import Draw
from salience.errors import UsageError

__all__ = ["Exchange", "Ranks", "checksum", "current_ranks", "rows_of"]

Payload = NDArray[np.generic]


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
        value = zlib.crc32(tensor.numpy().tobytes(), value)
    return value - 2**32 if value >= 2**31 else value


# --------------------------------------------------------------------------- between the processes


class _Sent(NamedTuple):
    number: int
    work: Any
    outbox: Tensor  # kept until it has left
    inbox: Tensor  # int32 [ranks, words]


@final
class Exchange:
    """Gathers one short message per draw from all ranks, without waiting for it.

    ``settings`` have to be the same on all ranks, and so do the number and checksum of each draw:
    ranks that have drifted apart raise an error rather than train on.
    """

    HEADER = 2  # words: number and checksum

    def __init__(self, ranks: Ranks, settings: dict[str, Any]) -> None:
        self._ranks = ranks
        self._group = dist.new_group(backend="gloo")
        self._sent: deque[_Sent] = deque()
        self._check_settings(settings)

    def __len__(self) -> int:
        return len(self._sent)

    def all(self, value: Any) -> list[Any]:
        """The value of every rank, in order; waits for them."""
        found: list[Any] = [None] * self._ranks.world
        dist.all_gather_object(found, value, group=self._group)
        return found

    def sums(self, values: list[float]) -> list[list[float]]:
        """The numbers of every rank, in order; waits for them, and quicker than ``all``."""
        own = torch.tensor(values, dtype=torch.float64, device="cpu")
        inbox = own.new_empty(self._ranks.world, len(values))
        dist.all_gather(list(inbox), own, group=self._group)
        found: list[list[float]] = inbox.tolist()
        return found

    def send(self, number: int, check: int, payload: Payload, words: int) -> None:
        """Start to gather ``payload``, at most ``words`` x 4 bytes, as many on every rank."""
        outbox = torch.zeros(self.HEADER + words, dtype=torch.int32, device="cpu")
        values = payload.view(np.int32)
        outbox[0], outbox[1] = number % 2**31, check
        outbox.numpy()[self.HEADER : self.HEADER + len(values)] = values
        inbox = outbox.new_empty(self._ranks.world, len(outbox))
        work = dist.all_gather(list(inbox), outbox, group=self._group, async_op=True)
        self._sent.append(_Sent(number, work, outbox, inbox))

    def receive(self, take: Callable[[int, NDArray[np.int32]], None]) -> None:
        """Hand each message that was sent to ``take(number, payloads)``, one row per rank."""
        while self._sent:
            sent = self._sent.popleft()
            sent.work.wait()
            inbox = sent.inbox.numpy()
            self._check_header(sent.number, inbox[:, : self.HEADER])
            take(sent.number, inbox[:, self.HEADER :])

    def _check_header(self, number: int, headers: NDArray[np.int32]) -> None:
        if (headers == headers[0]).all():
            return
        numbers = headers[:, 0]
        if (numbers != numbers[0]).any():
            raise UsageError(
                f"the ranks are at different draws (rank by rank: {_listed(numbers)}): each rank "
                f"has to weigh, skip and leave the same batches, in the same order"
            )
        raise UsageError(
            f"the ranks drew different examples at draw {number}: give all of them the same seed, "
            f"dataset, options and state, and the same num_workers and prefetch_factor"
        )

    def _check_settings(self, settings: dict[str, Any]) -> None:
        others = self.all(settings)
        for name in settings:
            values = [other.get(name) for other in others]
            if any(value != values[0] for value in values):
                raise UsageError(
                    f"the ranks differ in {name} (rank by rank: {_listed(values)}): "
                    f"give the same to all of them"
                )


def _listed(values: Any, most: int = 8) -> str:
    shown = ", ".join(repr(v) if isinstance(v, str) else str(v) for v in list(values)[:most])
    return shown + (", ..." if len(values) > most else "")
