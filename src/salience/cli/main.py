"""The command line. Everything it needs beyond torch comes with ``salience[cli]``."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, NoReturn

from salience import __version__

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["main", "make_app"]

NEEDED = ("typer", "rich", "matplotlib", "jinja2")

ABOUT = """Importance sampling for PyTorch training: choose which examples the next step sees."""

EXAMPLES = """Examples:

salience demo

salience compare mnist --data-dir data --methods uniform,history --steps 5000

salience new my_task.py  (then salience compare my_task.py)

salience reproduce fig1b --data-dir data --scale 0.1 --model small

salience data fetch mnist --data-dir data
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 2 refused with one sentence, 130 interrupted."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        _refuse(f"the command line needs {', '.join(missing)}: pip install 'salience[cli]'")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ± still shows the numbers
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = make_app()(given or ["--help"], prog_name="salience", standalone_mode=False)
    except KeyboardInterrupt:
        _refuse("interrupted", 130)
    except Exception as error:
        if type(error).__name__ == "Abort":  # Ctrl-C, as typer and click call it
            _refuse("interrupted", 130)
        # Usage errors, as typer and click call them; anything else is ours to see and mend.
        if not hasattr(error, "format_message"):
            raise
        _refuse(f"{error.format_message()} (see salience --help)")
    sys.exit(status or 0)


def make_app() -> "Typer":
    """All commands. Made on request, because typer may not be there."""
    import typer

    from salience.cli import common, compare, data, demo, insight, new, report, reproduce, watch

    app = typer.Typer(
        cls=common.OneSentence,
        help=ABOUT,
        epilog=EXAMPLES,
        add_completion=False,
        rich_markup_mode="rich",
    )
    version = typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)

    @app.callback()
    def salience(version: Annotated[bool, version] = False) -> None:
        pass

    app.command(epilog=demo.EXAMPLES)(demo.demo)
    app.command(epilog=new.EXAMPLES)(new.new)
    app.command(epilog=compare.EXAMPLES)(compare.compare)
    app.command(epilog=watch.EXAMPLES)(watch.watch)
    app.command(epilog=report.EXAMPLES)(report.report)
    app.command(epilog=insight.EXAMPLES)(insight.insight)
    app.command(epilog=reproduce.EXAMPLES)(reproduce.reproduce)
    app.add_typer(data.app, name="data")
    return app


def _version(asked: bool) -> None:
    import typer

    if asked:
        print(f"salience {__version__}")
        raise typer.Exit


def _refuse(sentence: str, status: int = 2) -> NoReturn:
    print(f"salience: {sentence}", file=sys.stderr)
    sys.exit(status)
