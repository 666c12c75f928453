"""What else the losses of a batch are multiplied by, from the losses themselves."""

import math
from typing import Any, Literal, Protocol, final, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from salience import functional, saved
from salience.draw import Draw
from salience.errors import ArgumentError
from salience.smoothing import RunningMean

__all__ = ["Closeness", "Focus", "FocusName", "Ordered", "check_factors", "make_focus"]

FocusName = Literal["ordered", "closeness"]


@runtime_checkable
class Focus(Protocol):
    """Factors f_i >= 0 so that the step is on (1/B) sum_i alpha_i f_i L_i.

    Give them a mean of 1 over the batch, so that the learning rate keeps its meaning.

    Optional: ``extend(n)``, called at the beginning and when the dataset grows, but never for a
    stream. From then on there are ``n`` examples, and nothing is known of the new ones.
    """

    def factors(self, losses: Tensor, indices: Tensor | None) -> Tensor:
        """f [B] for ``losses`` [B], where these are; no value may be read back to the host.

        ``losses`` have no gradient, and are 0 where a bad loss is left out. ``indices`` [B] are
        positions in the dataset, on the host or with the losses; None for a stream. Asked before
        ``update`` learns these losses, and once for each batch or part of one.
        """
        ...

    def update(self, draw: Draw, losses: Tensor) -> None:
        """Learn the losses of a draw, of all ranks together, with everything on the host.

        ``losses`` are float32, finite and >= 0. The mean of values multiplied by
        ``draw.inverse()`` is unbiased for their mean over the dataset. On accelerators this comes
        one step late.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, enough to continue exactly."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        ...


@final
class Ordered:
    """Only the q largest losses of a batch; q falls as the accuracy grows: Ordered SGD.

    The accuracy is that of log losses, the share of examples with exp(-L) > 1/2: a running mean of
    unbiased estimates, whatever examples are drawn by. ``tell`` replaces it by one that the user
    has measured.
    """

    def __init__(self, decay: float = 0.99) -> None:
        self.decay = _checked_decay(decay)
        self._wrong = RunningMean(decay)
        self._told: float | None = None

    def __repr__(self) -> str:
        return f"Ordered(decay={self.decay:g})"

    @property
    def accuracy(self) -> float:
        """What was told last, or the running estimate; nan before the first losses."""
        return 1 - self._wrong.value if self._told is None else self._told

    def tell(self, accuracy: float | None) -> None:
        """From now on the accuracy is this one, until another is told; None: the estimate again."""
        self._told = None if accuracy is None else float(accuracy)

    def factors(self, losses: Tensor, indices: Tensor | None) -> Tensor:  # noqa: ARG002
        return functional.ordered(losses, functional.ordered_count(self.accuracy, len(losses)))

    def update(self, draw: Draw, losses: Tensor) -> None:
        # Of the wrong ones and not of the right ones: hard examples are drawn often, so that the
        # estimate of their share varies least.
        wrong = losses.numpy() >= math.log(2)
        self._wrong.update(draw.unbiased_mean(torch.from_numpy(wrong.astype(np.float32))))

    def state_dict(self) -> dict[str, Any]:
        return {"wrong": self._wrong.state_dict(), "told": self._told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._wrong.load_state_dict(state["wrong"])
        told = state["told"]
        self.tell(None if told is None else saved.number(told))


@final
class Closeness:
    """f_i proportional to p_i (1 - p_i) + floor; p_i: a running mean of exp(-L_i) over visits.

    p_i = decay p_i + (1 - decay) exp(-L_i), this loss included; exp(-L_i) at the first visit, and
    at every one for a stream, whose examples cannot be told apart.
    """

    def __init__(self, decay: float = 0.8, floor: float = 0.01) -> None:
        if not (math.isfinite(floor) and floor >= 0):
            raise ArgumentError(f"floor must be a finite number >= 0; got {floor}")
        self.decay, self.floor = _checked_decay(decay), float(floor)
        self._mean: Tensor | None = None  # p of each example; nan before its first visit
        self._there: Tensor | None = None  # the same where the losses are, if indices are there too

    def __repr__(self) -> str:
        return f"Closeness(decay={self.decay:g}, floor={self.floor:g})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_there": None}

    def extend(self, n: int) -> None:
        """Make room for ``n`` examples; nothing is known of the new ones."""
        before = 0 if self._mean is None else len(self._mean)
        if n < before:
            raise ArgumentError(
                f"this Closeness is in use for {before} examples and cannot be used for {n}: "
                f"make one for each loader"
            )
        mean = torch.full((n,), math.nan, dtype=torch.float32, device="cpu")
        if self._mean is not None:
            mean[:before] = self._mean
        self._mean, self._there = mean, None

    def factors(self, losses: Tensor, indices: Tensor | None) -> Tensor:
        p = torch.exp(-losses.to(torch.promote_types(losses.dtype, torch.float32)))
        if self._mean is not None and indices is not None:
            before = self._of(indices).to(p, non_blocking=True)
            p = torch.where(before.isnan(), p, self._mixed(before, p))
        return functional.closeness(p, self.floor)

    def _mixed(self, before: Any, p: Any) -> Any:
        return before + (1 - self.decay) * (p - before)

    def _of(self, indices: Tensor) -> Tensor:
        """Looked up where the indices are, without reading them."""
        assert self._mean is not None
        if indices.is_cpu:
            return self._mean.index_select(0, indices)
        if self._there is None or self._there.device != indices.device:
            self._there = self._mean.to(indices.device)
        return self._there.index_select(0, indices)

    def update(self, draw: Draw, losses: Tensor) -> None:
        if self._mean is None:
            return
        at, p = draw.indices.numpy(), np.exp(-losses.numpy())
        if not draw.uniform:  # an example drawn twice counts once, with the mean
            at, place, counts = np.unique(at, return_inverse=True, return_counts=True)
            p = (np.bincount(place, p) / counts).astype(np.float32)
        before = self._mean.numpy()[at]
        p = np.where(np.isnan(before), p, self._mixed(before, p)).astype(np.float32)
        self._mean.numpy()[at] = p
        if self._there is not None:
            places, values = torch.from_numpy(at), torch.from_numpy(p)
            device = self._there.device
            self._there.index_copy_(
                0, places.to(device, non_blocking=True), values.to(device, non_blocking=True)
            )

    def state_dict(self) -> dict[str, Any]:
        return {} if self._mean is None else {"mean": self._mean.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._mean is not None:
            self._mean.copy_(saved.floats(state["mean"], len(self._mean), 0, 1, unknown=True))
        self._there = None


def _checked_decay(decay: float) -> float:
    if not 0 <= decay < 1:
        raise ArgumentError(f"decay must be in [0, 1); got {decay}")
    return float(decay)


NAMES = {"ordered": Ordered, "closeness": Closeness}


def make_focus(focus: str | Focus | None, n: int | None) -> Focus | None:
    """What the user wrote as ``focus=``, as an object with room for ``n`` examples, if any."""
    if focus is None:
        return None
    made: Any = NAMES[focus]() if isinstance(focus, str) and focus in NAMES else focus
    if not isinstance(made, Focus) or isinstance(made, type):
        raise ArgumentError(
            f"focus must be None, one of {', '.join(NAMES)}, or an object with factors, update, "
            f"state_dict and load_state_dict; got {focus!r}"
        )
    if n is not None and hasattr(made, "extend"):
        made.extend(n)
    return made


def check_factors(factors: Any, losses: Tensor) -> Tensor:
    """One for each loss; values are not looked at, for that would wait for an accelerator."""
    if isinstance(factors, Tensor) and factors.shape == losses.shape:
        return factors.detach()
    got = f"shape {list(factors.shape)}" if isinstance(factors, Tensor) else type(factors).__name__
    raise ArgumentError(
        f"focus must give one factor per loss, a tensor of shape {list(losses.shape)}; got {got}"
    )
