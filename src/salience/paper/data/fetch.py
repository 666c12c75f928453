"""Download a data set from its canonical address, verify it, and unpack it.

A download is resumed where it stopped, retried a few times, and has a timeout.
"""

import os
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from salience.errors import DataError
from salience.paper.data.catalogue import (
    Collection,
    Download,
    File,
    condition,
    folder,
    inspect,
    matches,
)

__all__ = ["Progress", "fetch"]

MIRROR = "SALIENCE_MIRROR"  # environment variable: another address with the same file names
TIMEOUT = 30.0  # seconds without data until a connection is dropped
ATTEMPTS = 5
PAUSE = 1.0  # seconds before the second attempt; doubles each time
CHUNK = 1 << 16
MOST = 1 << 30  # bytes; every set is far smaller, so more is a server fault
NOT_SATISFIABLE = 416
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)

# Early releases of Python 3.11 have no filters. Without them nothing is written outside either,
# because we choose the file names; but an archive that tries is not to be trusted.
FILTER = getattr(tarfile, "data_filter", lambda member, _: member)

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far and, where the server says, the total."""


def fetch(
    collection: Collection,
    directory: Path,
    progress: Callable[[str], Progress] = lambda _: lambda _there, _total: None,
) -> list[File]:
    """Download what is missing or damaged into ``directory``; returns those files.

    A file gets its name once its checksum is right; until then it grows as ``NAME.part``, which
    the next call continues. ``progress`` makes a callback for each name that is downloaded.
    """
    target = folder(collection, directory)
    wrong = {path.name for path, state in inspect(collection, directory).items() if state != "ok"}
    lacking = [d for d in collection.downloads if wrong & {file.name for file in d.files}]
    with _writing(target):
        target.mkdir(parents=True, exist_ok=True)
    for each in lacking:
        part = target / f"{each.name}.part"
        _download(each, _address(each), part, progress(each.name))
        if each.inside is None:
            os.replace(part, target / each.files[0].name)
        else:
            _extract(part, each, target)
    return [file for each in lacking for file in each.files]


def _address(each: Download) -> str:
    mirror = os.environ.get(MIRROR)
    if not mirror:
        return each.address
    if not mirror.startswith(("http://", "https://")):
        raise DataError(f"a mirror begins with http:// or https://; got {mirror!r}")
    return f"{mirror.rstrip('/')}/{each.name}"


def _download(each: Download, address: str, part: Path, progress: Progress) -> None:
    """Bring ``part`` to the published content, or delete it."""
    continued = part.exists()
    if matches(part, each.md5):
        return  # stopped between the last byte and the rename
    _request(address, part, progress)
    if matches(part, each.md5):
        return
    part.unlink()
    if not continued:
        raise DataError(
            f"{address} is not the published file, its checksum differs; nothing was kept: "
            f"try again later, or set {MIRROR} to an address that has {each.name}"
        )
    _download(each, address, part, progress)  # the old part may have been the fault


# ---------------------------------------------------------------------------- one file over HTTP


def _request(address: str, part: Path, progress: Progress) -> None:
    """Fetch ``address`` into ``part``; a ``part`` that exists is continued."""
    problem = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            return _transfer(address, part, progress)
        except HTTPError as error:
            problem = _answer(error, address, part)
        except (OSError, HTTPException) as error:  # timeouts and refused connections among them
            problem = str(getattr(error, "reason", error)) or type(error).__name__
    raise DataError(
        f"{address} could not be fetched in {ATTEMPTS} attempts ({problem}): "
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


def _transfer(address: str, part: Path, progress: Progress) -> None:
    """One attempt."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "salience"} | ({"Range": f"bytes={have}-"} if have else {})
    with urlopen(Request(address, headers=headers), timeout=TIMEOUT) as response:
        there = _start(response, have, part)
        length = response.headers.get("Content-Length", "")
        total = there + int(length) if length.isdecimal() else None
        with _writing(part):
            file = part.open("ab" if there else "wb")
        with file:
            progress(there, total)
            for chunk in _chunks(response):
                with _writing(part):
                    file.write(chunk)
                    file.flush()
                there += len(chunk)
                progress(there, total)
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


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    """As they arrive, so that they are saved even if the rest never does."""
    read = 0
    while chunk := response.read1(CHUNK):
        yield chunk
        read += len(chunk)
        if read > MOST:
            raise DataError(f"{response.url} does not end: gave up after {read} bytes")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk is not a network fault: report it at once, without another attempt."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot write to {path}: {error.strerror or error}") from error


# -------------------------------------------------------------------------------------- archives


def _extract(archive: Path, download: Download, target: Path) -> None:
    """Unpack ``download.files`` into ``target``, all of them or none, and delete the archive.

    Refused: archives with any member that points outside (by name or by link), and files that
    are missing, not regular files, or not the published ones.
    """
    with TemporaryDirectory(prefix=".unpacking-", dir=target) as temporary:
        try:
            _unpack(archive, download, Path(temporary))
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise DataError(f"{archive} cannot be unpacked: {error}") from error
        finally:
            archive.unlink()
        for file in download.files:
            if condition(Path(temporary, file.name), file) != "ok":
                raise DataError(f"{archive} does not hold the published {file.name}")
        for file in download.files:
            os.replace(Path(temporary, file.name), target / file.name)


def _unpack(archive: Path, download: Download, to: Path) -> None:
    inside = PurePosixPath(download.inside or ".")  # a path object drops a leading ./
    wanted = {inside / file.name: file for file in download.files}
    with tarfile.open(archive) as members:
        for member in members:
            _refuse_outside(member, archive, to)
            file = wanted.get(PurePosixPath(member.name))
            # The sizes are known, so an archive cannot fill the disk.
            if file and member.isreg() and member.size == file.size:
                content = members.extractfile(member)
                (to / file.name).write_bytes(content.read() if content else b"")


def _refuse_outside(member: tarfile.TarInfo, archive: Path, to: Path) -> None:
    try:
        absolute = PurePosixPath(member.name).is_absolute()
        FILTER(member, str(to))
    except tarfile.TarError as error:
        raise DataError(f"{archive} is refused, nothing was unpacked: {error}") from error
    if absolute:
        raise DataError(f"{archive} is refused, nothing was unpacked: {member.name} is absolute")
