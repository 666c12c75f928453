"""Options that several commands have, written once. Imports typer: import this only when asked."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DataDir", "Jobs", "Resume", "Threads"]

DataDir = Annotated[Path | None, typer.Option(help="Where the data is; by default SALIENCE_DATA.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the directory.")]
Jobs = Annotated[int, typer.Option(help="Processes of one thread each, which share the seeds.")]
Threads = Annotated[int | None, typer.Option(help="Threads for torch, with a single job.")]
