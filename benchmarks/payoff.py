"""What ``auto`` comes to against uniform sampling, task by task, after equal steps.

Every case is one ``salience compare``, whose runs are interleaved: small networks, the same seeds
and schedule for all methods. An interrupted benchmark resumes.

    python benchmarks/payoff.py --data-dir data            # some hours on two cores
    python benchmarks/payoff.py --data-dir data --cases mnist,wrong-labels-20
    python benchmarks/payoff.py --cases digits             # two minutes, no download
    python benchmarks/payoff.py --table                    # of finished cases

``--budgets`` also trains within a quarter, half and three quarters of the length, with the whole
schedule in each. With a constant learning rate nothing has to be trained for that: a shorter
training is the beginning of a longer one.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from salience.compare.paired import paired, resolution
from salience.paper import pages

SHARES = "--budgets 0.25,0.5,0.75,1"
TWENTY = "--evaluations 20"
LONG = f"--schedule cosine --steps 9375 {TWENTY}"  # 20 epochs of MNIST
CASES = {
    "digits": "digits --schedule constant --steps 1600 --seeds 3 --methods auto",
    "crops": f"cifar10-crops --model tiny --steps 10000 {SHARES} --seeds 5 --evaluations 5 "
    "--methods auto,infobatch",
    "crops-strided": f"cifar10-crops --model strided --steps 10000 {SHARES} --seeds 5 "
    "--evaluations 5 --methods auto,infobatch",
    "mnist": f"mnist --model tiny --schedule constant --steps 5000 --seeds 3 {TWENTY} "
    "--methods auto,infobatch,ordered",
    "long-tail": "mnist-long-tail --model tiny --schedule constant --steps 4000 --seeds 3 "
    f"{TWENTY} --methods auto,infobatch,ordered",
    "wrong-labels-20": f"mnist-wrong-labels --model perceptron {LONG} --seeds 3 "
    "--methods auto,infobatch,closeness",
    "wrong-labels-50": f"mnist-wrong-labels-50 --model perceptron {LONG} --seeds 3 "
    "--methods auto,infobatch,closeness",
    "clean-labels": f"mnist --model perceptron {LONG} --seeds 3 --methods auto,infobatch,closeness",
    "plain-cosine": f"cifar10-plain --model tiny --schedule cosine --steps 6000 --seeds 3 {TWENTY} "
    "--methods auto,infobatch,ordered",
    "plain-constant": "cifar10-plain --model tiny --schedule constant --steps 6000 --seeds 3 "
    f"{TWENTY} --methods auto,infobatch,ordered",
    "finetune": f"cifar10-finetune --model tiny --schedule cosine --steps 3000 --seeds 3 {TWENTY} "
    "--methods auto,infobatch",
    "random-labels": "mnist-random-labels --model tiny --schedule constant --steps 1500 --seeds 3 "
    f"{TWENTY} --methods auto,infobatch",
    "ptb": f"ptb --model tiny --schedule constant --steps 22000 --seeds 3 {TWENTY} --methods auto",
    "ptb-cosine": "ptb --model tiny --schedule cosine --steps 8000 --seeds 3 --evaluations 10 "
    "--methods auto",
    "lenet": f"mnist-lenet --steps 18750 --seeds 3 {TWENTY} --methods auto,ordered",
    "mnist-small": f"mnist --model small --schedule constant --steps 5000 --seeds 3 {TWENTY} "
    "--methods auto",
    "long-tail-small": "mnist-long-tail --model small --schedule constant --steps 4000 --seeds 3 "
    f"{TWENTY} --methods auto",
}
BUDGETS = (0.25, 0.5, 0.75, 1.0)
OURS, BASELINE = "auto", "uniform"
RIVALS = ("infobatch", "ordered", "closeness")
HEAD = (
    "case",
    "n",
    "uniform",
    "`auto`",
    "difference after equal steps (95 % interval)",
    "at the best point",
    "worst class",
    "steps to uniform's train loss",
)


def compare(case: str, out: Path, options: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "salience", "compare", *shlex.split(CASES[case]), "--resume"]
    command += ["--out", str(out)]
    for name in ("steps", "seeds", "data_dir"):  # the last one given counts
        if (value := getattr(options, name)) is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    command += shlex.split(SHARES) if options.budgets else []
    command += ["--jobs", str(options.jobs)] if options.jobs > 1 else ["--threads", "1"]
    subprocess.run(command, check=True)


def cells(summary: dict[str, Any]) -> list[str]:
    """What a finished comparison found, as cells of the table behind the name of the case."""
    base, ours = (summary["methods"][name] for name in (BASELINE, OURS))
    measure = "test_error" if "test_error" in base["final"] else "test_perplexity"
    scale, unit = (100.0, " %") if measure == "test_error" else (1.0, "")
    told = ours["differences"]
    before, after = base["final"][measure], ours["final"][measure]["mean"]
    spread = "" if before["std"] is None else f" ({scale * before['std']:.2f})"
    steps = ours["steps_to_target_ratio"]
    return [
        str(base["n"]),
        f"{scale * before['mean']:.2f}{spread}{unit}",
        f"{scale * after:.2f}{unit}",
        difference(told["end"], scale),
        difference(told["best"], scale),
        difference(told["worst"], scale) if "worst" in told else "",
        "never" if steps is None else f"{steps:.2f}",
    ]


def difference(found: dict[str, Any], scale: float) -> str:
    if found["same"]:
        return "none"
    mean = f"{scale * found['mean']:+.2f}"
    if found["low"] is None:
        return mean
    return f"{mean} ({scale * found['low']:+.2f} to {scale * found['high']:+.2f})"


def beside(summary: dict[str, Any]) -> list[str]:
    """Differences to uniform after equal steps of ``auto`` and each rival; nothing if not run."""
    methods = summary["methods"]
    scale = 100.0 if "test_error" in methods[BASELINE]["final"] else 1.0
    return [
        difference(methods[name]["differences"]["end"], scale) if name in methods else ""
        for name in (OURS, *RIVALS)
    ]


def shorter(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Differences to uniform within each of ``BUDGETS``, in points, for each method.

    Without budgets in the rows, of a training with a constant learning rate.
    """
    whole = max(row["step"] for row in rows)
    ends = {
        (row["method"], share, row["seed"]): row["test_error"]
        for row in rows
        for share in BUDGETS
        if row.get("budget", share) == share  # the last row of each training stays
        and ("budget" in row or row["step"] == round(share * whole))
    }
    seeds = sorted({row["seed"] for row in rows})
    fine = resolution([rows], "test_error")  # type: ignore[list-item]
    found: dict[str, list[str]] = {}
    for method in dict.fromkeys(row["method"] for row in rows if row["method"] != BASELINE):
        for share in BUDGETS:
            own, base = ([ends[m, share, s] for s in seeds] for m in (method, BASELINE))
            cell = difference({**paired(own, base, own == base, fine)}, 100.0)
            found.setdefault(method, []).append(cell)
    return found


def table(results: dict[str, dict[str, Any]]) -> str:
    """Two tables: ``auto`` against uniform sampling, and rivals beside it."""
    names = [f"`{name}`" for name in (OURS, *RIVALS)]
    parts = [_table(HEAD, {name: cells(found) for name, found in results.items()})]
    parts += [_table(("case", *names), {name: beside(found) for name, found in results.items()})]
    return "\n\n".join(parts)


def _table(head: Sequence[str], lines: dict[str, list[str]]) -> str:
    return pages.table(head, [[name, *line] for name, line in lines.items()])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(name for name in CASES if name != "digits"))
    parser.add_argument("--out", type=Path, default=Path("runs/payoff"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, help="of each case, instead of its own")
    parser.add_argument("--steps", type=int, help="of each run, instead of each case's own")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, one thread each")
    parser.add_argument("--budgets", action="store_true", help="shorter trainings as well")
    parser.add_argument("--table", action="store_true", help="of finished cases; run nothing")
    options = parser.parse_args()
    unknown = sorted(set(options.cases.split(",")) - set(CASES))
    if unknown:
        parser.error(f"cases must be among {', '.join(CASES)}; got {', '.join(unknown)}")
    results = {}
    for name in options.cases.split(","):
        out = options.out / name
        if not options.table:
            compare(name, out, options)
        if (out / "summary.json").exists():
            results[name] = json.loads((out / "summary.json").read_text("utf-8"))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "table.md").write_text(table(results) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
