"""What is known of the losses of each example: to look at, to save, and to export."""

import csv
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from salience.arguments import whole_number
from salience.batches.labels import as_labels
from salience.errors import ArgumentError, SalienceError, StateError
from salience.record import COLUMNS, POINTS, Record, course
from salience.trust import Begun, Judged, judge

__all__ = ["GROUPS", "ClassSummary", "Group", "LossHistory"]

FORMAT = "salience-history-1"
Group = Literal["hardest", "suspects", "forgotten", "unseen"]
GROUPS: tuple[Group, ...] = get_args(Group)
Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
WHOLE = ("index", "label", "visits", "last_visit", "forgotten")
# Of a record, and what we call it.
RECORDED = {
    "visits": "visits",
    "step": "last_visit",
    "first": "first_loss",
    "last": "last_loss",
    "lowest": "lowest_loss",
    "forgotten": "forgotten",
    "course": "course",
}


class ClassSummary(NamedTuple):
    """The examples of one class."""

    label: int
    examples: int
    loss: float  # mean of those that were seen; nan if none was
    suspects: int
    forgotten: int | None  # examples that were, at least once; None: not recorded
    unseen: int | None


class _Start(NamedTuple):
    start: float


@final
@dataclass(frozen=True, eq=False)
class LossHistory:
    """One row per example, in arrays of the same length.

    Columns that need ``record=True`` are None without it. Losses are nan where an example was not
    seen yet. Steps count from 1.
    """

    step: int  # of the training
    start: float  # the mean loss of the first steps; nan where it is not known
    suspected: int  # how many examples stand apart from all others
    index: Ints  # position in the dataset
    loss: Floats  # a running mean; with score "history" and no record, the last loss
    suspect: Floats  # L / (L + m), with m the mean loss of the class: near 1 contradicts the class
    label: Ints | None = None  # the class, where it is known
    visits: Ints | None = None
    last_visit: Ints | None = None  # its step; 0 where there was none
    first_loss: Floats | None = None
    last_loss: Floats | None = None
    lowest_loss: Floats | None = None  # of the running mean
    forgotten: Ints | None = None  # how often it was learned and then forgotten
    course: NDArray[np.float16] | None = None  # [n, 18]; ``curve`` reads it

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return (
            f"LossHistory({len(self)} examples, step={self.step}, {self.suspected} suspects, "
            f"recorded={self.recorded})"
        )

    @property
    def recorded(self) -> bool:
        """Whether there are visits and courses, from ``record=True``."""
        return self.visits is not None

    # ------------------------------------------------------------------------------------- made of

    @classmethod
    def made(
        cls,
        index: Tensor,
        losses: Tensor,
        judged: Judged,
        labels: Tensor | None,
        record: Record | None,
        step: int,
    ) -> "LossHistory":
        """Of recorded ``losses`` [n], or of a ``record``; both are copied."""
        columns = {} if record is None else record.columns()
        return cls(
            step=step,
            start=math.nan if record is None else record.start,
            suspected=judged.apart,
            index=index.numpy().astype(np.int64),
            loss=losses.numpy().astype(np.float32),
            suspect=judged.r.numpy().astype(np.float32),
            label=None if labels is None else labels.numpy().astype(np.int64),
            **_named(columns),
        )

    @classmethod
    def from_state(cls, state: Any, labels: Any = None) -> "LossHistory":
        """Of a ``state_dict`` of a loader or sampler, or of a mapping that has one somewhere.

        ``labels``: the class of each example, which states do not have.
        """
        found = next(_states(state), None)
        if found is None:
            raise StateError(
                "there is no state of a loader in it that has losses of examples: save "
                "loader.state_dict() of a loader with record=True, or with score 'auto' or "
                "'history'"
            )
        try:
            step, kept = int(found["step"]), found.get("record")
            if kept is not None:
                return cls.of_record(Record.from_state(kept), step, labels)
            losses, start = found["score"]["mean"], found["smoothing"].get("start")
            return cls._of(losses, None if start is None else _Start(start), None, step, labels)
        except SalienceError:
            raise
        except Exception as error:  # whatever damaged values lead to
            why = " ".join(str(error).split())[:80] or type(error).__name__
            raise StateError(
                f"the state of the loader is damaged ({why}): name another checkpoint"
            ) from error

    @classmethod
    def of_record(cls, record: Record, step: int, labels: Any = None) -> "LossHistory":
        """Of a whole dataset, with the class of each example as ``labels``, if there are any."""
        return cls._of(record.means(), record, record, step, labels)

    @classmethod
    def _of(
        cls, losses: Tensor, begun: Begun | None, record: Record | None, step: int, labels: Any
    ) -> "LossHistory":
        known = None if labels is None else as_labels(labels, len(losses))
        classes = None if known is None else known.labels
        return cls.made(
            torch.arange(len(losses), device="cpu"),
            losses,
            judge(losses, begun, classes),
            None if known is None else known.values[known.labels],
            record,
            step,
        )

    # -------------------------------------------------------------------------------- looked at

    def columns(self) -> dict[str, NDArray[Any]]:
        """What is known of each example, one number each, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: v for name, v in found.items() if isinstance(v, np.ndarray) and v.ndim == 1}

    def places(self, group: Group, n: int | None = None) -> Ints:
        """Rows of a group, the clearest first: at most ``n``, or with None all that belong to it.

        ``"hardest"``: all that were seen, by their loss. ``"suspects"``: those that stand apart or,
        with ``n``, the ``n`` clearest in any case. ``"forgotten"``: learned and then forgotten, the
        most often first. ``"unseen"``: not seen in the last half of the training, the longest
        first. The last two need ``record=True``.
        """
        if group not in GROUPS:
            raise ArgumentError(f"group must be one of {', '.join(GROUPS)}; got {group!r}")
        count = None if n is None else whole_number("n", n, least=0)
        if group == "suspects":
            judged = Judged(torch.from_numpy(self.suspect.astype(np.float64)), self.suspected)
            return judged.order(count).numpy()
        if group == "hardest":
            seen = np.flatnonzero(~np.isnan(self.loss))
            return seen[_order(-self.loss[seen], count)]
        if self.visits is None or self.last_visit is None or self.forgotten is None:
            raise ArgumentError(
                f"the {group} examples are not known: train with ImportanceLoader(..., record=True)"
            )
        if group == "forgotten":
            lost = np.flatnonzero(self.forgotten > 0)
            return lost[np.lexsort((-self.loss[lost], -self.forgotten[lost]))[:count]]
        gone = np.flatnonzero(2 * self.last_visit <= self.step)
        return gone[_order(self.last_visit[gone], count)]

    def select(self, group: Group, n: int | None = None) -> Ints:
        """The same as positions in the dataset: what to relabel, drop or look at."""
        return self.index[self.places(group, n)]

    def curve(self, place: int) -> list[float]:
        """The losses of the example in row ``place`` over its visits, at most 19 of them."""
        if self.course is None or self.visits is None or self.last_loss is None:
            return []
        return course(self.course[place], int(self.visits[place]), float(self.last_loss[place]))

    def classes(self) -> list[ClassSummary]:
        """Class by class, those with the largest loss first; nothing where there are no labels."""
        if self.label is None:
            return []
        values, own = np.unique(self.label, return_inverse=True)
        number, seen = len(values), ~np.isnan(self.loss)
        sums = np.bincount(own[seen], self.loss[seen], number)
        with np.errstate(invalid="ignore"):
            means = sums / np.bincount(own[seen], minlength=number)
        sizes = np.bincount(own, minlength=number)
        suspects = np.bincount(own[self.places("suspects")], minlength=number)
        forgotten, unseen = (self._counted(g, own, number) for g in ("forgotten", "unseen"))
        columns = (values.tolist(), sizes.tolist(), means.tolist(), suspects.tolist())
        rows = zip(*columns, forgotten, unseen, strict=True)
        return sorted(map(ClassSummary._make, rows), key=lambda s: (math.isnan(s.loss), -s.loss))

    def _counted(self, group: Any, own: Ints, number: int) -> list[int | None]:
        """Of each class; unknown where it was not recorded."""
        if not self.recorded:
            return [None] * number
        found: list[int | None] = np.bincount(own[self.places(group)], minlength=number).tolist()
        return found

    # -------------------------------------------------------------------------------------- files

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Into a new file: ``.npz`` (everything, for ``load``), ``.csv`` or ``.parquet``.

        CSV has a line per example; Parquet has the courses too, and needs ``salience[insight]``.
        """
        path = Path(path)
        writers = {
            ".npz": self._write_npz,
            ".csv": self._write_csv,
            ".parquet": self._write_parquet,
        }
        if path.suffix not in writers:
            raise ArgumentError(f"{path} must end in {', '.join(writers)}: name one of these")
        with _replaced(path) as part:
            writers[path.suffix](part)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "LossHistory":
        """What ``save`` has written into a ``.npz`` file."""
        try:
            with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                content = {name: file[name] for name in file.files}
            if str(content.pop("format")) != FORMAT:
                raise ValueError("another format")
            scalars = {"step": int, "start": float, "suspected": int}
            known = {name: make(content.pop(name)) for name, make in scalars.items()}
            found = cls(**known, **content)
            _check_columns(content)
        except FileNotFoundError as error:
            raise StateError(f"there is no file {path}: save loader.history() first") from error
        except Exception as error:  # numpy, zipfile and zlib have many kinds of their own
            raise StateError(
                f"{path} is no loss history, or is damaged ({error}): name a .npz file that "
                f"loader.history().save() has written"
            ) from error
        return found

    def _write_npz(self, path: Path) -> None:
        content = {f.name: getattr(self, f.name) for f in fields(self)}
        known = {name: value for name, value in content.items() if value is not None}
        with path.open("wb") as file:
            np.savez_compressed(file, format=np.array(FORMAT), **known)

    def _write_csv(self, path: Path) -> None:
        columns = self.columns()
        cells = [_cells(column) for column in columns.values()]
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*cells, strict=True))

    def _write_parquet(self, path: Path) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise ArgumentError(
                ".parquet files need pyarrow: install salience[insight], or save as .csv or .npz"
            ) from error
        columns: dict[str, Any] = dict(self.columns())
        if self.course is not None:
            columns["course"] = [self.curve(place) for place in range(len(self))]
        parquet.write_table(pyarrow.table(columns), path)


def _check_columns(columns: dict[str, NDArray[Any]]) -> None:
    """Numbers, one per example; courses have several."""
    n = len(columns["index"])
    for name, each in columns.items():
        shape = (n, POINTS) if name == "course" else (n,)
        kind = "i" if name in WHOLE else "f"
        if each.shape != shape or each.dtype.kind != kind:
            raise ValueError(f"{name} is {each.dtype} of shape {list(each.shape)}")


def _named(columns: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Columns of a record by our names, whole numbers as int64, nan where nothing was seen."""
    if not columns:
        return {}
    unseen = columns["visits"] == 0
    named: dict[str, Any] = {}
    for theirs, ours in RECORDED.items():
        column = columns[theirs]
        if column.dtype.kind == "u":
            column = column.astype(np.int64)
        elif column.ndim == 1:
            column[unseen] = np.nan
        named[ours] = column
    return named


def _order(keys: NDArray[Any], n: int | None) -> Ints:
    """Places of the ``n`` lowest keys, in order; of equal ones the first come first."""
    if n is None or 8 * n >= len(keys):
        return np.argsort(keys, kind="stable")[:n]
    if n == 0:
        return np.empty(0, np.int64)
    within = np.flatnonzero(keys <= np.partition(keys, n - 1)[n - 1])
    return within[np.argsort(keys[within], kind="stable")[:n]]


def _cells(column: NDArray[Any]) -> list[Any]:
    """As Python's shortest numbers; nothing for nan."""
    if column.dtype.kind != "f":
        return list(column.tolist())
    return ["" if each == "nan" else each for each in column.astype(str).tolist()]


def _states(tree: Any, depth: int = 4) -> Iterator[dict[str, Any]]:
    """States of loaders and samplers that have losses of examples, the outermost first."""
    if not isinstance(tree, dict) or depth == 0:
        return
    if {"settings", "score", "smoothing", "step"} <= tree.keys():
        record, score = (_mapping(tree.get(key)) for key in ("record", "score"))
        if set(COLUMNS) <= record.keys() or isinstance(score.get("mean"), Tensor):
            yield tree
        return
    for value in tree.values():
        yield from _states(value, depth - 1)


def _mapping(part: Any) -> dict[Any, Any]:
    return part if isinstance(part, dict) else {}


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """A file beside ``path`` that takes its place in the end."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        raise ArgumentError(
            f"cannot write {path} ({error.strerror or error}): choose another place"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()
