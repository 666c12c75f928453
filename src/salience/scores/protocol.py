"""The one contract of every score: how important are candidates, and what do losses teach."""

from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

__all__ = ["Score", "Unit"]

Unit = Literal["loss", "gradient"]


@runtime_checkable
class Score(Protocol):
    """Two questions, and a state to save. Wrap a score to tweak it; never subclass one.

    ``by_index``: scores are known from the index alone, before the example is loaded, so draws can
    cover the whole dataset. Otherwise ``batch`` (a collated pool) is needed to answer.
    ``unit``: adaptive smoothing is half the running mean loss for ``"loss"``, and half the running
    mean score for ``"gradient"``.

    Optional: ``extend(n)``, for datasets that grow while training. From then on there are ``n``
    examples, and nothing is known of the new ones. ``from_losses(indices, losses)``: the scores
    that some losses stand for, whose running mean adaptive smoothing then follows if the unit is
    ``"loss"``. Not members of this protocol, so that scores without them are scores too.
    """

    by_index: bool
    unit: Unit

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        """Scores >= 0, shape [len(indices)]; nan where nothing is known yet (drawn optimistically).

        ``indices`` are dataset positions on the host (positions in the pool for a stream);
        ``batch`` is the collated pool on the model's device, or None when ``by_index``.
        """
        ...

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        """Learn the losses of a training pass; return the indices whose scores have changed.

        Both are on the host, ``indices`` distinct, ``losses`` float32, finite and >= 0.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, enough to continue exactly."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        ...
