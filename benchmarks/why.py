"""Why claims of the paper do not hold here: more runs, in OUT/why and results/paper/why.

``benchmarks/paper.py`` runs, packs and shows them with the paper's own (``--targets why``): targets
of the paper on other networks, comparisons, and two measurements of other benchmarks.
"""

import argparse
import gzip
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import variance

from salience.compare import directory
from salience.compare.reading import read_comparison
from salience.compare.report.figures import charts
from salience.compare.report.png import chart_png
from salience.paper import pages
from salience.paper.measures import interval

NAME = "why"
# Targets on networks that are not those of the other runs, by task.
REPRODUCED = {
    "mnist": "reproduce fig1a --model perceptron",
    "ptb": "reproduce gnorm-vs-loss --task ptb --model small",
}
COSTS = "steps --cases mnist-paper --methods loss,gnorm,gnorm:one-by-one"
POOL = "presample=2:draw=multinomial"  # as in the paper
HEAD = (
    *("case", "method", "n", "final train loss over uniform's"),
    *("steps to uniform's loss, share", "cost of a step", "commit"),
)


class Case(NamedTuple):
    """One ``salience compare``; ``task`` is the paper's that it stands for."""

    about: str
    task: str
    compared: str
    steps: int
    evaluations: int
    methods: tuple[str, ...]


# By the directory of its results.
CASES = {
    "cifar10-plain": Case(
        "CIFAR-10 without augmentation and dropout, `strided`, 5,000 steps",
        "cifar10",
        "cifar10-plain --model strided",
        5000,
        50,
        tuple(f"loss:k={k}:{POOL}" for k in ("1", "0.5")),
    ),
    "cifar10": Case(
        "CIFAR-10, `tiny`, 10,000 steps",
        "cifar10",
        "cifar10 --model tiny",
        10_000,
        20,
        (
            "loss:k=1:presample=8:draw=multinomial",
            "online-selection",
            *(f"online-selection:pressure={pressure}" for pressure in (10, 2)),
        ),
    ),
    "ptb": Case(
        "Penn Treebank, `tiny`, 6,000 steps",
        "ptb",
        "ptb --model tiny",
        6000,
        20,
        tuple(
            f"loss:k=1:presample=2:draw={d}:smoothing=0.5" for d in ("multinomial", "systematic")
        ),
    ),
}
COMPARED = ("config.json", "summary.json")


# ------------------------------------------------------------------------------------------- run


def commands(options: argparse.Namespace) -> list[list[str]]:
    """The commands of ``salience``; scale and seeds as for the paper's targets."""
    out, found = options.out / NAME, []
    common = ["--threads", "1", *_data(options)]
    for task, command in REPRODUCED.items():
        if task in options.tasks:
            seeds = options.seeds if task == "mnist" else 1
            found.append([*command.split(), "--scale", f"{options.scale:g}", "--seeds", str(seeds)])
            found[-1] += ["--jobs", str(options.jobs), *common, "--out", str(out), "--resume"]
    for name, case in CASES.items():
        if case.task in options.tasks:
            steps = max(1, round(options.scale * case.steps))
            found.append(["compare", *case.compared.split(), "--steps", str(steps)])
            found[-1] += ["--evaluations", str(min(case.evaluations, steps))]
            found[-1] += ["--seeds", str(options.seeds), "--jobs", str(options.jobs), *common]
            found[-1] += ["--methods", ",".join(["uniform", *case.methods])]
            found[-1] += ["--out", str(out / name), "--resume"]
    return found


def measurements(options: argparse.Namespace) -> list[list[str]]:
    """The commands of other benchmarks; a finished one is not made again."""
    out, found = options.out / NAME, []
    cases = [case for case in variance.CASES if case.startswith(tuple(options.tasks))]
    found.append(["variance.py", "--cases", ",".join(cases), "--seeds", str(options.seeds)])
    found[-1] += ["--steps", str(max(variance.POINTS, round(options.scale * variance.STEPS)))]
    found[-1] += ["--rows", str(out / "variance.jsonl"), *_data(options)]
    if "mnist" in options.tasks and not (out / "gnorm-cost.json").exists():
        rounds = max(2, round(options.scale * 10))
        found.append(["costs.py", *COSTS.split(), "--rounds", str(rounds)])
        found[-1] += ["--out", str(out / "gnorm-cost.json")]
    return found


def _data(options: argparse.Namespace) -> list[str]:
    return [] if options.data_dir is None else ["--data-dir", str(options.data_dir)]


def measure(command: list[str]) -> int:
    """Run a benchmark beside this one, and return its exit code."""
    script, *rest = command
    return subprocess.run([sys.executable, Path(__file__).with_name(script), *rest]).returncode


def run(options: argparse.Namespace, salience: Callable[[list[str]], int]) -> None:
    """Train and measure what is missing."""
    todo = [(command, "salience", salience) for command in commands(options)]
    todo += [(command, "python", measure) for command in measurements(options)]
    for command, program, start in todo:
        print(program, shlex.join(command), flush=True)
        if code := start(command):
            sys.exit(code)


# ------------------------------------------------------------------------------- pack and tables


def pack(out: Path, results: Path) -> list[str]:
    """Copy what is finished, but for the paper's own targets, and say what was."""
    packed = []
    for name in CASES:
        if (out / name / "summary.json").exists():
            for file in COMPARED:
                directory.write(results / name / file, (out / name / file).read_bytes())
            _compress(out / name / "runs.jsonl", results / name)
            packed.append(name)
    if (out / "variance.jsonl").exists():
        _compress(out / "variance.jsonl", results)
        packed.append("variance")
    if (out / "gnorm-cost.json").exists():
        directory.write(results / "gnorm-cost.json", (out / "gnorm-cost.json").read_bytes())
        packed.append("gnorm-cost")
    return packed


def _compress(file: Path, place: Path) -> None:
    directory.write(place / f"{file.name}.gz", gzip.compress(file.read_bytes(), mtime=0))


def tables(results: Path) -> list[Path]:
    """Write the summary and the figure of each comparison, and the tables of the page."""
    lines, written = [], []
    for name, case in CASES.items():
        place = results / name
        if not (place / "runs.jsonl.gz").exists():
            continue
        found = read_comparison(place)
        (curves,) = [chart for chart in charts(found) if chart.name == "curves"]
        directory.write(place / "summary.json", {**found.summary})
        directory.write(place / "curves.png", chart_png(curves))
        lines += [[f"[{case.about}]({name})", *cells] for cells in trainings(found)]
        written.append(place)
    page = results / pages.PAGE
    text = pages.with_table(page.read_text("utf-8"), "trainings", pages.table(HEAD, lines))
    rows = results / "variance.jsonl.gz"
    if rows.exists():
        measured = [json.loads(line) for line in gzip.decompress(rows.read_bytes()).splitlines()]
        text = pages.with_table(text, "variance", variance.table(measured))
    directory.write(page, text)
    return [*written, page]


def trainings(found: Any) -> list[list[str]]:
    """What each method of a comparison came to, beside uniform sampling with the same seed."""
    ends: dict[str, dict[int, float]] = {}
    for row in found.rows:  # the last of each run stays
        ends.setdefault(row["method"], {})[row["seed"]] = row["train_loss"]
    base, lines = ends.pop(found.summary["baseline"]), []
    for method, own in ends.items():
        told = found.summary["methods"][method]
        end = interval([own[seed] / base[seed] for seed in sorted(own)])
        spread = f" ± {end.half:.2g}" if math.isfinite(end.half) else ""
        steps = told["steps_to_target_ratio"]
        line = [f"`{method}`", str(end.n), f"{end.mean:.3f}{spread}"]
        line += ["never" if steps is None else f"{steps:.2f}", f"{told['step_cost_ratio']:.2f}"]
        lines.append([*line, f"`{(found.config['commit'] or 'unknown')[:7]}`"])
    return lines
