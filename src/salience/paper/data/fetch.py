"""Download the paper's data sets, each from its canonical address, and check what is there."""

import os
from collections.abc import Callable
from pathlib import Path

from salience.errors import DataError
from salience.paper.data.archive import extract
from salience.paper.data.catalogue import (
    Collection,
    Condition,
    Download,
    File,
    condition,
    folder,
    matches,
)
from salience.paper.data.download import Patience, Progress, download

__all__ = ["fetch", "inspect"]

MIRROR = "SALIENCE_MIRROR"  # environment variable


def fetch(
    collection: Collection,
    directory: Path,
    *,
    mirror: str | None = None,
    patience: Patience | None = None,
    progress: Callable[[str], Progress] = lambda _: _silent,
) -> list[File]:
    """Bring a data set into ``directory``; the files that were missing or damaged.

    What is there and right stays. A file gets its name once its checksum is right; until then it
    grows as ``NAME.part``, which the next call continues. ``mirror`` is another address that has
    the same file names (default: ``SALIENCE_MIRROR``), and ``progress`` gives a callback for each
    name that is downloaded.
    """
    target = folder(collection, directory)
    lacking = [
        each
        for each in collection.downloads
        if any(condition(target / file.name, file, thorough=True) != "ok" for file in each.files)
    ]
    _make(target)
    for each in lacking:
        part = target / f"{each.name}.part"
        address = _address(each, mirror or os.environ.get(MIRROR))
        _complete(each, address, part, patience or Patience(), progress(each.name))
        _install(each, part, target)
    return [file for each in lacking for file in each.files]


def inspect(collection: Collection, directory: Path, *, thorough: bool) -> dict[Path, Condition]:
    """The condition of each file of a data set: by size, or ``thorough`` by checksum as well."""
    place = folder(collection, directory)
    return {
        place / file.name: condition(place / file.name, file, thorough=thorough)
        for file in collection.files
    }


def _complete(
    each: Download, address: str, part: Path, patience: Patience, progress: Progress
) -> None:
    """Bring ``part`` to what was published, or leave nothing of it."""
    continued = part.exists()
    if matches(part, each.md5):
        return  # stopped between the last byte and the new name
    download(address, part, patience, progress)
    if matches(part, each.md5):
        return
    part.unlink()
    if not continued:
        raise DataError(
            f"{address} is not the published file, its checksum differs; nothing was kept: "
            f"try again later, or set {MIRROR} to an address that has {each.name}"
        )
    _complete(each, address, part, patience, progress)  # what lay there may have been the fault


def _install(each: Download, part: Path, target: Path) -> None:
    if each.inside is None:
        os.replace(part, target / each.files[0].name)
        return
    try:
        extract(part, each, target)
    finally:
        part.unlink()


def _address(each: Download, mirror: str | None) -> str:
    if not mirror:
        return each.address
    if not mirror.startswith(("http://", "https://")):
        raise DataError(f"a mirror begins with http:// or https://; got {mirror!r}")
    return f"{mirror.rstrip('/')}/{each.name}"


def _make(target: Path) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write to {target}: {error.strerror or error}") from error


def _silent(there: int, total: int | None) -> None:
    pass
