"""The loss that scores ask for: recognised, called, and checked to be one number per example."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from salience.errors import ArgumentError, LossError

__all__ = ["Criterion", "LossFunction", "as_criterion", "as_loss", "per_example", "wide"]

LossFunction = Callable[[Any, Any], Tensor]

# What the first and the second parameter are called in losses (model, batch) and in criteria.
MODELS = {"model", "module", "net", "network"}
BATCHES = {"batch", "data", "examples", "sample", "samples"}
OUTPUTS = {
    *("input", "inputs", "output", "outputs", "out", "logit", "logits", "score", "scores"),
    *("pred", "preds", "prediction", "predictions", "predicted", "prob", "probs", "log_probs"),
    *("y_pred", "y_hat", "yhat", "y_preds", "x", "x_hat", "recon", "reconstruction"),
}
TARGETS = {
    *("target", "targets", "label", "labels", "y", "y_true", "true", "truth", "ground_truth", "gt"),
    *("expected", "answer", "answers", "reference"),
}


@dataclass(frozen=True)
class Criterion:
    """``function(model(x), y)`` on batches (x, y).

    ``ignore_index`` is that of a plain cross entropy (no class weights, no label smoothing) and
    None for every other criterion.
    """

    function: Callable[..., Tensor]
    ignore_index: int | None = None

    def __call__(self, model: Any, batch: Any) -> Tensor:
        if not (isinstance(batch, tuple | list) and len(batch) == 2):
            raise ArgumentError(
                f"a criterion needs batches (x, y); this one is {_describe(batch)}: "
                "give loss= a callable (model, batch) -> per-example losses"
            )
        x, y = batch
        if self.ignore_index is not None and isinstance(y, Tensor) and not y.is_floating_point():
            y = y.long()  # classes of any integer type
        return self.function(model(x), y)


@dataclass(frozen=True)
class Unrecognised:
    """A loss whose parameters do not say what they are: taken for ``(model, batch)``."""

    function: LossFunction

    def __call__(self, model: Any, batch: Any) -> Tensor:
        try:
            return self.function(model, batch)
        except (TypeError, AttributeError) as error:
            reason = str(error).split("\n")[0]
            raise ArgumentError(
                f"loss, called as loss(model, batch), failed ({reason}): name its parameters "
                "(model, batch), or (input, target) for a criterion of the model's output"
            ) from error


def as_loss(loss: Any) -> LossFunction:
    """The loss as a callable (model, batch) -> per-example losses.

    A criterion is recognised as an nn.Module, or by the names of its first two parameters, such as
    ``input, target``.
    """
    if not callable(loss):
        raise ArgumentError(
            "loss must be a callable (model, batch) -> per-example losses or a criterion with "
            f'reduction="none"; got {loss!r}'
        )
    names = _parameter_names(loss)
    first, second = [*names, "", ""][:2]
    of_model = first in MODELS or second in BATCHES
    of_output = first in OUTPUTS or second in TARGETS
    if of_model != of_output:
        return as_criterion(loss) if of_output else loss
    return as_criterion(loss) if isinstance(loss, nn.Module) else Unrecognised(loss)


def as_criterion(loss: Any) -> Criterion:
    """A function of (output, target), per example where it has the option."""
    if isinstance(loss, nn.Module):
        return _module_criterion(loss)
    return _function_criterion(loss, _parameter_names(loss))


def _module_criterion(loss: nn.Module) -> Criterion:
    reduction = getattr(loss, "reduction", "none")
    if reduction != "none":
        raise ArgumentError(
            f"loss has reduction={reduction!r}, and a score needs one loss per example: "
            f'use {type(loss).__name__}(reduction="none")'
        )
    if type(loss) is nn.CrossEntropyLoss and loss.weight is None and not loss.label_smoothing:
        return Criterion(loss, loss.ignore_index)
    return Criterion(loss)


def _function_criterion(loss: Callable[..., Tensor], names: list[str]) -> Criterion:
    function, options = loss, dict[str, Any]()
    if isinstance(loss, partial):  # nested partials are flat already
        function, options = loss.func, loss.keywords
    plain = (
        function is F.cross_entropy
        and options.get("weight") is None
        and not options.get("label_smoothing")
    )
    ignore_index = options.get("ignore_index", -100) if plain else None
    return Criterion(
        partial(loss, reduction="none") if "reduction" in names else loss, ignore_index
    )


def _parameter_names(loss: Any) -> list[str]:
    try:
        return list(
            inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters
        )
    except (TypeError, ValueError):  # a builtin that does not say
        return []


def _describe(batch: Any) -> str:
    sized = isinstance(batch, tuple | list)
    return f"a {type(batch).__name__}" + (f" of {len(batch)}" if sized else "")


def per_example(losses: Any, n: int) -> Tensor:
    """L_i = mean_t L_it: one loss per example from ``losses`` [n] or [n, T].

    Whatever has the wrong shape is refused: a mean over the batch would score nothing.
    """
    if isinstance(losses, Tensor) and losses.dim() > 0 and len(losses) == n:
        return losses if losses.dim() == 1 else losses.flatten(1).mean(1)
    got = f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
    raise LossError(
        f"loss returned {got} for {n} examples, expected [{n}] or [{n}, T]: "
        'return one loss per example, such as with reduction="none"'
    )


def wide(x: Tensor) -> Tensor:
    """At least float32, so that sums of squares neither overflow nor lose small terms."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x
