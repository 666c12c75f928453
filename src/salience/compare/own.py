"""A user's own task: ``path/to/file.py`` and the function in it that returns a ``Task``.

The folder of the file is the first place where Python looks for modules, as if the file were run by
itself, so that what lies beside it can be imported. It stays so while the process lasts: functions
of the task may import later, and so may worker processes.
"""

import importlib.util
import keyword
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from salience.compare.task import Task
from salience.compare.user_code import user_code
from salience.errors import ArgumentError

__all__ = ["check_name", "is_own", "own_file", "own_function", "own_task"]

FUNCTION = "make_task"


def is_own(spec: str) -> bool:
    """Whether this is a file of the user's, and not the name of a task."""
    return spec.endswith(".py") or ":" in spec


def own_file(spec: str) -> Path:
    """The file, without the name of the function."""
    return _parts(spec)[0]


def _parts(spec: str) -> tuple[Path, str]:
    """The file and the function."""
    if spec.endswith(".py"):
        return Path(spec), FUNCTION
    path, _, name = spec.rpartition(":")
    return Path(path), name or FUNCTION


def own_task(spec: str) -> Task:
    """``path/to/file.py`` or ``path/to/file.py:make_task``: the Task that the function returns."""
    path, name = _parts(spec)
    if not path.is_file():
        raise ArgumentError(
            f"there is no file {path}: write path/to/file.py:make_task, or begin one with "
            f"salience new {path}"
        )
    make = _function(path, name, "returns a Task")
    with user_code(f"{name} of {path}"):
        task = make()
    if not isinstance(task, Task):
        raise ArgumentError(
            f"{name} of {path} returned {type(task).__name__}: it must return a "
            f"salience.compare.Task"
        )
    return task


def own_function(spec: str, does: str) -> Callable[..., Any]:
    """``path/to/file.py:function``: the function, which ``does`` what is asked for."""
    path, _, name = spec.rpartition(":")
    if not Path(path).is_file():
        raise ArgumentError(f"there is no file {path!r}: write path/to/file.py:function")
    return _function(Path(path), name, does)


def _function(path: Path, name: str, does: str) -> Callable[..., Any]:
    found = getattr(_imported(path.resolve()), name, None)
    if not callable(found):
        raise ArgumentError(f"{path} has no function {name!r}: name the one that {does}")
    function: Callable[..., Any] = found
    return function


# ------------------------------------------------------------------------------------ importing

_folders: list[Path] = []  # that were put into the path here


def _imported(path: Path) -> ModuleType:
    """The file as a module of its own name, from its own folder; run once."""
    _leave_folders_but(path.parent)
    importlib.invalidate_caches()
    check_name(path)
    if path.parent not in _folders:
        _folders.append(path.parent)
        sys.path.insert(0, str(path.parent))
    with user_code(path.name):
        return importlib.import_module(path.stem)


def check_name(path: Path) -> None:
    """Refuse a file that cannot be imported by its own name."""
    name = path.stem
    if path.suffix != ".py" or not name.isidentifier() or keyword.iskeyword(name):
        raise ArgumentError(
            f"{path.name} cannot be the name of a task: it must end in .py and have only letters, "
            f"digits and _ before that, such as my_task.py"
        )
    found = sys.modules.get(name) or importlib.util.find_spec(name)
    file = Path(getattr(found, "__file__", None) or getattr(found, "origin", None) or "").resolve()
    if found is not None and file != path.resolve() and file.parent not in _folders:
        raise ArgumentError(
            f"{path.name} has the name of a module that Python knows already: give it another name"
        )


def _leave_folders_but(stay: Path) -> None:
    """Forget what tasks of other folders brought along: it may have the same names."""
    left = [folder for folder in _folders if folder != stay]
    for name in [name for name, module in sys.modules.items() if _folder(module) in left]:
        del sys.modules[name]
    _folders[:] = [folder for folder in _folders if folder == stay]
    sys.path[:] = [each for each in sys.path if each not in map(str, left)]


def _folder(module: Any) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).parent if isinstance(file, str) else None
