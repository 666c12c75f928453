"""``salience report``: the report of a comparison, written again from its rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from salience.cli.common import one_sentence

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["add"]

EXAMPLES = """Examples:

salience report runs/mnist
"""


def add(app: "Typer") -> None:
    """Put the command into ``app``."""
    import typer

    @app.command(epilog=EXAMPLES)
    def report(
        directory: Annotated[Path, typer.Argument(help="The directory of a comparison.")],
    ) -> None:
        """Write report.html, report.md and the figures of a comparison again."""
        from salience.compare.report.page import write_report

        with one_sentence():
            for file in write_report(directory):
                print(file)
