"""What was observed of each example's loss: the last one, or a running mean."""

from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from salience.scores.protocol import Unit

__all__ = ["History"]


@final
class History:
    """s_i = decay s_i + (1 - decay) L_i at each visit of example i, L_i at the first; nan before.

    With ``decay`` 0 that is the last loss. A single loss is noisy: dropout, augmentation, and the
    batch it came with. An example that was right once is not learned yet, and one that was wrong
    once is not hard; a mean over visits tells them apart, and costs nothing either.
    """

    by_index = True
    unit: Unit = "loss"

    def __init__(self, n: int, decay: float = 0.0) -> None:
        self._decay = np.float32(decay)
        self._mean = np.full(n, np.nan, dtype=np.float32)

    def extend(self, n: int) -> None:
        """Grow to ``n`` examples; nothing is known of the new ones."""
        new = np.full(n - len(self._mean), np.nan, dtype=np.float32)
        self._mean = np.concatenate([self._mean, new])

    def score(self, indices: Tensor, batch: Any) -> Tensor:  # noqa: ARG002
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
        return {"mean": torch.from_numpy(self._mean.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean[:] = state["mean"].numpy()
