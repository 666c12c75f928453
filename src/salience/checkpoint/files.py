"""Where checkpoints lie: the last one, the previous one, and files that belong together.

A save writes a temporary file beside its target, sees it to the disk and only then renames it. At
every moment ``path`` or ``path.previous`` is a whole checkpoint, once there has been one.
"""

import operator
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, final

from salience.checkpoint import archive
from salience.checkpoint.archive import Header, Report, UnreadableError
from salience.errors import ArgumentError, StateError

try:
    import fcntl
except ImportError:  # Windows, where a file in use cannot be removed by others
    fcntl = None  # type: ignore[assignment]

__all__ = ["Checkpoint", "exists", "load", "load_together", "save", "save_together"]

Location = str | os.PathLike[str]
Progress = Callable[[int, int], None]  # bytes done, bytes in total
Key = tuple[int, str | None]  # step and token: equal for files that belong together


@final
@dataclass(frozen=True)
class Checkpoint:
    """What ``load`` found."""

    step: int
    state: Any
    path: Path  # of the file that it came from: the last one, or the previous one


# -------------------------------------------------------------------------------------------- save


def save(path: Location, state: Any, *, step: int, progress: Progress | None = None) -> None:
    """Save ``state`` to ``path``; the checkpoint that was there becomes ``path.previous``.

    ``state``: tensors, numpy arrays, numbers, strings, None, and dicts, lists and tuples of these.
    Whatever interrupts a save, the earlier checkpoints stay loadable. With several ranks, only one
    saves. ``progress(done, total)`` is called with bytes.
    """
    _save({Path(path): state}, step, None, progress)


def save_together(
    states: Mapping[Location, Any], *, step: int, progress: Progress | None = None
) -> None:
    """Save several files that belong together, for ``load_together``: path to state.

    Whatever interrupts it, there is a step that all files have.
    """
    files = {Path(path): state for path, state in states.items()}
    if len({os.path.abspath(path) for path in files}) < len(states):
        raise ArgumentError(f"the same file is named twice: {[str(path) for path in states]}")
    _save(files, step, os.urandom(8).hex(), progress)


def _save(states: dict[Path, Any], step: int, token: str | None, progress: Progress | None) -> None:
    step = _whole_number(step)
    for path in states:
        if path.is_dir():
            raise ArgumentError(f"{path} is a directory: name a file in it")
    plans = {path: archive.plan(state) for path, state in states.items()}
    report = _counting(progress, sum(plan.nbytes for plan in plans.values()))
    for path in plans:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        _settle(path)
    shared = next(iter(_in_common([_versions(path) for path in plans])), None) if token else None
    with ExitStack() as stack:
        written = {}
        for path, plan in plans.items():
            written[path] = file = stack.enter_context(_temporary(path))
            archive.write(file, plan, step, token, report)
        for path, file in written.items():
            file.close()
            _put_in_place(Path(file.name), path, _keep(path, step, shared))


def _whole_number(step: Any) -> int:
    if isinstance(step, bool) or not hasattr(step, "__index__") or step < 0:
        raise ArgumentError(f"step must be a whole number >= 0; got {step!r}")
    return operator.index(step)


def _keep(path: Path, step: int, shared: Key | None) -> bool:
    """Whether the last file becomes the previous one; else that stays what it is.

    A previous checkpoint is given up only for a readable one that is older than ``step`` or, among
    files that belong together, for the one that all of them have. So after going back to an
    earlier step, a second interruption finds that step again.
    """
    if not path.exists():
        return False
    if not _previous(path).exists():
        return True
    try:
        last = archive.header(path)
    except StateError:
        return False
    return last.step < step if shared is None else (last.step, last.token) == shared


def _put_in_place(new: Path, path: Path, keep: bool) -> None:
    """Rename, keeping what was there: until ``new`` is in place, every older file has a name."""
    if keep:
        try:
            os.link(path, _kept(path))
        except OSError:  # a file system without hard links
            os.replace(path, _kept(path))
    try:
        os.replace(new, path)
    finally:
        _settle(path)
    _sync_folder(path.parent)


def _settle(path: Path) -> None:
    """Finish what ``_put_in_place`` began, or undo it if it was interrupted before the new file."""
    kept = _kept(path)
    if not kept.exists():
        return
    if not path.exists():
        os.replace(kept, path)
    elif kept.samefile(path):
        kept.unlink()
    else:
        os.replace(kept, _previous(path))


@contextmanager
def _temporary(path: Path) -> Iterator[BinaryIO]:
    """A new file beside ``path``, locked while it is open and gone in the end unless renamed."""
    name = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}.part")
    file = name.open("xb")
    try:
        if fcntl is not None:
            with suppress(OSError):  # not every network file system has locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file
    except OSError as error:
        error.add_note(f"{path} was not saved; what was saved there before is untouched")
        raise
    finally:
        with suppress(OSError):  # on a full disk closing fails as writing did
            file.close()
        name.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of processes that were killed; those of living ones are locked."""
    pattern = re.compile(re.escape(path.name) + r"\.\d+-[0-9a-f]{8}\.part")
    for left in [each for each in path.parent.iterdir() if pattern.fullmatch(each.name)]:
        with suppress(OSError), left.open("rb") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink()


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -------------------------------------------------------------------------------------------- load


def exists(path: Location) -> bool:
    """Whether there is something to load at ``path``, the last file or the previous one."""
    return any(each.exists() for each in _names(Path(path)))


def load(path: Location, *, progress: Progress | None = None) -> Checkpoint:
    """The checkpoint at ``path`` or, with a warning, the previous one if that is damaged.

    Every byte is verified. Tensors are on the host, with memory of their own.
    """
    return _load([Path(path)], progress)[0]


def load_together(*paths: Location, progress: Progress | None = None) -> list[Checkpoint]:
    """The newest checkpoints of one and the same step that are whole in all files.

    Example::

        model, sampler = checkpoint.load_together("model.ckpt", "sampler.ckpt")
    """
    if not paths:
        raise ArgumentError("load_together needs at least one file")
    return _load([Path(path) for path in paths], progress)


def _load(paths: list[Path], progress: Progress | None) -> list[Checkpoint]:
    problems: list[str] = []
    files = [_versions(path, problems) for path in paths]
    for chosen in _sets(files):
        report = _counting(progress, sum(header.nbytes for _, header in chosen))
        try:
            found = [_read(path, header, report) for path, header in chosen]
        except UnreadableError as error:
            problems.append(str(error))
            continue
        if older := [each for each in found if each.path not in paths]:
            names = " and ".join(str(each.path) for each in older)
            why = "; ".join(problems) or f"the files have different steps ({_steps(files)})"
            warnings.warn(f"loaded step {found[0].step} from {names}: {why}", stacklevel=3)
        return found
    if len(paths) > 1 and all(files):
        problems.append(f"no step is whole in all files (steps {_steps(files)})")
    raise StateError(f"there is no checkpoint to load: {'; '.join(problems)}")


def _read(path: Path, expected: Header, report: Report) -> Checkpoint:
    header, state = archive.read(path, report)
    if header != expected:
        raise UnreadableError(f"{path} was replaced while it was read")
    return Checkpoint(header.step, state, path)


Versions = dict[Key, list[tuple[Path, Header]]]  # the last one first


def _versions(path: Path, problems: list[str] | None = None) -> Versions:
    """What can be had at ``path``, as far as a quick look shows."""
    found: Versions = {}
    for each in _names(path):
        try:
            header = archive.header(each)
        except StateError as error:
            if problems is None:
                continue
            # A last file of another release, or without permission, wants a decision of the user.
            if each == path and not isinstance(error, UnreadableError):
                raise
            if each != _kept(path):  # which is there only after an interruption
                problems.append(str(error))
        else:
            found.setdefault((header.step, header.token), []).append((each, header))
    return found


def _sets(files: list[Versions]) -> Iterator[tuple[tuple[Path, Header], ...]]:
    """One version of each file, all of one step; the newest set first."""
    for key in _in_common(files):
        yield from product(*(versions[key] for versions in files))


def _in_common(files: list[Versions]) -> list[Key]:
    """What all files have; first what is the last one of most of them, then the higher step."""
    lasts = [next(iter(versions), None) for versions in files]
    shared = set.intersection(*(set(versions) for versions in files))
    return sorted(shared, key=lambda key: (lasts.count(key), key[0]), reverse=True)


def _steps(files: list[Versions]) -> str:
    return "; ".join(" and ".join(str(step) for step, _ in versions) for versions in files)


def _names(path: Path) -> tuple[Path, ...]:
    """Everything that can be loaded, newest first."""
    return path, _kept(path), _previous(path)


def _kept(path: Path) -> Path:
    """The name of the last file on its way to become the previous one."""
    return path.with_name(f"{path.name}.kept")


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.name}.previous")


def _counting(progress: Progress | None, total: int) -> Report:
    done = 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return report
