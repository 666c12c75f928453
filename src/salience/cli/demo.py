"""``salience demo``: the first thing to run, a short comparison on digits."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from salience.cli.common import one_sentence, run_comparison

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["add"]

METHODS = ("uniform", "auto")
STEPS = 800
EVALUATIONS = 50
THREADS = 1  # on a network this small a second one is no faster, and suffers from busy cores

EXAMPLES = """Examples:

salience demo  (a minute or two; trains with and without importance sampling)

salience demo --seeds 5 --out results/digits

salience demo --steps 400 --seeds 1  (a quick look)
"""


def add(app: "Typer") -> None:
    """Put the command into ``app``."""
    import typer

    from salience.cli.options import Seed, Seeds

    @app.command(epilog=EXAMPLES)
    def demo(
        seeds: Seeds = 3,
        steps: Annotated[int, typer.Option(help="Steps of each run.")] = STEPS,
        out: Annotated[Path, typer.Option(help="Where to write.")] = Path("salience-demo"),
        seed: Seed = 0,
    ) -> None:
        """Train one small network with uniform and with importance sampling, and compare."""
        with one_sentence():
            _demo(seeds, steps, out, seed)


def _demo(seeds: int, steps: int, out: Path, seed: int) -> None:
    from salience.compare.digits import digits_task
    from salience.compare.directory import read_config
    from salience.compare.plan import Plan, seeds_from

    plan = Plan(
        make_task=digits_task,
        methods=METHODS,
        seeds=seeds_from(seed, seeds),
        steps=steps,
        evaluations=max(1, min(EVALUATIONS, steps)),
        threads=THREADS,
    )
    command = f"salience demo --steps {steps} --seeds {seeds} --seed {seed}"
    # An earlier demo is replaced; any other results are refused.
    before = str((read_config(out) or {}).get("command"))
    run_comparison(
        plan,
        out,
        {"command": command, "task": "digits"},
        announcement=_announcement(seeds, steps),
        replace=before.startswith(("salience demo", "demo")),
    )


def _announcement(seeds: int, steps: int) -> str:
    several = f"{seeds} seeds each" if seeds > 1 else "one seed each"
    return (
        f"Training a small network on 1,437 hand-written digits with {' and '.join(METHODS)}: "
        f"{several}, {steps} steps, side by side."
    )
