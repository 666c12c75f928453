"""What is left of a loss to be learned: the part above that of a reference."""

from typing import Any, final

from torch import Tensor

from salience.scores.protocol import Score, Unit

__all__ = ["Excess"]


@final
class Excess:
    """s_i = max(0, L_i - r_i), with L, r = ``score``, ``reference``.

    ``score``: one whose scores are losses. ``reference``: float32 [N] on the host, the loss of each
    example under a model that was not trained on it. A loss that no model can avoid, such as that
    of a wrong label, then counts for nothing.
    """

    def __init__(self, score: Score, reference: Tensor) -> None:
        self.inner, self._reference = score, reference
        self.by_index = score.by_index
        self.unit: Unit = score.unit

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        return self._above(indices, self.inner.score(indices, batch))

    def from_losses(self, indices: Tensor, losses: Tensor) -> Tensor:
        """The scores that these losses stand for: adaptive smoothing follows their mean."""
        return self._above(indices, losses)

    def _above(self, indices: Tensor, losses: Tensor) -> Tensor:
        reference = self._reference.index_select(0, indices)
        return (losses - reference.to(losses.device, non_blocking=True)).clamp(min=0)

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        return self.inner.update(indices, losses)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)
