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

from salience.compare.methods import BASELINE
from salience.compare.run import Row
from salience.compare.summary import Summary, summarize, tested_by
from salience.errors import ArgumentError, SalienceError

__all__ = ["Comparison", "Example", "read_comparison"]

MOST_CHANNELS = 4


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
    so far, without a target and without ratios to it.
    """

    config: dict[str, Any]
    rows: list[Row]
    summary: Summary
    hardest: dict[str, list[Example]]
    finished: bool


def read_comparison(directory: Path) -> Comparison:
    """Read ``directory``; whatever is missing or damaged is refused by its name."""
    if not directory.is_dir():
        raise ArgumentError(f"there is no directory {directory}: name one a comparison wrote to")
    with _readable(directory / "config.json") as path:
        config = _mapping(json.loads(path.read_text(encoding="utf-8")))
        planned = [_name(each) for each in config.get("methods") or []]
    with _readable(directory / "runs.jsonl") as path:
        rows = _in_order(_rows(path), planned)
    with _readable(directory / "hardest.json") as path:
        hardest = _hardest(path) if path.exists() else {}
    summary, finished = summarize(rows, rows[0]["method"]), (directory / "summary.json").exists()
    if finished:
        _check_whole(summary, planned, directory / "runs.jsonl")
    return Comparison(config, rows, summary if finished else _open(summary), hardest, finished)


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
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ArgumentError(
            f"{path} is damaged ({why}): run the comparison again, which writes it anew"
        ) from error


def _rows(path: Path) -> list[Row]:
    """All rows; a last line that was cut off in the middle of writing does not count."""
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
    for row in rows:
        _ = row[tested_by(rows[0])]  # all methods are tested alike
    return rows


def _row(line: str, number: int) -> Row:
    try:
        row = _mapping(json.loads(line))
        row |= {name: _text(row[name]) for name in ("method", "task")}
        row |= {name: int(row[name]) for name in ("seed", "step")}
        tested = "test_perplexity" if "test_perplexity" in row else "test_error"
        measured = ("train_loss", "train_max_loss", "test_loss", "seconds", tested)
        row |= {name: _number(row[name]) for name in measured}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"line {number}: {why}") from error
    return cast(Row, row)


def _in_order(rows: list[Row], planned: list[str]) -> list[Row]:
    """Methods as they were planned, the baseline first."""
    names = dict.fromkeys([BASELINE, *planned, *(row["method"] for row in rows)])
    return [row for name in names for row in rows if row["method"] == name]


def _name(method: Any) -> str:
    return str(method.get("name")) if isinstance(method, dict) else str(method)


def _check_whole(summary: Summary, planned: list[str], path: Path) -> None:
    if missing := {*planned} - {*summary["methods"]}:
        raise ArgumentError(
            f"{path} has no rows of {min(missing)!r}, which config.json names: "
            f"run the comparison again, which writes both anew"
        )


def _open(summary: Summary) -> Summary:
    """Of an unfinished comparison: no target yet, and so no ratio to it."""
    summary["target_train_loss"] = math.nan
    for method in summary["methods"].values():
        method["time_to_target_ratio"] = method["steps_to_target_ratio"] = None
        method["seeds_to_target"] = []
    return summary


def _hardest(path: Path) -> dict[str, list[Example]]:
    methods = _mapping(_mapping(json.loads(path.read_text(encoding="utf-8")))["methods"])
    return {name: [_example(_mapping(each)) for each in found] for name, found in methods.items()}


def _example(raw: dict[str, Any]) -> Example:
    image = raw.get("image")
    return Example(
        index=int(raw["index"]),
        loss=_number(raw["loss"]),
        history=[_number(each) for each in raw.get("history") or []],
        image=None if image is None else _image(image),
        text=_text(raw.get("text") or ""),
    )


def _image(raw: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    pixels = np.asarray(raw)
    if pixels.ndim != 3 or pixels.size == 0 or pixels.shape[0] > MOST_CHANNELS:
        raise ValueError(f"an image has the shape {pixels.shape}, not [channels, height, width]")
    if pixels.dtype.kind not in "iu" or pixels.min() < 0 or pixels.max() > 255:
        raise ValueError("an image has pixels that are not whole numbers from 0 to 255")
    return pixels.astype(np.uint8)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} in place of an object")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} in place of a text")
    return value


def _number(value: Any) -> float:
    """A number; JSON's null is one that was not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise TypeError(f"{value!r} in place of a number")
    return math.nan if value is None else float(value)
