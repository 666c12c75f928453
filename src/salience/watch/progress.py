"""How far a training is, and how long it will take: from what was seen of it so far."""

from collections import deque
from typing import final

__all__ = ["Pace"]

SEEN = 120  # looks that the pace is measured over
FIRST = 3  # changes that are needed to know a pace


@final
class Pace:
    """The time left, from the progress at the last looks."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=SEEN)

    def look(self, now: float, progress: float) -> None:
        """At ``now`` (in seconds) the share ``progress`` was done."""
        if self._seen and progress < self._seen[-1][1]:
            self._seen.clear()  # begun again
        if not self._seen or progress > self._seen[-1][1]:
            self._seen.append((now, progress))

    def left(self, now: float, began: float | None = None) -> float | None:
        """Seconds until all is done; None where that is not known, or all is.

        ``began``: when it began, for the time before its pace was seen.
        """
        if not self._seen:
            return None
        last, done = self._seen[-1]
        if done >= 1:
            return None
        first, before = self._seen[0]
        if len(self._seen) < FIRST:
            if began is None or done <= 0:
                return None
            first, before = began, 0.0
        rate = (done - before) / (last - first) if last > first else 0.0
        return max(0.0, (1 - done) / rate - (now - last)) if rate > 0 else None
