"""The command line. Everything it needs beyond torch comes with ``salience[cli]``."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from salience import __version__
from salience.commands.common import REFUSED, one_sentence, tell

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["main", "make_app"]

NEEDED = ("typer", "rich", "matplotlib", "plotly", "jinja2")

ABOUT = """Importance sampling for PyTorch training: choose which examples the next step sees."""

EXAMPLES = """Examples:

salience demo  (a minute; trains with and without importance sampling)

salience demo --seeds 5 --out results/digits

salience demo --steps 400 --seeds 1  (a quick look)
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 2 refused with one sentence, 130 interrupted."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        _refuse(f"the command line needs {', '.join(missing)}: install salience[cli]")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ± still shows the numbers
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = make_app()(given or ["--help"], prog_name="salience", standalone_mode=False)
    except Exception as error:
        # Usage errors, as typer and click call them; anything else is ours to see and mend.
        if not hasattr(error, "format_message"):
            raise
        _refuse(f"{error.format_message()} (see salience --help)")
    sys.exit(status or 0)


def make_app() -> "Typer":
    """All commands. Made on request, because typer may not be there."""
    import typer

    from salience.commands import compare, data
    from salience.experiments import demo as defaults

    app = typer.Typer(help=ABOUT, epilog=EXAMPLES, add_completion=False, rich_markup_mode="rich")

    @app.callback()
    def salience(
        version: Annotated[
            bool,
            typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
        ] = False,
    ) -> None:
        pass

    @app.command(epilog=EXAMPLES)
    def demo(
        seeds: Annotated[int, typer.Option(help="Runs per method.")] = defaults.SEEDS,
        steps: Annotated[int, typer.Option(help="Steps of each run.")] = defaults.STEPS,
        out: Annotated[Path, typer.Option(help="Where to write.")] = Path("salience-demo"),
        seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    ) -> None:
        """Train one small network with uniform and with importance sampling, and compare."""
        with one_sentence():
            _demo(seeds, steps, out, seed)

    compare.add(app)
    data.add(app)
    return app


def _demo(seeds: int, steps: int, out: Path, seed: int) -> None:
    from rich.console import Console

    from salience.experiments import demo
    from salience.experiments.records import Records
    from salience.experiments.summary import summarize
    from salience.reports.curves import curves_png
    from salience.reports.progress import watch

    console = Console()
    chosen = demo.seeds_from(seed, seeds)
    rows = demo.demo_rows(chosen, steps)
    records = Records(out, demo.config(chosen, steps))
    console.print(demo.announcement(chosen, steps), highlight=False)
    measured = []
    runs = {method.name: seeds for method in demo.METHODS}
    for row in watch(rows, runs, min(steps, demo.EVALUATIONS), console):
        records.row(row)
        measured.append(row)
    summary = summarize(measured)
    records.summary(summary)
    records.picture("curves.png", curves_png(measured, summary))
    names = ("curves.png", "summary.json", "runs.jsonl", "config.json")
    tell(console, summary, [out / name for name in names])


def _version(asked: bool) -> None:
    import typer

    if asked:
        print(f"salience {__version__}")
        raise typer.Exit


def _refuse(sentence: str) -> NoReturn:
    print(f"salience: {sentence}", file=sys.stderr)
    sys.exit(REFUSED)
