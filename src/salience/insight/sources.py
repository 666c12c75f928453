"""Where a loss history is read from: a saved one, a checkpoint, or a comparison."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from salience import checkpoint
from salience.compare.recorded import HISTORY
from salience.errors import ArgumentError, StateError
from salience.history import LossHistory

__all__ = ["Source", "read_source"]

TORCH = (".pt", ".pth")


class Source(NamedTuple):
    """A loss history, and where it is from."""

    name: str
    history: LossHistory
    page: Path  # where its page belongs
    config: dict[str, Any]  # of a comparison; else empty


def read_source(path: Path, labels: Any = None) -> Source:
    """``path``: a comparison's directory, a file of ``history().save()``, or a checkpoint.

    ``labels``: the class of each example, for checkpoints, which do not have them.
    """
    if path.is_dir():
        return _of_directory(path)
    if not path.exists():
        raise ArgumentError(
            f"there is no {path}: name the directory of a comparison, a file that "
            f"loader.history().save() wrote, or a checkpoint"
        )
    page = path.with_suffix(".html")
    if path.suffix == ".npz":
        return Source(path.stem, LossHistory.load(path), page, {})
    return Source(path.stem, LossHistory.from_state(_state(path), labels), page, {})


def _of_directory(directory: Path) -> Source:
    config = _config(directory)
    name = str(config.get("task") or directory.resolve().name)
    for place in (HISTORY, Path("history.npz")):
        if (directory / place).exists():
            found = LossHistory.load(directory / place)
            return Source(name, found, directory / "insight.html", config)
    raise ArgumentError(
        f"{directory} has no loss history: a comparison writes one at its checkpoints and at its "
        f"end, so wait for the first, or run it again; a loop of your own saves one with "
        f"loader.history().save({str(directory / 'history.npz')!r})"
    )


def _config(directory: Path) -> dict[str, Any]:
    try:
        found = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _state(path: Path) -> Any:
    if path.suffix not in TORCH:
        return checkpoint.load(path).state
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's own are of many kinds
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise StateError(f"{path} cannot be read as a checkpoint of torch ({why})") from error
