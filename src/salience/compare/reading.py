"""A run directory, read back and checked once: everything that a report is made of."""

import gzip
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from salience.compare.budgets import Budgets, budgets_of, sweep
from salience.compare.measures import Measure, read_measures
from salience.compare.methods import BASELINE
from salience.compare.run import Row
from salience.compare.summary import Summary, longest, summarize
from salience.errors import ArgumentError, SalienceError

__all__ = ["Comparison", "Example", "from_json", "read_comparison"]

MOST_CHANNELS = 4
MOST_STEPS = 2**53
MOST_WHOLE = 2**63
# Of a configuration.
SHOWN: dict[str, Any] = {
    "steps": int,
    "seconds": int | float,
    **dict.fromkeys(("budgets", "methods", "seeds"), list),
    **dict.fromkeys(("hardware", "versions"), dict),
}
# What reading a file raises that is not what we wrote.
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Example:
    """A training example that was still hard at the end, and its loss at each evaluation."""

    index: int
    loss: float
    history: list[float]
    image: np.ndarray[Any, np.dtype[np.uint8]] | None  # [C, H, W]
    text: str


class Comparison(NamedTuple):
    """What a comparison wrote, and the summary of its rows. What was not finite is nan.

    ``finished`` is False where there is no ``summary.json`` yet: then the summary is of the rows
    so far, without a target and without ratios to it. ``measures`` are by their columns in rows, as
    in ``test_auc``, and ``primary`` is the column that verdicts go by. Where there are several
    budgets, ``rows`` and ``summary`` are of the largest, and ``budgets`` is the summary of all.
    """

    config: dict[str, Any]
    rows: list[Row]
    summary: Summary
    hardest: dict[str, list[Example]]
    finished: bool
    measures: dict[str, Measure]
    primary: str
    budgets: Budgets | None = None


def read_comparison(directory: Path) -> Comparison:
    """Read ``directory``; whatever is missing or damaged is refused by its name."""
    if not directory.is_dir():
        raise ArgumentError(f"there is no directory {directory}: name one a comparison wrote to")
    with _readable(directory / "config.json") as path:
        config = _config(path.read_text(encoding="utf-8"))
        planned = [str(each) for each in config.get("methods") or []]
    with _readable(directory / "runs.jsonl") as path:
        rows = _rows(path, planned)
    with _readable(directory / "hardest.json") as path:
        hardest = _hardest(path) if path.exists() else {}
    with _readable(directory / "config.json"):
        measures, primary = read_measures(config, rows[0])
    with _readable(directory / "runs.jsonl"):
        for row in rows:
            _ = cast(dict[str, Any], row)[primary]  # all methods are tested alike
    tested = (rows[0]["method"], primary, measures[primary].better)
    with _readable(directory / "runs.jsonl"):
        budgets = sweep(rows, *tested) if len(budgets_of(rows)) > 1 else None
        rows = longest(rows)
        summary = summarize(rows, *tested)
    finished = (directory / "summary.json").exists()
    if not finished:
        summary = _open(summary)
        return Comparison(config, rows, summary, hardest, finished, measures, primary, budgets)
    if missing := {*planned} - {*summary["methods"]}:
        raise ArgumentError(
            f"{directory / 'runs.jsonl'} has no rows of {min(missing)!r}, which config.json names: "
            f"run the comparison again, which writes both anew"
        )
    return Comparison(config, rows, summary, hardest, finished, measures, primary, budgets)


@contextmanager
def _readable(path: Path) -> Iterator[Path]:
    """What is wrong with a file, in one sentence."""
    try:
        yield path
    except SalienceError:
        raise
    except FileNotFoundError as error:
        raise ArgumentError(
            f"{path} is missing: name a directory a comparison wrote to, or run it again"
        ) from error
    except OSError as error:
        raise ArgumentError(
            f"cannot read {path} ({error.strerror or error}): make it readable and try again"
        ) from error
    except DAMAGE as error:
        raise ArgumentError(
            f"{path} is damaged ({_why(error)}): run the comparison again, which writes it anew"
        ) from error


def _why(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())


def _rows(path: Path, planned: list[str]) -> list[Row]:
    """All rows, methods as they were planned, the baseline first.

    A last line that was cut off in the middle of writing does not count.
    """
    packed = path.with_name(f"{path.name}.gz")  # as recorded results have it
    if packed.exists() and not path.exists():
        content = gzip.decompress(packed.read_bytes())
    else:
        content = path.read_bytes()
    *lines, last = content.decode().split("\n")
    rows = [_row(line, number) for number, line in enumerate(lines, start=1) if line.strip()]
    with suppress(ValueError):
        rows.append(_row(last, len(lines) + 1))
    if not rows:
        raise ArgumentError(
            f"{path} has no rows: nothing has been measured yet; run the comparison first"
        )
    names = dict.fromkeys([BASELINE, *planned, *(row["method"] for row in rows)])
    return [row for name in names for row in rows if row["method"] == name]


def _row(line: str, number: int) -> Row:
    try:
        row = _mapping(line)
        measures = ("train_loss", "train_max_loss", "test_loss", "seconds")
        row |= {name: str(row[name]) for name in ("method", "task")}
        row |= {name: int(row[name]) for name in ("seed", "step")}
        others = [
            name
            for name in row
            if name in ("budget", "examples") or name.startswith(("test_", "validation_"))
        ]
        row |= {name: _number(row[name]) for name in (*measures, *others)}
        if not (0 <= row["step"] <= MOST_STEPS and 0 < row.get("budget", 1.0) < math.inf):
            raise ValueError(f"step {row['step']:.3g}, budget {row.get('budget', 1.0)}")
    except DAMAGE as error:
        raise ValueError(f"line {number}: {_why(error)}") from error
    return cast(Row, row)


def _open(summary: Summary) -> Summary:
    """Of an unfinished comparison: no target yet, and so no ratio to it."""
    summary["target_train_loss"] = math.nan
    for method in summary["methods"].values():
        method["time_to_target_ratio"] = method["steps_to_target_ratio"] = None
        method["time_to_target_range"] = None
        method["seeds_to_target"] = []
    return summary


def _hardest(path: Path) -> dict[str, list[Example]]:
    methods = _mapping(path.read_text(encoding="utf-8"))["methods"]
    return {name: [*map(_example, found)] for name, found in methods.items()}


def _example(raw: dict[str, Any]) -> Example:
    history, image = [*map(_number, raw.get("history") or [])], raw.get("image")
    pixels = None if image is None else _image(image)
    return Example(
        int(raw["index"]), _number(raw["loss"]), history, pixels, str(raw.get("text") or "")
    )


def _image(raw: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    pixels = np.asarray(raw)
    if pixels.ndim != 3 or pixels.size == 0 or pixels.shape[0] > MOST_CHANNELS:
        raise ValueError(f"an image has the shape {pixels.shape}, not [channels, height, width]")
    if pixels.dtype.kind not in "iu" or pixels.min() < 0 or pixels.max() > 255:
        raise ValueError("an image has pixels that are not whole numbers from 0 to 255")
    return pixels.astype(np.uint8)


def _config(text: str) -> dict[str, Any]:
    """With what reports show of it checked; a part that is missing is not shown."""
    config = _mapping(text)
    for key, kind in SHOWN.items():
        value = config.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise TypeError(f"{key} is {value!r}")
    if not all(isinstance(share, int | float) for share in config.get("budgets") or []):
        raise TypeError(f"budgets are {config['budgets']!r}")
    return config


def from_json(text: str | bytes) -> Any:
    """The value of a text; whole numbers beyond 64 bits are floats, or infinite.

    Python would take them as they are, and fail where they are used.
    """
    return json.loads(text, parse_int=_whole)


def _whole(text: str) -> float:
    number = float(text)
    return int(text) if abs(number) < MOST_WHOLE else number


def _mapping(text: str) -> dict[str, Any]:
    value = from_json(text)
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} in place of an object")
    return value


def _number(value: Any) -> float:
    """A number; JSON's null is one that was not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise TypeError(f"{value!r} in place of a number")
    return math.nan if value is None else float(value)
