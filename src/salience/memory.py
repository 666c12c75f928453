"""Where the large arrays of a sampler are kept: in this process, or in files that ranks share.

Of the ranks of one machine that share files the lowest one writes, and the others read what it has
written. ``Turns`` keeps the two apart.
"""

import mmap
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from salience.errors import ArgumentError, UsageError

__all__ = ["BLANK", "PRIVATE", "Files", "Storage", "Turns", "share"]

LINE = 64  # bytes of a cache line
TIMEOUT = 1800.0  # seconds that ranks wait for each other: as long as torch.distributed with gloo
PAUSE = 5e-5  # seconds between two looks

Everyone = Callable[[Any], list[Any]]  # the value of every rank, in order; waits for them
Made = TypeVar("Made")


class Storage(Protocol):
    """Gives arrays."""

    @property
    def writable(self) -> bool:
        """False: others write what is in them."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other processes have the same arrays."""
        ...

    def array(self, size: int, dtype: Any, fill: float = 0) -> NDArray[Any]:
        """[``size``], all ``fill`` unless others write it."""
        ...


@final
class Private:
    """Memory of this process."""

    writable, shared = True, False

    def array(self, size: int, dtype: Any, fill: float = 0) -> NDArray[Any]:
        """It begins with a cache line: blocks of the tree, read at random, take two and not three.

        Zeros take no memory before they are used.
        """
        spare = LINE // np.dtype(dtype).itemsize
        memory = np.zeros(size + spare, dtype)
        start = -memory.ctypes.data % LINE // memory.itemsize
        memory = memory[start : start + size]
        if fill != 0:
            memory.fill(fill)
        return memory


@final
class Blank:
    """No memory: for a sampler that was not used yet."""

    writable, shared = False, False

    def array(self, size: int, dtype: Any, fill: float = 0) -> NDArray[Any]:
        return np.broadcast_to(np.array(fill, dtype), size)


PRIVATE, BLANK = Private(), Blank()


@final
class Files:
    """Files in ``folder``, one per array.

    Their names are removed as soon as they are mapped, or by ``unlink`` if others are to open them:
    the system frees them with the last process, however that ends, and nobody finds old ones.
    """

    writable = True

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        self._folder, self.shared = folder, shared
        self.paths: list[Path] = []

    def array(self, size: int, dtype: Any, fill: float = 0) -> NDArray[Any]:
        try:
            array = self._map(size, np.dtype(dtype))
        except OSError as error:
            needed = size * np.dtype(dtype).itemsize / 1e6
            raise ArgumentError(
                f"memory {str(self._folder)!r} cannot hold {needed:.1f} MB "
                f"({error.strerror or error}): give a folder on a local disk or in /dev/shm with "
                f"enough room"
            ) from error
        if fill != 0:
            array.fill(fill)
        return array

    def _map(self, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        file, path = tempfile.mkstemp(prefix="salience-", dir=self._folder)
        self.paths.append(Path(path))
        try:
            _reserve(file, size * dtype.itemsize)
            mapped = mmap.mmap(file, size * dtype.itemsize)
        finally:
            os.close(file)
            if not self.shared:
                self.unlink()
        return np.frombuffer(mapped, dtype)

    def unlink(self) -> None:
        for path in self.paths:
            path.unlink(missing_ok=True)
        self.paths = []


def _reserve(file: int, size: int) -> None:
    """A full disk is an error now, and not a crash when a page is first written."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


@final
class Shared:
    """The files that another process made, in the order in which it made them; to be read."""

    writable, shared = False, True

    def __init__(self, paths: list[Path]) -> None:
        self._paths = list(paths)

    def array(self, size: int, dtype: Any, fill: float = 0) -> NDArray[Any]:  # noqa: ARG002
        return _open(self._paths.pop(0), dtype, size, mmap.ACCESS_READ)


def _open(path: Path, dtype: Any, size: int, access: int) -> NDArray[Any]:
    with path.open("rb" if access == mmap.ACCESS_READ else "r+b") as file:
        mapped = mmap.mmap(file.fileno(), size * np.dtype(dtype).itemsize, access=access)
    return np.frombuffer(mapped, dtype)


# ---------------------------------------------------------------------------------- between ranks


@final
class Turns:
    """Keeps the writer and the readers of shared arrays apart.

    All ranks go through the same turns: draws, and states that are loaded. Each counts those it has
    finished, where all see it. The writer changes nothing before the readers have finished all
    turns before its own; in a turn that depends on what was written, a reader waits until the
    writer has finished it. So nobody reads what is being written, and all read the same.
    """

    def __init__(self, finished: NDArray[np.int64], ranks: list[int], rank: int) -> None:
        self._finished, self._ranks = finished, ranks
        self._place, self._turn = ranks.index(rank), 0
        self.writer = ranks[0]
        self.writes = rank == self.writer

    def wait(self) -> None:
        """Until the arrays may be written or, for a reader, read."""
        first = time.monotonic()
        while late := self._late():
            if time.monotonic() - first > TIMEOUT:
                raise UsageError(
                    f"rank {self._ranks[self._place]} has waited {TIMEOUT:g} s for {late} at turn "
                    f"{self._turn} of the memory they share: it has ended, or does something else; "
                    f"all ranks have to draw and load alike"
                )
            time.sleep(PAUSE)
        _fence()

    def _late(self) -> str:
        """Who is waited for."""
        if not self.writes:
            behind = self._finished[0] <= self._turn
            return f"rank {self.writer}, which writes," if behind else ""
        behind = self._finished[1:] < self._turn
        if not behind.any():
            return ""
        return "rank " + ", ".join(str(self._ranks[1 + i]) for i in behind.nonzero()[0])

    def finish(self) -> None:
        """This turn is over."""
        _fence()
        self._turn += 1
        self._finished[self._place] = self._turn


_LOCK = threading.Lock()


def _fence() -> None:
    """Some processors show writes to others out of order: not across two uses of a lock."""
    for _ in range(2):
        with _LOCK:
            pass


def share(
    folder: Path, rank: int, everyone: Everyone, make: Callable[[Storage], Made]
) -> tuple[Made, Turns]:
    """What ``make`` builds on arrays that the ranks of each machine share.

    All ranks come here at once; a problem of one is an error on all.
    """
    machines = everyone(_machine())
    ranks = [r for r, machine in enumerate(machines) if machine == machines[rank]]
    writer, made, finished, problem = ranks[0], None, None, None
    files = Files(folder, shared=True)
    try:
        if rank == writer:
            try:
                finished = files.array(len(ranks), np.int64)
                made = make(files)
            except ArgumentError as error:
                problem = f"rank {rank}: {error}"
        offered = everyone((files.paths, problem))
        _refuse([problem for _, problem in offered])
        if rank != writer:
            header, *paths = offered[writer][0]
            try:
                finished = _open(header, np.int64, len(ranks), mmap.ACCESS_WRITE)
                made = make(Shared(paths))
            except (OSError, ValueError) as error:
                problem = (
                    f"rank {rank} cannot open the memory of rank {writer} on its machine "
                    f"({error}): give a folder that both see"
                )
        _refuse(everyone(problem))
    finally:
        files.unlink()
    assert made is not None
    assert finished is not None
    return made, Turns(finished, ranks, rank)


def _refuse(problems: list[str | None]) -> None:
    for problem in problems:
        if problem is not None:
            raise ArgumentError(problem)


def _machine() -> tuple[str, str]:
    """Names alone are not enough: those of containers may be the same everywhere."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return socket.gethostname(), boot.read_text() if boot.exists() else ""
