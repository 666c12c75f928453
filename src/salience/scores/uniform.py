"""Every example is worth the same: what training without importance sampling does."""

from typing import Any, final

import torch
from torch import Tensor

from salience.scores.protocol import Unit

__all__ = ["Uniform"]

NOTHING = torch.empty(0, dtype=torch.int64, device="cpu")


@final
class Uniform:
    """s_i = 1. The loader turns it into ordinary shuffled epochs, each example once per pass."""

    by_index = True
    unit: Unit = "loss"

    def extend(self, n: int) -> None:
        pass

    def score(self, indices: Tensor, batch: Any) -> Tensor:  # noqa: ARG002
        return torch.ones(len(indices), device="cpu")

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:  # noqa: ARG002
        return NOTHING

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
