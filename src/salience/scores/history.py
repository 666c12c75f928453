"""The last observed loss of each example."""

from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from salience.scores.protocol import Unit

__all__ = ["History"]


@final
class History:
    """s_i = the loss of example i when it was last trained on; nan before that. Costs nothing."""

    by_index = True
    unit: Unit = "loss"

    def __init__(self, n: int) -> None:
        self._last = np.full(n, np.nan, dtype=np.float32)

    def score(self, indices: Tensor, batch: Any) -> Tensor:  # noqa: ARG002
        return torch.from_numpy(self._last[indices.numpy()])

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        self._last[indices.numpy()] = losses.numpy()
        return indices

    def state_dict(self) -> dict[str, Any]:
        return {"last": torch.from_numpy(self._last.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last[:] = state["last"].numpy()
