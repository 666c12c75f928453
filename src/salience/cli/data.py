"""``salience data list|fetch|verify``: the paper's data sets."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from salience.cli.common import one_sentence
from salience.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console
    from typer import Typer

    from salience.paper.data.catalogue import Collection

__all__ = ["add"]

EXAMPLES = """Examples:

salience data list --data-dir data  (what there is, and what is missing)

salience data fetch mnist --data-dir data

SALIENCE_DATA=data salience data verify
"""


def add(app: "Typer") -> None:
    """Put the commands into ``app``."""
    import typer

    about = "The paper's data sets: see what is there, download, check."
    data = typer.Typer(help=about, epilog=EXAMPLES)
    directory = typer.Option(help="Where the data lies. Default: SALIENCE_DATA.", metavar="DIR")
    sets = typer.Argument(help="mnist, cifar10, ptb. Default: all.", metavar="[SET]...")

    @data.command("list", epilog=EXAMPLES)
    def list_(data_dir: Annotated[Path | None, directory] = None) -> None:
        """Name the data sets and what is there of each."""
        with one_sentence():
            _list(data_dir)

    @data.command(epilog=EXAMPLES)
    def fetch(
        names: Annotated[list[str] | None, sets] = None,
        data_dir: Annotated[Path | None, directory] = None,
    ) -> None:
        """Download what is missing or damaged; continues where an earlier download stopped."""
        from salience.cli.downloads import fetch_all

        with one_sentence():
            _act(fetch_all, names, data_dir)

    @data.command(epilog=EXAMPLES)
    def verify(
        names: Annotated[list[str] | None, sets] = None,
        data_dir: Annotated[Path | None, directory] = None,
    ) -> None:
        """Compare every file with its published checksum."""
        from salience.cli.downloads import check

        with one_sentence():
            _act(check, names, data_dir)

    app.add_typer(data, name="data")


def _list(given: Path | None) -> None:
    from rich.console import Console

    from salience.cli.downloads import list_table
    from salience.paper.data.catalogue import CATALOGUE, data_dir

    try:
        directory = data_dir(given)
    except DataError:
        directory = None  # then there is still something to choose from
    Console().print(list_table(CATALOGUE.values(), directory))


def _act(
    action: "Callable[[list[Collection], Path, Console], None]",
    names: list[str] | None,
    given: Path | None,
) -> None:
    """Do something with the sets of those names, or with all."""
    from rich.console import Console

    from salience.paper.data.catalogue import CATALOGUE, collection, data_dir

    action([collection(name) for name in names or CATALOGUE], data_dir(given), Console())
