"""One state in one ZIP file, as numpy's .npz: a member per tensor, and one for everything else.

Nothing is compressed, so that the disk sets the pace. ZIP keeps a CRC-32 of every member, and its
directory at the end shows whether a file is complete. Tensors pass in pieces: beside the state
itself, saving and loading take a few megabytes of memory, whatever its size.
"""

import io
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, final

import torch
from torch import Tensor

from salience.checkpoint.tree import BITS, decode, encode
from salience.errors import StateError

__all__ = [
    "Content",
    "Header",
    "Plan",
    "Report",
    "UnreadableError",
    "header",
    "pack",
    "plan",
    "read",
    "unpack",
    "write",
]

FORMAT, VERSION = "salience-checkpoint", 1
INDEX = "checkpoint.json"  # the member for everything that is not a tensor
PIECE = 8 * 2**20  # bytes that are read or written at once
SYNC = 512 * 2**20  # bytes after which the disk has to catch up: progress is that of the disk

Report = Callable[[int], None]  # is told how many bytes of tensors were read or written


@final
class UnreadableError(StateError):
    """A file that is missing, incomplete, damaged, or no checkpoint: an older one may do."""


class Plan(NamedTuple):
    """A state that can be saved."""

    state: Any  # for JSON
    tensors: list[Tensor]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


class Header(NamedTuple):
    """What a checkpoint says about itself."""

    step: int
    token: str | None  # the same for files that were saved together
    nbytes: int


class Content(NamedTuple):
    header: Header
    state: Any


class Spec(NamedTuple):
    """A tensor as its dtype's name and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def npy_header(self) -> bytes:
        """As numpy writes it; compared on reading, never parsed."""
        text = f"{{'descr': '{BITS[self.dtype]}', 'fortran_order': False, 'shape': {self.shape}, }}"
        padded = text + " " * (-(len(text) + 11) % 64) + "\n"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode()

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


# ------------------------------------------------------------------------------------------- write


def plan(state: Any) -> Plan:
    """Everything that can be refused is refused here, before there is a file."""
    tensors: list[Tensor] = []
    return Plan(encode(state, tensors), tensors)


def write(file: BinaryIO, plan: Plan, step: int, token: str | None, report: Report) -> None:
    """Write a whole archive, and see it to the disk."""
    _write(file, plan, step, token, report, partial(os.fsync, file.fileno()))


def pack(state: Any) -> bytes:
    """A whole archive in memory."""
    file = io.BytesIO()
    _write(file, plan(state), 0, None, report=_nothing, sync=_nothing)
    return file.getvalue()


def _nothing(*_: Any) -> None:
    pass


def _write(
    file: BinaryIO,
    plan: Plan,
    step: int,
    token: str | None,
    report: Report,
    sync: Callable[[], None],
) -> None:
    specs = [Spec(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in plan.tensors]
    index = {"format": FORMAT, "version": VERSION, "step": step, "token": token}
    index |= {"tensors": [[spec.dtype, list(spec.shape)] for spec in specs], "state": plan.state}
    # Strings may hold lone surrogates (file names do), which strict UTF-8 refuses.
    text = json.dumps(index, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")
    waiting = 0
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(INDEX), text)
        for i, (spec, tensor) in enumerate(zip(specs, plan.tensors, strict=True)):
            with archive.open(zipfile.ZipInfo(f"{i}.npy"), "w", force_zip64=True) as member:
                member.write(spec.npy_header)
                for piece in _pieces(tensor):
                    member.write(_bytes(piece.resolve_conj().resolve_neg().cpu()))
                    waiting += piece.nbytes
                    if waiting >= SYNC:
                        sync()
                        waiting = 0
                    report(piece.nbytes)
    file.flush()
    sync()


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The values in order, as contiguous tensors of at most ``PIECE`` bytes."""
    if not tensor.numel():
        return
    if tensor.is_contiguous():
        yield from torch.split(tensor.view(-1), PIECE // tensor.element_size())
    elif tensor.nbytes <= PIECE:
        yield tensor.contiguous()
    else:
        for part in torch.split(tensor, max(1, PIECE * len(tensor) // tensor.nbytes)):
            yield from _pieces(part[0] if len(part) == 1 else part)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data


# -------------------------------------------------------------------------------------------- read

DAMAGE: tuple[type[Exception], ...] = (
    *(zipfile.BadZipFile, EOFError, OSError, struct.error, OverflowError, NotImplementedError),
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
)


class Memory(NamedTuple):
    """An archive in memory."""

    content: bytes

    def __str__(self) -> str:
        return "the packed state"


Place = Path | Memory


class Opened(NamedTuple):
    archive: zipfile.ZipFile
    header: Header
    specs: list[Spec]
    state: Any  # as JSON


@contextmanager
def _reading(path: Place, *more: type[Exception]) -> Iterator[None]:
    """What damaged or made-up bytes lead to is one kind of error."""
    try:
        yield
    except StateError:
        raise
    except (*DAMAGE, *more) as error:
        raise UnreadableError(
            f"{path} is incomplete, damaged or no checkpoint ({error})"
        ) from error


def header(path: Path) -> Header:
    """A quick look: of the tensors, only names and sizes are checked."""
    with _opened(path) as opened:
        return opened.header


def unpack(content: bytes) -> Any:
    """What was given to ``pack``, every byte of it verified."""
    return read(Memory(content), _nothing).state


def read(path: Place, report: Report) -> Content:
    """The whole content, every byte of it verified."""
    with _opened(path) as (archive, header, specs, state):
        tensors = {
            i: _read_tensor(archive, f"{i}.npy", spec, path, report) for i, spec in enumerate(specs)
        }
        with _reading(path):
            return Content(header, decode(state, tensors))


@contextmanager
def _opened(path: Place) -> Iterator[Opened]:
    with _open(path) as file:
        with _reading(path, MemoryError):  # the directory of a damaged file may claim any size
            archive = zipfile.ZipFile(file)
        with archive:
            with _reading(path):
                size = file.seek(0, os.SEEK_END)
                index = _read_index(archive, path, size)
                specs = _checked_specs(archive, index)
                opened = Opened(archive, _header(index, specs), specs, index["state"])
            yield opened


def _open(path: Place) -> BinaryIO:
    if isinstance(path, Memory):
        return io.BytesIO(path.content)
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise UnreadableError(f"{path} does not exist") from error
    except PermissionError as error:
        raise StateError(f"{path} may not be read: change its permissions") from error
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read ({error.strerror})") from error


def _read_index(archive: zipfile.ZipFile, path: Place, size: int) -> dict[str, Any]:
    members = archive.infolist()
    if any(m.compress_type or m.flag_bits or m.compress_size != m.file_size for m in members):
        raise ValueError("compressed or encrypted members")
    if sum(m.file_size for m in members) > size:
        raise ValueError("members larger than the file")
    if INDEX not in archive.namelist():
        raise ValueError(f"no {INDEX} in it")
    index = json.loads(archive.read(INDEX).decode("utf-8", "surrogatepass"))
    if index["format"] != FORMAT:
        raise ValueError(f"format {index['format']!r}")
    if index["version"] != VERSION:
        raise StateError(
            f"{path} has version {index['version']!r}, this release reads {VERSION}: "
            f"load it with the release that saved it"
        )
    return dict(index)


def _checked_specs(archive: zipfile.ZipFile, index: dict[str, Any]) -> list[Spec]:
    """Shapes and dtypes that agree with the bytes that are there, so that none can ask for more."""
    specs = [Spec(str(dtype), tuple(shape)) for dtype, shape in index["tensors"]]
    if sorted(archive.namelist()) != sorted([INDEX, *(f"{i}.npy" for i in range(len(specs)))]):
        raise ValueError("members that do not belong together")
    for i, spec in enumerate(specs):
        if spec.dtype not in BITS:
            raise ValueError(f"dtype {spec.dtype!r}")
        if not all(type(n) is int and n >= 0 for n in spec.shape) or len(spec.shape) > 64:
            raise ValueError(f"shape {spec.shape}")
        if math.prod(max(n, 1) for n in spec.shape) * spec.torch_dtype.itemsize >= 2**63:
            raise ValueError(f"shape {spec.shape}")
        if archive.getinfo(f"{i}.npy").file_size != len(spec.npy_header) + spec.nbytes:
            raise ValueError(f"tensor {i} has another size than its shape")
    return specs


def _header(index: dict[str, Any], specs: list[Spec]) -> Header:
    step, token = index["step"], index["token"]
    if type(step) is not int or not isinstance(token, str | None):
        raise ValueError(f"step {step!r} and token {token!r}")
    return Header(step, token, sum(spec.nbytes for spec in specs))


def _read_tensor(
    archive: zipfile.ZipFile, name: str, spec: Spec, path: Place, report: Report
) -> Tensor:
    tensor = torch.empty(spec.shape, dtype=spec.torch_dtype, device="cpu")
    room = _bytes(tensor)
    with _reading(path):
        member = archive.open(name)
    with member:
        with _reading(path):
            if member.read(len(spec.npy_header)) != spec.npy_header:
                raise ValueError(f"{name} begins with another header")
        for start in range(0, len(room), PIECE):
            piece = room[start : start + PIECE]
            with _reading(path):
                _fill(piece, member)
            report(len(piece))
        with _reading(path):
            member.read(1)  # at the end the checksum is compared
    return tensor


def _fill(room: memoryview, member: Any) -> None:
    while room:
        count = member.readinto(room)
        if not count:
            raise EOFError("it ends early")
        room = room[count:]
