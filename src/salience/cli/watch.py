"""``salience watch``: the live page of a comparison or of a training that logs."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from salience.cli.progress import say
from salience.watch.server import make_server

__all__ = ["EXAMPLES", "watch"]

EXAMPLES = """Examples:

salience watch runs/mnist

salience watch runs/mine --port 9000 --no-open

ssh -L 8042:127.0.0.1:8042 machine  (then watch there, and look at it here)
"""


def watch(
    directory: Annotated[Path, typer.Argument(help="Where the comparison or the log is.")],
    port: Annotated[int | None, typer.Option(help="By default 8042, or any free one.")] = None,
    open_: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open a browser; by default from a terminal."),
    ] = None,
) -> None:
    """Show a running comparison or training in the browser, on this machine only."""
    server = make_server(directory, port)
    address = f"http://{server.server_address[0]!s}:{server.server_address[1]}/"
    say(Console(), f"Watching {directory} at {address} (Ctrl-C ends it)")
    if sys.stdout.isatty() if open_ is None else open_:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
