"""What a task is tested by: ready-made measures, and those of a task, over one data set.

A ``Measure`` says what it is called, which direction is better, and how it is computed from outputs
and targets. Rows of a comparison have it as ``test_NAME``, and ``validation_NAME``.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor

from salience.batches.nested import map_tensors
from salience.errors import ArgumentError

__all__ = [
    *("LOSS", "READY", "Better", "Measure", "Metrics", "Tally", "accuracy", "auc"),
    *("average_precision", "describe", "error", "error_by", "mae", "measures_of", "ndcg"),
    *("pairwise_accuracy", "perplexity", "r2", "read_measures", "rmse", "top5_error"),
    *("worst_class",),
]

Better = Literal["lower", "higher"]
Of = Literal["examples", "set", "losses"]
PAIRS = 2**22  # compared at a time
TEST, VALIDATION = "test", "validation"  # what the names in a row begin with


@dataclass(frozen=True)
class Measure:
    """A number to judge a network by.

    ``better`` is the direction. ``unit`` "%": a value of 0 to 1 that is shown as a percentage.
    ``compute`` gets (outputs, targets). ``of`` says of what: "examples", one value for each, of
    which the mean is taken; "set", all of them at once, for one value; "losses", the losses [n] of
    all examples instead, for one value. A measure that was read from a directory has no
    ``compute``.
    """

    name: str
    label: str
    better: Better = "lower"
    unit: Literal["", "%"] = ""
    of: Of = "set"
    compute: Callable[..., Any] | None = None

    def is_better(self, value: float, than: float) -> bool:
        """Whether ``value`` is strictly better; nan is never."""
        return value < than if self.better == "lower" else value > than


Metric = Measure | Callable[[Any, Any], Any]
Metrics = Mapping[str, Metric] | Sequence[str | Measure]
"""By name, or only the names of ready-made ones. The first is what verdicts go by."""


# ---------------------------------------------------------------------------------- ready-made


def _alike(outputs: Tensor, targets: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Both [n, ...] float64 and of one shape; [n, 1] and [n] count as the same."""
    if outputs.shape != targets.shape:
        if outputs.numel() != targets.numel() or len(outputs) != len(targets):
            raise ArgumentError(
                f"{name} needs outputs and targets of the same shape; got {[*outputs.shape]} and "
                f"{[*targets.shape]}: give the task a metric that takes these"
            )
        outputs = outputs.reshape(targets.shape)
    return outputs.double(), targets.double()


def _scores(outputs: Tensor, targets: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """A score [n] for class 1, and whether the target is class 1 [n]."""
    if outputs.ndim == 2 and outputs.shape[1] == 2 and targets.ndim == 1:
        outputs = outputs[:, 1] - outputs[:, 0]
    scores, positive = (each.flatten() for each in _alike(outputs, targets, name))
    positive = positive > 0.5
    if positive.all() or not positive.any():
        raise ArgumentError(
            f"{name} needs targets of both classes; all {len(positive)} are of one: choose another "
            f"test set or metric"
        )
    return scores, positive


def _auc(outputs: Tensor, targets: Tensor) -> float:
    """The share of pairs (positive, negative) in which the positive scores higher; a tie is 1/2."""
    scores, positive = _scores(outputs, targets, "auc")
    own, others = scores[positive], scores[~positive].sort().values
    below = torch.searchsorted(others, own)
    up_to = torch.searchsorted(others, own, right=True)
    return float((below + up_to).sum()) / (2 * len(own) * len(others))


def _average_precision(outputs: Tensor, targets: Tensor) -> float:
    """sum_k (recall_k - recall_(k-1)) precision_k over the thresholds k, from the highest on."""
    scores, positive = _scores(outputs, targets, "average_precision")
    values, places = torch.unique(-scores, return_inverse=True)
    size, hits = (torch.zeros(len(values), dtype=torch.float64) for _ in range(2))
    size.index_add_(0, places, torch.ones_like(scores))
    hits.index_add_(0, places, positive.double())
    precision = hits.cumsum(0) / size.cumsum(0)
    return float((hits * precision).sum() / hits.sum())


def _wrong(outputs: Tensor, targets: Tensor) -> Tensor:
    """Per example, whether the class is wrong: of the largest output, or of a single logit's sign.

    With outputs [n, C, ...] the mean over the rest.
    """
    if outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1:
        wrong = outputs.argmax(1) != targets
    else:
        logits, classes = _alike(outputs, targets, "error")
        wrong = (logits > 0) != (classes > 0.5)
    return wrong.double().flatten(1).mean(1) if wrong.ndim > 1 else wrong.double()


def _right(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1 - _wrong(outputs, targets)


def _not_in_top(outputs: Tensor, targets: Tensor, top: int = 5) -> Tensor:
    """Per example, whether ``top`` other classes score as high as the target's or higher."""
    own = outputs.gather(1, targets[:, None])
    return ((outputs >= own).sum(1) - 1 >= top).double()


def _absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs, targets = _alike(outputs, targets, "mae")
    return (outputs - targets).abs().reshape(len(outputs), -1).mean(1)


def _rmse(outputs: Tensor, targets: Tensor) -> float:
    outputs, targets = _alike(outputs, targets, "rmse")
    return float((outputs - targets).square().mean().sqrt())


def _r2(outputs: Tensor, targets: Tensor) -> float:
    """1 - squared errors over the targets' squared deviations; the mean over several targets."""
    outputs, targets = (each.reshape(len(each), -1) for each in _alike(outputs, targets, "r2"))
    around = (targets - targets.mean(0)).square().sum(0)
    if not bool((around > 0).all()):
        raise ArgumentError("r2 needs targets that vary: choose another test set or metric")
    return float((1 - (outputs - targets).square().sum(0) / around).mean())


def _perplexity(losses: Tensor) -> float:
    return math.exp(min(float(losses.mean()), 700.0))


def _lists(outputs: Tensor, targets: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Scores and relevances of lists [n, items]; [items] is a single list."""
    outputs, targets = _alike(outputs, targets, name)
    return outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1, targets.shape[-1])


def _ndcg(outputs: Tensor, targets: Tensor) -> Tensor:
    """Per list [items]: gains 2^relevance - 1, discounts 1 / log2(1 + rank), over the best order's.

    Items of equal score get the mean of the discounts of the ranks that they share, so the order
    in the data does not count. A list without any gain counts as 1.
    """
    scores, relevances = _lists(outputs, targets, "ndcg")
    gains = torch.exp2(relevances) - 1
    discounts = 1 / torch.log2(2 + torch.arange(scores.shape[1], dtype=torch.float64))
    until = torch.cat([torch.zeros(1, dtype=torch.float64), discounts.cumsum(0)])
    above = torch.stack([(row[None] > row[:, None]).sum(1) for row in scores])
    equal = torch.stack([(row[None] == row[:, None]).sum(1) for row in scores])
    found = (gains * (until[above + equal] - until[above]) / equal).sum(1)
    most = (gains.sort(1, descending=True).values * discounts).sum(1)
    return torch.where(most > 0, found / most.clamp(min=1e-300), 1.0)


def _pairwise(outputs: Tensor, targets: Tensor) -> float:
    """Of the pairs in a list with different relevances, the share in order; a tie is 1/2."""
    right = pairs = 0.0
    for scores, relevances in zip(*_lists(outputs, targets, "pairwise_accuracy"), strict=True):
        for part in torch.split(torch.arange(len(scores)), max(1, PAIRS // len(scores))):
            better = relevances[part, None] > relevances
            order = torch.sign(scores[part, None] - scores)
            right += float(((order + 1) / 2)[better].sum())
            pairs += float(better.sum())
    if not pairs:
        raise ArgumentError(
            "pairwise_accuracy needs relevances that differ: choose another test set or metric"
        )
    return right / pairs


LOSS = Measure("loss", "loss", of="losses", compute=lambda losses: float(losses.mean()))
error = Measure("error", "error", "lower", "%", "examples", _wrong)
accuracy = Measure("accuracy", "accuracy", "higher", "%", "examples", _right)
top5_error = Measure("top5_error", "top-5 error", "lower", "%", "examples", _not_in_top)
auc = Measure("auc", "AUC", "higher", compute=_auc)
average_precision = Measure(
    "average_precision", "average precision", "higher", compute=_average_precision
)
mae = Measure("mae", "MAE", of="examples", compute=_absolute)
rmse = Measure("rmse", "RMSE", compute=_rmse)
r2 = Measure("r2", "R²", "higher", compute=_r2)
perplexity = Measure("perplexity", "perplexity", of="losses", compute=_perplexity)
ndcg = Measure("ndcg", "NDCG", "higher", of="examples", compute=_ndcg)
pairwise_accuracy = Measure(
    "pairwise_accuracy", "pairwise accuracy", "higher", "%", compute=_pairwise
)
READY: dict[str, Measure] = {
    each.name: each
    for each in (
        *(error, accuracy, top5_error, auc, average_precision, mae, rmse, r2, perplexity),
        *(ndcg, pairwise_accuracy),
    )
}


def error_by(wrong: Callable[[Any, Any], Tensor]) -> Measure:
    """The error by a function that says, per example, whether it counts as one."""
    return replace(error, compute=wrong)


# -------------------------------------------------------------------------------- of a task

# Which direction is better, for functions that are given by a usual name.
HIGHER = (
    *("accuracy", "auc", "auroc", "roc_auc", "average_precision", "ap", "map", "pr_auc", "r2"),
    *("f1", "precision", "recall", "ndcg", "mrr", "iou", "miou", "dice", "bleu", "rouge", "psnr"),
    *("ssim", "spearman", "pearson", "kappa", "mcc", "balanced_accuracy", "pairwise_accuracy"),
)
LOWER = (
    *("error", "error_rate", "mae", "mse", "rmse", "mape", "perplexity", "loss", "log_loss", "nll"),
    *("brier", "ece", "wer", "cer", "fid", "top5_error"),
)


def measures_of(
    metrics: Metrics | None, wrong: Callable[[Any, Any], Tensor] | None
) -> tuple[Measure, ...]:
    """The measures of a task, the primary one first; the loss where it names none."""
    given = {each.name: each for each in _listed(metrics or {})}
    if wrong is not None:
        given.setdefault("error", error_by(wrong))
    return tuple(given.values()) or (LOSS,)


def _listed(metrics: Metrics) -> Iterable[Measure]:
    if isinstance(metrics, str):
        metrics = (metrics,)
    if not isinstance(metrics, Mapping):
        return [each if isinstance(each, Measure) else _ready(each) for each in metrics]
    return [_named(name, metric) for name, metric in metrics.items()]


def _ready(name: str) -> Measure:
    if name not in READY:
        raise ArgumentError(
            f"there is no ready-made metric {name!r}: take one of {', '.join(READY)}, or write "
            f"metrics={{{name!r}: function}}"
        )
    return READY[name]


def _named(name: str, metric: Metric) -> Measure:
    if not name.isidentifier() or name in ("loss", "error_worst", "error_rare"):
        raise ArgumentError(
            f"a metric cannot be called {name!r}: its name has letters, digits and _, and is not "
            f"loss, error_worst or error_rare"
        )
    if isinstance(metric, Measure):
        return metric if metric.name == name else replace(metric, name=name)
    if not callable(metric):
        raise ArgumentError(
            f"metric {name!r} must be a function of (outputs, targets) or a Measure; got {metric!r}"
        )
    if name.lower() not in (*HIGHER, *LOWER):
        raise ArgumentError(
            f"whether a lower or a higher {name!r} is better is not known: write "
            f"Measure({name!r}, {name!r}, better='higher', compute=function)"
        )
    better: Better = "higher" if name.lower() in HIGHER else "lower"
    label = READY[name].label if name in READY else name.replace("_", " ")
    return Measure(name, label, better, compute=metric)


# --------------------------------------------------------------------------- over one data set


@final
class _Values:
    """One number per example, [n] float64 on the host, in a block that doubles.

    A small tensor per batch would lie between the large ones of outputs, and the memory that those
    leave would fit no others.
    """

    def __init__(self) -> None:
        self._block, self._n = torch.empty(0, dtype=torch.float64), 0

    def add(self, values: Tensor) -> None:
        before, self._n = self._n, self._n + len(values)
        if self._n > len(self._block):
            block = torch.empty(2 * self._n, dtype=torch.float64)
            block[:before] = self._block[:before]
            self._block = block
        self._block[before : self._n] = values.detach()

    def all(self) -> Tensor:
        """In the order in which they were added."""
        return self._block[: self._n].clone()


@final
class Tally:
    """Losses and measures over one data set, batch by batch.

    Outputs and targets are kept only where a measure is of the whole set. Where there is an error
    and targets are classes, the error of the worst class is added as ``error_worst``; ``rare`` says
    of targets which are rare, for ``error_rare``.
    """

    def __init__(
        self, measures: Iterable[Measure], rare: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._measures, self._rare = tuple(measures), rare
        self._whole = any(measure.of == "set" for measure in self._measures)
        self._classes = any(measure.name == "error" for measure in self._measures)
        self._losses = _Values()
        self._each: dict[str, _Values] = {}
        self._outputs: list[Any] = []
        self._targets: list[Any] = []

    @property
    def needs_outputs(self) -> bool:
        """Whether losses alone are not enough."""
        return any(measure.of != "losses" for measure in self._measures)

    @property
    def losses(self) -> Tensor:
        """[n] float64, on the CPU."""
        return self._losses.all()

    def add(self, losses: Tensor, outputs: Any = None, targets: Any = None) -> None:
        """A batch: losses [B], and what measures need beside."""
        self._losses.add(losses)
        if self.needs_outputs:
            outputs, targets = (map_tensors(_on_cpu, each) for each in (outputs, targets))
        for measure in self._measures:
            if measure.of == "examples":
                self._add_each(measure, losses.shape, outputs, targets)
        if self._whole:
            self._outputs.append(_tensor(outputs, "outputs"))
        if self._whole or (self._classes and isinstance(targets, Tensor)):
            self._targets.append(_tensor(targets, "targets"))

    def _add_each(self, measure: Measure, shape: torch.Size, outputs: Any, targets: Any) -> None:
        assert measure.compute is not None
        values = measure.compute(outputs, targets)
        if not isinstance(values, Tensor) or values.shape != shape:
            shown = [*values.shape] if isinstance(values, Tensor) else values
            raise ArgumentError(
                f"metric {measure.name!r} must give one value per example, a tensor of shape "
                f"{[*shape]}; got {shown}"
            )
        self._each.setdefault(measure.name, _Values()).add(values)

    def values(self) -> dict[str, float]:
        """By name: the loss first, then every measure."""
        found = {"loss": float(self.losses.mean())}
        for measure in self._measures:
            found[measure.name] = self._value(measure)
            if measure.name == "error" and "error" in self._each:
                found |= self._by_class(self._each["error"].all())
        return found

    def _value(self, measure: Measure) -> float:
        assert measure.compute is not None
        if measure.of == "examples":
            return float(self._each[measure.name].all().mean())
        if measure.of == "losses":
            return float(measure.compute(self.losses))
        value = measure.compute(_joined(self._outputs), _joined(self._targets))
        if isinstance(value, Tensor) and value.shape == self.losses.shape:
            return float(value.double().mean())
        try:
            return float(value)
        except (TypeError, ValueError):
            shown = [*value.shape] if isinstance(value, Tensor) else value
            raise ArgumentError(
                f"metric {measure.name!r} must give one number, or one per example; got {shown}"
            ) from None

    def _by_class(self, wrong: Tensor) -> dict[str, float]:
        if not self._targets:
            return {}
        targets, found = _joined(self._targets), {}
        if (worst := worst_class(wrong, targets)) is not None:
            found["error_worst"] = worst
        if self._rare is not None:
            found["error_rare"] = float(wrong[self._rare(targets)].mean())
        return found


def worst_class(wrong: Tensor, targets: Tensor) -> float | None:
    """The highest error of any class; None where targets [n] are not classes."""
    classes = not targets.is_floating_point() and targets.shape == wrong.shape
    if not classes or not len(wrong):
        return None
    _, places, counts = torch.unique(targets, return_inverse=True, return_counts=True)
    errors = torch.zeros(len(counts), dtype=wrong.dtype).index_add_(0, places, wrong) / counts
    return float(errors.max())


def _on_cpu(part: Tensor) -> Tensor:
    """At least float32, which NumPy has and the half types are not."""
    part = part.detach().cpu()
    return part.float() if part.is_floating_point() and part.itemsize < 4 else part


def _tensor(value: Any, what: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise ArgumentError(
            f"metrics need {what} that are a tensor; got {type(value).__name__}: give the task "
            f"outputs=function(model, batch) that returns (outputs, targets)"
        )
    return value


def _joined(parts: list[Tensor]) -> Tensor:
    try:
        return torch.cat(parts)
    except RuntimeError:
        shapes = sorted({str([*part.shape[1:]]) for part in parts})
        raise ArgumentError(
            f"a metric of the whole set needs batches of one shape; got examples of "
            f"{' and '.join(shapes)}: give it as Measure(..., of='examples')"
        ) from None


# -------------------------------------------------------------------------------- written down


def describe(measures: Sequence[Measure], prefixes: Iterable[str] = (TEST,)) -> dict[str, Any]:
    """For ``config.json``: what the columns of rows are, and which one is primary."""
    every = {"loss": LOSS} | {measure.name: measure for measure in measures}
    if "error" in every:
        every |= {part.name: part for part in PARTS}
    return {
        "measures": {
            f"{prefix}_{name}": {"label": m.label, "better": m.better, "unit": m.unit}
            for prefix in prefixes
            for name, m in every.items()
        },
        "primary": f"{TEST}_{measures[0].name}",
    }


PARTS = (
    Measure("error_worst", "error of the worst class", "lower", "%"),
    Measure("error_rare", "error of rare classes", "lower", "%"),
)
KNOWN = {f"{TEST}_{each.name}": each for each in (LOSS, *READY.values(), *PARTS)}


def read_measures(
    config: Mapping[str, Any], row: Mapping[str, Any]
) -> tuple[dict[str, Measure], str]:
    """What the columns of ``row`` are by its configuration, and which one is primary.

    Older directories do not say: their rows have an error or a perplexity, which is primary.
    """
    written = config.get("measures")
    if not written:
        known = {key: measure for key, measure in KNOWN.items() if key in row}
        older = (key for key in (f"{TEST}_error", f"{TEST}_perplexity") if key in known)
        return known, next(older, f"{TEST}_loss")
    found = {
        str(key): Measure(
            str(key).partition("_")[2],
            str(each["label"]),
            "higher" if each["better"] == "higher" else "lower",
            "%" if each["unit"] == "%" else "",
        )
        for key, each in written.items()
        if key in row
    }
    primary = str(config["primary"])
    if primary not in found:
        raise KeyError(primary)
    return found, primary
