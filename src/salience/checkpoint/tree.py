"""A nested state as values that JSON holds exactly, beside a list of tensors; and back."""

import json
import math
import struct
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from salience.errors import ArgumentError

__all__ = ["BITS", "decode", "encode"]

DEPTH = 64  # of nesting; a state that contains itself is deeper
SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple"}
MAPPINGS: dict[type, str] = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
PLAIN = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
RAW = {
    "bfloat16": "uint16",
    "complex32": "uint32",
    **{f"float8_{kind}": "uint8" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")},
}
# What numpy calls the bits of each dtype, by the dtype's name in torch.
BITS = {name: np.dtype(name).str for name in PLAIN}
BITS |= {name: np.dtype(bits).str for name, bits in RAW.items() if hasattr(torch, name)}


def encode(value: Any, tensors: list[Tensor], place: str = "state", depth: int = 0) -> Any:
    """``value`` for JSON; its tensors are appended to ``tensors`` and named by their position.

    Everything but None, bool, str and ordinary numbers is an object ``{kind: content}``.
    """
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if value.bit_length() < 64 else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
    if depth > DEPTH:
        raise ArgumentError(f"the state is nested more than {DEPTH} deep, or contains itself")
    if kind in SEQUENCES:
        parts = (encode(v, tensors, f"{place}[{i}]", depth + 1) for i, v in enumerate(value))
        return {SEQUENCES[kind]: list(parts)}
    if kind in MAPPINGS:
        return _encode_mapping(value, tensors, place, depth)
    if isinstance(value, np.ndarray | np.generic):
        tensors.append(_from_numpy(value, place))
        return {"array" if isinstance(value, np.ndarray) else "scalar": len(tensors) - 1}
    if isinstance(value, Tensor):
        tensors.append(_checked(value, place))
        return {"tensor": len(tensors) - 1}
    raise ArgumentError(
        f"{place} is a {kind.__name__}: save tensors, numbers, strings, None, and dicts, lists "
        f"and tuples of these"
    )


def _encode_mapping(value: Any, tensors: list[Tensor], place: str, depth: int) -> Any:
    pairs = []
    for key, each in value.items():
        if type(key) not in (str, int):
            raise ArgumentError(f"{place} has the key {key!r}: keys are strings or whole numbers")
        inner = f"{place}[{json.dumps(key) if type(key) is str else key}]"
        pairs.append([encode(key, tensors), encode(each, tensors, inner, depth + 1)])
    node = {MAPPINGS[type(value)]: pairs}
    if (metadata := getattr(value, "_metadata", None)) is not None:  # of modules: their versions
        node["metadata"] = encode(metadata, tensors, f"{place}._metadata", depth + 1)
    return node


def _checked(tensor: Tensor, place: str) -> Tensor:
    """Refuse tensors that are more than strided values: sparse, quantized, sharded, fake."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    if not plain or tensor.is_meta or dtype not in BITS:
        what = f"{type(tensor).__name__} ({dtype}, {tensor.layout}, on {tensor.device})"
        raise ArgumentError(f"{place} is a {what}: save it as an ordinary dense tensor")
    return tensor.detach()


def _from_numpy(value: Any, place: str) -> Tensor:
    array = np.asarray(value)
    exact = array.dtype.isnative and array.dtype.name in PLAIN
    if not exact or type(value) not in (np.ndarray, array.dtype.type):
        what = f"{type(value).__name__} of dtype {array.dtype}"
        raise ArgumentError(f"{place} is a {what}: save an ordinary array of numbers")
    # torch takes neither of these.
    usable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if usable else array.copy())


def decode(node: Any, tensors: dict[int, Tensor]) -> Any:
    """What ``encode`` was given. Takes each tensor out of ``tensors``, so that none comes twice."""
    if isinstance(node, list):
        raise ValueError("a list without its kind")
    if not isinstance(node, dict):
        return node
    metadata = node.pop("metadata", None)
    [(kind, content)] = node.items()
    if kind in SEQUENCES.values():
        parts = (decode(each, tensors) for each in content)
        return list(parts) if kind == "list" else tuple(parts)
    if kind in MAPPINGS.values():
        pairs = ((decode(key, tensors), decode(each, tensors)) for key, each in content)
        found = next(make for make, name in MAPPINGS.items() if name == kind)(dict(pairs))
        if metadata is not None:
            found._metadata = decode(metadata, tensors)
        return found
    return _decode_leaf(kind, content, tensors)


def _decode_leaf(kind: str, content: Any, tensors: dict[int, Tensor]) -> Any:
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return struct.unpack(">d", bytes.fromhex(content))[0]
    if kind in ("tensor", "array", "scalar"):
        tensor = tensors.pop(content)
        return tensor if kind == "tensor" else tensor.numpy()[() if kind == "scalar" else ...]
    raise ValueError(f"unknown kind {kind!r}")
