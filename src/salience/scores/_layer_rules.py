"""The gradient norm of each example at one layer, from the layer's input and its output's gradient.

A layer that is linear in its weight W has the gradient dL_i/dW = sum_t g_it x_it^T, a sum over the
positions t where example i meets W (time steps, pixels). Its squared norm has two equal forms,

    || sum_t g_t x_t^T ||^2  =  sum_{t,s} (x_t . x_s) (g_t . g_s),

direct (T D O operations) and by Gram matrices (T^2 (D + O)); the cheaper one is taken, a few
examples at a time, so that memory never grows as examples x parameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from salience.scores.criterion import wide

__all__ = ["RULES", "Rule", "Tap", "linear"]

Rule = Callable[[Any, str, Tensor, Tensor], Tensor]
"""(module, parameter name, input, gradient at the output) -> squared norms, examples first."""


@dataclass(frozen=True)
class Tap:
    """One call of one layer: what went in, where the gradient at its output will be found."""

    module: nn.Module
    rule: Rule
    x: Tensor
    edge: GradientEdge  # the output itself may be changed in place by what follows
    parameters: dict[str, nn.Parameter]

    def squares(self, name: str, g: Tensor, dim: int) -> Tensor:
        """|| dL_i / d parameters[name] ||^2, shape [B]; examples are along ``dim`` of x and g."""
        return self.rule(self.module, name, self.x.detach().movedim(dim, 0), g.movedim(dim, 0))


def linear(module: nn.Module, name: str, x: Tensor, g: Tensor) -> Tensor:  # noqa: ARG001
    """weight: || sum_t g_t x_t^T ||^2; bias: || sum_t g_t ||^2; x, g: [B, ..., D], [B, ..., O]."""
    if name == "bias":
        return _sum_then_square(g, g.shape[-1])
    x, g = _positions(x, x.shape[-1]).mT, _positions(g, g.shape[-1]).mT
    per_example = _workspace(x.shape[1], g.shape[1], x.shape[2])
    return _chunked(_frobenius, per_example, x, g)


def convolution(module: nn.Conv1d | nn.Conv2d, name: str, x: Tensor, g: Tensor) -> Tensor:
    """As linear, over the patches that the kernel meets; each group has a weight of its own."""
    if name == "bias":
        return _square(g.flatten(2).sum(2))
    if g.dim() == 3:  # one dimension is two with a height of one
        x, g = x.unsqueeze(2), g.unsqueeze(2)
    d, o, t = module.weight[0].numel(), len(module.weight) // module.groups, g[0, 0].numel()
    per_example = module.groups * (d * t + _workspace(d, o, t))
    return _chunked(partial(_convolution, module), per_example, x, g)


def embedding(module: nn.Embedding, name: str, x: Tensor, g: Tensor) -> Tensor:  # noqa: ARG001
    """sum_{t,s} [x_t = x_s] (g_t . g_s) over the tokens x [B, ...]; padding has no gradient."""
    x, g = x.reshape(len(x), -1), _positions(g, g.shape[-1])
    return _chunked(partial(_embedding, module.padding_idx), 3 * x.shape[1] ** 2, x, g)


def normalization(module: Any, name: str, x: Tensor, g: Tensor) -> Tensor:
    """weight: || sum_t g_t z_t ||^2 with z the normalised input; bias: || sum_t g_t ||^2.

    The channels come last in layer and RMS norm, second in batch, group and instance norm.
    """
    z = wide(g) if name == "bias" else wide(g) * _normalized(module, wide(x))
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return _sum_then_square(z, module.weight.numel())
    return _square(z.flatten(2).sum(2) if z.dim() > 2 else z)


_CHANNELS_SECOND = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.GroupNorm),
)

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Embedding: embedding,
    nn.LayerNorm: normalization,
    nn.RMSNorm: normalization,
    **dict.fromkeys(_CHANNELS_SECOND, normalization),
}
"""By exact type: a subclass may compute something else."""

EXAMPLES_FIRST = (nn.Conv1d, nn.Conv2d, *_CHANNELS_SECOND)
"""Layers that know their example dimension; the others take any."""


# ------------------------------------------------------------------------------------ the parts


def _frobenius(x: Tensor, g: Tensor) -> Tensor:
    """|| g_i x_i^T ||^2 for each i, with x, g of shape [N, D, T], [N, O, T]."""
    if x.shape[2] == 1:
        return _square(x) * _square(g)
    if _gram_is_cheaper(x.shape[1], g.shape[1], x.shape[2]):
        return ((x.mT @ x) * (g.mT @ g)).sum((1, 2))
    return _square(g @ x.mT)


def _gram_is_cheaper(d: int, o: int, t: int) -> bool:
    return t * (d + o) < d * o


def _workspace(d: int, o: int, t: int) -> int:
    """How many numbers ``_frobenius`` makes for each example."""
    if t == 1:
        return d + o
    return 2 * t * t if _gram_is_cheaper(d, o, t) else d * o


def _convolution(module: nn.Conv1d | nn.Conv2d, x: Tensor, g: Tensor) -> Tensor:
    if any(pads := _padding(module)):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x = F.pad(x, [*pads, 0, 0][:4], mode)
    x = _patches(x, module, g.shape[2:])
    n, groups = len(x), module.groups
    x = x.reshape(n * groups, -1, g[0, 0].numel())  # [N G, D, T]
    return _frobenius(x, g.reshape(n * groups, -1, x.shape[2])).view(n, groups).sum(1)


def _patches(x: Tensor, module: nn.Conv1d | nn.Conv2d, size: Sequence[int]) -> Tensor:
    """A view of what each kernel entry meets, [N, C, kh, kw, h, w] with (h, w) = ``size``."""
    options = (module.kernel_size, module.stride, module.dilation)
    kernel, stride, dilation = ((1,) * (2 - len(o)) + o for o in options)
    for i in range(2):
        x = x.unfold(2 + i, (size[i] - 1) * stride[i] + 1, dilation[i])
        x = x.narrow(2 + i, 0, kernel[i])[..., :: stride[i]]
    return x


def _padding(module: nn.Conv1d | nn.Conv2d) -> list[int]:
    """What F.pad wants: (before, after) of each dimension, the last dimension first."""
    if not isinstance(module.padding, str):
        return [p for p in reversed(module.padding) for _ in range(2)]
    if module.padding == "valid":
        return []
    totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    return [half for total in reversed(totals) for half in (total // 2, total - total // 2)]


def _embedding(padding_idx: int | None, x: Tensor, g: Tensor) -> Tensor:
    if padding_idx is not None:
        g = g * (x != padding_idx).unsqueeze(2)
    same = x.unsqueeze(1) == x.unsqueeze(2)
    return ((g @ g.mT) * same).sum((1, 2))


def _normalized(module: Any, x: Tensor) -> Tensor:
    """The layer without its weight and bias."""
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.RMSNorm):
        return F.rms_norm(x, module.normalized_shape, eps=module.eps)
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(x, module.num_groups, eps=module.eps)
    statistics = module.running_mean, module.running_var
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        own = module.training or module.running_mean is None
        return F.instance_norm(x, *statistics, use_input_stats=own, momentum=0.0, eps=module.eps)
    return F.batch_norm(x, *statistics, training=False, eps=module.eps)


def _positions(x: Tensor, last: int) -> Tensor:
    """[B, ..., D] -> [B, T, D]."""
    return x.reshape(len(x), -1, last)


def _sum_then_square(x: Tensor, last: int) -> Tensor:
    return _square(_positions(wide(x), last).sum(1))


def _square(x: Tensor) -> Tensor:
    """The squared norm of each entry along the first dimension."""
    norms: Tensor = torch.linalg.vector_norm(wide(x).flatten(1), dim=1)
    return norms.square()


def _chunked(function: Callable[..., Tensor], per_example: int, *tensors: Tensor) -> Tensor:
    """``function`` on as many examples at once as make about a budget of numbers.

    On a CPU the budget fits into the cache; elsewhere it is large enough to keep the device busy.
    """
    budget = 2**21 if tensors[0].device.type == "cpu" else 2**25
    size = max(1, budget // max(1, per_example))
    chunks = zip(*(torch.split(x, size) for x in tensors), strict=True)
    return torch.cat([function(*map(wide, chunk)) for chunk in chunks])
