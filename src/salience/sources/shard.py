"""One rank's part of a dataset that no rank draws from as a whole."""

from collections.abc import Callable
from typing import Any, final

__all__ = ["Shard"]

Gather = Callable[[list[float]], list[list[float]]]


@final
class Shard:
    """How many examples each of W ranks has, and how to ask the others for a few numbers.

    Without other ranks, the whole dataset.
    """

    def __init__(self, size: int, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world
        self.sizes = [size] * world  # the others' as well, once they are known
        self._gather: Gather | None = None

    def connect(self, sizes: list[int], gather: Gather) -> None:
        """``gather(numbers)`` returns the numbers of every rank, and waits for them."""
        self.sizes, self._gather = sizes, gather

    def __getstate__(self) -> dict[str, Any]:
        """A copy is connected by those who copy."""
        return {**self.__dict__, "_gather": None}

    @property
    def n(self) -> int:
        """Of all ranks together."""
        return sum(self.sizes)

    @property
    def share(self) -> float:
        """W N_r / N: by how much this rank has more than its part."""
        return self.world * self.sizes[self.rank] / self.n

    def all(self, numbers: list[float]) -> list[list[float]]:
        """The numbers of every rank, in their order."""
        return [numbers] if self._gather is None else self._gather(numbers)

    def extend(self, n: int) -> None:
        """The dataset has grown; only possible where it is whole."""
        self.sizes = [n]
