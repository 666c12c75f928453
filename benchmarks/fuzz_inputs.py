"""Damaged and made-up inputs: bytes, JSON and nested states, changed at random.

Everything follows from the ``random.Random`` that is given.
"""

import json
import math
import struct
import zlib
from copy import deepcopy
from random import Random
from typing import Any

import torch

__all__ = ["Edit", "applied", "edit_of", "gzipped", "mutated", "mutated_json", "stored_zip"]

LARGEST = 1 << 16  # bytes of an input
NUMBERS = (0, 1, 2, 7, 8, 127, 128, 255, 256, 4095, 65535, 2**31 - 1, 2**31, 2**32 - 1)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30),
    *(10**400, 0.5, -0.0, 1e-320, 1e38, 1e308, -1e308, math.nan, math.inf, -math.inf),
    *("", "x", "0", "nan", "-1", "uniform", "\x00", "\ud800", "a" * 300, [], {}, [[]], [0], [None]),
    *({"": 0}, {"tensor": 0}, {"list": []}, {"dict": [["a", 1]]}, [1e308, 1e308], "\u2028"),
)


# ------------------------------------------------------------------------------------------- bytes


def mutated(rng: Random, content: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    """One to four changes of ``content``; some bring in parts of ``other``, or of ``words``."""
    changed = bytearray(content)
    for _ in range(1 + int(rng.expovariate(0.8)) % 4):
        rng.choice(CHANGES)(rng, changed, other, words)
    return bytes(changed[:LARGEST])


def _span(rng: Random, size: int) -> tuple[int, int]:
    """Short ones more often."""
    start = rng.randrange(size + 1)
    return start, min(size, start + int(rng.expovariate(0.1)) + 1)


def _flip(rng: Random, content: bytearray, *_: Any) -> None:
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _set(rng: Random, content: bytearray, *_: Any) -> None:
    if content:
        content[rng.randrange(len(content))] = rng.choice(NUMBERS) & 255


def _number(rng: Random, content: bytearray, *_: Any) -> None:
    """Of one, two, four or eight bytes, in either order."""
    kind = rng.choice(("<B", "<H", ">H", "<I", ">I", "<Q", ">Q"))
    raw = struct.pack(kind, rng.choice(NUMBERS) & (1 << 8 * struct.calcsize(kind)) - 1)
    at = rng.randrange(len(content) + 1)
    content[at : at + len(raw)] = raw


def _remove(rng: Random, content: bytearray, *_: Any) -> None:
    start, stop = _span(rng, len(content))
    del content[start:stop]


def _cut(rng: Random, content: bytearray, *_: Any) -> None:
    del content[rng.randrange(len(content) + 1) :]


def _repeat(rng: Random, content: bytearray, *_: Any) -> None:
    start, stop = _span(rng, len(content))
    content[start:start] = content[start:stop] * rng.randrange(1, 9)


def _noise(rng: Random, content: bytearray, *_: Any) -> None:
    start, stop = _span(rng, len(content))
    content[start:stop] = rng.randbytes(rng.randrange(16))


def _word(rng: Random, content: bytearray, _: bytes, words: tuple[bytes, ...]) -> None:
    start, stop = _span(rng, len(content))
    content[start : rng.choice((start, stop))] = rng.choice(words)


def _splice(rng: Random, content: bytearray, other: bytes, _: tuple[bytes, ...]) -> None:
    start, stop = _span(rng, len(content))
    first, last = _span(rng, len(other))
    content[start:stop] = other[first:last]


CHANGES = (_flip, _flip, _set, _number, _number, _remove, _cut, _repeat, _noise, _word, _splice)


def gzipped(content: bytes) -> bytes:
    """A valid gzip file, stored without compression in a fraction of its time."""
    blocks = b"".join(
        struct.pack("<BHH", start + 65535 >= len(content), len(part), len(part) ^ 0xFFFF) + part
        for start in range(0, max(len(content), 1), 65535)
        for part in (content[start : start + 65535],)
    )
    end = struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF)
    return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" + blocks + end


def stored_zip(members: list[tuple[str, bytes]]) -> bytes:
    """A valid ZIP file without compression: what is in it can be wrong all the same."""
    body, directory = bytearray(), bytearray()
    for name, content in members:
        raw, at = name.encode(), len(body)
        sizes = struct.pack("<III", zlib.crc32(content), len(content), len(content))
        common = struct.pack("<HHHHH", 20, 0, 0, 0, 0x21) + sizes + struct.pack("<HH", len(raw), 0)
        body += b"PK\x03\x04" + common + raw + content
        directory += b"PK\x01\x02\x14\x00" + common + struct.pack("<HHHII", 0, 0, 0, 0, at) + raw
    counts = struct.pack("<HHII", len(members), len(members), len(directory), len(body))
    return bytes(body + directory) + b"PK\x05\x06\x00\x00\x00\x00" + counts + b"\x00\x00"


# -------------------------------------------------------------------------------------------- JSON


def mutated_json(rng: Random, text: bytes) -> bytes:
    """JSON with one to three values changed."""
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = _changed(rng, value)
    return json.dumps(value).encode()


def _changed(rng: Random, value: Any) -> Any:
    """The same with a value somewhere in it replaced, left out, repeated or wrapped."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        action = rng.random()
        if action < 0.1:
            del value[key]
        elif action < 0.15 and isinstance(value, list):
            value += value[key : key + 1] * rng.choice((1, 2, 40))
        elif action < 0.15:
            value[rng.choice(("", "method", "state", "0"))] = value.pop(key)
        else:
            value[key] = _changed(rng, value[key])
        return value
    if rng.random() < 0.1:
        return _nested(value, rng.choice((1, 3, 70, 400)))
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < 0.3:
        return value + (rng.choice((-1, 0.5)) if isinstance(value, float) else rng.choice((-1, 9)))
    return deepcopy(rng.choice(VALUES))


def _nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


# ------------------------------------------------------------------------------------------ states

Edit = list[Any]  # [path, what, number]: plain values, so that a failure can be written down

TENSORS = ("fill", "one", "cut", "longer", "dtype", "shape", "meta", "shuffled")
DTYPES = (torch.int64, torch.float32, torch.float64, torch.uint8, torch.bool, torch.int32)
FILLS = (0, 1, -1, 7, 2**31, 2**40, math.nan, math.inf, -math.inf, 1e38, 1e-38, 0.5)


def edit_of(rng: Random, state: Any) -> Edit:
    """One change of a nested state of dicts, lists, tuples, tensors and plain values."""
    path: list[Any] = []
    while isinstance(state, dict | list | tuple) and state and (not path or rng.random() < 0.93):
        key = rng.choice(list(state)) if isinstance(state, dict) else rng.randrange(len(state))
        path.append(key)
        state = state[key]
    whats = ["replaced", "removed"]
    if isinstance(state, torch.Tensor):
        whats += [*TENSORS, *TENSORS]
    elif isinstance(state, dict | list | tuple):
        whats += ["repeated", "swapped"]
    elif isinstance(state, int | float):
        whats += ["moved", "moved"]
    return [path, rng.choice(whats), rng.randrange(2**16)]


def applied(state: Any, edits: list[Edit]) -> Any:
    """``state`` with these changes; what is not changed is shared with it."""
    for path, what, number in edits:
        state = _edited(state, path, what, number)
    return state


def _edited(state: Any, path: list[Any], what: str, number: int) -> Any:
    if not path:
        return _replaced(state, what, number)
    key, *rest = path
    if isinstance(state, dict) and key in state:
        if what == "removed" and not rest:
            return {k: v for k, v in state.items() if k != key}
        return {**state, key: _edited(state[key], rest, what, number)}
    if isinstance(state, list | tuple) and isinstance(key, int) and key < len(state):
        parts = list(state)
        if what == "removed" and not rest:
            del parts[key]
        else:
            parts[key] = _edited(parts[key], rest, what, number)
        return parts if isinstance(state, list) else tuple(parts)
    return state  # an earlier edit has changed the shape


def _replaced(value: Any, what: str, number: int) -> Any:
    if isinstance(value, torch.Tensor) and what in TENSORS:
        return _tensor(value, what, number)
    if what == "repeated" and isinstance(value, list | tuple):
        return list(value) * (2 + number % 3)
    if what == "swapped" and isinstance(value, list | tuple | dict):
        return dict(enumerate(value)) if isinstance(value, list | tuple) else list(value.items())
    if what == "moved" and isinstance(value, int | float):
        by = (-1, 1, 2, -7, 10**6, 2**40, 0.5, -0.5)[number % 8]
        return value + (by if isinstance(value, float) else int(by))
    return deepcopy(VALUES[number % len(VALUES)])


def _tensor(tensor: torch.Tensor, what: str, number: int) -> torch.Tensor:
    if what == "meta" or tensor.is_meta:
        return tensor.to("meta")
    if what == "dtype":
        return tensor.to(DTYPES[number % len(DTYPES)])
    if what == "shape":
        return (tensor.reshape(-1, 1), tensor[None], tensor.new_zeros(()))[number % 3]
    if what == "cut":
        return tensor[: number % max(len(tensor), 1)] if tensor.ndim else tensor
    if what == "longer":
        return torch.cat([tensor, tensor]) if tensor.ndim else tensor
    if what == "shuffled":
        return tensor.flip(0) if tensor.ndim else tensor
    fill = FILLS[number % len(FILLS)]
    if not tensor.is_floating_point():
        fill = int(fill) if math.isfinite(fill) and -(2**63) <= fill < 2**63 else 2**62
        limits = None if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype)
        fill = bool(fill) if limits is None else min(max(fill, limits.min), limits.max)
    else:
        fill = torch.tensor(fill, dtype=torch.float64).to(tensor.dtype).item()
    if what == "fill" or not tensor.numel():
        return torch.full_like(tensor, fill)
    changed = tensor.clone()
    changed.view(-1)[number % tensor.numel()] = fill
    return changed
