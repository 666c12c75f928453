"""The score ``"upper_bound"``: the gradient norm at the model's output, for one forward pass."""

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from salience.batches.nested import map_tensors
from salience.errors import ArgumentError, LossError
from salience.scores.criterion import Criterion, per_example, wide
from salience.scores.model import ModelScore, scoring
from salience.scores.protocol import Unit

__all__ = ["UpperBound", "cross_entropy_gradient_norm", "output_gradient_norm"]


@final
class UpperBound(ModelScore):
    """s_i = || d L_i / d z_i ||, z_i = f(x_i; theta), with f, L = ``model``, ``loss``.

    Up to a constant of the network, this bounds the norm of the whole gradient. The model runs
    forward only; autograd sees its output alone, examples along the first dimension.
    """

    name: ClassVar[str] = "upper_bound"
    unit: Unit = "gradient"

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        """The norm of the loss gradient at the output, for each example in ``batch``."""
        with scoring(self.model, self.mode):
            return torch.cat([self._norms(*each) for each in self.passes(batch, len(indices))])

    def _norms(self, batch: Any, n: int) -> Tensor:
        tap = OutputTap(self.model)
        with torch.enable_grad():
            losses = per_example(self.loss(tap, batch), n)
        closed = _closed_form(self.loss, tap.leaves, batch)
        return output_gradient_norm(losses, tap.used()) if closed is None else closed


class OutputTap:
    """Stands in for the model: its outputs are cut off from it and watched by autograd."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.leaves = model, list[Tensor]()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            output = self.model(*args, **kwargs)
        seen: dict[int, Tensor] = {}  # a tensor that the output holds twice is one leaf

        def leaf(x: Tensor) -> Tensor:
            if not x.is_floating_point():
                return x
            if id(x) not in seen:
                seen[id(x)] = x.detach().requires_grad_()
                self.leaves.append(seen[id(x)])
            return seen[id(x)]

        return map_tensors(leaf, output)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def used(self) -> list[Tensor]:
        """The watched outputs; an error where there are none."""
        if not self.leaves:
            raise ArgumentError(
                "loss never called model(...), so there is no output to take the gradient at: "
                'call the model it is given, or use score="loss" or score="gnorm"'
            )
        return self.leaves


def output_gradient_norm(losses: Tensor, outputs: list[Tensor]) -> Tensor:
    """s_i = || d L_i / d z_i || by autograd, with L, z = ``losses`` [B], ``outputs`` ([B, ...])."""
    if not losses.requires_grad:
        raise LossError(
            "the losses do not depend on the model's output (or were detached from it): "
            "compute them from what model(...) returned, with gradients enabled"
        )
    found = torch.autograd.grad(losses, outputs, torch.ones_like(losses), allow_unused=True)
    gradients = [g for g in found if g is not None]
    for g in gradients:
        if g.dim() == 0 or len(g) != len(losses):
            raise LossError(
                f"the model's output has shape {list(g.shape)} for {len(losses)} examples: "
                "return the examples along the first dimension"
            )
    squares = [wide(g).reshape(len(g), -1).square().sum(1) for g in gradients]
    return torch.stack(squares).sum(0).sqrt()


def cross_entropy_gradient_norm(logits: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """s_i = || softmax(z_i) - onehot(y_i) ||, with z, y = ``logits`` [B, C], ``target`` [B].

    0 where y_i is ``ignore_index``.
    """
    classes = torch.arange(logits.shape[1], device=logits.device)
    difference = wide(logits).softmax(1) - (classes == target.unsqueeze(1)).to(wide(logits).dtype)
    return difference.square().sum(1).sqrt() * (target != ignore_index)


def _closed_form(loss: Any, outputs: list[Tensor], batch: Any) -> Tensor | None:
    """The closed form where it holds: plain cross entropy, [B, C] logits, class-index targets."""
    if not isinstance(loss, Criterion) or loss.ignore_index is None or len(outputs) != 1:
        return None
    logits, target = outputs[0].detach(), batch[1]
    fits = logits.dim() == 2 and target.dim() == 1  # targets that are probabilities are [B, C]
    if not fits:
        return None
    return cross_entropy_gradient_norm(logits, target.long(), loss.ignore_index)
