"""Table 1: test error or perplexity of five methods at three stages, ours beside the paper's."""

from itertools import groupby
from statistics import fmean, stdev
from typing import Any

from salience.compare.charts import Chart, Panel
from salience.compare.summary import tested_by
from salience.paper import analysis
from salience.paper.analysis import EPOCH, NAMES, Analysis, Material, Runs, Table
from salience.paper.claims import Claim, below
from salience.paper.measures import Trace, nearest
from salience.paper.tasks import STEPS

__all__ = ["COLUMNS", "PAPER", "markdown", "stage_steps", "table1"]

COLUMNS = ["task", "epoch", "step", "method", "mean", "std", "n", "paper mean", "paper std"]
METHODS = ("uniform", "loss k=1", "loss k=0.5", "approx k=1", "approx k=0.5")
# Error in percent (perplexity for Penn Treebank) and standard deviation, by epoch.
PAPER: dict[str, dict[int, tuple[tuple[float, float], ...]]] = {
    "mnist": {
        5: ((0.79, 0.11), (0.73, 0.11), (0.56, 0.04), (0.83, 0.06), (0.65, 0.05)),
        10: ((0.64, 0.10), (0.56, 0.07), (0.52, 0.05), (0.60, 0.06), (0.61, 0.04)),
        20: ((0.56, 0.07), (0.53, 0.08), (0.47, 0.04), (0.53, 0.06), (0.54, 0.06)),
    },
    "cifar10": {
        50: ((12.33, 0.39), (10.68, 0.65), (9.58, 0.16), (11.54, 0.55), (10.78, 0.09)),
        100: ((10.19, 0.24), (9.74, 0.44), (9.20, 0.55), (9.71, 0.14), (9.90, 0.47)),
        150: ((7.97, 0.10), (7.77, 0.14), (7.44, 0.14), (7.61, 0.07), (7.64, 0.27)),
    },
    "ptb": {
        10: ((184.5, 1.56), (178.3, 2.47), (187.2, 1.61), (179.4, 6.20), (180.0, 4.78)),
        30: ((138.6, 0.60), (137.8, 1.53), (139.0, 0.72), (136.2, 2.98), (134.3, 2.19)),
        50: ((130.3, 0.63), (129.9, 1.27), (130.5, 0.21), (128.2, 2.02), (127.4, 1.45)),
    },
}


def stage_steps(task: str, steps: int) -> list[float]:
    """The steps of the table's three stages in a schedule of ``steps`` instead of the paper's."""
    return [epoch * EPOCH[task] * steps / STEPS[task] for epoch in PAPER[task]]


def table1(material: Material) -> Analysis:
    """Test error or perplexity at three stages of training, beside the paper's."""
    rows = [row for task, runs in material.runs.items() for row in _table_rows(task, runs)]
    panels = [_table_panel(task, [r for r in rows if r[0] == task]) for task in material.runs]
    chart = Chart("table1", f"Table 1. {material.stated}", panels)
    claims = [claim for task, runs in material.runs.items() for claim in _table_claims(task, runs)]
    return Analysis([chart], claims, [Table("table1", COLUMNS, rows)])


def _table_rows(task: str, runs: Runs) -> list[list[Any]]:
    rows = []
    for stage, (epoch, paper) in enumerate(PAPER[task].items()):
        for label, theirs in zip(METHODS, paper, strict=True):
            found = [_at_stage(task, trace, stage) for trace in runs[label]]
            values = [value if task == "ptb" else 100 * value for _, value in found]
            std = stdev(values) if len(values) > 1 else None
            ours = [found[0][0], label, fmean(values), std, len(values)]
            rows.append([task, epoch, *ours, *theirs])
    return rows


def _at_stage(task: str, trace: Trace, stage: int) -> tuple[int, float]:
    """The evaluation nearest to the stage: its step, and the measure over the whole test set."""
    steps = [row["step"] for row in trace.rows]
    at = nearest(steps, stage_steps(task, steps[-1])[stage])
    measure = tested_by(trace.rows[at])
    return steps[at], trace.observed[at][measure]


def _table_panel(task: str, rows: list[list[Any]]) -> Panel:
    y = "validation perplexity" if task == "ptb" else "test error, %"
    lines = []
    for label in METHODS:
        chosen = [row for row in rows if row[3] == label]
        epochs, ours, std, paper, around = ([row[i] for row in chosen] for i in (1, 4, 5, 7, 8))
        found = analysis.line_with_std(label, epochs, ours, [each or 0.0 for each in std])
        theirs = analysis.line_with_std(f"{label} (paper)", epochs, paper, around, like=label)
        lines += [found, theirs]
    return Panel(NAMES[task], "epochs of the paper's schedule", y, lines)


def _table_claims(task: str, runs: Runs) -> list[Claim]:
    """Every method at the last stage; for images also the early help of the bias."""
    measure = tested_by(runs["uniform"][0].rows[-1])
    first, _, last = PAPER[task].values()
    claims = []
    for label, (theirs, _) in [*zip(METHODS, last, strict=True)][1:]:
        where = f"{label} on {NAMES[task]}"
        ratios, paper = _to_uniform(label, task, runs, 2), theirs / last[0][0]
        name = f"{task}, {label}: test"
        claims.append(analysis.same_or_better(name, where, ratios, measure, paper))
    if task == "ptb":
        return claims
    said = f"early on {NAMES[task]}, loss k=0.5 has a lower test error than uniform"
    ratios, paper = _to_uniform("loss k=0.5", task, runs, 0), first[2][0] / first[0][0]
    name, what = f"{task}: the bias helps early", "test error over uniform's"
    return [*claims, below(name, said, ratios, 1.0, what, paper)]


def _to_uniform(label: str, task: str, runs: Runs, stage: int) -> list[float]:
    base = runs["uniform"]
    return analysis.paired(runs[label], base, lambda trace: _at_stage(task, trace, stage)[1])


def markdown(table: Table, text: str) -> str:
    """The table as the paper lays it out, each cell ours and the paper's, and the outcome."""
    head = ["", "epoch", "step", *METHODS]
    lines = [head, ["---"] * len(head)]
    for _, group in groupby(table.rows, key=lambda row: row[:3]):
        stage = [*group]
        task, epoch, step = stage[0][:3]
        lines.append([NAMES[task], str(epoch), f"{step:,}", *map(_cell, stage)])
    what = (
        "Mean ± standard deviation; in brackets the paper's. Test errors in percent; for Penn "
        "Treebank the perplexity on the validation set."
    )
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    return "\n".join(["# Table 1", "", *rows, "", what, "", text, ""])


def _cell(row: list[Any]) -> str:
    task, mean, std, paper, around = row[0], row[4], row[5], row[7], row[8]
    digits = 1 if task == "ptb" else 2  # of means, as in the paper
    spread = "" if std is None else f" ± {std:.2f}"
    return f"{mean:.{digits}f}{spread} ({paper:.{digits}f} ± {around:.2f})"
