"""One file over HTTP: resumed where it stopped, retried a few times, with a timeout.

The caller checks and renames the result.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from salience.errors import DataError

__all__ = ["Patience", "Progress", "download"]

CHUNK = 1 << 16
MOST = 1 << 30  # bytes; every set is far smaller, so more is a server fault
NOT_SATISFIABLE = 416
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far and, where the server says, the total."""


@dataclass(frozen=True)
class Patience:
    """Seconds without data until a connection is dropped, attempts, first pause between them."""

    timeout: float = 30.0
    attempts: int = 5
    pause: float = 1.0  # doubles each time


def download(address: str, part: Path, patience: Patience, progress: Progress) -> None:
    """Fetch ``address`` into ``part``; a ``part`` that exists is continued."""
    problem = ""
    for attempt in range(patience.attempts):
        if attempt:
            time.sleep(patience.pause * 2 ** (attempt - 1))
        try:
            return _transfer(address, part, patience.timeout, progress)
        except HTTPError as error:
            problem = _answer(error, address, part)
        except (OSError, HTTPException) as error:  # timeouts and refused connections among them
            problem = str(getattr(error, "reason", error)) or type(error).__name__
    raise DataError(
        f"{address} could not be fetched in {patience.attempts} attempts ({problem}): "
        "run the command again to continue where it stopped"
    )


def _answer(error: HTTPError, address: str, part: Path) -> str:
    """What the server said, where another attempt may help."""
    error.close()
    if error.code == NOT_SATISFIABLE:
        part.unlink(missing_ok=True)  # longer than the file, so not a part of it
    elif error.code not in TRANSIENT:
        raise DataError(
            f"{address} cannot be fetched (the server answered {error.code} {error.reason}): "
            "see whether the address opens in a browser"
        ) from error
    return f"the server answered {error.code} {error.reason}"


def _transfer(address: str, part: Path, timeout: float, progress: Progress) -> None:
    """One attempt."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "salience"} | ({"Range": f"bytes={have}-"} if have else {})
    with urlopen(Request(address, headers=headers), timeout=timeout) as response:
        start = _start(response, have, part)
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        with _writing(part):
            file = part.open("ab" if start else "wb")
        with file:
            there = _copy(response, file, start, total, progress)
            os.fsync(file.fileno())  # on the disk before the rename
    if total is not None and there < total:
        raise ConnectionError(f"the connection ended after {there} of {total} bytes")


def _start(response: HTTPResponse, have: int, part: Path) -> int:
    """Where the body begins: servers may send the requested rest, or everything."""
    if response.status != 206:
        return 0
    if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        part.unlink(missing_ok=True)
        raise ConnectionError("the server continued in the wrong place")
    return have


def _copy(
    response: HTTPResponse, file: BinaryIO, there: int, total: int | None, progress: Progress
) -> int:
    progress(there, total)
    # read1 returns what has arrived, so that it is saved even if the rest never does.
    while chunk := response.read1(CHUNK):
        with _writing(Path(file.name)):
            file.write(chunk)
            file.flush()
        there += len(chunk)
        if there > MOST:
            raise DataError(f"{response.url} does not end: gave up after {there} bytes")
        progress(there, total)
    return there


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk is not a network fault: report it at once, without another attempt."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
