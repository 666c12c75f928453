"""When ``auto`` reaches uniform's final train loss, and its test error in equal time.

Every case is one ``salience compare`` of both methods, interleaved: three seeds, the small
networks, a constant and a decayed learning rate. Two cases are hard (wrong labels, a long tail),
and one cannot pay (random labels). An interrupted benchmark resumes.

    python benchmarks/payoff.py --data-dir data            # several hours on two cores
    python benchmarks/payoff.py --data-dir data --cases mnist,wrong-labels
    python benchmarks/payoff.py --cases digits             # two minutes, no download
    python benchmarks/payoff.py --table                    # of finished cases
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from salience.compare.reading import read_comparison
from salience.compare.summary import by_seed, summarize, tested_by


class Case(NamedTuple):
    """A built-in task, the steps of each run, and the schedules it is run with."""

    task: str
    steps: int
    schedules: tuple[str, ...] = ("constant", "cosine")


CASES = {
    "digits": Case("digits", 1600),
    "mnist": Case("mnist", 5000),
    "cifar10": Case("cifar10-plain", 10_000),  # long enough for uniform's train loss to pass 0.2
    "ptb": Case("ptb", 22_000),  # three epochs
    "wrong-labels": Case("mnist-wrong-labels", 5000, ("constant",)),
    "long-tail": Case("mnist-long-tail", 4000, ("constant",)),
    "random-labels": Case("mnist-random-labels", 1500, ("constant",)),
}
OURS, BASELINE = "auto", "uniform"
EVALUATIONS = 40


def compare(case: Case, schedule: str, out: Path, options: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "salience", "compare", case.task, "--resume"]
    command += ["--methods", f"{BASELINE},{OURS}", "--schedule", schedule, "--out", str(out)]
    command += ["--steps", str(options.steps or case.steps), "--seeds", str(options.seeds)]
    command += ["--jobs", str(options.jobs), "--evaluations", str(EVALUATIONS)]
    if options.jobs == 1:
        command += ["--threads", str(options.threads)]
    if options.data_dir:
        command += ["--data-dir", str(options.data_dir)]
    subprocess.run(command, check=True)


def at_equal_time(run: list[Any], seconds: float) -> Any:
    """The last evaluation of a run within ``seconds`` of training."""
    return [row for row in run if row["seconds"] <= seconds][-1]


def result(out: Path) -> dict[str, Any]:
    """What a finished comparison found, seed by seed: each against uniform from the same weights.

    A slower run is evaluated at uniform's time, a faster one at its last evaluation.
    """
    comparison = read_comparison(out)
    rows, summary = comparison.rows, comparison.summary["methods"][OURS]
    ours, base = by_seed(rows, OURS), by_seed(rows, BASELINE)
    measure = tested_by(rows[0])
    alone = [summarize(b + o)["methods"][OURS] for b, o in zip(base, ours, strict=True)]
    equal = [at_equal_time(run, b[-1]["seconds"]) for run, b in zip(ours, base, strict=True)]
    last = [run[-1] for run in base]
    found = {
        "seeds": len(base),
        "uniform_train_loss": [row["train_loss"] for row in last],
        "auto_train_loss": [row["train_loss"] for row in equal],
        "steps_to_target": [seed["steps_to_target_ratio"] for seed in alone],
        "time_to_target": [seed["time_to_target_ratio"] for seed in alone],
        "time_to_target_of_means": summary["time_to_target_ratio"],
        "step_cost": summary["step_cost_ratio"],
        "measure": measure,
        "uniform_test": [row[measure] for row in last],
        "auto_test": [row[measure] for row in equal],
    }
    if "test_error_rare" in rows[0]:
        found["uniform_rare"] = [row["test_error_rare"] for row in last]
        found["auto_rare"] = [row["test_error_rare"] for row in equal]
    return found


def middle(values: list[float | None]) -> str:
    """The median with all values; a seed that never reached the target counts as infinite."""
    ordered = sorted(float("inf") if value is None else value for value in values)
    shown = ", ".join("never" if value == float("inf") else f"{value:.2f}" for value in ordered)
    centre = median(ordered)
    return f"{'never' if centre == float('inf') else f'{centre:.2f}'} ({shown})"


def spread(values: list[float], scale: float) -> str:
    deviation = stdev(values) if len(values) > 1 else float("nan")
    return f"{scale * fmean(values):.2f} ± {scale * deviation:.2f}"


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| case | time to uniform's train loss | step cost | train loss, uniform | auto "
        "| test, uniform | auto |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        scale, unit = (100.0, "%") if found["measure"] == "test_error" else (1.0, "")
        cells = [
            name,
            middle(found["time_to_target"]),
            f"{found['step_cost']:.3f}",
            f"{fmean(found['uniform_train_loss']):.4f}",
            f"{fmean(found['auto_train_loss']):.4f}",
            spread(found["uniform_test"], scale) + unit,
            spread(found["auto_test"], scale) + unit,
        ]
        lines.append(f"| {' | '.join(cells)} |")
        if "auto_rare" in found:
            rare = (spread(found[f"{method}_rare"], 100) + "%" for method in ("uniform", "auto"))
            lines.append(f"| {name}, the rarest third of classes | | | | | {' | '.join(rare)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(name for name in CASES if name != "digits"))
    parser.add_argument("--schedules", help="some of the schedules of each case: constant, cosine")
    parser.add_argument("--out", type=Path, default=Path("runs/payoff"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of each run, instead of each case's own")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, one thread each")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="of finished cases; run nothing")
    options = parser.parse_args()
    unknown = sorted(set(options.cases.split(",")) - set(CASES))
    if unknown:
        parser.error(f"cases must be among {', '.join(CASES)}; got {', '.join(unknown)}")
    results = {}
    for name in options.cases.split(","):
        for schedule in CASES[name].schedules:
            if options.schedules and schedule not in options.schedules.split(","):
                continue
            out = options.out / f"{name}-{schedule}"
            if not options.table:
                compare(CASES[name], schedule, out, options)
            if (out / "summary.json").exists():
                results[f"{name}, {schedule}"] = result(out)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.json").write_text(json.dumps(results, indent=2) + "\n")
    (options.out / "table.md").write_text(table(results) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
