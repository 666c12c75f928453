"""What the losses of each example have been: first, last, lowest, running mean, and course."""

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from salience import saved
from salience.memory import PRIVATE

__all__ = ["COLUMNS", "DECAY", "POINTS", "Record", "course", "distinct"]

DECAY = np.float32(0.8)  # of the running mean, as with ``auto``
FIRST = 10  # steps whose mean loss is that of a model that has learned nothing
LEARNED, FORGOTTEN = 0.5, 1.0  # of that loss: learned below, forgotten above
POINTS = 18  # losses that are kept of each course
LARGEST = np.float32(np.finfo(np.float16).max)

# With 18 points a row takes 64 bytes: a visit reads and writes one cache line.
ROW = np.dtype(
    [
        *((name, np.float32) for name in ("mean", "first", "last", "lowest")),
        *((name, np.uint32) for name in ("visits", "step")),
        *((name, np.uint16) for name in ("forgotten", "learned")),
        ("course", np.float16, POINTS),
    ]
)
COLUMNS: tuple[str, ...] = ROW.names or ()
# torch has no unsigned types of these sizes that could be indexed.
SAVED = {"visits": np.int64, "step": np.int64, "forgotten": np.int32, "learned": np.int32}


@final
class Record:
    """One row of 64 bytes for each example. It observes, and no draw depends on it.

    ``mean`` is m = 0.8 m + 0.2 L at each visit, L at the first; ``lowest`` is the lowest m so far.
    An example is learned once its loss is below half the loss of a model that has learned nothing,
    which is the mean of the first 10 steps, and forgotten when it is above that loss again. The
    course has the losses of visits 0, s, 2 s, ..., with s = 1, 2, 4, ... so that 18 are enough.
    """

    def __init__(self, n: int) -> None:
        self._rows = _rows(n)
        self._start, self._steps = 0.0, 0

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Record":
        """The record that ``state_dict`` was taken of."""
        record = cls(len(state["mean"]))
        record.load_state_dict(state)
        return record

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def start(self) -> float:
        """The mean loss of the first steps."""
        return self._start

    def extend(self, n: int) -> None:
        """Grow to ``n`` examples; nothing is known of the new ones."""
        before, self._rows = self._rows, _rows(n)
        self._rows[: len(before)] = before

    def begin(self, mean: float) -> None:
        """The unbiased mean loss of a step, before ``update``; only the first ones are used."""
        if self._steps < FIRST:
            self._steps += 1
            self._start += (mean - self._start) / self._steps

    def update(self, indices: Tensor, losses: Tensor, step: int) -> None:
        """Losses of distinct examples, float32 on the host, seen at ``step`` (from 1)."""
        at, seen = indices.numpy(), losses.numpy()
        lines = self._rows.view(np.uint8).reshape(-1, ROW.itemsize)  # bytes are copied faster
        rows = lines.take(at, axis=0).view(ROW)[:, 0]
        new, before = rows["visits"] == 0, rows["mean"]
        mean = np.where(new, seen, before + (1 - DECAY) * (seen - before))
        rows["first"] = np.where(new, seen, rows["first"])
        rows["lowest"] = np.where(new, mean, np.minimum(rows["lowest"], mean))
        rows["mean"], rows["last"], rows["step"] = mean, seen, step
        self._count_forgotten(rows, seen)
        _draw_course(rows, seen)
        rows["visits"] += 1
        lines[at] = rows.view(np.uint8).reshape(-1, ROW.itemsize)

    def _count_forgotten(self, rows: NDArray[Any], losses: NDArray[np.float32]) -> None:
        if self._steps < FIRST:
            return
        lost = (rows["learned"] > 0) & (losses > FORGOTTEN * self._start)
        rows["forgotten"] += lost & (rows["forgotten"] < np.iinfo(np.uint16).max)
        rows["learned"] = (rows["learned"] > 0) & ~lost | (losses < LEARNED * self._start)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Copies, by name."""
        return {name: np.ascontiguousarray(self._rows[name]) for name in COLUMNS}

    def means(self) -> Tensor:
        """float32 [N]: the running mean of the losses of each example; nan where there are none."""
        found = np.where(self._rows["visits"] > 0, self._rows["mean"], np.float32(np.nan))
        return torch.from_numpy(found)

    def state_dict(self) -> dict[str, Any]:
        columns = {
            name: torch.from_numpy(each.astype(SAVED.get(name, each.dtype)))
            for name, each in self.columns().items()
        }
        return {**columns, "start": self._start, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in COLUMNS:
            if state[name].shape != self._rows[name].shape:
                shape = list(state[name].shape)
                raise ValueError(f"a record {name} of shape {shape} for {len(self)} examples")
        found = {name: _checked(name, state[name]) for name in COLUMNS}
        start, steps = saved.at_least_zero(state["start"]), saved.whole(state["steps"], 0, FIRST)
        for name, column in found.items():
            self._rows[name] = column.numpy()
        self._start, self._steps = start, steps


def _checked(name: str, column: Any) -> Tensor:
    """A column of a state, with values that its type holds."""
    if name not in SAVED:
        largest = LARGEST if name == "course" else np.finfo(np.float32).max
        return saved.floats(column, least=0, most=float(largest), shape=tuple(column.shape))
    wide, narrow = torch.from_numpy(np.empty(0, SAVED[name])).dtype, np.iinfo(ROW[name])
    return saved.indices(column, int(narrow.max) // 2, dtype=wide)


def _rows(n: int) -> NDArray[Any]:
    """Zeros that begin with a cache line. They take no memory before they are used."""
    return PRIVATE.array(n * ROW.itemsize, np.uint8).view(ROW)


def _draw_course(rows: NDArray[Any], losses: NDArray[np.float32]) -> None:
    """Add a point where it is time for one; where there is no room, leave out every second one."""
    course, visit = rows["course"], rows["visits"].astype(np.int64)
    spacing = _spacing(visit)
    place, beside = np.divmod(visit, spacing)
    full = (place == POINTS // 2) & (beside == 0) & (spacing > 1)
    if full.any():
        course[full, : POINTS // 2] = course[full, ::2]
    due = np.flatnonzero(beside == 0)
    course[due, place[due]] = np.minimum(losses[due], LARGEST)


def _spacing(visit: NDArray[np.int64]) -> NDArray[np.int64]:
    """Visits from one point to the next, when this visit (from 0) is the last one."""
    doublings = np.frexp(visit // POINTS)[1]  # the bits of a whole number
    return np.left_shift(np.int64(1), doublings)


def course(points: NDArray[np.float16], visits: int, last: float) -> list[float]:
    """The losses of an example over its visits, the last one included, at even intervals."""
    if not visits:
        return []
    spacing = int(_spacing(np.array([visits - 1]))[0])
    known = [float(each) for each in points[: (visits - 1) // spacing + 1]]
    return known if (visits - 1) % spacing == 0 else [*known, last]


def distinct(indices: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
    """One loss per distinct index, the mean of the repeated ones; in the order of the indices."""
    at, n = indices.numpy(), len(indices)
    # Index and place in one number: sorted in a fraction of the time of an argsort.
    bits = n.bit_length()
    packed = np.sort(at << bits | np.arange(n))
    ordered, place = packed >> bits, packed & (1 << bits) - 1
    values, repeated = losses.numpy()[place], ordered[1:] == ordered[:-1]
    if len(repeated) and repeated[repeated.argmax()]:
        starts = np.append(0, np.flatnonzero(~repeated) + 1)
        with np.errstate(over="ignore"):
            sums = np.add.reduceat(values, starts)
        if np.isinf(sums).any():  # of a few losses of 1e38
            sums = np.add.reduceat(values, starts, dtype=np.float64)
        means = sums / np.diff(starts, append=n)
        ordered, values = ordered[starts], means.astype(np.float32)
    return torch.from_numpy(ordered), torch.from_numpy(values)
