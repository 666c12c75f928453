"""Figure 1: (a) the variance of steps by loss and by gradient norm, (b) the effect of k."""

from statistics import fmean
from typing import Any

from salience.compare.charts import Chart, Line, Panel
from salience.compare.summary import curve
from salience.paper.analysis import (
    Analysis,
    Material,
    Runs,
    columns,
    line,
    line_with_std,
    observations,
    paired,
    sooner_than_uniform,
)
from salience.paper.claims import Claim, above, below, same
from salience.paper.measures import Trace, mean_and_range, moving

__all__ = ["largest_loss", "variance"]

SMOOTH = 7  # evaluations in the moving average of figure 1a: a little more than an epoch
LAST = 5  # evaluations by which the end of a run is judged, the window of figure 1b


def variance(material: Material) -> Analysis:
    """Train loss of uniform, loss and gnorm, and the variance of their steps."""
    ((task, runs),) = material.runs.items()
    smoothed = [_smoothed(label, traces) for label, traces in runs.items()]
    ratios = [each for label in ("loss", "gnorm") for each in _ratios(label, runs[label])]
    panels = [
        Panel("train loss", "iterations", "train loss", smoothed, log=True),
        Panel("variance of a step", "iterations", "over uniform's", ratios, level=1.0),
    ]
    chart = Chart("fig1a", f"Figure 1a. {material.stated[task]}", panels)
    claims = [claim for label in ("loss", "gnorm") for claim in _variance_claims(label, runs)]
    return Analysis([chart], [*claims, _slower(runs)])


def _smoothed(label: str, traces: list[Trace]) -> Line:
    """Moving average and moving standard deviation within each run, both averaged over seeds."""
    parts = [moving(column, SMOOTH) for column in columns(traces, "train_loss")]
    mean, std = (mean_and_range([part[i] for part in parts])[0] for i in (0, 1))
    return line_with_std(label, columns(traces, "step")[0], mean, std)


def _ratios(label: str, traces: list[Trace]) -> list[Line]:
    """Draws from all examples; dotted: from a uniformly drawn pool, as in training."""
    pooled = observations(traces, "pooled_ratio")
    return [
        line(label, *observations(traces, "variance_ratio")),
        line(f"{label}, with its pool", *pooled, like=label),
    ]


def _variance_claims(label: str, runs: Runs) -> list[Claim]:
    whole, pooled = (
        [fmean(each) for each in observations(runs[label], key)[1]]
        for key in ("variance_ratio", "pooled_ratio")
    )
    said = f"draws by {label} have less gradient variance than uniform ones"
    pool = f"with the pool drawn first, steps by {label} have less variance than uniform ones"
    what = "variance over uniform's"
    more: dict[str, Any] = {"paper": 1 / 6} if label == "loss" else {}
    return [
        below(f"{label}: variance", said, whole, 1.0, what),
        below(f"{label}: variance with its pool", pool, pooled, 1.0, what),
        sooner_than_uniform(label, runs, "steps", **more),
    ]


def _slower(runs: Runs) -> Claim:
    ratios = paired(runs["gnorm"], runs["loss"], lambda trace: trace.rows[-1]["seconds"])
    said = "sampling by gradient norm is more than 100 times slower than by loss"
    return above("gnorm: slower", said, ratios, 100.0, "seconds over those of loss", paper=100.0)


def largest_loss(material: Material) -> Analysis:
    """The greatest loss in the training set for several k, as a moving average."""
    ((task, runs),) = material.runs.items()
    lines = []
    for label, traces in runs.items():
        found = curve([trace.rows for trace in traces], "train_max_loss")
        lines.append(Line(label, found.steps, moving(found.mean, LAST)[0]))
    panel = Panel("effect of k", "iterations", "maximum train loss", lines, log=True)
    chart = Chart("fig1b", f"Figure 1b. {material.stated[task]}", [panel])
    lower = [_lowers_maximum(k, runs) for k in ("0", "0.5", "0.75")]
    return Analysis([chart], [*lower, _like_uniform(runs)])


def _lowers_maximum(k: str, runs: Runs) -> Claim:
    said = f"with k={k} the maximum train loss is lower than with k=1"
    ratios = paired(runs[f"k={k}"], runs["k=1"], _final_maximum)
    return below(f"k={k} lowers the maximum", said, ratios, 1.0, "maximum over that of k=1")


def _like_uniform(runs: Runs) -> Claim:
    said = "with k=1 the maximum train loss is the same as with uniform sampling"
    ratios = paired(runs["k=1"], runs["uniform"], _final_maximum)
    return same("k=1 is like uniform", said, ratios, 0.25, "maximum over uniform's")


def _final_maximum(trace: Trace) -> float:
    return fmean(row["train_max_loss"] for row in trace.rows[-LAST:])
