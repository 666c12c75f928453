"""Examples that are drawn and not handed out yet."""

from typing import Any, final

import torch
from torch import Tensor

from salience.draw import Draw, check_lengths

__all__ = ["Queue"]


@final
class Queue:
    """Indices, weights, probabilities and scores, in the order in which they are handed out."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []
        self._at = 0

    def __len__(self) -> int:
        return self._parts[0].shape[0] - self._at if self._parts else 0

    def put(self, indices: Tensor, weights: Tensor, probabilities: Tensor, scores: Tensor) -> None:
        new = [indices, weights, probabilities, scores]
        if len(self):
            new = [torch.cat([o[self._at :], n]) for o, n in zip(self._parts, new, strict=True)]
        self._parts, self._at = new, 0

    def take(self, n: int, number: int, pool: int) -> Draw:
        """The next ``n`` as draw ``number``, from ``pool`` candidates."""
        stop = self._at + n
        indices, weights, p, scores = (part[self._at : stop] for part in self._parts)
        self._at = stop
        return Draw(number, indices, weights, p, scores, pool)

    def rescale(self, factor: float) -> None:
        """Multiply the probabilities of all that is left."""
        if self._parts:
            self._parts[2] = self._parts[2] * factor

    def clear(self) -> None:
        self._parts, self._at = [], 0

    def state_dict(self) -> list[Any]:
        return [part[self._at :].clone() for part in self._parts]

    def load_state_dict(self, state: list[Any]) -> None:
        check_lengths(state)
        self._parts, self._at = [part.clone() for part in state], 0
