"""How far draws are pulled towards uniform: the constant c of q_i = s_i + c."""

import math
from typing import Any, Protocol, final, runtime_checkable

from torch import Tensor

from salience import saved
from salience.errors import ArgumentError

__all__ = ["Adaptive", "Constant", "Fading", "RunningMean", "Smoothing", "make_smoothing"]

# The running mean loss is never taken below this share of the mean score. Scores of examples that
# were seen long ago are higher than today's losses; without a bound on c the weights of the others,
# 1 / (M p_i) <= 1 + mean score / c, would have none either.
FLOOR = 0.5


@final
class RunningMean:
    """Exponential moving average without the start-up bias; nan before the first value."""

    def __init__(self, decay: float = 0.95) -> None:
        self.decay = decay
        self._sum = 0.0
        self.mass = 0.0  # 1 - decay^n after n values

    @property
    def value(self) -> float:
        return self._sum / self.mass if self.mass else math.nan

    def update(self, x: float) -> None:
        self._sum = self.decay * self._sum + (1 - self.decay) * x
        self.mass = self.decay * self.mass + (1 - self.decay)

    def floored(self, mean_score: float | Tensor) -> float | Tensor:
        """The mean, at least half of ``mean_score``; ``mean_score`` itself before any value."""
        mean = self.value
        if math.isnan(mean):
            return mean_score
        if isinstance(mean_score, Tensor):  # no value is read back from an accelerator
            return (FLOOR * mean_score).clamp(min=mean)
        return max(mean, FLOOR * mean_score)

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum, "mass": self.mass}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        total, mass = saved.at_least_zero(state["sum"]), saved.number(state["mass"], 0, 1)
        if mass:  # one value has this much; a mean by less of it would overflow
            saved.number(mass, (1 - self.decay) * (1 - 1e-9))
        self._sum, self.mass = total, mass


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
    """The same c at every step. Weights at k = 1 are at most 1 + mean score / c."""

    def __init__(self, c: float) -> None:
        if not (math.isfinite(c) and c >= 0):
            raise ArgumentError(f"smoothing must be 'adaptive' or a finite number >= 0; got {c}")
        self.c = float(c)

    def __repr__(self) -> str:
        return f"Constant({self.c:g})"

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
    """c = share x mean, the paper's half of the running mean training loss.

    The mean is never taken below half the mean score, so weights at k = 1 are at most
    1 + 2 / share: 5 by default. Before the first loss it is the mean score.
    """

    def __init__(self, share: float = 0.5, decay: float = 0.95) -> None:
        if not (math.isfinite(share) and share >= 0):
            raise ArgumentError(f"share must be a finite number >= 0; got {share}")
        if not 0 <= decay < 1:
            raise ArgumentError(f"decay must be in [0, 1); got {decay}")
        self.share, self.decay = share, decay
        self._mean = RunningMean(decay)

    def __repr__(self) -> str:
        return f"Adaptive(share={self.share:g}, decay={self.decay:g})"

    def constant(self, mean_score: float | Tensor) -> float | Tensor:
        return self.share * self._mean.floored(mean_score)

    def update(self, mean: float) -> None:
        self._mean.update(mean)

    def state_dict(self) -> dict[str, Any]:
        return self._mean.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean.load_state_dict(state)


@final
class Fading:
    """c = (least + (most - least) min(rho / scale, 1)^3) x mean, rho the remaining loss.

    rho is the running mean loss over the mean loss of the first ``first`` steps: 1 for a model that
    has learned nothing, and never more. As the model comes to fit and rho falls below ``scale``, c
    fades from half of the mean loss to a fifth, and the hard examples count for more. The mean is
    floored as in ``Adaptive``, so weights at k = 1 are at most 1 + 2 / least: 11 by default.
    """

    def __init__(
        self,
        least: float = 0.2,
        most: float = 0.5,
        scale: float = 0.35,
        first: int = 10,
        decay: float = 0.95,
    ) -> None:
        self.least, self.most, self.scale = least, most, scale
        self.first, self.decay = first, decay
        self._mean = RunningMean(decay)
        self._start, self._steps = 0.0, 0

    def __repr__(self) -> str:
        return (
            f"Fading(least={self.least:g}, most={self.most:g}, scale={self.scale:g}, "
            f"first={self.first}, decay={self.decay:g})"
        )

    @property
    def start(self) -> float:
        """The mean loss of the first steps."""
        return self._start

    @property
    def remaining(self) -> float:
        """rho; 1 before the first step."""
        return min(self._mean.value / self._start, 1.0) if self._start > 0 else 1.0

    def constant(self, mean_score: float | Tensor) -> float | Tensor:
        faded = min(self.remaining / self.scale, 1.0) ** 3
        share = self.least + (self.most - self.least) * faded
        return share * self._mean.floored(mean_score)

    def update(self, mean: float) -> None:
        if self._steps < self.first:
            self._start += (mean - self._start) / (self._steps + 1)
        self._steps += 1
        self._mean.update(mean)

    def state_dict(self) -> dict[str, Any]:
        return {**self._mean.state_dict(), "start": self._start, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean.load_state_dict(state)
        self._start, self._steps = saved.at_least_zero(state["start"]), saved.whole(state["steps"])


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
