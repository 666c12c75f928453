"""The paper's Algorithm 1: a uniform pool of candidates, then a draw within it."""

from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from salience import functional, saved
from salience.draw import Draw, share
from salience.functional import Scheme
from salience.scores import Score
from salience.smoothing import Smoothing
from salience.sources.passes import Passes
from salience.sources.scoring import distribution, known_scores
from salience.sources.worth import Worth

__all__ = ["Choice", "Pool"]


class Choice(NamedTuple):
    """How ``n`` examples are chosen from a pool once its scores are known."""

    smoothing: Smoothing
    k: float
    scheme: Scheme
    generator: torch.Generator

    def draw(
        self, n: int, number: int, scores: Tensor, indices: Tensor, *, merge: bool
    ) -> tuple[Tensor, Draw]:
        """Positions in the pool with these ``scores`` [M], and their draw; all on one device.

        With ``merge`` an example that is drawn several times is one row, with its weights added;
        how many rows there are has to be known on the host, so an accelerator would be waited for.
        """
        p = distribution(scores, self.smoothing)
        at = functional.draw(p, n, generator=self.generator, scheme=self.scheme)
        counts = None
        if merge:
            at, counts = functional.merge_duplicates(at, p.new_ones(n))
        weights = functional.weights(p[at], self.k, len(p))
        if counts is not None:
            weights = weights * share(counts)
        weights = weights.to(torch.float32)
        return at, Draw(number, indices[at], weights, p[at], scores[at], len(p), counts)

    @staticmethod
    def everything(number: int, indices: Tensor) -> Draw:
        """The whole pool, without scores."""
        ones = torch.ones(len(indices), dtype=torch.float64, device="cpu")
        return Draw(number, indices, ones.float(), ones / len(ones), ones, len(ones))


@final
class Pool:
    """Pools of ``size`` candidates from shuffled passes.

    Unknown scores count as the largest score seen so far. Pools are cut into equal parts, one for
    each of ``world`` ranks, and are no larger than the dataset. While ``worth`` says that scores do
    not pay, a pool is as large as the ``batch``.
    """

    def __init__(
        self,
        size: int,
        batch: int,
        passes: Passes,
        score: Score,
        choice: Choice,
        world: int = 1,
        worth: Worth | None = None,
    ) -> None:
        self._size, self._batch, self._passes, self._world = size, batch, passes, world
        self._score, self._choice, self.worth = score, choice, worth
        self._initial = 0.0

    @property
    def active(self) -> bool:
        return self.worth is None or self.worth.active

    def extend(self, n: int, classes: Tensor | None = None) -> None:  # noqa: ARG002
        """Grow to ``n`` examples, from the next pass on."""
        self._passes.extend(n)

    def candidates(self) -> Tensor:
        """The dataset positions of the next pool."""
        size = min(self._size if self.active else self._batch, self._passes.n)
        return self._passes.take(max(size // self._world, 1) * self._world)

    def ready(self, n: int, number: int) -> bool:  # noqa: ARG002
        return False

    def draw(self, n: int, number: int) -> Draw:
        candidates = self.candidates()
        scores, unknown = known_scores(self._score, candidates)
        self._initial = max(self._initial, float(scores.max()))
        scores.masked_fill_(unknown, self._initial)
        return self._choice.draw(n, number, scores, candidates, merge=True)[1]

    def update(self, indices: Tensor) -> None:
        pass

    def new_epoch(self) -> None:
        pass

    def refresh(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        worth = {} if self.worth is None else {"worth": self.worth.state_dict()}
        return {**self._passes.state_dict(), "initial": self._initial, **worth}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._passes.load_state_dict(state)
        self._initial = saved.at_least_zero(state["initial"])
        if self.worth is not None:
            self.worth.load_state_dict(state["worth"])
