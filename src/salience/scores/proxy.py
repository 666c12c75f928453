"""A small network that scores for a large one, and trains along on what was chosen."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from salience.batches.nested import map_tensors
from salience.scores.criterion import per_example, wide
from salience.scores.model import ModelScore, training
from salience.scores.protocol import Unit

__all__ = ["Proxy"]

EVERY = 4  # chosen batches of which one is trained on
RATE = 1e-3  # of Adam

Average = Callable[[Tensor], None]  # over the ranks, in place


@final
class Proxy:
    """The scores of ``score``, whose model is small and learns from the batches it has chosen.

    One backward pass for every ``EVERY`` batches, on (1/B) sum_i alpha_i L_i like the model that it
    stands for. Smoothing follows the mean score: losses of the small network are larger than those
    of the model that is trained.
    """

    by_index = False
    unit: Unit = "gradient"

    def __init__(self, score: ModelScore, optimizer: torch.optim.Optimizer | None = None) -> None:
        self._score, self.model = score, score.model
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._optimizer = optimizer or torch.optim.Adam(self._parameters, RATE)
        self._batches = 0  # chosen so far

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        return self._score.score(indices, batch)

    def train(self, weights: Tensor, batch: Any, average: Average | None = None) -> None:
        """Learn from a chosen ``batch``, if it is its turn; ``average``: over several ranks.

        Nothing but the small network changes, and no value is read back from its device.
        """
        self._batches += 1
        if self._batches % EVERY != 1:
            return
        with training(self.model):
            losses = wide(per_example(self._score.loss(self.model, batch), len(weights)))
            good = (losses >= 0) & (losses < torch.inf)  # a bad loss counts for nothing
            losses = torch.where(good, losses, torch.zeros_like(losses))
            mean = torch.dot(losses, weights.to(losses, non_blocking=True)) / len(weights)
            self._optimizer.zero_grad()
            torch.autograd.backward(mean, inputs=self._parameters)
        if average is not None:
            self._average_gradients(average)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _average_gradients(self, average: Average) -> None:
        """As one message; a parameter without a gradient here may have one elsewhere."""
        for p in self._parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        average(flat)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:  # noqa: ARG002
        """Nothing to learn from the losses of another model: no score changes."""
        return torch.empty(0, dtype=torch.int64, device="cpu")

    def state_dict(self) -> dict[str, Any]:
        """Copies on the host: of the small network, of its optimizer, and the count of batches."""
        parts = {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}
        own = map_tensors(lambda x: x.detach().to("cpu", copy=True), parts)
        return {**own, "batches": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._batches = int(state["batches"])
