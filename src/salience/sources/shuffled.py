"""Ordinary shuffled epochs: every example once per pass, every weight 1."""

from typing import Any, final

import torch
from torch import Tensor

from salience.draw import Draw
from salience.sources.passes import Passes
from salience.sources.shard import Shard

__all__ = ["Shuffled"]


@final
class Shuffled:
    """p_i = 1 / N and no score. With ``drop_last``, a short batch at the end is left out.

    With a ``shard``, passes over the examples of this rank: batches are never short, so that the
    ranks stay together, and weigh W N_r / N.
    """

    active = False

    def __init__(
        self, passes: Passes, *, drop_last: bool = False, shard: Shard | None = None
    ) -> None:
        self._passes, self._drop_last, self._shard = passes, drop_last, shard
        self._ones = torch.empty(0, dtype=torch.float64, device="cpu")
        self._pool = 0

    def extend(self, n: int, classes: Tensor | None = None) -> None:
        """Grow to ``n`` examples, from the next pass on."""
        self._passes.extend(n, classes)

    def ready(self, n: int, number: int) -> bool:  # noqa: ARG002
        return True

    def draw(self, n: int, number: int) -> Draw:
        if self._shard is not None:
            return self._draw_of_shard(n, number, self._shard)
        indices = self._passes.take(n, whole=False)
        if self._drop_last and len(indices) < n:
            indices = self._passes.take(n, whole=False)
        if self._ones.shape != indices.shape or self._pool != self._passes.size:
            self._pool = self._passes.size
            self._ones = torch.ones(len(indices), dtype=torch.float64, device="cpu")
            self._p, self._weights = self._ones / self._pool, self._ones.float()
        parts = (indices, self._weights, self._p, self._ones)
        return Draw(number, *parts, self._pool, uniform=True)

    def _draw_of_shard(self, n: int, number: int, shard: Shard) -> Draw:
        ones = torch.ones(n, dtype=torch.float64, device="cpu")
        parts = (self._passes.take(n), (ones * shard.share).float(), ones / self._passes.n, ones)
        return Draw(number, *parts, self._passes.n)

    def refresh(self) -> None:
        self._passes.end()

    def update(self, indices: Tensor) -> None:
        pass

    def new_epoch(self) -> None:
        self._passes.end()

    def state_dict(self) -> dict[str, Any]:
        return self._passes.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._passes.load_state_dict(state)
