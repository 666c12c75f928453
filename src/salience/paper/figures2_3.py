"""Figures 2 and 3: train loss against epochs and seconds, on CIFAR-10 and on Penn Treebank."""

from salience.compare.charts import Chart, Line, Panel
from salience.compare.summary import curve, target_loss, tested_by
from salience.paper.analysis import (
    EPOCH,
    Analysis,
    Material,
    Runs,
    final_loss,
    paired,
    same_or_better,
    sooner_than_uniform,
)
from salience.paper.claims import Claim, above
from salience.paper.measures import Trace, moving, until

__all__ = ["speed"]

# Time to uniform's loss over uniform's own; CIFAR-10 before the learning rate falls.
PAPER_SECONDS = {"cifar10": {"loss": 0.70, "approx": 0.85}, "ptb": {"approx": 0.80}}
BEFORE_DROP = {"cifar10": 0.7, "ptb": 1.0}  # the share of the schedule in figures by seconds
WINDOW = {"cifar10": 11, "ptb": 1}  # of the paper's moving average by seconds


def speed(material: Material) -> Analysis:
    """Train loss against epochs and against seconds, and when uniform's final loss was reached."""
    ((task, runs),) = material.runs.items()
    share = BEFORE_DROP[task]
    early = {label: [until(t, share) for t in traces] for label, traces in runs.items()}
    part = "" if share == 1 else f", first {share:.0%} of the schedule"
    by_epochs = [_by_epochs(label, traces, task) for label, traces in runs.items()]
    by_seconds = [_by_seconds(label, traces, task) for label, traces in early.items()]
    target = target_loss([trace.rows for trace in runs["uniform"]])
    x, y = f"epochs (of {EPOCH[task]:,} batches)", "train loss"
    panels = [
        Panel("by epochs", x, y, by_epochs, log=True, level=target),
        Panel(f"by seconds{part}", "seconds of training", y, by_seconds, log=True),
    ]
    chart = Chart(task, material.stated[task], panels)
    return Analysis([chart], _speed_claims(task, runs, early))


def _by_epochs(label: str, traces: list[Trace], task: str) -> Line:
    found = curve([trace.rows for trace in traces])
    x = [step / EPOCH[task] for step in found.steps]
    return Line(label, x, found.mean, found.low, found.high)


def _by_seconds(label: str, traces: list[Trace], task: str) -> Line:
    found = curve([trace.rows for trace in traces])
    return Line(label, found.seconds, moving(found.mean, WINDOW[task])[0])


def _speed_claims(task: str, runs: Runs, early: Runs) -> list[Claim]:
    claims = []
    when = "" if BEFORE_DROP[task] == 1 else " (before the learning rate falls)"
    for label in ("loss", "approx"):
        paper = PAPER_SECONDS[task].get(label)
        more = {} if paper is None else {"paper": paper}
        claims += [
            sooner_than_uniform(label, runs, "steps"),
            sooner_than_uniform(label, early, "time", when, **more),
            _tested(label, runs),
        ]
    return [*claims, _online(task, runs)]


def _tested(label: str, runs: Runs) -> Claim:
    measure = tested_by(runs["uniform"][0].rows[-1])
    ratios = paired(runs[label], runs["uniform"], lambda trace: trace.rows[-1][measure])
    return same_or_better(f"{label}: test", label, ratios, measure)


def _online(task: str, runs: Runs) -> Claim:
    """The paper found online selection about as fast on CIFAR-10, and failing on Penn Treebank."""
    if task != "ptb":
        return sooner_than_uniform("online-selection", runs, "steps")
    ratios = paired(runs["online-selection"], runs["uniform"], final_loss)
    said = "online selection does not get down to the final train loss of uniform"
    return above("online-selection: fails", said, ratios, 1.0, "final loss over uniform's")
