"""What was observed of each example's loss: the last one, or a running mean."""

from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from salience import saved
from salience.memory import PRIVATE, Storage
from salience.scores.protocol import Unit

__all__ = ["History"]

LARGEST = float(np.finfo(np.float32).max)


@final
class History:
    """s_i = decay s_i + (1 - decay) L_i at each visit of example i, L_i at the first; nan before.

    With ``decay`` 0 that is the last loss. A single loss is noisy: dropout, augmentation, and the
    batch it came with. An example that was right once is not learned yet, and one that was wrong
    once is not hard; a mean over visits tells them apart, and costs nothing either.
    """

    by_index = True
    unit: Unit = "loss"

    def __init__(self, n: int, decay: float = 0.0, storage: Storage = PRIVATE) -> None:
        self._decay, self._storage = np.float32(decay), storage
        self._mean = storage.array(n, np.float32, np.nan)

    def extend(self, n: int) -> None:
        """Grow to ``n`` examples; nothing is known of the new ones."""
        before, self._mean = self._mean, self._storage.array(n, np.float32, np.nan)
        self._mean[: len(before)] = before

    def score(self, indices: Tensor, batch: Any) -> Tensor:  # noqa: ARG002
        if not self._storage.writable:  # torch takes only arrays that it may write
            return torch.from_numpy(self._mean[indices.numpy()])
        # Of some ten thousand places, torch gathers the values in two thirds of the time.
        return torch.from_numpy(self._mean).index_select(0, indices)

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        at, seen = indices.numpy(), losses.numpy()
        if self._decay:
            before = self._mean.take(at)
            mean = before + (1 - self._decay) * (seen - before)
            if np.isnan(mean[mean.argmin()]):  # some were not seen before: nan is the least
                mean = np.where(np.isnan(mean), seen, mean)
            seen = mean
        self._mean[at] = seen
        return indices

    def state_dict(self) -> dict[str, Any]:
        elsewhere = self._storage.shared and not self._storage.writable
        return {"mean": None if elsewhere else torch.from_numpy(self._mean.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mean = state["mean"]
        if mean is not None or self._storage.writable:
            mean = saved.floats(mean, len(self._mean), 0, LARGEST, unknown=True)
        if self._storage.writable:
            self._mean[:] = mean.numpy()
