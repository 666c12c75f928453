"""The score ``"gnorm"``: the exact gradient norm of each example, without a loop over examples.

One forward and one backward pass for all examples together. Where a layer has a rule
(``_layer_rules``), its input and the gradient at its output give the norm of each example; whatever
remains (weights used twice or outside of their layer, layers without a rule) goes through
``torch.func``, a few examples at a time. Both are exact.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel

from salience.batches.nested import map_tensors
from salience.errors import ArgumentError, LossError
from salience.scores import _recurrent
from salience.scores._layer_rules import EXAMPLES_FIRST, RULES, Rule, Tap, linear
from salience.scores.criterion import LossFunction, per_example, wide
from salience.scores.model import Mode, ModelScore, scoring
from salience.scores.protocol import Unit

__all__ = ["GradientNorm"]

Parameters = dict[str, nn.Parameter]
Signature = tuple[int, tuple[torch.Size, ...]]


@final
class GradientNorm(ModelScore):
    """s_i = || d L_i / d theta ||, over all parameters of ``model`` that require a gradient.

    The examples of a batch must not influence each other (no batch statistics), and each layer
    must meet them in the batch's order.
    """

    name: ClassVar[str] = "gnorm"
    unit: Unit = "gradient"

    def __init__(self, model: nn.Module, loss: Any, *, mode: Mode = "eval") -> None:
        super().__init__(model, loss, mode=mode)
        _refuse_batch_statistics(self.model, mode)
        trainable(self.model)
        self._dims: dict[Signature, list[int | None]] = {}  # of shapes seen before; only a cache

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        """The norm of the gradient of each example in ``batch``."""
        n = len(indices)
        with scoring(self.model, self.mode), _open_to_hooks(self.model):
            used, squares = self._by_layer(batch, n)
            rest = {name: p for name, p in used.items() if name not in squares}
            if rest and self.mode == "train":  # one dropout mask for all parameters
                rest, squares = used, {}
            if rest:
                squares["rest"] = by_function(self.model, self.loss, rest, batch, n)
        return torch.stack(list(squares.values())).sum(0).clamp_min(0).sqrt()

    def _by_layer(self, batch: Any, n: int) -> tuple[Parameters, dict[str, Tensor]]:
        """The parameters that the losses depend on, and the squared norms that rules give."""
        with tapped(self.model) as taps:
            with torch.enable_grad():
                losses = per_example(self.loss(self.model, batch), n)
            found = tuple(taps)  # a checkpointed layer runs again in the backward pass
            uses = count_uses(losses)
            gradients = gradients_at(losses, found)
        used = {name: p for name, p in trainable(self.model).items() if uses[id(p)]}
        if not used:
            raise LossError(
                "the losses do not depend on any trainable parameter of the model: compute them "
                "from what model(...) returns, without no_grad() or detach()"
            )
        names, squares = {id(p): name for name, p in used.items()}, dict[str, Tensor]()
        dims = self._example_dims(found, batch, n)
        for tap, g, dim in zip(found, gradients, dims, strict=True):
            for name, p in tap.parameters.items():
                if g is not None and dim is not None and uses[id(p)] == 1:
                    squares[names[id(p)]] = tap.squares(name, g, dim).to(losses.device)
        return used, squares

    def _example_dims(self, taps: tuple[Tap, ...], batch: Any, n: int) -> list[int | None]:
        """Along which dimension of each layer's input the examples lie; None: none of them.

        A sequence may be as long as the batch, so shapes alone do not tell. Once for each set of
        shapes, a pass over another number of examples does.
        """
        signature = n, tuple(tap.x.shape for tap in taps)
        if signature not in self._dims:
            m = 3 if n == 2 else 2
            with tapped(self.model) as small, torch.enable_grad():
                self.loss(self.model, repeat_first(batch, n, m))
            pairs = zip(taps, small, strict=False)
            dims = [example_dim(tap, other, n, m) for tap, other in pairs]
            same = len(small) == len(taps)
            self._dims[signature] = dims if same else [None] * len(taps)
        return self._dims[signature]


def trainable(model: nn.Module) -> Parameters:
    """The parameters that count, by name; shared ones once."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ArgumentError(
            f"no parameter of {type(model).__name__} requires a gradient, so its norm is 0 for "
            'every example: unfreeze some, or use score="loss"'
        )
    return found


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


# ------------------------------------------------------------------------------- by layer


@contextmanager
def tapped(model: nn.Module) -> Iterator[list[Tap]]:
    """Collect a Tap from each call of a layer that has a rule and something to learn."""
    taps: list[Tap] = []
    with ExitStack() as undo:
        undo.enter_context(written_out(model, partial(_record, taps, linear)))
        for module in model.modules():
            if type(module) in RULES and "forward" not in vars(module):
                # Before the user's own hooks, which may replace the output.
                hook = module.register_forward_hook(
                    partial(_on_forward, taps), prepend=True, with_kwargs=True
                )
                undo.callback(hook.remove)
        yield taps


@contextmanager
def written_out(model: nn.Module, record: _recurrent.Record | None) -> Iterator[None]:
    """Recurrent layers run step by step."""
    modules = [module for module in model.modules() if _recurrent.is_written_out(module)]
    try:
        for module in modules:
            module.forward = partial(_recurrent.forward, module, record)
        yield
    finally:
        for module in modules:
            vars(module).pop("forward", None)


def _on_forward(
    taps: list[Tap], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> None:
    x = args[0] if args else kwargs["input"]
    if not getattr(module, "scale_grad_by_freq", False):  # counts over the whole batch
        _record(taps, RULES[type(module)], module, x, output, module._parameters)


def _record(
    taps: list[Tap], rule: Rule, module: nn.Module, x: Tensor, output: Tensor, own: dict[str, Any]
) -> None:
    parameters = {
        name: own[name]
        for name in ("weight", "bias")
        if own.get(name) is not None and own[name].requires_grad
    }
    if parameters and output.requires_grad:
        taps.append(Tap(module, rule, x, get_gradient_edge(output), parameters))


def gradients_at(losses: Tensor, taps: tuple[Tap, ...]) -> tuple[Tensor | None, ...]:
    """d sum_i L_i / d output of each tap; None where the losses do not depend on it.

    No gradient of a parameter is computed or touched.
    """
    if not taps or not losses.requires_grad:
        return (None,) * len(taps)
    edges = [tap.edge for tap in taps]
    return torch.autograd.grad(losses, edges, torch.ones_like(losses), allow_unused=True)


def count_uses(losses: Tensor) -> Counter[int]:
    """How often each parameter (by id) enters the computation of ``losses``.

    Once, and in a layer that has a rule: the rule is the whole gradient. More often, or elsewhere:
    it is not. A layer's weight may also be used past its layer, so this reads the graph itself.
    """
    uses: Counter[int] = Counter()
    queue = [losses.grad_fn] if losses.grad_fn else []
    seen = set(queue)
    while queue:
        for node, _ in queue.pop().next_functions:
            if isinstance(leaf := getattr(node, "variable", None), Tensor):
                uses[id(leaf)] += 1
            elif node is not None and node not in seen:
                _refuse_hidden(node)
                seen.add(node)
                queue.append(node)
    return uses


def _refuse_hidden(node: Node) -> None:
    if node.name() == "CheckpointFunctionBackward":
        raise ArgumentError(
            "the model hides parameters in checkpoint(..., use_reentrant=True), so their gradient "
            "would be missed: use use_reentrant=False"
        )


def example_dim(tap: Tap, other: Tap, n: int, m: int) -> int | None:
    """The one dimension with ``n`` entries in a pass over n examples, and ``m`` over m."""
    if tap.module is not other.module or tap.x.dim() != other.x.dim():
        return None
    sizes = list(zip(tap.x.shape, other.x.shape, strict=True))
    changed = [dim for dim, (a, b) in enumerate(sizes) if a != b]
    if len(changed) != 1 or sizes[changed[0]] != (n, m):
        return None
    return None if changed[0] > 0 and type(tap.module) in EXAMPLES_FIRST else changed[0]


def repeat_first(batch: Any, n: int, m: int) -> Any:
    """A batch of ``m`` times the first of ``n`` examples."""

    def rows(x: Tensor) -> Tensor:
        return torch.cat([x[:1]] * m) if _has_examples(x, n) else x

    return map_tensors(rows, batch)


def _has_examples(x: Tensor, n: int) -> bool:
    return x.dim() > 0 and len(x) == n


# --------------------------------------------------------------------------- by torch.func


def by_function(
    model: nn.Module, loss: LossFunction, parameters: Parameters, batch: Any, n: int
) -> Tensor:
    """|| d L_i / d parameters ||^2 by ``vmap(grad)``, shape [n], where vmap can run the model."""
    tensors: list[Tensor] = []
    map_tensors(lambda x: tensors.append(x) if _has_examples(x, n) else None, batch)

    def loss_of_one(values: dict[str, Tensor], rows: Iterator[Tensor]) -> Tensor:
        one = map_tensors(lambda x: next(rows).unsqueeze(0) if _has_examples(x, n) else x, batch)
        with exchanged(model, {id(parameters[name]): value for name, value in values.items()}):
            return per_example(loss(model, one), 1).sum()

    def squares(*rows: Tensor) -> Tensor:
        gradients = torch.func.grad(loss_of_one)(values, iter(rows))
        return torch.stack([wide(g).square().sum() for g in gradients.values()]).sum()

    values = {name: p.detach() for name, p in parameters.items()}
    size = max(1, 2**24 // sum(p.numel() for p in parameters.values()))
    with written_out(model, None), _vectorised(list(parameters)):
        return torch.func.vmap(squares, randomness="different", chunk_size=size)(*tensors)


@contextmanager
def exchanged(model: nn.Module, values: dict[int, Tensor]) -> Iterator[None]:
    """Other values (by the parameter's id) wherever the model or the loss reads a parameter.

    ``torch.func.functional_call`` does not bring back the parameters of a module that the model
    holds under two names.
    """
    places = [
        (module._parameters, name, p)
        for module in model.modules()
        for name, p in module._parameters.items()
        if id(p) in values
    ]
    try:
        for own, name, p in places:
            own[name] = values[id(p)]  # type: ignore[assignment]
        yield
    finally:
        for own, name, p in places:
            own[name] = p


@contextmanager
def _vectorised(names: list[str]) -> Iterator[None]:
    """Attention in plain operations, which vmap knows; what it cannot run is named."""
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            yield
    except RuntimeError as error:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        reason = str(error).split("\n")[0].split(". ")[0]
        raise ArgumentError(
            f"no rule covers {shown}, and torch.func.vmap cannot run the model ({reason}): "
            'freeze these parameters, or use score="upper_bound" or score="loss"'
        ) from error


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
