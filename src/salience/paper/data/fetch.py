"""Download a data set from its canonical address, verify it, and unpack it."""

import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from salience.errors import DataError
from salience.paper.data.catalogue import Collection, Download, File, condition, folder, matches
from salience.paper.data.download import Patience, Progress, download

__all__ = ["extract", "fetch"]

MIRROR = "SALIENCE_MIRROR"  # environment variable

# Early releases of Python 3.11 have no filters. Without them nothing is written outside either,
# because we choose the file names; but an archive that tries is not to be trusted.
FILTER = getattr(tarfile, "data_filter", lambda member, _: member)


def fetch(
    collection: Collection,
    directory: Path,
    *,
    mirror: str | None = None,
    patience: Patience | None = None,
    progress: Callable[[str], Progress] = lambda _: lambda _there, _total: None,
) -> list[File]:
    """Download what is missing or damaged into ``directory``; returns those files.

    A file gets its name once its checksum is right; until then it grows as ``NAME.part``, which
    the next call continues. ``mirror`` is another address with the same file names (default:
    ``SALIENCE_MIRROR``); ``progress`` makes a callback for each name that is downloaded.
    """
    target = folder(collection, directory)
    lacking = [each for each in collection.downloads if not _complete(each, target)]
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write to {target}: {error.strerror or error}") from error
    for each in lacking:
        part = target / f"{each.name}.part"
        address = _address(each, mirror or os.environ.get(MIRROR))
        _download(each, address, part, patience or Patience(), progress(each.name))
        _install(each, part, target)
    return [file for each in lacking for file in each.files]


def _complete(each: Download, target: Path) -> bool:
    return all(condition(target / file.name, file, thorough=True) == "ok" for file in each.files)


def _address(each: Download, mirror: str | None) -> str:
    if not mirror:
        return each.address
    if not mirror.startswith(("http://", "https://")):
        raise DataError(f"a mirror begins with http:// or https://; got {mirror!r}")
    return f"{mirror.rstrip('/')}/{each.name}"


def _download(
    each: Download, address: str, part: Path, patience: Patience, progress: Progress
) -> None:
    """Bring ``part`` to the published content, or delete it."""
    continued = part.exists()
    if matches(part, each.md5):
        return  # stopped between the last byte and the rename
    download(address, part, patience, progress)
    if matches(part, each.md5):
        return
    part.unlink()
    if not continued:
        raise DataError(
            f"{address} is not the published file, its checksum differs; nothing was kept: "
            f"try again later, or set {MIRROR} to an address that has {each.name}"
        )
    _download(each, address, part, patience, progress)  # the old part may have been the fault


def _install(each: Download, part: Path, target: Path) -> None:
    if each.inside is None:
        os.replace(part, target / each.files[0].name)
        return
    try:
        extract(part, each, target)
    finally:
        part.unlink()


def extract(archive: Path, download: Download, target: Path) -> None:
    """Unpack ``download.files`` into ``target``, all of them or none.

    Refused: archives with any member that points outside (by name or by link), and files that
    are missing, not regular files, or not the published ones.
    """
    with TemporaryDirectory(prefix=".unpacking-", dir=target) as temporary:
        try:
            _unpack(archive, download, Path(temporary))
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise DataError(f"{archive} cannot be unpacked: {error}") from error
        for file in download.files:
            if condition(Path(temporary, file.name), file, thorough=True) != "ok":
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
                _write(members, member, to / file.name)


def _refuse_outside(member: tarfile.TarInfo, archive: Path, to: Path) -> None:
    try:
        absolute = PurePosixPath(member.name).is_absolute()
        FILTER(member, str(to))
    except tarfile.TarError as error:
        raise DataError(f"{archive} is refused, nothing was unpacked: {error}") from error
    if absolute:
        raise DataError(f"{archive} is refused, nothing was unpacked: {member.name} is absolute")


def _write(members: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = members.extractfile(member)
    assert content is not None  # a regular file
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)
        os.fsync(file.fileno())
