"""Examples that are drawn and not handed out yet."""

from typing import Any, final

import torch
from torch import Tensor

from salience import saved
from salience.draw import Draw

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

    def load_state_dict(self, state: list[Any], n: int) -> None:
        """``n``: the number of examples."""
        self._parts, self._at = [part.clone() for part in _checked(state, n)], 0


def _checked(state: list[Any], n: int) -> list[Tensor]:
    if not isinstance(state, list) or len(state) not in (0, 4):
        raise ValueError("a queue has four parts, or none")
    if not state:
        return []
    at = saved.indices(state[0], n)
    weights, p, scores = state[1:]
    return [
        at,
        saved.floats(weights, len(at), 0),
        saved.floats(p, len(at), saved.CHANCE),
        saved.floats(scores, len(at)),
    ]
