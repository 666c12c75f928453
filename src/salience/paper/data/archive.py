"""Take known files out of a tar archive, and nothing else."""

import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from salience.errors import DataError
from salience.paper.data.catalogue import Download, File, condition

__all__ = ["extract"]

# Early releases of Python 3.11 have no filters. Nothing is written outside without them either,
# because we write under names of our own; but an archive that tries is not to be trusted.
FILTER = getattr(tarfile, "data_filter", lambda member, _: member)


def extract(archive: Path, download: Download, target: Path) -> None:
    """Put ``download.files`` into ``target``, all of them or none.

    Refused: archives with any member that points outside (by name or by link), files that are
    missing, not ordinary files, or not the published ones.
    """
    with TemporaryDirectory(prefix=".unpacking-", dir=target) as temporary:
        try:
            _unpack(archive, _wanted(download), Path(temporary))
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise DataError(f"{archive} cannot be unpacked: {error}") from error
        for file in download.files:
            if condition(Path(temporary, file.name), file, thorough=True) != "ok":
                raise DataError(f"{archive} does not hold the published {file.name}")
        for file in download.files:
            os.replace(Path(temporary, file.name), target / file.name)


def _wanted(download: Download) -> dict[PurePosixPath, File]:
    """Files by their path in the archive; a leading ``./`` means nothing."""
    inside = PurePosixPath(download.inside or ".")
    return {inside / file.name: file for file in download.files}


def _unpack(archive: Path, wanted: dict[PurePosixPath, File], to: Path) -> None:
    with tarfile.open(archive) as members:
        for member in members:
            _refuse_outside(member, archive, to)
            file = wanted.get(PurePosixPath(member.name))
            # Their sizes are known, so an archive cannot fill the disk with them.
            if file and member.isreg() and member.size == file.size:
                _take(members, member, to / file.name)


def _refuse_outside(member: tarfile.TarInfo, archive: Path, to: Path) -> None:
    try:
        absolute = PurePosixPath(member.name).is_absolute()
        FILTER(member, str(to))
    except tarfile.TarError as error:
        raise DataError(f"{archive} is refused, nothing was unpacked: {error}") from error
    if absolute:
        raise DataError(f"{archive} is refused, nothing was unpacked: {member.name} is absolute")


def _take(members: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = members.extractfile(member)
    assert content is not None  # an ordinary file
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)
        os.fsync(file.fileno())
