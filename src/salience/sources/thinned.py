"""Shuffled passes that leave out half of what is learned."""

from typing import Any, final

import torch
from torch import Tensor

from salience import functional
from salience.draw import Draw
from salience.scores import Score
from salience.sources.passes import Passes
from salience.sources.queue import Queue
from salience.sources.scoring import known_scores, mean_of_known

__all__ = ["Thinned"]

SLICE = 4096  # examples of a pass that are looked at together


@final
class Thinned:
    """InfoBatch's rule (Qin et al., 2024): the easier examples stay in a pass with a chance of 1/2.

    A pass is read a slice at a time. In a slice of M examples, those whose score is below the mean
    stay with the chance c_i = 1/2, the others surely. p_i = c_i / sum_j c_j, and weights are
    1 / (M p_i): unbiased. Each example comes at most once in a pass.
    """

    active = True

    def __init__(self, passes: Passes, score: Score, generator: torch.Generator) -> None:
        self._passes, self._score, self._generator = passes, score, generator
        self._queue = Queue()

    def extend(self, n: int, classes: Tensor | None = None) -> None:
        """Grow to ``n`` examples, from the next pass on."""
        self._queue.rescale(self._passes.n / n)
        self._passes.extend(n, classes)

    def ready(self, n: int, number: int) -> bool:  # noqa: ARG002
        return len(self._queue) >= n

    def draw(self, n: int, number: int) -> Draw:
        while len(self._queue) < n:
            self._plan()
        return self._queue.take(n, number, self._passes.n)

    def _plan(self) -> None:
        """Queue those of the next slice that stay."""
        size = self._passes.size if self._passes.under_way else self._passes.n
        examples = self._passes.take(-(-size // -(-size // SLICE)), whole=False)  # of equal size
        scores, unknown = known_scores(self._score, examples)
        if unknown.any():
            scores.masked_fill_(unknown, mean_of_known(scores, unknown))
        chances = functional.thin(scores)
        p = functional.probabilities(chances)
        stay = torch.rand(len(p), generator=self._generator, device="cpu") < chances
        weights = functional.weights(p, 1.0).to(torch.float32)
        # As one draw in N, for slices of different sizes.
        parts = (examples, weights, p * (len(p) / self._passes.n), scores)
        self._queue.put(*(part[stay] for part in parts))

    def update(self, indices: Tensor) -> None:
        pass  # scores are asked for when their slice is read

    def new_epoch(self) -> None:
        """Begin a new pass; forget what was planned by scores of long ago."""
        self._passes.end()
        self._queue.clear()

    refresh = new_epoch

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self._passes.state_dict(), "queue": self._queue.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._passes.load_state_dict(state["passes"])
        self._queue.load_state_dict(state["queue"], self._passes.n)
