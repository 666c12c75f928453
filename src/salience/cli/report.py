"""``salience report``: the report of a comparison, written again from its rows."""

from pathlib import Path
from typing import Annotated

import typer

from salience.compare.report.page import write_report

__all__ = ["EXAMPLES", "report"]

EXAMPLES = """Examples:

salience report runs/mnist
"""


def report(
    directory: Annotated[Path, typer.Argument(help="The directory of a comparison.")],
) -> None:
    """Write report.html, report.md and the figures of a comparison again."""
    for file in write_report(directory):
        print(file)
