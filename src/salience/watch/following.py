"""A file of JSON lines that grows, read piece by piece while somebody writes to it."""

import os
import stat
from pathlib import Path
from typing import Any, NamedTuple, final

from salience.compare.reading import from_json

__all__ = ["Follower", "News"]

MOST = 4 << 20  # bytes at a time
LONGEST = 1 << 20  # bytes of a line; a longer one is none of ours
TAIL = 64  # bytes before the offset that tell whether it is still the same file


class News(NamedTuple):
    """What a file has that it did not have before.

    ``again``: it was replaced or cut, so that everything read before is void. ``more``: there is
    more than was read at this time.
    """

    rows: list[dict[str, Any]]
    again: bool
    more: bool


@final
class Follower:
    """Reads ``path`` from where it stopped.

    A line counts once its end is there. Lines that are no JSON object are left out. A file that is
    not there yet, or is none, has no lines.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0  # bytes of whole lines read
        self._tail = b""  # the last of them
        self._skipping = False  # within a line that is too long

    def read(self) -> News:
        """The rows since the last call."""
        try:
            # Not blocking, since a pipe in its place would wait for a writer.
            handle = os.open(self._path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError:
            return self._nothing()
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            return self._nothing()
        with os.fdopen(handle, "rb") as file:
            file.seek(self._offset - len(self._tail))
            again = file.read(len(self._tail)) != self._tail
            if again:
                self._offset, self._tail, self._skipping = 0, b"", False
            file.seek(self._offset)
            read = file.read(MOST)
            more = len(read) == MOST and bool(file.read(1))
        return News(self._rows(read), again, more)

    def _nothing(self) -> News:
        again, self._offset, self._tail, self._skipping = self._offset > 0, 0, b"", False
        return News([], again, False)

    def _rows(self, read: bytes) -> list[dict[str, Any]]:
        end = read.rfind(b"\n") + 1
        whole = read[:end]
        if not end and len(read) >= LONGEST:  # no line of ours
            end, self._skipping = len(read), True
        self._offset += end
        self._tail = (self._tail + read[:end])[-TAIL:]
        lines = whole.split(b"\n")[:-1]
        if self._skipping and lines:
            lines, self._skipping = lines[1:], False
        return [row for line in lines if (row := _row(line)) is not None]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = from_json(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
