"""What the figures share: the runs of a target, numbers from them, and claims about speed."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from salience.compare.charts import Chart, Line
from salience.paper.claims import Claim, no_worse, sooner
from salience.paper.measures import Trace, arrivals, mean_and_range

__all__ = [
    *(
        "EPOCH",
        "NAMES",
        "Analysis",
        "Material",
        "Runs",
        "Table",
        "final_loss",
        "line",
        "line_with_std",
    ),
    *("observations", "paired", "same_or_better", "sooner_at_cost", "sooner_than_uniform"),
]

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "ptb": "Penn Treebank"}
EPOCH = {"mnist": 300, "cifar10": 300, "ptb": 2000}  # mini-batches, by the paper's definition
# "The same" test error: within a tenth of it; a perplexity varies less, so within a fiftieth.
MARGIN = {"test_error": 0.1, "test_perplexity": 0.02}

Runs = dict[str, list[Trace]]
"""Of one task: for each method's label, a trace per seed."""


class Material(NamedTuple):
    """The finished runs of a target by task, and for each task a description of them."""

    runs: dict[str, Runs]
    described: dict[str, str]

    @property
    def stated(self) -> str:
        """What was run on which task; tasks with the same description together."""
        tasks: dict[str, list[str]] = {}
        for task, description in self.described.items():
            tasks.setdefault(description, []).append(NAMES[task])
        return "; ".join(f"{', '.join(names)}: {how}" for how, names in tasks.items())


class Table(NamedTuple):
    """Numbers in rows, for CSV; None where there is no number."""

    name: str
    columns: list[str]
    rows: list[list[Any]]


class Analysis(NamedTuple):
    """The result of a target."""

    charts: list[Chart]
    claims: list[Claim]
    tables: Sequence[Table] = ()


def observations(traces: list[Trace], key: str) -> tuple[list[float], list[list[float]]]:
    """The steps at which every seed has a finite observation of ``key``, and their values."""
    at = [
        i
        for i in range(len(traces[0].rows))
        if all(math.isfinite(trace.observed[i].get(key, math.nan)) for trace in traces)
    ]
    steps = [float(traces[0].rows[i]["step"]) for i in at]
    return steps, [[trace.observed[i][key] for i in at] for trace in traces]


def line(label: str, x: list[float], curves: list[list[float]], like: str | None = None) -> Line:
    """The mean of the curves, with a band from the least to the greatest."""
    return Line(label, x, *mean_and_range(curves), like=like)


def line_with_std(
    label: str, x: list[float], mean: list[float], std: list[float], like: str | None = None
) -> Line:
    """A line with a band of one standard deviation to either side."""
    low = [m - s for m, s in zip(mean, std, strict=True)]
    high = [m + s for m, s in zip(mean, std, strict=True)]
    return Line(label, x, mean, low, high, like)


def paired(own: list[Trace], base: list[Trace], value: Callable[[Trace], float]) -> list[float]:
    """Ratios of the same seed, which starts from the same weights with every method."""
    pairs = [(value(a), value(b)) for a, b in zip(own, base, strict=True)]
    return [a / b if b else math.nan for a, b in pairs]


def final_loss(trace: Trace) -> float:
    """The train loss at the last evaluation."""
    return trace.rows[-1]["train_loss"]


def sooner_than_uniform(
    label: str,
    runs: Runs,
    measure: Literal["steps", "time"],
    when: str = "",
    paper: float | None = None,
) -> Claim:
    """The claim that a method reaches uniform's final train loss in fewer steps or less time."""
    own, base = runs[label], runs["uniform"]
    less = "fewer steps" if measure == "steps" else "less time"
    said = f"{label} reaches the final train loss of uniform in {less}{when}"
    found, finals = arrivals(own, base, measure), paired(own, base, final_loss)
    costs = () if measure == "steps" else paired(own, base, lambda run: run.rows[-1]["seconds"])
    return sooner(f"{label}: {less}", said, found, finals, f"share of the {measure}", paper, costs)


def sooner_at_cost(
    label: str, runs: Runs, cost: float, when: str = "", paper: float | None = None
) -> Claim:
    """The same with steps that cost so much each, over uniform's, instead of the clock."""
    own, base = runs[label], runs["uniform"]
    said = f"{label} reaches the final train loss of uniform in less time at the paper's cost per "
    said += f"step, {cost:.3g} of uniform's{when}"
    steps, finals = arrivals(own, base, "steps"), paired(own, base, final_loss)
    found = [each._replace(ratio=cost * each.ratio) for each in steps]
    name = f"{label}: less time at the paper's costs"
    what, costs = "share of the steps times their cost", [cost] * len(own)
    return sooner(name, said, found, finals, what, paper, costs)


def same_or_better(
    name: str, label: str, ratios: Sequence[float], measure: str, paper: float | None = None
) -> Claim:
    """The paper's claim about test errors, for one ratio to uniform per seed."""
    what = measure.replace("_", " ")
    said = f"the {what} of {label} is the same as uniform's or better"
    return no_worse(name, said, ratios, MARGIN[measure], f"{what} over uniform's", paper)
