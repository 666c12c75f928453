"""Cross entropy and Adam for a language model on a CPU, where memory and not arithmetic is slow."""

from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.optim import Optimizer

from salience.compare.task import cross_entropy

__all__ = ["fused_adam", "word_loss"]


def word_loss(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, one loss per example: scores [B, words] and words [B] -> [B]."""
    if not output.requires_grad:
        return cross_entropy(output, target)
    losses: Tensor = _CrossEntropy.apply(output, target)  # type: ignore[no-untyped-call]
    return losses


def fused_adam(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Adam with the paper's learning rate, all weights in one pass."""
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


@final
class _CrossEntropy(Function):
    """L_i = log sum_j e^(z_ij) - z_iy, with z, y = ``output``, ``target``.

    The exponentials are kept for the backward pass, dL_i/dz_ij = e^(z_ij) / sum - [j = y], for
    which torch computes them again. That saves passes over 128 x 10,001 numbers.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, target: Tensor) -> Tensor:
        place = target.unsqueeze(1)
        largest = output.amax(1, keepdim=True)
        powers = (output - largest).exp_()
        total = powers.sum(1, keepdim=True)
        ctx.save_for_backward(powers, total, place)
        return (total.log() + largest - output.gather(1, place)).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        powers, total, place = ctx.saved_tensors
        gradient = gradients[0].unsqueeze(1)
        return (powers * (gradient / total)).scatter_add_(1, place, -gradient), None
