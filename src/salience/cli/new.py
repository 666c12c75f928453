"""``salience new``: a file with a task that runs as it is, to be changed into one's own."""

import sys
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from salience.compare.own import check_name
from salience.errors import ArgumentError

__all__ = ["EXAMPLES", "KINDS", "new"]

KINDS = ("classification", "regression", "text", "images")

EXAMPLES = """Examples:

salience new my_task.py

salience new my_images.py --kind images

salience compare my_task.py  (the file runs as it is)
"""


def new(
    path: Annotated[Path, typer.Argument(help="The file to write, such as my_task.py.")],
    kind: Annotated[str, typer.Option(help=f"Of {', '.join(KINDS)}.")] = KINDS[0],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a task of your own to begin with; it runs unchanged."""
    if kind not in KINDS:
        raise ArgumentError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    check_name(path)
    text = (files("salience.cli") / "templates" / f"{kind}.py.txt").read_text(encoding="utf-8")
    text = text.replace("{name}", path.stem).replace("{file}", path.name)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ArgumentError(
            f"{path} exists: choose another name, or pass --force to replace it"
        ) from error
    except OSError as error:
        raise ArgumentError(
            f"cannot write {path} ({error.strerror}): choose a folder that exists"
        ) from error
    sys.stdout.write(
        f"Written: {path}\nIt runs as it is; put your own data and model into it.\n\n"
        f"  salience compare {path}\n"
    )
