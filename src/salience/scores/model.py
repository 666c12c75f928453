"""What the scores that run the model share: a pass that leaves no trace."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from torch import Tensor, nn

from salience.batches.nested import pieces
from salience.errors import ArgumentError, StateError
from salience.scores.criterion import as_loss
from salience.scores.protocol import Unit

__all__ = ["Mode", "ModelScore", "scoring", "training"]

PIECE = 128  # examples in one pass on a CPU

Mode = Literal["eval", "train"]
Modules = list[nn.Module]


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

    def passes(self, batch: Any, n: int) -> list[tuple[Any, int]]:
        """What to run the model on, one after the other: parts of ``batch``, and their sizes.

        On a CPU parts of at most PIECE examples: the memory of larger passes goes back to the
        system each time and comes again page by page.
        The whole batch where examples may meet (in training mode), and with a process group, whose
        ranks may have to make as many passes as each other.
        """
        on_cpu = all(p.device.type == "cpu" for p in self.model.parameters())
        if self.mode == "train" or not on_cpu or _among_ranks():
            return [(batch, n)]
        return pieces(batch, n, PIECE)

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:  # noqa: ARG002
        """Nothing to learn: no score changes."""
        return torch.empty(0, dtype=torch.int64, device="cpu")

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


def _among_ranks() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


# -------------------------------------------------------------------------- a pass without trace


@contextmanager
def scoring(model: nn.Module, mode: Mode) -> Iterator[None]:
    """Run the model without leaving a trace, whatever happens inside.

    Train/eval flags of every submodule, buffers, embeddings that renormalise themselves
    (``max_norm=``), the random numbers of the host and of the model's devices, and grad mode come
    back exactly; weight casts of an autocast around the training step are not cached, for one made
    here without a graph would cut the training step's gradient.
    """
    modules = list(model.modules())
    with (
        torch.no_grad(),
        _rng_kept(modules),
        _flags(modules, mode == "train"),
        _written_kept(modules),
        _casts_uncached(),
    ):
        yield


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Run a model that is ours to train: in training mode, with a graph and its buffers written.

    Flags, the random numbers of the host and of the model's devices, and grad mode come back
    exactly; an autocast around it is off.
    """
    modules = list(model.modules())
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with (
        torch.enable_grad(),
        _rng_kept(modules),
        _flags(modules, True),
        torch.autocast(device.type, enabled=False),
    ):
        yield


@contextmanager
def _rng_kept(modules: Modules) -> Iterator[None]:
    found = {p.device for m in modules for p in m._parameters.values() if p is not None}
    devices = found - {torch.device("cpu"), torch.device("meta")}
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
def _flags(modules: Modules, train: bool) -> Iterator[None]:
    # Set one by one: train() and eval() may be overridden, and would not bring mixed flags back.
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.training = train
        yield
    finally:
        for module, flag in zip(modules, before, strict=True):
            module.training = flag


@contextmanager
def _written_kept(modules: Modules) -> Iterator[None]:
    """What forward may write is a copy: originals keep their bits, identity and version.

    Buffers are written in either mode (a counter, batch statistics). Of the parameters, only
    embeddings with ``max_norm`` are: copies of all would cost as much as a small network's pass.
    """
    before: list[tuple[Any, Any]] = [(m._buffers, dict(m._buffers)) for m in modules if m._buffers]
    written = {id(b): b for _, own in before for b in own.values() if b is not None}
    if renormalised := {id(p): p for m in modules if (p := _renormalised(m)) is not None}:
        before += [(m._parameters, dict(m._parameters)) for m in modules if m._parameters]
    copies = {key: x.clone() for key, x in written.items()}
    copies |= {key: _parameter_like(p) for key, p in renormalised.items()}
    try:
        for own, originals in before:
            own.update({name: copies.get(id(x), x) for name, x in originals.items()})
        yield
    finally:
        for own, originals in before:
            own.clear()
            own.update(originals)


def _renormalised(module: nn.Module) -> Any:
    """The weight that F.embedding(..., max_norm=) changes in place."""
    return module._parameters.get("weight") if getattr(module, "max_norm", None) else None


def _parameter_like(p: Tensor) -> nn.Parameter:
    return nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad)


@contextmanager
def _casts_uncached() -> Iterator[None]:
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
