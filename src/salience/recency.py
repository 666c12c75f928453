"""Whether the network memorises: do losses rise with the time since the last visit?"""

import math
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from salience import saved
from salience.memory import PRIVATE, Storage
from salience.scores import Score, Unit

__all__ = ["Effect", "Recency", "effect"]

PASSES = 2.0  # that the estimate looks back on
ENOUGH = 0.4  # visits per example that a verdict rests on
FEW = 4096  # visits; with fewer examples than this, one visit of each
LARGEST = 1e300
SLOPE, ERRORS = 0.03, 2.0  # memorising: a slope above both 3 % per pass and two standard errors
BACK = 1.0  # standard errors that it has to be below 3 % for the opposite
SETTLED = 4.0  # passes, after which a network that memorises counts as one for good


class Effect(NamedTuple):
    """By how much of itself the mean loss rises per pass without a visit."""

    slope: float
    error: float  # its standard error
    visits: float  # that it rests on


def effect(gap_loss: float, gap_gap: float, loss: float, loss_loss: float, n: float) -> Effect:
    """From sums over ``n`` visits of d L, d d, L and e e.

    d and e are gap and loss minus their means over the batch, and L the loss: the least squares
    slope of L on the gap within batches, over the mean of L.
    """
    if not (n > 0 and gap_gap > 0 and loss > 0):
        return Effect(0.0, math.inf, n)
    mean = loss / n
    return Effect(gap_loss / gap_gap / mean, math.sqrt(loss_loss / n / gap_gap) / mean, n)


@final
class Recency:
    """Records losses with ``score``, and compares those of long and of short intervals.

    In shuffled passes the interval between two visits of an example is random, from 0 to 2 passes.
    Whatever the examples and the trend of the loss, within a batch the loss can depend on it in one
    way only: through what the network remembers of this very example. A network that memorises has
    lower losses where the last visit is recent; one that learns what examples have in common has
    the same. While examples are visited by importance, intervals follow the losses, and nothing is
    measured.

    A learning rate that falls lets slopes fall too, whatever the network remembers. So the verdict
    changes back only where the slope is below the limit by more than its error, and after
    ``SETTLED`` passes not at all.
    """

    def __init__(self, score: Score, n: int, batch_size: int, storage: Storage = PRIVATE) -> None:
        self.inner, self._storage = score, storage
        self.by_index = score.by_index
        self.unit: Unit = score.unit
        self._n, self._batch = n, batch_size
        self._last = storage.array(n, np.int32)  # the step of the last visit
        self._sums = storage.array(5, np.float64)  # of ``effect``
        self._steps = storage.array(2, np.int64)  # now, and when measuring began
        self.measuring = True
        self.memorises = False  # the last verdict

    def extend(self, n: int) -> None:
        """Grow to ``n`` examples; nothing is known of the new ones."""
        inner: Any = self.inner
        inner.extend(n)
        before, self._last = self._last, self._storage.array(n, np.int32)
        self._last[: len(before)] = before
        self._n = n

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        return self.inner.score(indices, batch)

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        if self.measuring:
            self._steps[0] += 1
            self._measure(indices.numpy(), losses.numpy().astype(np.float64))
        return self.inner.update(indices, losses)

    def _measure(self, at: Any, losses: Any) -> None:
        now, began = int(self._steps[0]), int(self._steps[1])
        last = self._last[at]
        self._last[at] = now
        known = last > began
        if not known.all():
            last, losses = last[known], losses[known]
        if len(last) < 2:
            return
        gaps = (now - last) * (self._batch / self._n)
        d, e = gaps - gaps.mean(), losses - losses.mean()
        seen = np.array([d @ losses, d @ d, losses.sum(), e @ e, len(losses)])
        self._sums *= max(1 - self._batch / (PASSES * self._n), 0.0)
        self._sums += seen

    def effect(self) -> Effect:
        """As of the last ``PASSES`` passes that were measured."""
        gap_loss, gap_gap, loss, loss_loss, n = self._sums.tolist()
        return effect(gap_loss, gap_gap, loss, loss_loss, n)

    @property
    def known(self) -> bool:
        """Whether enough was measured for a verdict."""
        return float(self._sums[4]) >= max(ENOUGH * self._n, min(self._n, FEW))

    @property
    def _settled(self) -> bool:
        passes = (int(self._steps[0]) - int(self._steps[1])) * self._batch / self._n
        return passes >= SETTLED

    def judge(self) -> None:
        """Give the verdict anew, if enough is known and something is measured."""
        if not (self.measuring and self.known):
            return
        slope, error, _ = self.effect()
        if self.memorises:
            self.memorises = self._settled or slope + BACK * error > SLOPE
        else:
            self.memorises = slope > max(SLOPE, ERRORS * error)

    def measure(self, wanted: bool) -> None:
        """Begin anew, or stop."""
        if wanted and not self.measuring and self._storage.writable:
            self._steps[1] = self._steps[0]
            self._sums[:] = 0
        self.measuring = wanted

    def state_dict(self) -> dict[str, Any]:
        elsewhere = self._storage.shared and not self._storage.writable
        return {
            **self.inner.state_dict(),
            "last": None if elsewhere else torch.from_numpy(self._last.copy()),
            "sums": self._sums.tolist(),
            "steps": self._steps.tolist(),
            "measuring": self.measuring,
            "memorises": self.memorises,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)
        sums = [saved.number(value, -LARGEST, LARGEST) for value in state["sums"]]
        steps = [saved.whole(step, 0, saved.STEPS) for step in state["steps"]]
        if len(sums) != len(self._sums) or len(steps) != len(self._steps):
            raise ValueError(f"{len(sums)} sums and {len(steps)} steps")
        if state["last"] is not None or self._storage.writable:
            last = saved.indices(state["last"], saved.STEPS + 1, self._n, torch.int32)
            if self._storage.writable:
                self._last[:] = last.numpy()
                self._sums[:], self._steps[:] = sums, steps
        self.measuring, self.memorises = bool(state["measuring"]), bool(state["memorises"])
