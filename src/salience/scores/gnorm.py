"""The score ``"gnorm"``: the exact gradient norm of each example, without a loop over examples.

One forward and one backward pass for all examples together. Where a layer has a rule
(``_layer_rules``), its input and the gradient at its output give the norm of each example, for
weights that several layers share as well; whatever remains (weights used outside of their layer,
layers without a rule) goes through ``torch.func``, a few examples at a time. Both are exact.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from salience.batches.nested import map_tensors
from salience.errors import ArgumentError, LossError
from salience.scores._by_function import Parameters, by_function, has_examples
from salience.scores._layer_rules import Factor, squared_norm
from salience.scores._order import Order, check_order, unequal_weights
from salience.scores._taps import Gradients, Tap, count_uses, example_dim, gradients_at, tapped
from salience.scores.criterion import per_example
from salience.scores.model import Mode, ModelScore, scoring
from salience.scores.protocol import Unit

__all__ = ["GradientNorm"]

Signature = tuple[int, tuple[torch.Size, ...]]


class Run(NamedTuple):
    """One forward pass, and what each layer that has a rule saw in the backward pass."""

    taps: tuple[Tap, ...]
    uses: Counter[int]  # of each parameter, by id
    gradients: Gradients  # at the taps' outputs
    weighted: tuple[Gradients, Tensor] | None  # also with unequal weights, for shapes that are new


@final
class GradientNorm(ModelScore):
    """s_i = || d L_i / d theta ||, over all parameters of ``model`` that require a gradient.

    The examples of a batch must not influence each other (no batch statistics), and each layer
    must meet them in the batch's order. For each new set of shapes a second backward pass checks
    that; on an accelerator, the error comes with the next scores.
    """

    name: ClassVar[str] = "gnorm"
    unit: Unit = "gradient"

    def __init__(self, model: nn.Module, loss: Any, *, mode: Mode = "eval") -> None:
        super().__init__(model, loss, mode=mode)
        _refuse_batch_statistics(self.model, mode)
        _refuse_sharded(self.model)
        self._dims: dict[Signature, list[int | None]] = {}  # of shapes seen before; only a cache
        self._order: Order | None = None  # of the newest shapes, until it is known

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_dims": {}, "_order": None}

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        """The norm of the gradient of each example in ``batch``."""
        n = len(indices)
        self._refuse_reordered(wait=True)
        with scoring(self.model, self.mode), _open_to_hooks(self.model):
            _refuse_sharded(self.model)
            used, squares = self._by_layer(trainable(self.model), batch, n)
            rest = {name: p for name, p in used.items() if name not in squares}
            if rest and self.mode == "train":  # one dropout mask for all parameters
                rest, squares = used, {}
            if rest:
                squares["rest"] = by_function(self.model, self.loss, rest, batch, n)
        device = next(iter(squares.values())).device  # of many, where the model is on several
        total = torch.stack([square.to(device) for square in squares.values()]).sum(0)
        return total.clamp_min(0).sqrt()

    def _by_layer(
        self, parameters: Parameters, batch: Any, n: int
    ) -> tuple[Parameters, dict[str, Tensor]]:
        """The parameters that the losses depend on, and the squared norms that rules give."""
        run = self._run(batch, n)
        used = {name: p for name, p in parameters.items() if run.uses[id(p)]}
        if not used:
            raise LossError(
                "the losses do not depend on any trainable parameter of the model: compute them "
                "from what model(...) returns, without no_grad() or detach()"
            )
        signature = _signature(run.taps, n)
        if run.weighted is not None:
            dims = self._example_dims(run.taps, batch, n)
            self._order = check_order(run.taps, dims, run.gradients, *run.weighted)
            self._refuse_reordered(wait=False)
            self._dims[signature] = dims
        return used, by_rules(used, run, self._dims[signature])

    def _run(self, batch: Any, n: int) -> Run:
        with tapped(self.model) as taps:
            with torch.enable_grad():
                losses = per_example(self.loss(self.model, batch), n)
            found = tuple(taps)  # a checkpointed layer runs again in the backward pass
            new, uses = _signature(found, n) not in self._dims, count_uses(losses)
            gradients = gradients_at(losses, found, torch.ones_like(losses), retain=new)
            w = unequal_weights(losses) if new else None
            weighted = None if w is None else (gradients_at(losses, found, w), w)
            return Run(found, uses, gradients, weighted)

    def _refuse_reordered(self, wait: bool) -> None:
        """On an accelerator one step later, when nobody has to wait for it."""
        if self._order is not None and (wait or self._order.on_host):
            self._order.refuse(self.model)
            self._order = None

    def _example_dims(self, taps: tuple[Tap, ...], batch: Any, n: int) -> list[int | None]:
        """Along which dimension of each layer's input the examples lie; None: none of them.

        A sequence may be as long as the batch, so shapes alone do not tell. Once for each set of
        shapes, a pass over another number of examples does.
        """
        m = 3 if n == 2 else 2
        with tapped(self.model) as small, torch.enable_grad():
            self.loss(self.model, repeat_first(batch, n, m))
        if len(small) != len(taps):
            return [None] * len(taps)
        return [example_dim(*pair, n, m) for pair in zip(taps, small, strict=True)]


def by_rules(used: Parameters, run: Run, dims: list[int | None]) -> dict[str, Tensor]:
    """|| d L_i / d p ||^2 of the parameters p whose every use is in a layer that has a rule."""
    places: defaultdict[int, list[Callable[[], Factor]]] = defaultdict(list)
    for tap, g, dim in zip(run.taps, run.gradients, dims, strict=True):
        if g is not None and dim is not None:
            for name, p in tap.parameters.items():
                places[id(p)].append(partial(tap.gradient, name, g, dim))
    squares = {  # one parameter after the other, for factors may be copies of activations
        name: squared_norm([gradient() for gradient in places[id(p)]])
        for name, p in used.items()
        if len(places[id(p)]) == run.uses[id(p)]
    }
    return {name: square for name, square in squares.items() if square is not None}


def _signature(taps: tuple[Tap, ...], n: int) -> Signature:
    return n, tuple(tap.x.shape for tap in taps)


def trainable(model: nn.Module) -> Parameters:
    """The parameters that count, by name; shared ones once."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ArgumentError(
            f"no parameter of {type(model).__name__} requires a gradient, so its norm is 0 for "
            'every example: unfreeze some, or use score="loss"'
        )
    return found


def _refuse_sharded(model: nn.Module) -> None:
    """FSDP2 swaps parameters: after an evaluation they may be whole, and shards in training."""
    swapped = any(hasattr(module, "unshard") for module in model.modules())  # FSDPModule
    for name, p in trainable(model).items():
        if swapped or hasattr(p, "device_mesh"):  # a DTensor
            raise ArgumentError(
                f"gnorm cannot see the gradients of sharded parameters such as {name!r} (FSDP2, "
                'tensor parallel): use score="upper_bound" or score="loss", or DDP'
            )


def _refuse_batch_statistics(model: nn.Module, mode: Mode) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            layer, why = f"{name!r} ({type(module).__name__})", "mixes the examples of a batch"
            if mode == "train":
                raise ArgumentError(
                    f'with mode="train", {layer} {why}, so no example has a gradient of its own: '
                    'use mode="eval"'
                )
            if module.running_mean is None:
                raise ArgumentError(
                    f"without running statistics, {layer} {why}, so no example has a gradient of "
                    "its own: use track_running_stats=True, or another score"
                )


def repeat_first(batch: Any, n: int, m: int) -> Any:
    """A batch of ``m`` times the first of ``n`` examples."""

    def rows(x: Tensor) -> Tensor:
        return torch.cat([x[:1]] * m) if has_examples(x, n) else x

    return map_tensors(rows, batch)


@contextmanager
def _open_to_hooks(model: nn.Module) -> Iterator[None]:
    """Compiled parts run as written, so that hooks and exchanged functions are seen."""
    modules = list(model.modules())
    compiled = any("_orig_mod" in m._modules or m._compiled_call_impl for m in modules)
    compiled = compiled and hasattr(torch.compiler, "set_stance")  # since torch 2.6
    recurrent = any(isinstance(m, nn.RNNBase) for m in modules)
    eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with eager, _without_cudnn() if recurrent else nullcontext():
        yield


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """cuDNN's recurrent layers have no backward pass in evaluation mode."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before
