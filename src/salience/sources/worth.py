"""Whether it pays to score pools, from the losses that come back anyway."""

from typing import Any, final

from salience import saved
from salience.smoothing import RunningMean

__all__ = ["Worth"]

ON, OFF = 3.5, 3.0  # v: scores again above, no longer below; apart, so that it does not flutter
DECAY = 0.98  # of the running means: about 50 steps
SETTLED = 0.5  # the mass of the running means from which on they decide: after 35 steps


@final
class Worth:
    """Score pools while their draws save more than their scores cost.

    Of the variance of a uniform step, a pool of two batches keeps half: that of the pool itself.
    Draws by score divide the other half by about v = mean(L^2) / mean(L)^2. A pass over such a
    pool costs about half a step, so v has to be above 3: 1/2 + 1/(2 v) < 1 / 1.5.

    The means are over the training losses, weighted so that they are unbiased for the dataset. They
    are known without scoring, so nothing is tried out.
    """

    def __init__(self) -> None:
        self.active = True
        self._loss, self._square = RunningMean(DECAY), RunningMean(DECAY)

    @property
    def gain(self) -> float:
        """v; nan before the first step."""
        return self._square.value / self._loss.value**2 if self._loss.value else 1.0

    def update(self, loss: float, square: float) -> None:
        """Unbiased estimates of the mean loss and of the mean squared loss, of one step."""
        self._loss.update(loss)
        self._square.update(square)
        if self._loss.mass >= SETTLED:
            self.active = self.gain > (OFF if self.active else ON)

    def state_dict(self) -> dict[str, Any]:
        means = {"loss": self._loss.state_dict(), "square": self._square.state_dict()}
        return {"active": self.active, **means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loss.load_state_dict(state["loss"])
        self._square.load_state_dict(state["square"])
        self.active = bool(saved.whole(int(state["active"]), 0, 1))
