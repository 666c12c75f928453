"""What every way of drawing answers; nobody asks which one it is."""

from typing import Any, Protocol

from torch import Tensor

from salience.draw import Draw

__all__ = ["Source"]


class Source(Protocol):
    """Draws examples known by index, and is told whose scores have changed."""

    @property
    def active(self) -> bool:
        """Whether the next draw is by importance."""
        ...

    def ready(self, n: int, number: int) -> bool:
        """Whether draw ``number`` of ``n`` examples is settled, whatever is learned before it."""
        ...

    def draw(self, n: int, number: int) -> Draw:
        """The next ``n`` examples, or fewer at the end of a shuffled pass, as draw ``number``."""
        ...

    def update(self, indices: Tensor) -> None:
        """A step was learned that changed the scores of ``indices``."""
        ...

    def new_epoch(self) -> None:
        """An epoch begins: shuffled passes begin anew."""
        ...

    def extend(self, n: int, classes: Tensor | None = None) -> None:
        """Grow to ``n`` examples, after the score has: a pass under way ends without the new ones.

        ``classes`` [n] of all examples are needed where passes are stratified by class.
        """
        ...

    def refresh(self) -> None:
        """Read all scores anew, with nothing drawn ahead: they were loaded without a state."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
