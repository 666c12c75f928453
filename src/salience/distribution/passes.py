"""All examples, each once, then all again: what ordinary training does."""

from typing import Any, final

import torch
from torch import Tensor

__all__ = ["ShuffledPasses", "by_frequency", "in_proportion"]


@final
class ShuffledPasses:
    """All positions in random order, then all again: each exactly once per pass.

    With ``classes`` [n], the batches of a pass hold them in proportion, if ``batch_size`` are
    taken at a time.
    """

    def __init__(
        self,
        n: int,
        generator: torch.Generator,
        *,
        classes: Tensor | None = None,
        batch_size: int = 1,
    ) -> None:
        self.n = n
        self._generator = generator
        self._ranks = None if classes is None else by_frequency(classes)
        self._batch_size = batch_size
        self._order = torch.empty(0, dtype=torch.int64, device="cpu")
        self._at = 0

    def take(self, count: int, *, whole: bool = True) -> Tensor:
        """The next ``count`` positions; without ``whole``, no further than the end of the pass."""
        if self._at >= len(self._order):
            self._order, self._at = self._shuffled(), 0
        part = self._order[self._at : self._at + count]
        self._at += len(part)
        if whole and len(part) < count:
            return torch.cat([part, self.take(count - len(part))])
        return part

    def _shuffled(self) -> Tensor:
        if self._ranks is None:
            return torch.randperm(self.n, generator=self._generator, device="cpu")
        return in_proportion(self._ranks, self._batch_size, generator=self._generator)

    def end(self) -> None:
        """Leave the rest of this pass: what is taken next begins a new one."""
        self._order = self._order[:0]

    def state_dict(self) -> dict[str, Any]:
        return {"order": self._order[self._at :].clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order, self._at = state["order"].clone(), 0


def by_frequency(classes: Tensor) -> Tensor:
    """The classes 0, 1, ... renumbered, the most frequent first: neighbours are about as rare.

    >>> by_frequency(torch.tensor([0, 2, 2, 1, 2, 1]))
    tensor([2, 0, 0, 1, 0, 1])
    """
    return torch.bincount(classes).argsort(descending=True, stable=True).argsort()[classes]


def in_proportion(ranks: Tensor, batch_size: int, *, generator: torch.Generator) -> Tensor:
    """A pass in random order whose batches hold the classes ``ranks`` [n] in proportion.

    In the order of their ranks, the examples fall into ``batch_size`` equal parts, and each batch
    gets one from every part, at random. What does not fill a batch, chosen at random, comes last.
    """
    order = torch.randperm(len(ranks), generator=generator, device="cpu")
    batches = len(order) // batch_size
    full, rest = order[: batches * batch_size], order[batches * batch_size :]
    parts = full[ranks[full].argsort(stable=True)].view(batch_size, batches)
    dealt = _shuffled_rows(parts, generator).t()
    # Within the batch too: halves of it should not differ by more than chance.
    return torch.cat([_shuffled_rows(dealt, generator).flatten(), rest])


def _shuffled_rows(table: Tensor, generator: torch.Generator) -> Tensor:
    """Every row in a random order of its own."""
    keys = torch.rand(table.shape, dtype=torch.float64, generator=generator, device="cpu")
    return table.gather(1, keys.argsort(1))
