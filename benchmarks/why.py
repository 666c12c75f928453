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
from fuzz import read_rows

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
# What is kept of a comparison, and of the two measurements; rows are compressed.
COMPARED = ("config.json", "runs.jsonl.gz", "summary.json")
MEASURED = ("variance.jsonl.gz", "gnorm-cost.json")


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
        if case.task in options.tasks and _seeds(out / name) < options.seeds:
            steps = max(1, round(options.scale * case.steps))
            found.append(["compare", *case.compared.split(), "--steps", str(steps)])
            found[-1] += ["--evaluations", str(min(case.evaluations, steps))]
            found[-1] += ["--seeds", str(options.seeds), "--jobs", str(options.jobs), *common]
            found[-1] += ["--methods", ",".join(["uniform", *case.methods])]
            found[-1] += ["--out", str(out / name), "--resume"]
    return found


def _seeds(place: Path) -> int:
    """Of a finished comparison; it may have come by ``unpack``, without the states to resume."""
    file = place / "summary.json"
    return json.loads(file.read_bytes())["methods"]["uniform"]["n"] if file.exists() else 0


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
    found = [name for name in _kept() if _plain(out, name).exists()]
    ended = [name for name in found if (out / name).with_name("summary.json").exists()]
    ended += [name for name in found if name in MEASURED]
    for name in ended:
        directory.write(results / name, _packed(_plain(out, name)))
    return list(dict.fromkeys(name.partition("/")[0] for name in ended))


def unpack(results: Path, out: Path) -> None:
    """The reverse; a comparison or measurement that was begun there stays."""
    new = [name for name in _kept() if not _plain(out, name.partition("/")[0]).exists()]
    for name in new:
        if (results / name).exists():
            content = (results / name).read_bytes()
            packed = name.endswith(".gz")
            directory.write(_plain(out, name), gzip.decompress(content) if packed else content)


def _kept() -> list[str]:
    return [*(f"{case}/{file}" for case in CASES for file in COMPARED), *MEASURED]


def _plain(out: Path, name: str) -> Path:
    """Where the run writes it."""
    return out / name.removesuffix(".gz")


def _packed(file: Path) -> bytes | dict[str, Any]:
    """Rows compressed, and commands without the places of one machine."""
    if file.suffix == ".jsonl":
        return gzip.compress(file.read_bytes(), mtime=0)
    content = json.loads(file.read_bytes())
    if "command" in content:
        words = shlex.split(content["command"])
        content["command"] = shlex.join(Path(w).name if w.startswith("/") else w for w in words)
    return dict(content)


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
        text = pages.with_table(text, "variance", variance.table(read_rows(rows)))
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
