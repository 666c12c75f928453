"""The paper's data sets: files, checksums, canonical addresses, and where they are stored."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from salience.errors import ArgumentError, DataError

__all__ = [
    *("CATALOGUE", "Collection", "Condition", "Download", "File", "checked", "collection"),
    *("condition", "data_dir", "folder", "inspect", "matches"),
]

DIRECTORY = "SALIENCE_DATA"  # environment variable

Condition = Literal["ok", "missing", "damaged"]


@dataclass(frozen=True)
class File:
    """One published file."""

    name: str
    size: int
    md5: str


@dataclass(frozen=True)
class Download:
    """One address: a single file, or an archive with ``files`` in its folder ``inside``."""

    address: str
    md5: str
    files: tuple[File, ...]
    inside: str | None = None

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]


@dataclass(frozen=True)
class Collection:
    """A data set, in the one of ``folders`` that has most of its files; if new, in the first."""

    about: str
    licence: str
    folders: tuple[str, ...]
    downloads: tuple[Download, ...]

    @property
    def files(self) -> tuple[File, ...]:
        return tuple(file for download in self.downloads for file in download.files)


_MNIST = (
    File("train-images-idx3-ubyte.gz", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    File("train-labels-idx1-ubyte.gz", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
    File("t10k-images-idx3-ubyte.gz", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
    File("t10k-labels-idx1-ubyte.gz", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
)
_MNIST_BASE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CIFAR10 = (
    File("data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
    File("data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
    File("data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
    File("data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
    File("data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
    File("test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
)
_PTB = (
    File("ptb.train.txt", 5_101_618, "f26c4b92c5fdc7b3f8c7cdcb991d8420"),
    File("ptb.valid.txt", 399_782, "aa0affc06ff7c36e977d7cd49e3839bf"),
    File("ptb.test.txt", 449_945, "8b80168b89c18661a38ef683c0dc3721"),
)
CATALOGUE = {
    "mnist": Collection(
        "70,000 hand-written digits, 28 x 28",
        "none stated",
        ("mnist", "MNIST/raw"),
        tuple(Download(_MNIST_BASE + file.name, file.md5, (file,)) for file in _MNIST),
    ),
    "cifar10": Collection(
        "60,000 colour images, 32 x 32",
        "cite Krizhevsky (2009)",
        ("cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
        (
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                _CIFAR10,
                inside="cifar-10-batches-bin",
            ),
        ),
    ),
    "ptb": Collection(
        "a million words of news",
        "free for research",
        ("ptb", "simple-examples/data"),
        (
            Download(
                "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                "30177ea32e27c525793142b6bf2c8e2d",
                _PTB,
                inside="simple-examples/data",
            ),
        ),
    ),
}


def collection(name: str) -> Collection:
    """The data set of that name."""
    if name not in CATALOGUE:
        known = ", ".join(CATALOGUE)
        raise ArgumentError(f"there is no data set {name!r}: choose from {known}")
    return CATALOGUE[name]


def data_dir(given: str | Path | None = None) -> Path:
    """The given directory, or else the one that ``SALIENCE_DATA`` names."""
    chosen = given or os.environ.get(DIRECTORY)
    if not chosen:
        raise DataError(f"no data directory was given: pass --data-dir DIR, or set {DIRECTORY}")
    return Path(chosen).expanduser()


def folder(collection: Collection, directory: Path) -> Path:
    """The folder below ``directory`` that holds the data set, or would."""

    def present(place: Path) -> int:
        return sum((place / file.name).is_file() for file in collection.files)

    return max((directory / name for name in collection.folders), key=present)


def inspect(
    collection: Collection, directory: Path, *, thorough: bool = True
) -> dict[Path, Condition]:
    """The condition of each file of a data set: by size, or ``thorough`` by checksum as well."""
    place = folder(collection, directory)
    return {
        place / file.name: condition(place / file.name, file, thorough=thorough)
        for file in collection.files
    }


def checked(name: str, given: str | Path | None, wanted: Iterable[str]) -> list[Path]:
    """Paths of the ``wanted`` files of a data set, each verified by its published checksum."""
    chosen, directory = collection(name), data_dir(given)
    files, place = {file.name: file for file in chosen.files}, folder(chosen, directory)
    for each in wanted:
        found = condition(place / each, files[each])
        if found != "ok":
            wrong = "missing: get" if found == "missing" else "not the published file: replace"
            remedy = f"`salience data fetch {name} --data-dir {directory}`"
            raise DataError(f"{place / each} is {wrong} it with {remedy}")
    return [place / each for each in wanted]


def condition(path: Path, file: File, *, thorough: bool = True) -> Condition:
    """Whether ``path`` is ``file``: by its size, and ``thorough`` by its checksum as well."""
    if not path.is_file():
        return "missing"
    same = path.stat().st_size == file.size and (not thorough or matches(path, file.md5))
    return "ok" if same else "damaged"


def matches(path: Path, md5: str) -> bool:
    """Whether there is such a file with that checksum."""
    if not path.is_file():
        return False
    with path.open("rb") as content:
        # Against accidents, not attacks: the publishers give no stronger checksum.
        digest = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False))
    return digest.hexdigest() == md5
