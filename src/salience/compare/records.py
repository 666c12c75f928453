"""The files of a run directory: ``config.json``, ``runs.jsonl`` and ``summary.json``."""

import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

import salience
from salience.compare.summary import Summary
from salience.compare.training import Row
from salience.errors import ArgumentError

__all__ = ["Records", "environment", "finite", "refused"]

STALE = (
    *("summary.json", "hardest.json", "report.html", "report.md"),
    *("curves.png", "test.png", "cost.png"),
)


@final
class Records:
    """Writes a run directory; rows are on the disk as soon as they are measured.

    What an earlier run left under the same names goes first, so that files never contradict
    each other.
    """

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        self.directory = directory
        with refused(directory):
            directory.mkdir(parents=True, exist_ok=True)
            for stale in STALE:
                (directory / stale).unlink(missing_ok=True)
            (directory / "runs.jsonl").write_text("", encoding="utf-8")
        self._write("config.json", config)

    def row(self, row: Row) -> None:
        """Append one evaluation."""
        line = json.dumps(finite(row), allow_nan=False) + "\n"
        with refused(self.directory), (self.directory / "runs.jsonl").open("a") as file:
            file.write(line)

    def summary(self, summary: Summary) -> None:
        """What the rows came to."""
        self._write("summary.json", summary)

    def picture(self, name: str, content: bytes) -> None:
        """A figure that was drawn from the rows."""
        with refused(self.directory):
            (self.directory / name).write_bytes(content)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(finite(content), indent=2, allow_nan=False) + "\n"
        with refused(self.directory):
            (self.directory / name).write_text(text, encoding="utf-8")


def environment(threads: int) -> dict[str, Any]:
    """Versions and hardware, without anything that names the machine or its owner."""
    return {
        "versions": {
            "salience": salience.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "hardware": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "threads": threads,
            "platform": f"{platform.system()} {platform.machine()}",
        },
    }


def _cpu() -> str:
    """The model name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


@contextmanager
def refused(directory: Path) -> Iterator[None]:
    """A disk that does not take our files, in one sentence."""
    try:
        yield
    except OSError as error:
        is_file = directory.exists() and not directory.is_dir()
        why = "it is a file" if is_file else error.strerror or error
        raise ArgumentError(
            f"cannot write to {directory} ({why}): choose another directory with --out"
        ) from error


def finite(value: Any) -> Any:
    """The same with None for nan and infinity, which JSON does not know."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
