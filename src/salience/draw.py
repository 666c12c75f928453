"""One record of a draw, from the source that makes it to the losses that come back."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from salience import saved

__all__ = ["Draw"]

LARGEST = 4096.0  # of a chance in a state: those of one rank's part may be above 1


@final
@dataclass(slots=True, eq=False)
class Draw:
    """Which examples to train on, by what to multiply their losses, and why.

    Unpacks as ``indices, weights = draw``. Everything is fixed at the time of the draw: scores and
    probabilities may have changed by the time the losses come back.
    """

    number: int  # draws are numbered from 0
    indices: Tensor  # [B] positions in the dataset
    weights: Tensor  # [B] alpha, multiply the per-example losses by these
    probabilities: Tensor  # [B] float64
    scores: Tensor  # [B] what they were drawn by
    pool: int  # M, the number of candidates
    counts: Tensor | None = None  # [B] how often each row was drawn; None: once
    uniform: bool = False  # every weight is 1 and no index repeats
    scale: float = 1.0  # by which a mean over these rows is to be multiplied: see distributed

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.indices, self.weights))

    def __len__(self) -> int:
        return self.indices.shape[0]

    def step_weights(self) -> Tensor:
        """The mean of the losses multiplied by these is what to step on."""
        return self.weights if self.scale == 1 else self.weights.double() * self.scale

    def inverse(self) -> Tensor:
        """1 / (M p_i): a mean over the rows multiplied by these is unbiased for the pool's mean.

        Rows that stand for several draws count as many times. On the host, like the next one.
        """
        inverse = torch.from_numpy(1 / (self.pool * self.probabilities.numpy()))
        return inverse if self.counts is None else inverse * share(self.counts)

    def unbiased_mean(self, values: Tensor) -> float:
        """(1/B) sum_i values_i / (M p_i), unbiased for their mean over the dataset."""
        if self.uniform:
            # A few losses of 1e38 have a sum that float32 does not hold.
            return float(np.add.reduce(values.numpy(), dtype=np.float64)) / values.shape[0]
        if self.counts is None:  # as below, in fewer operations
            inverse_sum = np.add.reduce(values.numpy() / self.probabilities.numpy())
            return float(inverse_sum) / (self.pool * values.shape[0])
        return float(self.inverse().numpy() @ values.numpy()) / values.shape[0]

    def map(self, fn: Any) -> "Draw":
        """The same draw with ``fn`` applied to each of its tensors."""
        return Draw(*(fn(v) if isinstance(v, Tensor) else v for v in self._values()))

    def state_dict(self) -> dict[str, Any]:
        """Plain values, with tensors of their own on the host."""
        own = self.map(lambda x: x.detach().to("cpu", copy=True))
        return dict(zip((f.name for f in fields(Draw)), own._values(), strict=True))

    @staticmethod
    def from_state(state: dict[str, Any], n: int | None = None) -> "Draw":
        """The draw that ``state_dict`` was taken of, from ``n`` examples; ValueError: damaged."""
        at = saved.indices(state["indices"], n)
        counts, rows = state["counts"], len(at)
        return Draw(
            saved.whole(state["number"]),
            at,
            saved.floats(state["weights"], rows, 0),
            saved.floats(state["probabilities"], rows, saved.CHANCE, LARGEST),
            saved.floats(state["scores"], rows),
            saved.whole(state["pool"], 1),
            None if counts is None else saved.floats(counts, rows, 1, saved.LIMIT),
            bool(state["uniform"]),
            saved.at_least_zero(state["scale"]),
        ).map(torch.clone)

    def _values(self) -> list[Any]:
        return [getattr(self, f.name) for f in fields(Draw)]


def share(counts: Tensor) -> Tensor:
    """counts_i / mean(counts): turns a mean over draws into a mean over distinct rows."""
    return counts * (len(counts) / counts.sum(dtype=torch.float64))
