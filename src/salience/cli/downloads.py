"""Data sets for people: which are there, how far a download is, what a check found."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from salience.errors import DataError
from salience.paper.data import download
from salience.paper.data.catalogue import Collection, Condition, folder, inspect
from salience.paper.data.fetch import fetch

__all__ = ["check", "fetch_all", "list_table"]

MEGABYTE = 1_000_000


def list_table(collections: Iterable[Collection], directory: Path | None) -> Table:
    """A row per data set; without a directory, what there is to fetch."""
    table = Table("data set", "what it is", "size", "files", "licence", box=None)
    for each in collections:
        size = sum(file.size for file in each.files) / MEGABYTE
        table.add_row(
            each.name, each.about, f"{size:.0f} MB", _count(each, directory), each.licence
        )
    return table


def fetch_all(collections: Iterable[Collection], directory: Path, to: Console) -> None:
    """Download each set, with a bar per file on a terminal and a line per set everywhere."""
    with _bars(to) as bars:
        for each in collections:
            new = fetch(each, directory, progress=lambda name: _bar(bars, name))
            done = f"fetched {len(new)} files" if new else "all files were there and right"
            _say(to, f"{each.name}: {done}, in {folder(each, directory)}")


def check(collections: Iterable[Collection], directory: Path, to: Console) -> None:
    """A line per file, by its checksum; raises DataError where one is missing or damaged."""
    bad = []
    for each in collections:
        found = inspect(each, directory, thorough=True)
        for path, state in found.items():
            _say(to, f"{state:<8} {path}")
        if set(found.values()) != {"ok"}:
            bad.append(f"{each.name} ({_numbers(found)})")
    if bad:
        names = " ".join(each.split()[0] for each in bad)
        raise DataError(
            f"not complete: {', '.join(bad)}; mend with "
            f"`salience data fetch {names} --data-dir {directory}`"
        )


def _count(each: Collection, directory: Path | None) -> str:
    if directory is None:
        return f"{len(each.files)}"
    found = inspect(each, directory, thorough=False)
    return "complete" if set(found.values()) == {"ok"} else _numbers(found)


def _numbers(found: Mapping[Path, Condition]) -> str:
    states = list(found.values())
    wrong = (
        f"{states.count(state)} {state}" for state in ("missing", "damaged") if state in states
    )
    return f"{', '.join(wrong)} of {len(states)}"


@contextmanager
def _bars(to: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description:>28}"), BarColumn(), DownloadColumn())
    more = (TransferSpeedColumn(), TimeRemainingColumn())
    # A log would get one picture of all bars at the end, which says nothing.
    with Progress(*columns, *more, console=to, disable=not to.is_terminal) as progress:
        yield progress


def _bar(bars: Progress, name: str) -> download.Progress:
    bar = bars.add_task(name, total=None)
    return lambda there, total: bars.update(bar, completed=there, total=total)


def _say(to: Console, line: str) -> None:
    # soft_wrap: a path cut in two cannot be copied
    to.print(line, highlight=False, markup=False, soft_wrap=True)
