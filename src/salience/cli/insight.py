"""``salience insight``: what the losses of each example tell."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from salience.batches.labels import find_labels
from salience.cli.common import DataDir, list_files
from salience.cli.progress import say
from salience.cli.tasks import resolve
from salience.compare.directory import write
from salience.compare.own import own_function
from salience.compare.task import Task
from salience.errors import ArgumentError, DataError
from salience.history import GROUPS, LossHistory
from salience.insight.page import TOP, Show, html
from salience.insight.sources import Source, read_source
from salience.insight.terminal import class_table, group_tables
from salience.insight.words import lead
from salience.paper.networks import SIZES

__all__ = ["EXAMPLES", "insight"]

ROWS = 5  # of each group in the terminal
MOST = 500  # examples of each group on a page

EXAMPLES = """Examples:

salience insight runs/mnist

salience insight history.npz --show my_data.py:show --out insight.html

salience insight runs/mnist --export wrong.txt --group suspects

salience insight last.ckpt --task my_task.py:make_task --export history.csv
"""


def insight(
    source: Annotated[
        Path,
        typer.Argument(
            help="The directory of a comparison, a file of history().save(), or a checkpoint."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; by default beside the source.")
    ] = None,
    show: Annotated[
        str | None,
        typer.Option(help="path/to/file.py:function, from an index to an image or a text."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="The task whose examples these are; a comparison knows its own."),
    ] = None,
    data_dir: DataDir = None,
    top: Annotated[int, typer.Option(help="Examples of each group on the page.")] = TOP,
    export: Annotated[
        list[Path] | None,
        typer.Option(help="A .txt of the indices of a group, or all as .csv, .parquet, .npz."),
    ] = None,
    group: Annotated[
        str, typer.Option(help=f"The group of a .txt: {', '.join(GROUPS)}.")
    ] = "suspects",
    count: Annotated[
        int | None, typer.Option(help="How many of the group; by default all that belong to it.")
    ] = None,
) -> None:
    """Show the hardest, likely wrong, forgotten and no longer seen examples of a training."""
    if not 1 <= top <= MOST:
        raise ArgumentError(f"top must be between 1 and {MOST}; got {top}")
    console, errors = Console(), Console(stderr=True)
    of_task = None if task is None else _task(task, {}, data_dir)
    found = read_source(source, None if of_task is None else find_labels(of_task.train))
    for path in export or []:
        _export(found.history, path, group, count)
    pictures = _pictures(found, show, of_task, data_dir, errors)
    page = write(out or found.page, html(found.history, found.name, pictures, top))
    _print(console, found.history)
    list_files(console, [page, *(export or [])])


def _print(console: Console, history: LossHistory) -> None:
    console.print(lead(history), highlight=False)
    for table in (*group_tables(history, ROWS), class_table(history)):
        if table is not None:
            console.print()
            console.print(table)


def _export(history: LossHistory, path: Path, group: Any, count: int | None) -> None:
    """A list of indices, one a line, or the whole table."""
    if path.suffix != ".txt":
        history.save(path)
        return
    chosen = history.select(group, count)
    write(path, "".join(f"{index}\n" for index in chosen.tolist()))


# ---------------------------------------------------------------------------------------- examples


def _pictures(
    found: Source, show: str | None, task: Task | None, data_dir: Path | None, to: Console
) -> Show | None:
    """How to show an example: the user's function, or that of the task; None where neither is."""
    if show is not None:
        return own_function(show, "shows an example")
    if task is None and "task" in found.config:
        try:
            task = _task(str(found.config["task"]), found.config, data_dir)
        except (ArgumentError, DataError) as error:
            say(to, f"Without pictures: {error}")
    if task is None or task.show is None:
        return None
    if len(task.train) != len(found.history):  # type: ignore[arg-type]
        raise ArgumentError(
            f"task {task.name!r} has {len(task.train)} training examples, the history "  # type: ignore[arg-type]
            f"{len(found.history)}: name the task that it is from with --task"
        )
    return task.show


def _task(name: str, config: dict[str, Any], data_dir: Path | None) -> Task:
    size = config.get("model")
    return resolve(name, size if size in SIZES else "small", data_dir, None)
