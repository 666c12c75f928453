"""The score ``"loss"``: how wrong the model is about each example."""

from typing import Any, ClassVar, final

import torch
from torch import Tensor

from salience.scores.criterion import per_example, wide
from salience.scores.model import ModelScore, scoring
from salience.scores.protocol import Unit

__all__ = ["Loss"]


@final
class Loss(ModelScore):
    """s_i = L(f(x_i; theta), y_i), with f, L = ``model``, ``loss``.

    Forward without a graph, layers in evaluation mode unless ``mode="train"``. Buffers,
    gradients, flags and random numbers of the training run stay as they are.
    """

    name: ClassVar[str] = "loss"
    unit: Unit = "loss"

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        """The loss of each example in ``batch``."""
        with scoring(self.model, self.mode):
            losses = [
                wide(per_example(self.loss(self.model, part), size).detach())
                for part, size in self.passes(batch, len(indices))
            ]
        return torch.cat(losses)
