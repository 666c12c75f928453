"""What DataLoader is told to fetch, and what is remembered of it until it arrives."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, final

from torch import Tensor

__all__ = ["Feed", "Ticket"]

# What a batch was drawn as: its indices first, then whatever else must travel with it.
Ticket = tuple[Tensor, ...]


@final
class Feed:
    """A batch sampler that draws when DataLoader asks and keeps a ticket for every draw.

    DataLoader asks up to ``num_workers x prefetch_factor`` batches ahead and returns batches in
    the order it asked for them, so the oldest ticket belongs to the batch that arrives next:
    weights are fixed at the draw and travel with it.
    """

    def __init__(self, draw: Callable[[], Ticket], new_epoch: Callable[[], None], steps: int):
        self._draw, self._new_epoch, self._steps = draw, new_epoch, steps
        self._done = 0  # batches handed out in this epoch
        self._ahead: deque[Ticket] = deque()  # asked for and not handed out yet
        self._waiting: list[Ticket] = []  # drawn before a state was saved, to be asked for again
        self._resumed = False

    def __len__(self) -> int:
        return self._steps

    def begin(self) -> deque[Ticket]:
        """Begin an epoch, or what is left of it after a resume; the tickets of its batches.

        Apart from ``__iter__``, which DataLoader may call more than once per epoch.
        """
        self._waiting = list(self._ahead) if self._resumed else []
        if not self._resumed:
            self._done = 0
            self._new_epoch()
        self._resumed = False
        self._ahead = deque()
        return self._ahead

    def __iter__(self) -> Iterator[list[int]]:
        ahead, waiting = self._ahead, self._waiting
        for step in range(self._steps - self._done):
            ticket = waiting[step] if step < len(waiting) else self._draw()
            ahead.append(ticket)
            yield ticket[0].tolist()

    def handed_out(self) -> None:
        """Count a batch that the user got."""
        self._done += 1

    def finished(self) -> None:
        """The epoch is over: a state saved now begins with the next one."""
        self._done = 0

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done, "ahead": [tuple(ticket) for ticket in self._ahead]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._done = state["done"]
        self._ahead = deque(tuple(ticket) for ticket in state["ahead"])
        self._resumed = self._done > 0
