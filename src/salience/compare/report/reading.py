"""A run directory, read back and checked once: everything that a report is made of."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from salience.compare.summary import Spread, Summary, summarize
from salience.compare.training import Row
from salience.errors import ArgumentError, SalienceError

__all__ = ["Comparison", "Example", "read_comparison"]

LOSSES = ("train_loss", "train_max_loss", "test_loss")
TESTS = ("test_error", "test_perplexity")
RATIOS = ("step_cost_ratio", "time_to_target_ratio", "steps_to_target_ratio")
MOST_CHANNELS = 4


@dataclass(frozen=True)
class Example:
    """A training example that was still hard at the end, and its loss at each evaluation."""

    index: int
    seed: int | None
    loss: float
    history: list[float]
    image: np.ndarray[Any, np.dtype[np.uint8]] | None  # [C, H, W]
    text: str | None


class Comparison(NamedTuple):
    """What experiments wrote. Numbers that were not finite are nan; absent ratios are None.

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
    config = _read_config(directory / "config.json")
    rows = _read_rows(directory / "runs.jsonl")
    finished = (directory / "summary.json").exists()
    summary = _read_summary(directory / "summary.json") if finished else _so_far(rows, config)
    _check_rows(rows, summary, directory / "runs.jsonl")
    return Comparison(config, rows, summary, _read_hardest(directory / "hardest.json"), finished)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What is wrong with a file, in one sentence."""
    try:
        yield
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


def _read_config(path: Path) -> dict[str, Any]:
    with _readable(path):
        return _mapping(json.loads(path.read_text(encoding="utf-8")))


def _read_rows(path: Path) -> list[Row]:
    """All rows; a last line that was cut off in the middle of writing does not count."""
    rows: list[Row] = []
    with _readable(path):
        lines = path.read_text(encoding="utf-8").split("\n")
        cut_off = lines.pop()
        for number, line in enumerate(lines, start=1):
            if line.strip():
                rows.append(_row(line, number))
        rows += _whole(cut_off, len(lines) + 1)
    if not rows:
        raise ArgumentError(
            f"{path} has no rows: nothing has been measured yet; run the comparison first"
        )
    return rows


def _whole(line: str, number: int) -> list[Row]:
    """The row in a line without an end, if it happens to be complete."""
    try:
        return [_row(line, number)]
    except ValueError:
        return []


def _row(line: str, number: int) -> Row:
    try:
        row = _mapping(json.loads(line))
        row["method"], row["task"] = _text(row["method"]), _text(row["task"])
        row["seed"], row["step"] = int(row["seed"]), int(row["step"])
        row["seconds"] = float(row["seconds"])
        measured = (*LOSSES, TESTS[1] if TESTS[1] in row else TESTS[0])
        row |= {name: _number(row[name]) for name in measured}
    except KeyError as error:
        raise ValueError(f"line {number}: no {error}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"line {number}: {error}") from error
    return cast(Row, row)


def _read_summary(path: Path) -> Summary:
    with _readable(path):
        raw = _mapping(json.loads(path.read_text(encoding="utf-8")))
        methods = {name: _method(each) for name, each in _mapping(raw["methods"]).items()}
        baseline = _text(raw["baseline"])
        _one_test(methods, methods[baseline]["final"])
        summary = {
            "task": _text(raw["task"]),
            "baseline": baseline,
            "target_train_loss": _number(raw["target_train_loss"]),
            "methods": methods,
        }
        return cast(Summary, summary)


def _method(raw: Any) -> dict[str, Any]:
    """One method of the summary, with None for each ratio that is absent."""
    final = _mapping(_mapping(raw)["final"])
    read = {name: _spread(each) for name, each in final.items() if name != "step"}
    _ = read["train_loss"]
    return {
        **{name: _optional(raw.get(name)) for name in RATIOS},
        "seeds_to_target": [_optional(each) for each in raw.get("seeds_to_target") or ()],
        "final": {"step": int(final.get("step") or 0), **read},
        "n": int(raw.get("n") or read["train_loss"]["n"]),
    }


def _one_test(methods: dict[str, dict[str, Any]], baseline: dict[str, Any]) -> None:
    """All methods by the baseline's test measure; nan where it was not recorded."""
    measure = TESTS[1] if TESTS[1] in baseline else TESTS[0]
    for method in methods.values():
        for other in {*TESTS} - {measure}:
            method["final"].pop(other, None)
        method["final"].setdefault(measure, Spread(mean=math.nan, std=None, n=method["n"]))


def _spread(raw: Any) -> Spread:
    value = _mapping(raw)
    std, n = _optional(value.get("std")), int(value.get("n") or 1)
    return Spread(mean=_number(value["mean"]), std=std, n=n)


def _so_far(rows: list[Row], config: dict[str, Any]) -> Summary:
    """The summary of an unfinished comparison: no target yet, and so no ratio to it."""
    names = dict.fromkeys(row["method"] for row in rows)
    planned = [_name(each) for each in config.get("methods") or []]
    in_order = [name for name in dict.fromkeys([*planned, *names]) if name in names]
    baseline = "uniform" if "uniform" in names else in_order[0]
    summary = summarize([r for name in in_order for r in rows if r["method"] == name], baseline)
    summary["target_train_loss"] = math.nan
    for method in summary["methods"].values():
        method["time_to_target_ratio"] = method["steps_to_target_ratio"] = None
        method["seeds_to_target"] = []
    return summary


def _name(method: Any) -> str:
    return str(method.get("name")) if isinstance(method, dict) else str(method)


def _check_rows(rows: list[Row], summary: Summary, path: Path) -> None:
    """Every method that was summed up has rows to be drawn from."""
    missing = {*summary["methods"]} - {row["method"] for row in rows}
    if missing:
        raise ArgumentError(
            f"{path} has no rows of {min(missing)!r}, which summary.json names: "
            f"run the comparison again, which writes both anew"
        )


def _read_hardest(path: Path) -> dict[str, list[Example]]:
    """The hardest examples of each method; empty where the task shows none."""
    if not path.exists():
        return {}
    with _readable(path):
        methods = _mapping(_mapping(json.loads(path.read_text(encoding="utf-8")))["methods"])
        return {
            name: [_example(_mapping(each)) for each in found] for name, found in methods.items()
        }


def _example(raw: dict[str, Any]) -> Example:
    text, image = raw.get("text"), raw.get("image")
    return Example(
        index=int(raw["index"]),
        seed=None if raw.get("seed") is None else int(raw["seed"]),
        loss=_number(raw["loss"]),
        history=[_number(each) for each in raw.get("history") or []],
        image=None if image is None else _image(image),
        text=None if text is None else _text(text),
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
    """A number; JSON's null stands for one that was not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise TypeError(f"{value!r} in place of a number")
    return math.nan if value is None else float(value)


def _optional(value: Any) -> float | None:
    return None if value is None else _number(value)
