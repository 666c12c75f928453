"""What the commands share."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from salience.errors import SalienceError

if TYPE_CHECKING:
    from rich.console import Console

    from salience.compare.summary import Summary

__all__ = ["REFUSED", "list_files", "one_sentence", "tell"]

REFUSED = 2  # exit status


@contextmanager
def one_sentence() -> Iterator[None]:
    """What Salience refuses on purpose ends as one sentence; a bug keeps its traceback."""
    import typer

    try:
        yield
    except SalienceError as error:
        print(f"salience: {error}", file=sys.stderr)
        raise typer.Exit(REFUSED) from error


def tell(console: "Console", summary: "Summary", files: list[Path]) -> None:
    """The table, the sentences, and where everything is."""
    from salience.compare.report.table import summary_table
    from salience.compare.report.verdict import verdicts

    console.print(summary_table(summary))
    for sentence in verdicts(summary):
        console.print(sentence, highlight=False)
    list_files(console, files)


def list_files(console: "Console", files: Sequence[Path]) -> None:
    """What was written, a path a line."""
    console.print("\nWritten:", highlight=False)
    for file in files:
        # soft_wrap: a path cut in two cannot be clicked or copied
        console.print(f"  {file}", highlight=False, markup=False, soft_wrap=True)
