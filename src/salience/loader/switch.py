"""Whether draws by importance pay: the switch of ``auto``."""

import logging
import math
import time
from typing import Any, final

from salience.loader.metrics import Window

__all__ = ["Switch"]

EVERY = 50  # steps between two looks
ON, OFF = 1.1, 1.03  # gain in examples over cost in time, apart so that it does not flutter
GUESS = 5e-4  # seconds that a draw and its update add to a step, until it has been measured

logger = logging.getLogger("salience")


@final
class Switch:
    """On while v t_u > t_i: draws by q need v times fewer examples than uniform ones.

    v = N sum q^2 / (sum q)^2 with q = s + c, where the scores s stand for gradient norms; t_u and
    t_i are the seconds of a uniform and of an importance step. Off during the first pass, when
    most losses are not known yet.
    """

    def __init__(self, n: int, batch_size: int) -> None:
        self.active = False
        self._wait = max(n - batch_size, 0)  # a pass may leave out its last, short batch
        self._seen = self._steps = 0
        self._extra = GUESS
        self._step = math.inf  # seconds of a step, the fastest lately
        self._last = math.nan
        self._told = False

    def look(self, window: Window, batch: int, constant: float, own: float) -> bool:
        """After each step, of ``batch`` examples and ``own`` seconds; whether ``active`` changed."""
        now = time.perf_counter()
        if now - self._last < self._step:
            self._step = now - self._last
        self._last = now
        if self.active:
            self._extra += 0.05 * (own - self._extra)
        self._seen += batch
        self._steps += 1
        if self._seen < self._wait or self._steps % EVERY:
            return False
        gain = window.variance_reduction(constant)
        cost = 1 + self._extra / max(self._step - self._extra, 1e-9)
        self._step = math.inf
        wanted = gain > cost * (OFF if self.active else ON)
        if wanted == self.active:
            return False
        self.active = wanted
        self._tell(gain, cost)
        return True

    def _tell(self, gain: float, cost: float) -> None:
        state = "on" if self.active else "off"
        said = "importance sampling is %s from step %d: worth %.2f times the examples at %.2f times the time"
        logger.log(
            logging.DEBUG if self._told else logging.INFO, said, state, self._steps, gain, cost
        )
        self._told = True

    def state_dict(self) -> dict[str, Any]:
        return {"active": self.active, "seen": self._seen, "steps": self._steps, "told": self._told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.active, self._seen = state["active"], state["seen"]
        self._steps, self._told = state["steps"], state["told"]
