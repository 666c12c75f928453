"""Errors in a user's own code: their file and line and one sentence, in place of our stack."""

import os
import site
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import salience
from salience.errors import ArgumentError, SalienceError

__all__ = ["debug", "debugging", "user_code"]

OURS = Path(salience.__file__).parent
# Libraries of others, where the cause is not.
OTHERS = tuple(
    Path(each)
    for each in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
)


DEBUG = "SALIENCE_DEBUG"  # in the environment, so that processes we start know it too


def debug(on: bool) -> None:
    """Show whole tracebacks from now on; False changes nothing."""
    if on:
        os.environ[DEBUG] = "1"


def debugging() -> bool:
    """Whether whole tracebacks are wanted."""
    return os.environ.get(DEBUG, "") not in ("", "0")


@contextmanager
def user_code(what: str, *, always: bool = True) -> Iterator[None]:
    """Whatever goes wrong inside becomes one sentence about ``what``; the cause stays attached.

    ``always`` False: only where a file of the user's is on the way to it; else it may be ours.
    """
    try:
        yield
    except SalienceError:
        raise
    except Exception as error:
        where = _place(error)
        if where is None and (not always or _is_ours(error)):
            raise
        reason = " ".join(str(error).split())
        said = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        raise ArgumentError(
            f"{what} failed{where or ''}: {said} (--debug shows the whole traceback)"
        ) from error


def _place(error: Exception) -> str | None:
    """The innermost line of the user's own on the way to the error."""
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        return f" in {Path(error.filename).name}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if _is_users(frame.filename):
            line = f" (`{frame.line}`)" if frame.line else ""
            return f" in {Path(frame.filename).name}, line {frame.lineno}{line}"
    return None


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False
    path = Path(file)
    return not any(path.is_relative_to(each) for each in (OURS, *OTHERS))


def _is_ours(error: Exception) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(OURS)
