"""Whether draws by importance pay: the switch of ``auto``."""

import logging
import math
import time
from typing import Any, final

from salience.distribution import RunningMean

__all__ = ["Switch"]

EVERY = 50  # steps between two looks
ON, OFF = 1.1, 1.03  # examples saved over time added; apart, so that it does not flutter
GUESS = 5e-4  # seconds that a draw and its update add to a step, until they have been measured
FREE = 0.05  # of a step: less counts as no cost, so that noise on the clock decides nothing

logger = logging.getLogger("salience")


@final
class Switch:
    """On while v t_u > t_i: draws by q need v times fewer examples than uniform ones.

    v = E[q^2] / E[q]^2 with q = s + c, where the scores s stand for gradient norms; t_u and t_i are
    the seconds of a uniform and of an importance step. Off during the first pass, when most
    losses are not known yet.
    """

    def __init__(self, n: int, batch_size: int) -> None:
        self.active = False
        self._wait = max(n - batch_size, 0)  # a pass may leave out its last, short batch
        self._seen = self._steps = 0
        self._mean, self._square = RunningMean(0.98), RunningMean(0.98)
        self._told = False
        self._extra = GUESS
        self._quickest = math.inf  # seconds of a step since the last look
        self._last = math.nan

    def learn(self, batch: int, mean: float, square: float) -> None:
        """A step of ``batch`` examples: unbiased means of s and of s^2 over the dataset."""
        self._seen += batch
        self._steps += 1
        self._mean.update(mean)
        self._square.update(square)

    def clock(self, own: float) -> None:
        """The time between two calls is that of a step, ``own`` seconds of it ours."""
        now = time.perf_counter()
        if now - self._last < self._quickest:
            self._quickest = now - self._last
        self._last = now
        if self.active:
            self._extra += 0.05 * (own - self._extra)

    @property
    def due(self) -> bool:
        """Whether it is time to look: every few steps, after the first pass."""
        return self._seen >= self._wait and self._steps % EVERY == 0

    def changes(self, constant: float) -> bool:
        """Look whether it pays with the smoothing c = ``constant``."""
        gain, cost = self.gain(constant), self._cost()
        wanted = gain > cost * (OFF if self.active else ON)
        if wanted == self.active:
            return False
        self.active = wanted
        # Only the first time for everybody to see; later changes are for those who look closer.
        logger.log(
            logging.DEBUG if self._told else logging.INFO,
            "importance sampling is %s from step %d: %.2f times the examples for %.2f of the time",
            *("on" if wanted else "off", self._steps, gain, cost),
        )
        self._told = True
        return True

    def gain(self, constant: float) -> float:
        """v, with E[q] = E[s] + c and E[q^2] = E[s^2] + 2 c E[s] + c^2."""
        mean, square = self._mean.value, self._square.value
        q = mean + constant
        return (square + 2 * constant * mean + constant**2) / q**2 if q > 0 else 1.0

    def _cost(self) -> float:
        """t_i / t_u."""
        step, self._quickest = self._quickest, math.inf
        uniform = step - self._extra if self.active else step
        share = self._extra / max(uniform, 1e-9)
        return 1 + share if share > FREE else 1.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "active": self.active,
            "seen": self._seen,
            "steps": self._steps,
            "told": self._told,
            "mean": self._mean.state_dict(),
            "square": self._square.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.active, self._seen = state["active"], state["seen"]
        self._steps, self._told = state["steps"], state["told"]
        self._mean.load_state_dict(state["mean"])
        self._square.load_state_dict(state["square"])
