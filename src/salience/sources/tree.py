"""A sum tree over the whole dataset: draw and update in time that hardly grows with its size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SumTree"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FAN = 16  # children of a node: wide, because a dependent memory read costs more than additions
TOP = 8192  # the top level is one flat row of up to this many sums


class SumTree:
    """Sums of a few non-negative columns per example, exact however often they change.

    Example i has the mass ``sum_c rates[c] * column_c[i] + floor``. Nodes hold the sums of the
    columns and not of the masses, so ``rates`` and ``floor`` may differ at every draw at no cost:
    a new smoothing constant does not touch the tree. Parents are added up anew from their
    children, in float64, so rounding never accumulates.
    """

    def __init__(self, n: int, columns: int) -> None:
        self.n = n
        sizes = [n]
        while sizes[-1] > TOP:
            sizes.append(-(-sizes[-1] // FAN))
        # levels[0][c] are the leaves of column c; every level below the top is padded with zeros
        # to whole blocks of FAN.
        padded = [-(-size // FAN) * FAN for size in sizes[:-1]] + sizes[-1:]
        self._levels = [[np.zeros(size) for _ in range(columns)] for size in padded]

    def column(self, c: int) -> Floats:
        """All values of column ``c``: a view. After writing to it, call ``sum_up``."""
        return self._levels[0][c][: self.n]

    def sum_up(self) -> None:
        """Add everything up anew, after values were written into ``column``."""
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            for values, sums in zip(below, level, strict=True):
                blocks = values.reshape(-1, FAN)
                np.add.reduce(blocks, axis=1, out=sums[: len(blocks)])

    def put(self, c: int, indices: Ints, values: Floats | float) -> None:
        """Set some values of column ``c``; of repeated indices the last one counts."""
        self._levels[0][c][indices] = values
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            indices = indices // FAN
            level[c][indices] = below[c].reshape(-1, FAN).take(indices, axis=0).sum(axis=1)

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

    def find(self, points: Floats, rates: Sequence[float], floor: float) -> Ints:
        """The examples that lie under ``points`` when the masses are laid in line.

        ``points`` are in [0, total mass).
        """
        # Padding at the end of a level gets the floor too, which does no harm: it lies beyond the
        # total, where no point is.
        span = FAN ** (len(self._levels) - 1)
        ends = self._masses(-1, None, rates, floor * span).cumsum()
        # Rounding may leave a point just outside its row: back onto the line.
        left = np.minimum(points, _below(ends[-1]))
        found = ends.searchsorted(left, side="right")
        if len(self._levels) > 1:
            left = left - np.where(found > 0, ends[found - 1], 0.0)
        for depth in range(len(self._levels) - 2, -1, -1):
            span //= FAN
            rows = self._masses(depth, found, rates, floor * span).cumsum(axis=1)
            left = np.minimum(np.maximum(left, 0.0), _below(rows[:, -1]))
            child = (rows > left[:, None]).argmax(axis=1)
            found = found * FAN + child
            if depth:
                left = left - np.where(child > 0, rows[np.arange(len(rows)), child - 1], 0.0)
        within: Ints = np.minimum(found, self.n - 1)
        return within

    def _masses(
        self, depth: int, blocks: Ints | None, rates: Sequence[float], floor: float
    ) -> Floats:
        """Masses of a whole level, or of some of its blocks as rows."""
        total: Floats | float = floor
        for rate, sums in zip(rates, self._levels[depth], strict=True):
            if rate:
                part = sums if blocks is None else sums.reshape(-1, FAN).take(blocks, axis=0)
                total = total + (part if rate == 1 else rate * part)
        if isinstance(total, np.ndarray):
            return total
        shape = self._levels[depth][0].shape if blocks is None else (len(blocks), FAN)
        return np.full(shape, floor)


def _below(x: Any) -> Any:
    """The next number towards zero."""
    return np.nextafter(x, 0.0)
