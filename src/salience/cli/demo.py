"""``salience demo``: the first thing to run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from salience.cli.common import one_sentence, tell

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["add"]

EXAMPLES = """Examples:

salience demo  (a minute or two; trains with and without importance sampling)

salience demo --seeds 5 --out results/digits

salience demo --steps 400 --seeds 1  (a quick look)
"""


def add(app: "Typer") -> None:
    """Put the command into ``app``."""
    import typer

    from salience.compare import demo as defaults

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


def _demo(seeds: int, steps: int, out: Path, seed: int) -> None:
    from rich.console import Console

    from salience.cli.progress import watch
    from salience.compare import demo
    from salience.compare.records import Records
    from salience.compare.report.curves import curves_png
    from salience.compare.summary import summarize

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
