"""Figures 4 and 5 (appendix): loss against gradient norm, and how well scores track the loss."""

import math
from statistics import fmean

from salience.compare.charts import Chart, Panel, Table
from salience.paper.analysis import (
    NAMES,
    Analysis,
    Material,
    line,
    line_with_std,
    observations,
)
from salience.paper.claims import Claim, above, correlated
from salience.paper.measures import Trace, moving, spearman

__all__ = ["gnorm_vs_loss", "tracking"]

WINDOW = 50  # samples of the moving average of figure 4


def gnorm_vs_loss(material: Material) -> Analysis:
    """Losses in the order of the gradient norm; a line that rises means the same order."""
    panels, claims, table = [], [], Table("gnorm-vs-loss", ["task", "samples", "spearman"])
    for task, runs in material.runs.items():
        norms, losses = (_samples(runs["uniform"], key) for key in ("norms", "losses"))
        r = spearman(norms, losses)
        panels.append(_sorted_panel(f"{NAMES[task]}: rank correlation {r:.2f}", norms, losses))
        said = f"on {NAMES[task]} the loss grows with the gradient norm"
        claims.append(correlated(f"{task}: correlation", said, r, len(norms)))
        table.rows.append([task, len(norms), r])
    title = f"Loss sorted by gradient norm. {'; '.join(material.stated.values())}"
    return Analysis([Chart("gnorm-vs-loss", title, panels)], claims, [table])


def _samples(traces: list[Trace], key: str) -> list[float]:
    return [value for trace in traces for seen in trace.observed for value in seen[key]]


def _sorted_panel(title: str, norms: list[float], losses: list[float]) -> Panel:
    order = sorted(range(len(norms)), key=norms.__getitem__)
    mean, std = moving([losses[i] for i in order], WINDOW)
    x = [float(i) for i in range(len(order))]
    lines = [line_with_std(f"moving average of {WINDOW}", x, mean, std)]
    return Panel(title, "samples, by gradient norm", "loss", lines)


def tracking(material: Material) -> Analysis:
    """How well the score follows the loss of the step, during training."""
    panels, claims = [], []
    for task, runs in material.runs.items():
        found = {label: observations(traces, "tracking") for label, traces in runs.items()}
        lines = [line(label, x, curves) for label, (x, curves) in found.items()]
        panels.append(Panel(NAMES[task], "iterations", "coefficient a", lines, level=1.0))
        for label, (_, curves) in found.items():
            claims += _tracking_claims(task, label, curves)
    title = f"How well scores track the loss. {'; '.join(material.stated.values())}"
    return Analysis([Chart("tracking", title, panels)], claims)


def _tracking_claims(task: str, label: str, curves: list[list[float]]) -> list[Claim]:
    """Positive at the end; for the approximation also rising, from the first third to the last."""
    thirds = [math.ceil(len(curve) / 3) for curve in curves]
    first = [fmean(curve[:size]) for curve, size in zip(curves, thirds, strict=True)]
    last = [fmean(curve[-size:]) for curve, size in zip(curves, thirds, strict=True)]
    said = f"on {NAMES[task]} the score of {label} follows the loss (a above 0)"
    positive = above(f"{task}, {label}: positive", said, last, 0.0, "a in the last third")
    if label == "loss":
        return [positive]
    rise = [end - begin for begin, end in zip(first, last, strict=True)]
    rising = f"on {NAMES[task]} it follows the loss better and better"
    what = "a of the last third less that of the first"
    return [positive, above(f"{task}, {label}: rising", rising, rise, 0.0, what)]
