"""What goes through the layers of a model: one Tap per call of a layer that has a rule."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from salience.errors import ArgumentError
from salience.scores import _recurrent
from salience.scores._layer_rules import EXAMPLES_FIRST, RULES, Factor, Rule, linear

__all__ = ["Gradients", "Tap", "count_uses", "example_dim", "gradients_at", "tapped", "written_out"]

Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Tap:
    """One call of one layer: what went in, where the gradient at its output will be found."""

    module: nn.Module
    rule: Rule
    x: Tensor
    edge: GradientEdge  # the output itself may be changed in place by what follows
    parameters: dict[str, nn.Parameter]

    def gradient(self, name: str, g: Tensor, dim: int) -> Factor:
        """dL_i / d parameters[name]; examples are along ``dim`` of x and g."""
        return self.rule(self.module, name, self.x.detach().movedim(dim, 0), g.movedim(dim, 0))


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


def gradients_at(
    losses: Tensor, taps: tuple[Tap, ...], weights: Tensor, *, retain: bool = False
) -> Gradients:
    """d sum_i w_i L_i / d output of each tap; None where the losses do not depend on it.

    ``retain``: the graph will be used once more. No gradient of a parameter is touched.
    """
    if not taps or not losses.requires_grad:
        return (None,) * len(taps)
    edges = [tap.edge for tap in taps]
    return torch.autograd.grad(losses, edges, weights, retain_graph=retain, allow_unused=True)


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
