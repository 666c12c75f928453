"""Options that several commands have. Imports typer, so import this only when it is needed."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DataDir", "Jobs", "Resume", "Seed", "Seeds", "Threads"]

DataDir = Annotated[Path | None, typer.Option(help="Where the data is; by default SALIENCE_DATA.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue what is in the directory.")]
Jobs = Annotated[int, typer.Option(help="Processes of one thread each; seeds are distributed.")]
Threads = Annotated[int | None, typer.Option(help="Threads for torch, with a single job.")]
Seed = Annotated[int, typer.Option(help="The first seed.")]
Seeds = Annotated[int, typer.Option(help="Runs per method.")]
