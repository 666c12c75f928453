"""One process at a time in a run directory."""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from salience.compare.directory import refusal
from salience.errors import ArgumentError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = ["LOCK", "locked"]

LOCK = ".lock"
ORPHANS = 10.0  # seconds in which the workers of a killed process find out and end


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make ``directory`` and keep other processes out of it; refused where one is in it.

    The lock is the system's: that of a process that was killed is free at once. ``.lock`` names
    its holder, and is removed in the end. Where the file system has no locks, nothing is locked.
    """
    path = directory / LOCK
    with refusal(path):
        directory.mkdir(parents=True, exist_ok=True)
        file = _acquired(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is still locked
        file.close()


def _acquired(path: Path) -> TextIO:
    """The locked file, with this process as its holder."""
    patience = time.monotonic() + ORPHANS
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            if _lock(file) and not _is_at(file, path):
                file.close()  # the holder before removed it between opening and locking
                continue
        except BlockingIOError:
            file.seek(0)
            holder = _holder(file.read())
            file.close()
            if _lives(holder) or time.monotonic() > patience:
                raise ArgumentError(
                    f"{path.parent} is in use by {_named(holder)}: wait until it has ended, or "
                    f"choose another directory with --out"
                ) from None
            time.sleep(0.1)
            continue
        file.truncate(0)
        json.dump({"pid": os.getpid(), "host": platform.node()}, file)
        file.flush()
        return file


def _lock(file: TextIO) -> bool:
    """Whether it is locked now; raises where another process holds it."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # not every network file system has locks
        return False
    return True


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holder(text: str) -> dict[str, Any]:
    """Who wrote the lock; empty where that cannot be read (yet)."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _named(holder: dict[str, Any]) -> str:
    if not holder:
        return "another process"
    return f"process {holder.get('pid')} on {holder.get('host')}"


def _lives(holder: dict[str, Any]) -> bool:
    """As far as can be known here."""
    pid = holder.get("pid")
    if holder.get("host") != platform.node() or not isinstance(pid, int):
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
