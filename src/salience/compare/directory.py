"""The writer of run directories: ``config.json``, ``runs.jsonl``, reports, checkpoints of runs.

Every file is replaced as a whole, so that a kill leaves no half file; only ``runs.jsonl`` grows
row by row. ``reading`` is the reader.
"""

import errno
import json
import math
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

import salience
from salience.compare.run import Row
from salience.errors import ArgumentError

__all__ = [
    *("RunFile", "add_row", "begin", "environment", "finite", "permit", "read_config", "refusal"),
    *("write", "write_rows"),
]

# Made from the rows: not valid any more once a directory is begun again.
DERIVED = (
    *("summary.json", "hardest.json", "report.html", "report.md"),
    *("curves.png", "test.png", "worst.png", "auto.png", "cost.png", "budgets.png"),
    "insight.html",
)
# What ``RunFile`` keeps beside the state of a run.
FIELDS = {"rows": list, "observed": list, "curves": list, "hardest": list, "finished": bool}
# What may differ when a directory is resumed.
FREE = ("command", "versions", "hardware", "commit", "jobs")
UNWRITTEN = "config.json.part"  # of a process that was killed while it wrote the very first file


def begin(
    directory: Path,
    config: Mapping[str, Any],
    *,
    resume: bool = False,
    replace: bool | None = None,
) -> None:
    """Write ``config.json``; results that are already there are resumed, replaced or refused.

    ``config`` holds what decides the results; ``environment`` is added to it. ``replace`` None:
    the user has no such choice.
    """
    config = {**config, **environment()}
    permit(directory, config, resume=resume, replace=replace)
    with refusal(directory / "config.json"):
        for name in DERIVED:
            (directory / name).unlink(missing_ok=True)
        if not resume and (directory / "state").is_dir():
            shutil.rmtree(directory / "state")
    write(directory / "config.json", config)


def permit(
    directory: Path,
    config: Mapping[str, Any],
    *,
    resume: bool = False,
    replace: bool | None = None,
) -> None:
    """Refuse a directory whose content must not be touched; nothing is written.

    ``config`` has the settings that are known so far.
    """
    _refuse_unwritable(directory)
    before = read_config(directory)
    if before is None or "salience" not in (before.get("versions") or {}):
        _refuse_foreign(directory)
        return
    other = _other(before, config)
    if resume and other:
        raise ArgumentError(
            f"cannot resume {directory}: it was begun with {other}; give the same options, or "
            f"choose another directory with --out"
        )
    if resume or replace:
        return
    finished = (directory / "summary.json").exists()
    what = "a finished comparison" if finished else "an unfinished comparison"
    what += f" with {other}" if other else ""
    more = "seeds" in config and before.get("seeds") != finite(config["seeds"])
    choices = []
    if not other and (more or not finished):
        choices = ["add --resume to " + ("train the new seeds as well" if more else "continue it")]
    choices += [] if replace is None else ["add --replace to start over"]
    choices += ["choose another directory with --out"]
    raise ArgumentError(f"{directory} already holds {what}: {', or '.join(choices)}")


def _refuse_foreign(directory: Path) -> None:
    """What no comparison wrote stays as it is."""
    if not directory.is_dir():
        return
    names = (path.name for path in directory.iterdir())
    found = sorted(name for name in names if not name.startswith(".") and name != UNWRITTEN)
    if found:
        shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise ArgumentError(
            f"{directory} holds files that no comparison wrote ({shown}): choose another directory "
            f"with --out"
        )


def read_config(directory: Path) -> dict[str, Any] | None:
    """The configuration of what is already there; None for a new directory."""
    path = directory / "config.json"
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} is damaged ({error}): choose another --out") from error
    return content if isinstance(content, dict) else {}


def _other(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first setting that differs: "steps 24, not 25"; empty where none does.

    More seeds are no other setting: those that are there stay as they are.
    """
    for key, value in finite(now).items():
        if key not in FREE and not _goes_on(key, before.get(key, value), value):
            if key == "task_file":  # a checksum
                return "another version of the task's file"
            return f"{key} {before.get(key)!r}, not {value!r}"
    return ""


def _goes_on(key: str, before: Any, now: Any) -> bool:
    """Whether a setting is the same or, for seeds (a list, or how many), has more of them."""
    if key == "studies" and isinstance(before, list) and len(before) == len(now):
        pairs = zip(before, now, strict=True)
        return all(_goes_on(name, one.get(name), two[name]) for one, two in pairs for name in two)
    if key == "seeds" and isinstance(before, list) and isinstance(now, list):
        return now[: len(before)] == before
    if key == "seeds" and isinstance(before, int) and isinstance(now, int):
        return now >= before
    return bool(before == now)


# ------------------------------------------------------------------------------------------ files


def write(path: Path, content: str | bytes | Mapping[str, Any]) -> Path:
    """All or nothing; a mapping is written as JSON."""
    if isinstance(content, Mapping):
        content = json.dumps(finite(content), indent=2, allow_nan=False) + "\n"
    raw = content.encode() if isinstance(content, str) else content
    with refusal(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_bytes(raw)
        part.replace(path)
    return path


def write_rows(directory: Path, rows: Iterable[Row]) -> None:
    """Write ``runs.jsonl``."""
    write(directory / "runs.jsonl", "".join(map(_line, rows)))


def add_row(directory: Path, row: Row) -> Row:
    """Append one evaluation to ``runs.jsonl``, for anyone who follows the training."""
    path = directory / "runs.jsonl"
    with refusal(path), path.open("a", encoding="utf-8") as file:
        file.write(_line(row))
    return row


def _line(row: Row) -> str:
    return json.dumps(finite(row), allow_nan=False) + "\n"


def finite(value: Any, digits: int = 17) -> Any:
    """The same with None for nan and infinity, which JSON does not know."""
    if isinstance(value, Mapping):
        return {key: finite(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item, digits) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    return value


def _refuse_unwritable(directory: Path) -> None:
    """Refuse a place where nothing can be written; nothing is written."""
    there = next(
        each for each in (directory.absolute(), *directory.absolute().parents) if each.exists()
    )
    with refusal(directory / "config.json"):
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def refusal(path: Path) -> Iterator[None]:
    """A disk that does not take our files, in one sentence."""
    try:
        yield
    except OSError as error:
        blocked = next((each for each in path.parents if each.is_file()), None)
        why = f"{blocked.name} is a file" if blocked else error.strerror or error
        raise ArgumentError(
            f"cannot write to {path} ({why}): make room there, or choose another directory"
        ) from error


# ------------------------------------------------------------------------------------ checkpoints


@final
class RunFile:
    """``state/METHOD-SEED.pt``: a run's rows and, until it is finished, the state to resume from.

    With a share of the whole budget, ``state/METHOD-SEED@SHARE.pt``.
    ``observed`` has further measurements beside each row, ``curves`` the train losses [probe] of
    each evaluation, ``hardest`` the examples with the largest losses at the end.
    """

    def __init__(self, directory: Path, method: str, seed: int, budget: float = 1.0) -> None:
        plain = re.sub(r"[^\w=.-]+", "_", method)
        part = "" if budget == 1 else f"@{budget:g}"
        self.path = directory / "state" / f"{plain}-{seed}{part}.pt"
        self.rows: list[Row] = []
        self.observed: list[dict[str, Any]] = []
        self.curves: list[torch.Tensor] = []
        self.hardest: list[dict[str, Any]] = []
        self.finished = False
        self.state: dict[str, Any] | None = None
        self._saved = time.monotonic()
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        """All of it, or an error that says what to do."""
        try:
            content = torch.load(self.path, weights_only=True)
            for name, kind in FIELDS.items():
                if not isinstance(content[name], kind):
                    raise TypeError(f"{name} is a {type(content[name]).__name__}")
            if not isinstance(content["state"], dict | None):
                raise TypeError(f"state is a {type(content['state']).__name__}")
        except Exception as error:  # torch's own are of many kinds
            why = " ".join(str(error).split())[:80] or type(error).__name__
            raise ArgumentError(
                f"{self.path} is damaged ({why}): delete it, and this run starts over"
            ) from error
        vars(self).update({name: content[name] for name in (*FIELDS, "state")})

    def age(self) -> float:
        """Seconds since it was saved or read."""
        return time.monotonic() - self._saved

    def save(self, state: dict[str, Any] | None) -> None:
        """Replace the file; ``state`` is None for a finished run."""
        content = {name: getattr(self, name) for name in FIELDS}
        with refusal(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_suffix(f".{os.getpid()}.part")
            torch.save({**content, "state": state}, part)
            part.replace(self.path)
        self._saved = time.monotonic()


# ------------------------------------------------------------------------------------ environment


def environment(threads: int | None = None) -> dict[str, Any]:
    """Versions, commit and hardware, without anything that names the machine or its owner."""
    return {
        "commit": _commit(),
        "versions": {
            "salience": salience.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "hardware": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "threads": threads or torch.get_num_threads(),
            "platform": f"{platform.system()} {platform.machine()}",
        },
    }


def _cpu() -> str:
    """The model name of the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of this copy of Salience, where it is a checkout; "+" marks later changes."""

    def git(*ask: str) -> str:
        options: dict[str, Any] = {"capture_output": True, "timeout": 10, "check": True}
        found = subprocess.run(["git", *ask], cwd=Path(__file__).parent, text=True, **options)
        return str(found.stdout).strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "..") else "")
    except (OSError, subprocess.SubprocessError):
        return None
