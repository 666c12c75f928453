"""From the runs of a target to its charts, claims and tables: one function per figure.

The paper's own numbers stand beside ours as data; whatever is said about ours is computed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from salience.compare.charts import Chart, Line, Panel, Table
from salience.compare.summary import tested_by
from salience.paper.claims import Claim, above, below, correlated, no_worse, same, sooner
from salience.paper.measures import (
    Trace,
    arrivals,
    mean_and_range,
    moving,
    spearman,
    until,
)

__all__ = [
    "EPOCH",
    "NAMES",
    "Analysis",
    "Material",
    "Runs",
    "gnorm_vs_loss",
    "largest_loss",
    "paired",
    "same_or_better",
    "speed",
    "tracking",
    "variance",
    "with_std",
]

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "ptb": "Penn Treebank"}
EPOCH = {"mnist": 300, "cifar10": 300, "ptb": 2000}  # mini-batches, by the paper's definition
SMOOTH = 7  # evaluations in the moving average of figure 1a: a little more than an epoch
LAST = 5  # evaluations that the end of a run is judged by, the window of figure 1b
# "The same" test error: within a tenth of it; a perplexity moves less, so within a fiftieth.
MARGIN = {"test_error": 0.1, "test_perplexity": 0.02}
# Time to uniform's loss over uniform's own; CIFAR-10 before the learning rate falls.
PAPER_SECONDS = {"cifar10": {"loss": 0.70, "approx": 0.85}, "ptb": {"approx": 0.80}}
BEFORE_DROP = {"cifar10": 0.7, "ptb": 1.0}  # the share of the schedule that figures in seconds show

Runs = dict[str, list[Trace]]
"""Of one task: for each method's label, a trace per seed."""


class Material(NamedTuple):
    """The finished runs of a target, by task, and for each task what they were, in words."""

    runs: dict[str, Runs]
    stated: dict[str, str]


@dataclass(frozen=True)
class Analysis:
    """What a target came to."""

    charts: list[Chart]
    claims: list[Claim]
    tables: list[Table] = field(default_factory=list)


# ------------------------------------------------------------------------------------ figure 1a


def variance(material: Material) -> Analysis:
    """Train loss of uniform, loss and gnorm, and the variance of their steps."""
    ((task, runs),) = material.runs.items()
    panels = [
        Panel("train loss", "iterations", "train loss", _smoothed(runs), log=True),
        Panel("variance of a step", "iterations", "over uniform's", _ratios(runs), level=1.0),
    ]
    chart = Chart("fig1a", f"Figure 1a. {material.stated[task]}", panels)
    claims = [claim for label in ("loss", "gnorm") for claim in _variance_claims(label, runs)]
    return Analysis([chart], [*claims, _slower(runs)])


def _smoothed(runs: Runs) -> list[Line]:
    """Moving average and moving standard deviation within each run, both averaged over seeds."""
    lines = []
    for label, traces in runs.items():
        parts = [moving(_column(t, "train_loss"), SMOOTH) for t in traces]
        mean = [fmean(p) for p in zip(*(part[0] for part in parts), strict=True)]
        wide = [fmean(p) for p in zip(*(part[1] for part in parts), strict=True)]
        low = [m - w for m, w in zip(mean, wide, strict=True)]
        high = [m + w for m, w in zip(mean, wide, strict=True)]
        lines.append(Line(label, _column(traces[0], "step"), mean, low, high))
    return lines


def _ratios(runs: Runs) -> list[Line]:
    """Draws from all examples; dotted, the pool drawn before them included."""
    lines = []
    for label in ("loss", "gnorm"):
        for key, name in (("variance_ratio", label), ("pooled_ratio", f"{label}, with its pool")):
            x, curves = _observations(runs[label], key)
            like = None if name == label else label
            lines.append(Line(name, x, *mean_and_range(curves), like=like))
    return lines


def _variance_claims(label: str, runs: Runs) -> list[Claim]:
    means = {
        key: [fmean(curve) for curve in _observations(runs[label], key)[1]]
        for key in ("variance_ratio", "pooled_ratio")
    }
    said = f"draws by {label} have less gradient variance than uniform ones"
    pool = f"with the pool drawn first, steps by {label} have less variance than uniform ones"
    what, more = "variance over uniform's", {"paper": 1 / 6} if label == "loss" else {}
    return [
        below(f"{label}: variance", said, means["variance_ratio"], 1.0, what),
        below(f"{label}: variance with its pool", pool, means["pooled_ratio"], 1.0, what),
        _fewer_steps(label, runs, **more),
    ]


def _fewer_steps(label: str, runs: Runs, **more: Any) -> Claim:
    own, base = runs[label], runs["uniform"]
    said = f"{label} reaches the final train loss of uniform in fewer steps"
    finals, found = paired(own, base, _final_loss), arrivals(own, base, "step")
    return sooner(f"{label}: fewer steps", said, found, finals, "share of the steps", **more)


def _less_time(label: str, early: Runs, when: str, **more: Any) -> Claim:
    own, base = early[label], early["uniform"]
    said = f"{label} reaches the final train loss of uniform in less time{when}"
    finals, found = paired(own, base, _final_loss), arrivals(own, base, "seconds")
    return sooner(f"{label}: less time", said, found, finals, "share of the time", **more)


def _final_loss(trace: Trace) -> float:
    return trace.rows[-1]["train_loss"]


def _slower(runs: Runs) -> Claim:
    pairs = zip(runs["gnorm"], runs["loss"], strict=True)
    ratios = [_over(g.rows[-1]["seconds"], t.rows[-1]["seconds"]) for g, t in pairs]
    said = "sampling by gradient norm is more than 100 times slower than by loss"
    return above("gnorm: slower", said, ratios, 100.0, "seconds over those of loss", paper=100.0)


# ------------------------------------------------------------------------------------ figure 1b


def largest_loss(material: Material) -> Analysis:
    """The greatest loss in the training set for several k, as a moving average."""
    ((task, runs),) = material.runs.items()
    lines = []
    for label, traces in runs.items():
        mean = [fmean(p) for p in zip(*(_column(t, "train_max_loss") for t in traces), strict=True)]
        lines.append(Line(label, _column(traces[0], "step"), moving(mean, LAST)[0]))
    panel = Panel("effect of k", "iterations", "maximum train loss", lines, log=True)
    chart = Chart("fig1b", f"Figure 1b. {material.stated[task]}", [panel])
    return Analysis([chart], _k_claims(runs))


def _k_claims(runs: Runs) -> list[Claim]:
    what = "maximum over that of k=1"
    claims = [
        below(
            f"k={k} lowers the maximum",
            f"with k={k} the maximum train loss is lower than with k=1",
            paired(runs[f"k={k}"], runs["k=1"], _final_maximum),
            1.0,
            what,
        )
        for k in ("0", "0.5", "0.75")
    ]
    alike = "with k=1 the maximum train loss is where uniform sampling leaves it"
    ratios = paired(runs["k=1"], runs["uniform"], _final_maximum)
    return [*claims, same("k=1 is like uniform", alike, ratios, 0.25, "maximum over uniform's")]


def _final_maximum(trace: Trace) -> float:
    return fmean(_column(trace, "train_max_loss")[-LAST:])


# ------------------------------------------------------------------- CIFAR-10 and Penn Treebank


def speed(material: Material) -> Analysis:
    """Train loss against epochs and against seconds, and when uniform's final loss was reached."""
    ((task, runs),) = material.runs.items()
    epochs = [_averaged(label, traces, task) for label, traces in runs.items()]
    share = BEFORE_DROP[task]
    early = {label: [until(t, share) for t in traces] for label, traces in runs.items()}
    target = fmean(t.rows[-1]["train_loss"] for t in runs["uniform"])
    x, y = f"epochs (of {EPOCH[task]:,} batches)", "train loss"
    part = "" if share == 1 else f", first {share:.0%} of the schedule"
    panels = [
        Panel("by epochs", x, y, epochs, log=True, level=target),
        Panel(f"by seconds{part}", "seconds of training", y, _by_seconds(early, task), log=True),
    ]
    chart = Chart(task, material.stated[task], panels)
    return Analysis([chart], _speed_claims(task, runs, early))


def _averaged(label: str, traces: list[Trace], task: str) -> Line:
    x = [step / EPOCH[task] for step in _column(traces[0], "step")]
    return Line(label, x, *mean_and_range([_column(t, "train_loss") for t in traces]))


def _by_seconds(runs: Runs, task: str) -> list[Line]:
    """As the paper drew it: an 11 point moving average for CIFAR-10."""
    window = 11 if task == "cifar10" else 1
    lines = []
    for label, traces in runs.items():
        x = [fmean(p) for p in zip(*(_column(t, "seconds") for t in traces), strict=True)]
        mean, *_ = mean_and_range([_column(t, "train_loss") for t in traces])
        lines.append(Line(label, x, moving(mean, window)[0]))
    return lines


def _speed_claims(task: str, runs: Runs, early: Runs) -> list[Claim]:
    claims = []
    when = "" if BEFORE_DROP[task] == 1 else " (before the learning rate falls)"
    for label in ("loss", "approx"):
        paper = PAPER_SECONDS[task].get(label)
        more = {} if paper is None else {"paper": paper}
        claims += [
            _fewer_steps(label, runs),
            _less_time(label, early, when, **more),
            _tested(f"{label}: test", label, runs[label], runs["uniform"]),
        ]
    return [*claims, _online(task, runs)]


def _online(task: str, runs: Runs) -> Claim:
    """The paper found online selection about as fast on CIFAR-10, and failing on Penn Treebank."""
    if task != "ptb":
        return _fewer_steps("online-selection", runs)
    ratios = paired(runs["online-selection"], runs["uniform"], _final_loss)
    said = "online selection does not get down to the final train loss of uniform"
    return above("online-selection: fails", said, ratios, 1.0, "final loss over uniform's")


def _tested(name: str, label: str, own: list[Trace], base: list[Trace]) -> Claim:
    measure = tested_by(base[0].rows[-1])
    ratios = paired(own, base, lambda trace: trace.rows[-1][measure])
    return same_or_better(name, label, ratios, measure)


def same_or_better(
    name: str, label: str, ratios: Sequence[float], measure: str, **more: Any
) -> Claim:
    """The paper's claim about test errors, for one ratio to uniform per seed."""
    what = measure.replace("_", " ")
    said = f"the {what} of {label} is the same as uniform's or better"
    return no_worse(name, said, ratios, MARGIN[measure], f"{what} over uniform's", **more)


# ------------------------------------------------------------------ gradient norm against loss


def gnorm_vs_loss(material: Material) -> Analysis:
    """Losses in the order of the gradient norm; a line that rises means the same order."""
    panels, claims, table = [], [], Table("gnorm-vs-loss", ["task", "samples", "spearman"])
    for task, runs in material.runs.items():
        norms, losses = (_samples(runs["uniform"], key) for key in ("norms", "losses"))
        panels.append(_sorted_panel(task, norms, losses))
        r = spearman(norms, losses)
        said = f"on {NAMES[task]} the loss grows with the gradient norm"
        claims.append(correlated(f"{task}: correlation", said, r, len(norms)))
        table.rows.append([task, len(norms), r])
    title = f"Loss sorted by gradient norm. {'; '.join(material.stated.values())}"
    return Analysis([Chart("gnorm-vs-loss", title, panels)], claims, [table])


def _samples(traces: list[Trace], key: str) -> list[float]:
    return [value for trace in traces for seen in trace.observed for value in seen[key]]


def _sorted_panel(task: str, norms: list[float], losses: list[float], window: int = 50) -> Panel:
    order = sorted(range(len(norms)), key=norms.__getitem__)
    mean, std = moving([losses[i] for i in order], window)
    line = with_std("moving average of 50", [float(i) for i in range(len(order))], mean, std)
    r = spearman(norms, losses)
    title = f"{NAMES[task]}: rank correlation {r:.2f}"
    return Panel(title, "samples, by gradient norm", "loss", [line])


# -------------------------------------------------------------------------------------- tracking


def tracking(material: Material) -> Analysis:
    """How well the score follows the loss of the step, along the training."""
    panels, claims = [], []
    for task, runs in material.runs.items():
        lines = []
        for label, traces in runs.items():
            x, curves = _observations(traces, "tracking")
            lines.append(Line(label, x, *mean_and_range(curves)))
            claims += _tracking_claims(task, label, curves)
        y = "coefficient a"
        panels.append(Panel(NAMES[task], "iterations", y, lines, level=1.0))
    title = f"How well scores track the loss. {'; '.join(material.stated.values())}"
    return Analysis([Chart("tracking", title, panels)], claims)


def _tracking_claims(task: str, label: str, curves: list[list[float]]) -> list[Claim]:
    """Positive at the end; for the approximation also rising, from the first third to the last."""
    last = [fmean(_third(curve, last=True)) for curve in curves]
    rise = [end - fmean(_third(curve, last=False)) for end, curve in zip(last, curves, strict=True)]
    said = f"on {NAMES[task]} the score of {label} follows the loss (a above 0)"
    positive = above(f"{task}, {label}: positive", said, last, 0.0, "a in the last third")
    if label == "loss":
        return [positive]
    rising = f"on {NAMES[task]} it follows the loss better and better"
    what = "a of the last third less that of the first"
    return [positive, above(f"{task}, {label}: rising", rising, rise, 0.0, what)]


def _third(curve: list[float], *, last: bool) -> list[float]:
    size = math.ceil(len(curve) / 3)
    return curve[-size:] if last else curve[:size]


# -------------------------------------------------------------------------------------- columns


def with_std(
    label: str, x: list[float], mean: list[float], std: list[float], like: str | None = None
) -> Line:
    """A line with one standard deviation to either side."""
    low = [m - s for m, s in zip(mean, std, strict=True)]
    high = [m + s for m, s in zip(mean, std, strict=True)]
    return Line(label, x, mean, low, high, like)


def _column(trace: Trace, key: str) -> list[float]:
    rows: Iterable[Any] = trace.rows
    return [float(row[key]) for row in rows]


def _observations(traces: list[Trace], key: str) -> tuple[list[float], list[list[float]]]:
    """The steps at which every seed has a finite number for ``key``, and the numbers."""
    at = [
        i
        for i in range(len(traces[0].rows))
        if all(math.isfinite(trace.observed[i].get(key, math.nan)) for trace in traces)
    ]
    steps = [float(traces[0].rows[i]["step"]) for i in at]
    return steps, [[trace.observed[i][key] for i in at] for trace in traces]


def paired(own: list[Trace], base: list[Trace], value: Callable[[Trace], float]) -> list[float]:
    """Ratios of the same seed, which starts from the same weights with every method."""
    return [_over(value(a), value(b)) for a, b in zip(own, base, strict=True)]


def _over(a: float, b: float) -> float:
    return a / b if b else math.nan
