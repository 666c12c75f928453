"""``auto``: shuffled passes until importance pays, then visits by importance."""

import logging
import math
from typing import Any, final

import torch
from torch import Tensor

from salience import functional
from salience.draw import Draw
from salience.scores import Score
from salience.smoothing import Smoothing
from salience.sources.protocol import Source
from salience.sources.scoring import known_scores, mean_of_known

__all__ = ["AutoSource"]

EVERY = 100  # draws between two looks at the gain
ON, OFF = 1.1, 1.03  # turns on above, off below: apart, so that it does not flutter
SAMPLE = 4096  # examples whose scores are looked at
SINGLE = 0.01  # the most that one example can add to the gain

logger = logging.getLogger("salience")


@final
class AutoSource:
    """Draws from ``off`` or, while that pays, from ``on``.

    Draws by q need v = M sum q^2 / (sum q)^2 times fewer examples than uniform ones for the same
    variance, where q stands for gradient norms. v is computed from the scores, every few steps and
    once a pass is done: seed and losses decide, never the clock.
    """

    def __init__(
        self, n: int, batch_size: int, score: Score, smoothing: Smoothing, off: Source, on: Source
    ) -> None:
        self._n, self._batch_size = n, batch_size
        self._first = n  # how many there were before any extension
        self._score, self._smoothing = score, smoothing
        self._off, self._on = off, on
        self.active = False
        self._told = False

    def extend(self, n: int, classes: Tensor | None = None) -> None:
        """Grow to ``n`` examples: while off from the next pass on, while on from the next sweep.

        ``classes`` [n] of all examples, where the passes are stratified.
        """
        self._off.extend(n, classes)
        self._on.extend(n)
        self._n = n

    def _current(self) -> Source:
        return self._on if self.active else self._off

    def ready(self, n: int, number: int) -> bool:
        return number % EVERY != 0 and self._current().ready(n, number)

    def draw(self, n: int, number: int) -> Draw:
        if number % EVERY == 0:
            self._look(number)
        return self._current().draw(n, number)

    def update(self, indices: Tensor) -> None:
        self._on.update(indices)

    def new_epoch(self) -> None:
        if not self.active:
            self._off.new_epoch()

    def _look(self, number: int) -> None:
        gain = self.gain(number // EVERY)
        wanted = gain > (OFF if self.active else ON)
        if wanted == self.active:
            return
        self.active = wanted
        (self._on if wanted else self._off).new_epoch()
        # Only the first time for everybody to see; later changes are for those who look closer.
        level = logging.DEBUG if self._told else logging.INFO
        turns = "on" if wanted else "off"
        logger.log(level, "importance sampling turns %s at draw %d: gain %.2f", turns, number, gain)
        self._told = True

    def gain(self, look: int) -> float:
        """v of a sample of the examples, evenly spaced, another one at each ``look``.

        1 before all have been seen, but for those that came by ``extend``: they count as the mean
        of the others, so that a few of them change little and many turn importance sampling off,
        until a pass has seen them. No example adds more than ``SINGLE``: a gain that rests on a
        few is none.
        """
        stride = max(self._n // SAMPLE, 1)
        sample = torch.arange(look % stride, self._n, stride, device="cpu")
        scores, unknown = known_scores(self._score, sample)
        missing = int((unknown & (sample < self._first)).sum())
        if missing > self._batch_size:  # a pass may leave out its last, short batch
            return 1.0
        scores.masked_fill_(unknown, mean_of_known(scores, unknown))
        q = functional.smooth(scores, self._smoothing.constant(scores.mean()))
        # Its share p of the sum adds M p^2.
        most = math.sqrt(SINGLE / len(q))
        return float(functional.variance_reduction(functional.cap(q, most)))

    def refresh(self) -> None:
        self._on.refresh()

    def state_dict(self) -> dict[str, Any]:
        return {
            "active": self.active,
            "told": self._told,
            "first": self._first,
            "off": self._off.state_dict(),
            "on": self._on.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.active, self._told = bool(state["active"]), bool(state["told"])
        self._first = int(state["first"])
        self._off.load_state_dict(state["off"])
        self._on.load_state_dict(state["on"])
