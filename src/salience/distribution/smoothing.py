"""How far draws are pulled towards uniform: the constant c of q_i = s_i + c."""

import math
from typing import Any, Protocol, final, runtime_checkable

from torch import Tensor

from salience.errors import ArgumentError

__all__ = ["Adaptive", "Constant", "Fading", "RunningMean", "Smoothing", "make_smoothing"]


@final
class RunningMean:
    """Exponential moving average without the start-up bias; nan before the first value."""

    def __init__(self, decay: float = 0.95) -> None:
        self.decay = decay
        self._sum = 0.0
        self._mass = 0.0

    @property
    def value(self) -> float:
        return self._sum / self._mass if self._mass else math.nan

    def update(self, x: float) -> None:
        self._sum = self.decay * self._sum + (1 - self.decay) * x
        self._mass = self.decay * self._mass + (1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum, "mass": self._mass}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sum, self._mass = state["sum"], state["mass"]


@runtime_checkable
class Smoothing(Protocol):
    """Gives the constant for the next draw and learns from the batch that came of it."""

    def constant(self, mean_score: float | Tensor) -> float | Tensor:
        """c >= 0 for a pool whose scores average ``mean_score``."""
        ...

    def update(self, mean: float) -> None:
        """An unbiased estimate of the dataset's mean loss (or mean score, see ``Score.unit``)."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@final
class Constant:
    """The same c at every step."""

    def __init__(self, c: float) -> None:
        if not (math.isfinite(c) and c >= 0):
            raise ArgumentError(f"smoothing must be 'adaptive' or a finite number >= 0; got {c}")
        self.c = float(c)

    def constant(self, mean_score: float | Tensor) -> float | Tensor:  # noqa: ARG002
        return self.c

    def update(self, mean: float) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@final
class Adaptive:
    """c = share x running mean, the paper's half of the mean training loss.

    Before the first loss has come back the pool's own mean score stands in for it.
    """

    def __init__(self, share: float = 0.5, decay: float = 0.95) -> None:
        if not (math.isfinite(share) and share >= 0):
            raise ArgumentError(f"share must be a finite number >= 0; got {share}")
        if not 0 <= decay < 1:
            raise ArgumentError(f"decay must be in [0, 1); got {decay}")
        self.share = share
        self._mean = RunningMean(decay)

    def constant(self, mean_score: float | Tensor) -> float | Tensor:
        mean = self._mean.value
        return self.share * (mean_score if math.isnan(mean) else mean)

    def update(self, mean: float) -> None:
        self._mean.update(mean)

    def state_dict(self) -> dict[str, Any]:
        return self._mean.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean.load_state_dict(state)


@final
class Fading:
    """c = (least + (rho / half)^3) x running mean, with rho the share of the loss that is left.

    rho is the running mean loss over the mean loss of the first ``first`` steps: 1 for a model that
    has learned nothing, and never more. While much is left, nearly all examples are still worth
    the same and draws stay close to uniform; the closer the model comes to fitting, the more the
    rest counts.
    """

    def __init__(
        self, least: float = 0.2, half: float = 0.35, first: int = 10, decay: float = 0.95
    ) -> None:
        self.least, self.half, self.first = least, half, first
        self._mean = RunningMean(decay)
        self._start, self._steps = 0.0, 0

    @property
    def left(self) -> float:
        """rho; 1 before the first step."""
        return min(self._mean.value / self._start, 1.0) if self._start > 0 else 1.0

    def constant(self, mean_score: float | Tensor) -> float | Tensor:
        mean = self._mean.value
        share = self.least + (self.left / self.half) ** 3
        return share * (mean_score if math.isnan(mean) else mean)

    def update(self, mean: float) -> None:
        if self._steps < self.first:
            self._start += (mean - self._start) / (self._steps + 1)
        self._steps += 1
        self._mean.update(mean)

    def state_dict(self) -> dict[str, Any]:
        return {**self._mean.state_dict(), "start": self._start, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean.load_state_dict(state)
        self._start, self._steps = state["start"], state["steps"]


def make_smoothing(smoothing: float | str | Smoothing) -> Smoothing:
    """What the user wrote as ``smoothing=``, as an object."""
    if isinstance(smoothing, Smoothing):
        return smoothing
    if smoothing == "adaptive":
        return Adaptive()
    if isinstance(smoothing, int | float) and not isinstance(smoothing, bool):
        return Constant(smoothing)
    raise ArgumentError(
        f"smoothing must be 'adaptive', a number >= 0 or an object with constant, update, "
        f"state_dict and load_state_dict; got {smoothing!r}"
    )
