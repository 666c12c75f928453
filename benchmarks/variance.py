"""What draws by loss and by gradient norm can gain on each task, while a network learns it.

A network trains with uniform sampling. At evenly spaced steps the variance of a step with k = 1 is
computed for other draws and the same weights: from all examples, and from pools of twice the batch
as in the paper. Over the variance of uniform draws it is the share of the steps that would do, if
only variance slowed training down. Beside it v = mean(L^2) / mean(L)^2 of the training losses.

    python benchmarks/variance.py --data-dir data                    # half an hour on one core
    python benchmarks/variance.py --data-dir data --cases mnist:tiny,mnist:perceptron
    python benchmarks/variance.py --table runs/variance.jsonl
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from fuzz import append, read_rows

from salience.compare.directory import environment
from salience.compare.methods import BASELINE, make_method
from salience.compare.run import Run
from salience.paper import pages
from salience.paper.probes import variance_ratios
from salience.paper.tasks import make_task

CASES = ("mnist:tiny", "mnist:perceptron", "cifar10:tiny", "cifar10-plain:strided", "ptb:tiny")
SCORES = ("loss", "gnorm")
POOL = 2  # batches
STEPS, POINTS = 6000, 6  # of a training, and at which it is measured
HEAD = ("task, network", "n", "train loss", "v", "by loss", "from a pool", "by norm", "from a pool")


def measured(case: str, seed: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each of the evenly spaced steps."""
    name, _, model = case.partition(":")
    task = make_task(name, size=model, data_dir=options.data_dir)
    run = Run(task, make_method(BASELINE), seed, steps=options.steps)
    for point in range(1, options.points + 1):
        run.advance_to(point / options.points)
        found = run.evaluate()
        row = {"case": case, "seed": seed, "step": run.step, "train_loss": found["train_loss"]}
        row["loss_gain"] = found["loss_gain"]
        for score in SCORES:
            row[score], row[f"{score}_pool"] = variance_ratios(run, score, POOL * task.batch_size)
        yield row


def table(rows: list[dict[str, Any]]) -> str:
    """The last step of every case: means over seeds, standard deviations in brackets."""
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        ends = [row for row in own if row["step"] == max(each["step"] for each in own)]
        keys = ("train_loss", "loss_gain", *(f"{s}{end}" for s in SCORES for end in ("", "_pool")))
        cells = [shown([row[key] for row in ends]) for key in keys]
        lines.append([case.replace(":", ", "), str(len(ends)), *cells])
    return pages.table(HEAD, lines)


def shown(values: list[float]) -> str:
    spread = f" ({stdev(values):.2g})" if len(values) > 1 else ""
    return f"{fmean(values):.3g}{spread}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES), help="task:network, ...")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--points", type=int, default=POINTS, help="at which it is measured")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=Path, default=Path("runs/variance.jsonl"))
    parser.add_argument("--table", type=Path, help="print the table of these rows, and end")
    options = parser.parse_args()
    if options.table is None:
        torch.set_num_threads(1)
        made = environment(threads=1)
        done = {(row["case"], row["seed"]) for row in read_rows(options.rows)}
        for seed in range(options.seeds):
            for case in options.cases.split(","):
                if (case, seed) in done:
                    continue
                rows = list(measured(case, seed, options))
                for row in rows:
                    append(options.rows, {**row, **made})
                print(f"{case}, seed {seed}: {rows[-1]}", flush=True)
    print(table(read_rows(options.table or options.rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
