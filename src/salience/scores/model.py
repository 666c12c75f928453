"""What the scores that run the model share: the loss, a pass without trace, the checks."""

import copy
import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, ClassVar, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from salience.errors import ArgumentError, LossError, StateError
from salience.scores.protocol import Unit

__all__ = [
    "Criterion",
    "LossFunction",
    "Mode",
    "ModelScore",
    "as_loss",
    "map_tensors",
    "per_example",
    "scoring",
    "wide",
]

LossFunction = Callable[[Any, Any], Tensor]
Mode = Literal["eval", "train"]


class ModelScore(ABC):
    """A score that asks the model. It learns nothing from the losses, so it keeps no state."""

    name: ClassVar[str]
    by_index: bool = False
    unit: Unit

    def __init__(self, model: nn.Module, loss: Any, *, mode: Mode = "eval") -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"score {self.name!r} needs model=, an nn.Module; got {model!r}")
        if loss is None:
            raise ArgumentError(
                f"score {self.name!r} needs loss=, a callable (model, batch) -> per-example losses "
                'or a criterion with reduction="none"; got None'
            )
        if mode not in get_args(Mode):
            raise ArgumentError(f"mode must be one of {', '.join(get_args(Mode))}; got {mode!r}")
        self.model, self.loss, self.mode = without_ddp(model), as_loss(loss), mode

    @abstractmethod
    def score(self, indices: Tensor, batch: Any) -> Tensor:
        """Scores >= 0 of the examples in ``batch``, shape [len(indices)]."""

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:  # noqa: ARG002
        """Nothing to learn: no score changes."""
        return torch.empty(0, dtype=torch.int64)

    def state_dict(self) -> dict[str, Any]:
        """Empty: everything the score knows is in the model."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Accepts the empty state only."""
        if state:
            raise StateError(
                f"score {self.name!r} keeps no state; got {', '.join(map(repr, state))}: "
                "load it into the score that saved it"
            )


def without_ddp(model: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel: each rank scores alone, without collectives."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return cast(nn.Module, model.module)
    return model


# ---------------------------------------------------------------------------------- the loss


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
        return self.function(model(x), y)


def as_loss(loss: Any) -> LossFunction:
    """The loss as a callable (model, batch) -> per-example losses.

    A criterion is recognised as an nn.Module, or by its first two parameters, ``input, target``.
    """
    names = _parameter_names(loss)
    if isinstance(loss, nn.Module):
        return loss if names[:1] == ["model"] else _module_criterion(loss)
    if not callable(loss):
        raise ArgumentError(
            "loss must be a callable (model, batch) -> per-example losses or a criterion with "
            f'reduction="none"; got {loss!r}'
        )
    return _function_criterion(loss, names) if names[:2] == ["input", "target"] else loss


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


def _parameter_names(function: Any) -> list[str]:
    try:
        return list(
            inspect.signature(getattr(function, "forward", function)).parameters
            if isinstance(function, nn.Module)
            else inspect.signature(function).parameters
        )
    except (TypeError, ValueError):  # not callable, or a builtin that does not say
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


# -------------------------------------------------------------------------- a pass without trace


@contextmanager
def scoring(model: nn.Module, mode: Mode) -> Iterator[None]:
    """Run the model without leaving a trace, whatever happens inside.

    Train/eval flags of every submodule, buffers, the random numbers of the host and of the model's
    devices, and grad mode come back exactly; weight casts of an autocast around the training step
    are not cached, for one made here without a graph would cut the training step's gradient.
    """
    train = mode == "train"
    with torch.no_grad(), _rng_kept(model), _flags(model, train), _casts_uncached():
        if train:
            with _buffers_kept(model):
                yield
        else:
            yield


@contextmanager
def _rng_kept(model: nn.Module) -> Iterator[None]:
    devices = {p.device for p in model.parameters()} - {torch.device("cpu"), torch.device("meta")}
    # torch.mps has one device and takes no argument. No state is read back from a device.
    places = [(getattr(torch, d.type), () if d.type == "mps" else (d,)) for d in devices]
    host, states = torch.get_rng_state(), [m.get_rng_state(*args) for m, args in places]
    try:
        yield
    finally:
        torch.set_rng_state(host)
        for (module, args), state in zip(places, states, strict=True):
            module.set_rng_state(state, *args)


@contextmanager
def _flags(model: nn.Module, train: bool) -> Iterator[None]:
    # Set one by one: train() and eval() may be overridden, and would not bring mixed flags back.
    before = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in before:
            module.training = train
        yield
    finally:
        for module, flag in before:
            module.training = flag


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    # The pass works on copies: the originals keep their bits, identity and autograd version.
    before = [(module, dict(module._buffers)) for module in model.modules()]
    copies: dict[int, Tensor] = {}
    try:
        for module, originals in before:
            for name, buffer in originals.items():
                if buffer is not None:
                    module._buffers[name] = copies.setdefault(id(buffer), buffer.clone())
        yield
    finally:
        for module, originals in before:
            module._buffers.clear()
            module._buffers.update(originals)


@contextmanager
def _casts_uncached() -> Iterator[None]:
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


# ------------------------------------------------------------------------------------ tensors


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """``tree`` with ``function`` applied to each tensor: tuples, lists, mappings, dataclasses."""
    go = partial(map_tensors, function)
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(go, tree))
    if isinstance(tree, tuple | list):
        return type(tree)(map(go, tree))
    if isinstance(tree, MutableMapping):  # before dataclasses: some model outputs are both
        return _with(tree, operator.setitem, {key: go(tree[key]) for key in tree})
    if is_dataclass(tree) and not isinstance(tree, type):
        return _with(
            tree, object.__setattr__, {f.name: go(getattr(tree, f.name)) for f in fields(tree)}
        )
    return tree


def _with(tree: Any, put: Callable[[Any, Any, Any], None], items: dict[Any, Any]) -> Any:
    changed = copy.copy(tree)
    for key, value in items.items():
        put(changed, key, value)
    return changed


def wide(x: Tensor) -> Tensor:
    """At least float32, so that sums of squares neither overflow nor lose small terms."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x
