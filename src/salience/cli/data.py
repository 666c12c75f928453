"""``salience data list|fetch|verify``: the paper's data sets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn
from rich.table import Table

from salience.cli.common import DataDir
from salience.cli.progress import say
from salience.errors import DataError
from salience.paper.data import catalogue
from salience.paper.data.catalogue import Condition, collection, folder, inspect
from salience.paper.data.fetch import Progress as Report
from salience.paper.data.fetch import fetch as fetch_set

__all__ = ["app"]

EXAMPLES = """Examples:

salience data list --data-dir data  (what there is, and what is missing)

salience data fetch mnist --data-dir data

SALIENCE_DATA=data salience data verify
"""

Sets = Annotated[
    list[str] | None, typer.Argument(help="mnist, cifar10, ptb. Default: all.", metavar="[SET]...")
]
app = typer.Typer(
    help="The paper's data sets: see what is there, download, check.", epilog=EXAMPLES
)


@app.command("list", epilog=EXAMPLES)
def list_(data_dir: DataDir = None) -> None:
    """Name the data sets and what is there of each."""
    try:
        directory = catalogue.data_dir(data_dir)
    except DataError:
        directory = None  # then there is still something to choose from
    table = Table("data set", "what it is", "size", "files", "licence", box=None)
    for name, each in catalogue.CATALOGUE.items():
        size = f"{sum(file.size for file in each.files) / 1e6:.0f} MB"
        found = None if directory is None else inspect(each, directory, thorough=False)
        state = f"{len(each.files)}" if found is None else _lacking(found) or "complete"
        table.add_row(name, each.about, size, state, each.licence)
    Console().print(table)


@app.command(epilog=EXAMPLES)
def fetch(names: Sets = None, data_dir: DataDir = None) -> None:
    """Download what is missing or damaged; continues where an earlier download stopped."""
    chosen = {name: collection(name) for name in names or catalogue.CATALOGUE}
    directory, console = catalogue.data_dir(data_dir), Console()
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    # A log would get one picture of all bars at the end, which says nothing.
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        for name, each in chosen.items():
            new = fetch_set(each, directory, progress=lambda file: _bar(bars, file))
            done = f"fetched {len(new)} files" if new else "all files were there and right"
            say(console, f"{name}: {done}, in {folder(each, directory)}")


@app.command(epilog=EXAMPLES)
def verify(names: Sets = None, data_dir: DataDir = None) -> None:
    """Compare every file with its published checksum."""
    chosen = {name: collection(name) for name in names or catalogue.CATALOGUE}
    directory, console, bad = catalogue.data_dir(data_dir), Console(), {}
    for name, each in chosen.items():
        found = inspect(each, directory)
        for path, state in found.items():
            say(console, f"{state:<8} {path}")
        if lacking := _lacking(found):
            bad[name] = f"{name} ({lacking})"
    if bad:
        raise DataError(
            f"not complete: {', '.join(bad.values())}; mend with "
            f"`salience data fetch {' '.join(bad)} --data-dir {directory}`"
        )


def _lacking(found: Mapping[Path, Condition]) -> str:
    """ "1 missing, 2 damaged of 4"; empty where nothing is."""
    states = [*found.values()]
    wrong = [f"{states.count(s)} {s}" for s in ("missing", "damaged") if s in states]
    return f"{', '.join(wrong)} of {len(states)}" if wrong else ""


def _bar(bars: Progress, name: str) -> Report:
    bar = bars.add_task(name, total=None)
    return lambda there, total: bars.update(bar, completed=there, total=total)
