"""A sum tree over the whole dataset: draw and update in time that hardly grows with its size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from salience.memory import PRIVATE, Storage

__all__ = ["SumTree"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FAN = 16  # children of a node: wide, because a dependent memory read costs more than additions
TOP = 8192  # the top level is one flat row of up to this many sums
ONES = np.int64(0x0101010101010101)
AT_ONCE = 4096  # blocks read at a time: they stay in the cache, and in memory that is in use


class SumTree:
    """Sums of a few non-negative columns per example, exact however often they change.

    Example i has the mass ``sum_c rates[c] * column_c[i] + floor``. Nodes hold the sums of the
    columns and not of the masses, so ``rates`` and ``floor`` may differ at every draw at no cost:
    a new smoothing constant does not touch the tree. Parents are added up anew from their
    children, in float64, so rounding never accumulates.
    """

    def __init__(self, n: int, columns: int, storage: Storage = PRIVATE) -> None:
        self.n, self._storage = n, storage
        # levels[0][c] are the leaves of column c.
        self._levels = self._zeros(columns)

    def _zeros(self, columns: int) -> list[list[Floats]]:
        sizes = _sizes(self.n)
        return [[self._storage.array(s, np.float64) for _ in range(columns)] for s in sizes]

    @property
    def top(self) -> int:
        """The number of sums at the top."""
        return len(self._levels[-1][0])

    def extend(self, n: int) -> None:
        """Grow to ``n`` examples; the new ones have zeros."""
        kept = [leaves[: self.n] for leaves in self._levels[0]]
        self.n = n
        self._levels = self._zeros(len(kept))
        for c, values in enumerate(kept):
            self.column(c)[: len(values)] = values
        self.sum_up()

    def column(self, c: int) -> Floats:
        """All values of column ``c``: a view. After writing to it, call ``sum_up``."""
        return self._levels[0][c][: self.n]

    def sum_up(self) -> None:
        """Add everything up anew, after values were written into ``column``."""
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            for values, sums in zip(below, level, strict=True):
                _add_up(values, sums)

    def put(self, c: int, indices: Ints, values: Floats | float) -> None:
        """Set some values of column ``c``; of repeated indices the last one counts."""
        self._levels[0][c][indices] = values
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            indices = indices // FAN
            if len(indices) > len(level[c]):  # most sums change: reading them all in line is faster
                _add_up(below[c], level[c])
                continue
            for start in range(0, len(indices), AT_ONCE):
                part = indices[start : start + AT_ONCE]
                level[c][part] = _sums(below[c].reshape(-1, FAN).take(part, axis=0))

    def total(self, rates: Sequence[float]) -> float:
        """The mass of all examples, without the floor."""
        top = zip(rates, self._levels[-1], strict=True)
        return float(sum(rate * sums.sum() for rate, sums in top if rate))

    def mass(self, indices: Ints, rates: Sequence[float], floor: float) -> Floats:
        """The mass of each of ``indices``."""
        mass: Floats | float = floor
        for rate, leaves in zip(rates, self._levels[0], strict=True):
            if rate:
                mass = mass + rate * leaves[indices]
        return mass if isinstance(mass, np.ndarray) else np.full(len(indices), floor)

    def find(
        self, points: Floats, rates: Sequence[float], floor: float, order: Ints | None = None
    ) -> Ints:
        """The examples that lie under ``points`` when the masses are laid in line.

        ``points`` are in [0, total mass). ``order``: of the nodes at the top, [``top``], in which
        they are laid; by default that of the examples.
        """
        masses = self._top_masses(rates, floor)
        ends = (masses if order is None else masses[order]).cumsum()
        found = np.empty(len(points), dtype=np.int64)
        sequence = _in_line(points, ends[-1])  # neighbours find what they need in the cache
        for start in range(0, len(points), AT_ONCE):
            part = sequence[start : start + AT_ONCE]
            nodes, left = _find_on_line(ends, points[part])
            nodes = nodes if order is None else order[nodes]
            found[part] = self._descend(nodes, left, rates, floor)
        return found

    def _descend(self, found: Ints, left: Floats, rates: Sequence[float], floor: float) -> Ints:
        """From nodes at the top, and how far into them, to examples."""
        span = FAN ** (len(self._levels) - 1)
        for depth in range(len(self._levels) - 2, -1, -1):
            span //= FAN
            masses = self._masses(depth, found, rates, floor * span)
            child, left = _find_in_rows(masses, left)
            found = found * FAN + child
        # Below the top, padding gets the floor too: rounding may leave a point there.
        within: Ints = np.minimum(found, self.n - 1)
        return within

    def _top_masses(self, rates: Sequence[float], floor: float) -> Floats:
        span = FAN ** (len(self._levels) - 1)
        masses = self._masses(-1, None, rates, floor * span)
        masses[-1] -= floor * (span * len(masses) - self.n)  # the last one may not be full
        return masses

    def _masses(
        self, depth: int, blocks: Ints | None, rates: Sequence[float], floor: float
    ) -> Floats:
        """Masses of a whole level, or of some of its blocks as rows; nobody else's to change."""
        total: Floats | None = None
        for rate, sums in zip(rates, self._levels[depth], strict=True):
            if rate:
                part = sums.copy() if blocks is None else sums.reshape(-1, FAN).take(blocks, axis=0)
                if rate != 1:
                    part *= rate
                part += floor if total is None else total
                total = part
        if total is not None:
            return total
        return np.full(
            self._levels[depth][0].shape if blocks is None else (len(blocks), FAN), floor
        )


def _sizes(n: int) -> list[int]:
    """Of the levels, from the leaves up; those below the top are whole blocks of FAN."""
    sizes = [n]
    while sizes[-1] > TOP:
        sizes.append(-(-sizes[-1] // FAN))
    return [-(-size // FAN) * FAN for size in sizes[:-1]] + sizes[-1:]


def _add_up(values: Floats, sums: Floats) -> None:
    """Sums of all blocks of ``values``."""
    blocks = values.reshape(-1, FAN)
    for start in range(0, len(blocks), AT_ONCE):
        part = blocks[start : start + AT_ONCE]
        sums[start : start + len(part)] = _sums(part)


def _sums(blocks: Floats) -> Floats:
    """The sum of each row, always in the same order: as numpy adds 16, in two thirds of the time.

    However a value came into the tree, its parents are bitwise the same.
    """
    rows = torch.from_numpy(blocks)
    # Torch is the faster one with short rows, numpy with one long row.
    sums: Floats = (rows[:, : FAN // 2] + rows[:, FAN // 2 :]).numpy().ravel()
    while len(sums) > len(blocks):
        sums = sums[::2] + sums[1::2]
    return sums


def _find_on_line(ends: Floats, points: Floats) -> tuple[Ints, Floats]:
    """Which entry each point lies under, and how far into it."""
    # Rounding may leave a point just outside the line: back onto it.
    left = np.minimum(points, _below(ends[-1]))
    found = ends.searchsorted(left, side="right")
    return found, left - np.where(found > 0, ends[found - 1], 0.0)


def _find_in_rows(masses: Floats, left: Floats) -> tuple[Ints, Floats]:
    """Which entry of its row each point lies under, and how far into it. Overwrites ``masses``."""
    # Torch adds up rows in the same order as numpy, in a tenth of the time.
    ends = torch.from_numpy(masses).cumsum_(1).numpy()
    child = _count(ends <= left[:, None])
    if child[child.argmax()] == FAN:  # by rounding: back onto the last entry that has any mass
        beyond, left = np.flatnonzero(child == FAN), left.copy()
        left[beyond] = _below(ends[beyond, -1])
        child[beyond] = (ends[beyond] <= left[beyond, None]).argmin(axis=1)
    before = ends.ravel().take(np.arange(-1, ends.size - 1, FAN) + child, mode="wrap")
    return child, left - before * (child > 0)


def _count(flags: NDArray[np.bool_]) -> Ints:
    """How many are true in each row of FAN, a multiple of 8.

    A binary search of the ends takes four times as long: processors guess half of its steps wrong.
    """
    words = flags.view(np.int64)  # of 8 flags, a byte each
    total = words[:, 0]
    for i in range(1, words.shape[1]):
        total = total + words[:, i]
    counts: Ints = total * ONES >> 56  # the highest byte of the product is the sum of all bytes
    return counts


def _in_line(points: Floats, total: float) -> Ints:
    """An order in which they rise, except for those that are close together."""
    # 16 bits are sorted by counting, in a fifth of the time; the order matters to the cache alone.
    return (points / total * 65535).astype(np.uint16).argsort(kind="stable")


def _below(x: Any) -> Any:
    """The next number towards zero."""
    return np.nextafter(x, 0.0)
