"""``salience demo``: the first thing to run, a short comparison on digits."""

from pathlib import Path
from typing import Annotated

import typer

from salience.cli.common import Resume, Seed, Seeds, run
from salience.compare.digits import digits_task
from salience.compare.directory import read_config
from salience.compare.plan import Plan, seeds_from

__all__ = ["EXAMPLES", "demo"]

METHODS = ("uniform", "auto")
STEPS = 800
EVALUATIONS = 50
THREADS = 1  # on a network this small a second one is no faster, and suffers from busy cores

EXAMPLES = """Examples:

salience demo  (a minute or two; trains with and without importance sampling)

salience demo --seeds 5 --out results/digits

salience demo --steps 400 --seeds 1  (a quick look)
"""


def demo(
    seeds: Seeds = 3,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = STEPS,
    out: Annotated[Path, typer.Option(help="Where to write.")] = Path("salience-demo"),
    seed: Seed = 0,
    resume: Resume = False,
) -> None:
    """Train one small network with uniform and with importance sampling, and compare."""
    evaluations, first = max(1, min(EVALUATIONS, steps)), seeds_from(seed, seeds)
    plan = Plan(digits_task, METHODS, first, steps, evaluations=evaluations, threads=THREADS)
    command = f"salience demo --steps {steps} --seeds {seeds} --seed {seed}"
    about = "Training a small network on 1,437 hand-written digits."
    # An earlier demo is replaced; any other results are refused.
    before = str((read_config(out) or {}).get("command"))
    options = {"resume": resume, "replace": before.startswith("salience demo") or None}
    run(plan, out, {"command": command, "task": "digits"}, about, **options)
