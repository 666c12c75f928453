"""Any collated batch: move it, measure it, pick examples out of it.

A batch is a tensor or array with the examples first, or a mapping, named tuple, dataclass, list or
tuple of such parts: its columns. A list or tuple may instead have one entry per example, as in
detection targets and ragged sequences. ``Layout`` tells the two apart.
"""

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from functools import cached_property, reduce
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from salience.errors import ArgumentError

__all__ = ["Layout", "map_tensors", "move", "pick", "pieces", "pool_size", "with_items"]

Path = tuple[Any, ...]
SCALARS = (str, bytes, int, float, complex, type(None))


@final
class Layout:
    """Which lists of a batch have columns, and which one entry per example.

    A list of another length than the pool has columns, and so has one whose entries differ in kind
    and all have the examples first. A list as long as the pool has one entry per example where the
    entries cannot be columns. Where both are possible, earlier batches and then the batch of a
    single example decide: ``one()`` collates one, and is called at most once. Without it, there is
    an error and no guess.
    """

    def __init__(self, one: Callable[[], Any] | None = None) -> None:
        self._one = one
        self.known: dict[Path, bool] = {}  # has one entry per example

    def per_example(self, part: Any, size: int, path: Path) -> bool:
        """Whether the list or tuple at ``path`` has one entry per example of ``size``."""
        if len(part) != size:
            self.known[path] = False
        elif path not in self.known:
            self.known[path] = self._decide(part, size, path)
        return self.known[path]

    def _decide(self, part: Any, size: int, path: Path) -> bool:
        answers = [_holds(entry, size) for entry in part]
        if False in answers or True not in answers:
            return True
        if len({_kind(entry) for entry in part if entry is not None}) > 1:
            return False
        return None in answers or self._ask(part, size, path)

    def _ask(self, part: Any, size: int, path: Path) -> bool:
        if self._one is not None and size > 1:
            return len(reduce(_child, path, self._of_one)) != size
        raise ArgumentError(
            f"cannot tell whether {_name(path)}, a {type(part).__name__} of {size} entries of "
            f"{size}, has columns or one entry per example of the pool of {size}: collate columns "
            "into a dict or a named tuple, or take pools of another size"
        )

    @cached_property
    def _of_one(self) -> Any:
        assert self._one is not None
        return self._one()


def move(batch: Any, device: torch.device) -> Any:
    """The same nesting with every tensor on ``device``."""
    return map_tensors(lambda x: x.to(device, non_blocking=True), batch)


def pool_size(batch: Any, layout: Layout | None = None) -> int:
    """How many examples a collated pool has: the one length that all its parts agree on.

    Where several would do, the innermost. ``layout``: what earlier pools have shown.
    """
    for path, per_example in (layout.known if layout else {}).items():
        if per_example:
            return len(reduce(_child, path, batch))
    lengths = list(_lengths(batch))
    if lengths:
        # Where nothing fits, ``pick`` names the part that does not.
        return next((n for n in lengths if _holds(batch, n)), lengths[0])
    raise ArgumentError(
        f"cannot tell how many examples a pool of type {type(batch).__name__} holds: "
        f"it has no tensor with an example dimension"
    )


def pick(batch: Any, positions: Tensor, size: int, layout: Layout | None = None) -> Any:
    """The examples at ``positions`` of a pool of ``size``, in the pool's own nesting.

    Numbers, strings and None that stand alone belong to all examples and stay. Only lists of
    Python objects need the positions on the host: with those, an accelerator is waited for.
    ``layout``: the same object for all batches of one loader.
    """
    if size == len(positions) == 1:
        return batch
    return _pick(batch, positions, size, layout or Layout(), ())


def pieces(batch: Any, n: int, size: int) -> list[tuple[Any, int]]:
    """A batch of ``n`` examples in views of at most ``size``, and how many each has.

    Whole where not all of its parts are tensors with the examples first.
    """
    if n <= size or not _only_columns(batch, n):
        return [(batch, n)]
    cuts = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    return [(map_tensors(operator.itemgetter(cut), batch), cut.stop - cut.start) for cut in cuts]


def _only_columns(part: Any, n: int) -> bool:
    """Whether every part is a dense tensor of ``n`` examples, or the same for all."""
    if isinstance(part, Tensor):
        return part.layout is torch.strided and _holds(part, n) is True
    if (items := _items(part)) is None:
        return isinstance(part, SCALARS)
    may_be_examples = _is_list(part) and len(part) == n
    return not may_be_examples and all(_only_columns(entry, n) for entry in items.values())


def _pick(batch: Any, positions: Tensor, size: int, layout: Layout, path: Path) -> Any:
    if isinstance(batch, Tensor | np.ndarray):
        _refuse_shape(batch, size, path)
        if isinstance(batch, Tensor):
            return batch.index_select(0, positions.to(batch.device, non_blocking=True))
        return batch[positions.cpu().numpy()]
    if _is_list(batch) and layout.per_example(batch, size, path):
        chosen = [batch[i] for i in positions.tolist()]
        return chosen if isinstance(batch, list) else tuple(chosen)
    if isinstance(batch, SCALARS):
        return batch
    if _items(batch) is not None:
        go = lambda key, part: _pick(part, positions, size, layout, (*path, key))  # noqa: E731
        return _rebuilt(batch, go)
    raise ArgumentError(
        f"cannot pick examples from {_name(path)} of type {type(batch).__name__}: collate into "
        f"tensors, lists, tuples or dicts, or use a score known by index ('history', 'approx')"
    )


def _refuse_shape(part: Any, size: int, path: Path) -> None:
    if not _holds(part, size):
        raise ArgumentError(
            f"cannot pick examples from {_name(path)} of shape {list(part.shape)}: the first "
            f"dimension must be the {size} examples of the pool; collate it that way, or use a "
            f"score known by index ('history', 'approx')"
        )


# ---------------------------------------------------------------------------------- structure


def _is_list(part: Any) -> bool:
    """A list or tuple without names, which may have columns or examples."""
    return isinstance(part, list | tuple) and not hasattr(part, "_fields")


def _holds(part: Any, size: int) -> bool | None:
    """Whether ``part`` can be ``size`` examples; None: it is the same for all."""
    if isinstance(part, Tensor | np.ndarray):
        return part.ndim > 0 and len(part) == size
    if isinstance(part, SCALARS):
        return None
    if _is_list(part) and len(part) == size:
        return True
    if (items := _items(part)) is None:
        return False
    answers = {_holds(entry, size) for entry in items.values()}
    return None if answers <= {None} else False not in answers


def _kind(part: Any) -> Any:
    """What the entries of a list have in common if they are examples of one dataset."""
    if isinstance(part, Tensor | np.ndarray):
        return type(part), part.dtype, part.ndim
    if _is_list(part):
        return type(part), frozenset(map(_kind, part))
    return type(part)


def _lengths(part: Any) -> Iterator[int]:
    """The lengths along the way to the first tensor, the innermost first."""
    if isinstance(part, Tensor | np.ndarray):
        yield from part.shape[:1]
        return
    lengths = (list(_lengths(entry)) for entry in (_items(part) or {}).values())
    if inner := next(filter(None, lengths), []):
        yield from inner
        yield from [len(part)] if _is_list(part) else []


def _name(path: Path) -> str:
    return "batch" + "".join(f"[{key!r}]" for key in path)


# -------------------------------------------------------------------------------- tree walking


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """``tree`` with ``function`` applied to each tensor: tuples, lists, mappings, dataclasses."""
    if isinstance(tree, Tensor):
        return function(tree)
    return _rebuilt(tree, lambda _, part: map_tensors(function, part))


def with_items(tree: Any, items: Mapping[Any, Any]) -> Any:
    """A copy of a mapping, of the same type, with ``items`` set."""
    if not isinstance(tree, MutableMapping):
        return type(tree)({**tree, **items})
    return _changed(tree, operator.setitem, items)


def _rebuilt(tree: Any, go: Callable[[Any, Any], Any]) -> Any:
    """The same kind of container with ``go(key, part)`` in place of each part."""
    if (items := _items(tree)) is None:
        return tree
    parts = {key: go(key, part) for key, part in items.items()}
    if isinstance(tree, Mapping):
        return with_items(tree, parts)
    if isinstance(tree, list | tuple):
        values = parts.values()
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return _changed(tree, object.__setattr__, parts)


def _items(tree: Any) -> dict[Any, Any] | None:
    """The parts of a container by key, index or field; None for anything else."""
    if isinstance(tree, Mapping):  # before dataclasses: some model outputs are both
        return {key: tree[key] for key in tree}
    if isinstance(tree, list | tuple):
        return dict(enumerate(tree))
    if is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: getattr(tree, field.name) for field in fields(tree)}
    return None


def _child(tree: Any, key: Any) -> Any:
    return (_items(tree) or {})[key]


def _changed(tree: Any, put: Callable[[Any, Any, Any], None], items: Mapping[Any, Any]) -> Any:
    changed = copy.copy(tree)
    for key, value in items.items():
        put(changed, key, value)
    return changed
