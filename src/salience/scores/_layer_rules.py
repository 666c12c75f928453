"""The gradient of each example at one layer, as factors that stay small, and the norm of their sum.

A layer that is linear in its weight W has the gradient dL_i/dW = sum_t g_it x_it^T, a sum over the
positions t where example i meets W (time steps, pixels). Its squared norm has two equal forms,

    || sum_t g_t x_t^T ||^2  =  sum_{t,s} (x_t . x_s) (g_t . g_s),

direct (T D O operations) and by Gram matrices (T^2 (D + O)); the cheaper one is taken, a few
examples at a time, so that memory never grows as examples x parameters.

A weight that is used several times has the sum of the gradients. Two linear layers are one with the
positions of both. An embedding puts g_t into row x_t, so with a linear layer of the same weight

    || E + A ||^2  =  || E ||^2 + || A ||^2 + 2 sum_{t,s} g^A_s[x^E_t] (g^E_t . x^A_s).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from salience.scores.criterion import wide

__all__ = ["EXAMPLES_FIRST", "RULES", "Factor", "Outer", "Rows", "Rule", "linear", "squared_norm"]


class Outer(NamedTuple):
    """sum_t g_t x_t^T in each of ``groups`` groups of channels."""

    x: Tensor  # [B, ..., T], of which each example is [groups, D, T]
    g: Tensor  # [B, groups O, T]
    groups: int = 1

    def sizes(self) -> tuple[int, int, int]:
        """D, O and T."""
        t = self.g[0, 0].numel()
        return self.x[0].numel() // (self.groups * t), self.g.shape[1] // self.groups, t

    def positions(self, part: slice) -> tuple[Tensor, Tensor]:
        """x and g of some examples, [N groups, D, T] and [N groups, O, T]."""
        x, g, (d, o, t) = wide(self.x[part]), wide(self.g[part]), self.sizes()
        return x.reshape(-1, d, t), g.reshape(-1, o, t)


class Rows(NamedTuple):
    """Row ``tokens``_t gets g_t."""

    tokens: Tensor  # [B, T]
    g: Tensor  # [B, T, D]


Factor = Outer | Rows | Tensor
"""A gradient per example; a Tensor is the gradient itself, [B, P], where P is small."""

Rule = Callable[[Any, str, Tensor, Tensor], Factor]
"""(module, parameter name, input, gradient at the output), examples first -> gradients."""


# ------------------------------------------------------------------------------------ the rules


def linear(module: nn.Module, name: str, x: Tensor, g: Tensor) -> Factor:  # noqa: ARG001
    """weight: sum_t g_t x_t^T; bias: sum_t g_t; x, g: [B, ..., D], [B, ..., O]."""
    if name == "bias":
        return _positions(wide(g), g.shape[-1]).sum(1)
    return Outer(_positions(x, x.shape[-1]).mT, _positions(g, g.shape[-1]).mT)


def convolution(module: nn.Conv1d | nn.Conv2d, name: str, x: Tensor, g: Tensor) -> Factor:
    """As linear, over the patches that the kernel meets; each group has a weight of its own."""
    if name == "bias":
        return wide(g).flatten(2).sum(2)
    if g.dim() == 3:  # one dimension is two with a height of one
        x, g = x.unsqueeze(2), g.unsqueeze(2)
    if any(pads := _padding(module)):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        x = F.pad(x, [*pads, 0, 0][:4], mode)
    return Outer(_patches(x, module, g.shape[2:]), g, module.groups)


def embedding(module: nn.Embedding, name: str, x: Tensor, g: Tensor) -> Factor:  # noqa: ARG001
    """Row x_t gets g_t, with the tokens x [B, ...]; padding has no gradient."""
    x, g = x.reshape(len(x), -1).long(), _positions(g, g.shape[-1])
    return Rows(x, g if module.padding_idx is None else g * (x != module.padding_idx).unsqueeze(2))


def normalization(module: Any, name: str, x: Tensor, g: Tensor) -> Factor:
    """weight: sum_t g_t z_t with z the normalised input; bias: sum_t g_t.

    The channels come last in layer and RMS norm, second in batch, group and instance norm.
    """
    z = wide(g) if name == "bias" else wide(g) * _normalized(module, wide(x))
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return _positions(z, module.weight.numel()).sum(1)
    return z.flatten(2).sum(2) if z.dim() > 2 else z


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


# ----------------------------------------------------------------------------- norms of their sum


def squared_norm(factors: Sequence[Factor]) -> Tensor | None:
    """|| sum of the ``factors`` ||^2, shape [B]; None where they do not add up by these rules."""
    tensors = [f for f in factors if isinstance(f, Tensor)]
    outers = [f for f in factors if isinstance(f, Outer)]
    rows = [f for f in factors if isinstance(f, Rows)]
    if len(tensors) == len(factors):
        return _square(torch.stack(tensors).sum(0) if tensors[1:] else tensors[0])
    if tensors or len({f.groups for f in outers} | {1 for _ in rows}) > 1:
        return None
    n, size = len(factors[0][0]), _examples_at_once(outers, rows)
    parts = [slice(start, start + size) for start in range(0, n, size)]
    return torch.cat([_of_part(outers, rows, part) for part in parts])


def _of_part(outers: list[Outer], rows: list[Rows], part: slice) -> Tensor:
    """The squared norms of some of the examples."""
    squares = list[Tensor]()
    if outers:
        x, g = (_joined(f, 2) for f in zip(*(o.positions(part) for o in outers), strict=True))
        squares.append(_frobenius(x, g).view(-1, outers[0].groups).sum(1))
    if rows:
        tokens = _joined([r.tokens[part] for r in rows], 1)
        h = _joined([wide(r.g[part]) for r in rows], 1)
        same = tokens.unsqueeze(1) == tokens.unsqueeze(2)
        squares.append(((h @ h.mT) * same).sum((1, 2)))
    if outers and rows:
        squares.append(2 * _inner(x, g, tokens, h))
    return sum(squares[1:], squares[0])


def _inner(x: Tensor, g: Tensor, tokens: Tensor, h: Tensor) -> Tensor:
    """sum_{t,s} g_s[token_t] (h_t . x_s), with x [N, D, S], g [N, V, S] and h [N, T, D]."""
    at_tokens = g.gather(1, tokens.unsqueeze(2).expand(-1, -1, g.shape[2]))
    return (at_tokens * (h @ x)).sum((1, 2))


def _frobenius(x: Tensor, g: Tensor) -> Tensor:
    """|| g_i x_i^T ||^2 for each i, with x, g of shape [N, D, T], [N, O, T]."""
    if x.shape[2] == 1:
        return _square(x) * _square(g)
    if _gram_is_cheaper(x.shape[1], g.shape[1], x.shape[2]):
        return ((x.mT @ x) * (g.mT @ g)).sum((1, 2))
    return _square(g @ x.mT)


def _gram_is_cheaper(d: int, o: int, t: int) -> bool:
    return t * (d + o) < d * o


def _examples_at_once(outers: list[Outer], rows: list[Rows]) -> int:
    """As many as make about a budget of numbers.

    On a CPU the budget fits into the cache; elsewhere it is large enough to keep the device busy.
    """
    device = (outers or rows)[0].g.device
    budget = 2**21 if device.type == "cpu" else 2**25
    tokens = sum(r.tokens.shape[1] for r in rows)
    numbers = 3 * tokens**2
    if outers:
        (d, o, _), t = outers[0].sizes(), sum(f.sizes()[2] for f in outers)
        copied = t * d if outers[1:] or outers[0].x.dim() > 3 else 0
        numbers += outers[0].groups * (copied + _workspace(d, o, t)) + 2 * tokens * t
    return max(1, budget // max(1, numbers))


def _workspace(d: int, o: int, t: int) -> int:
    """How many numbers ``_frobenius`` makes for each example."""
    if t == 1:
        return d + o
    return 2 * t * t if _gram_is_cheaper(d, o, t) else d * o


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return torch.cat(list(parts), dim) if parts[1:] else parts[0]


def _square(x: Tensor) -> Tensor:
    """The squared norm of each entry along the first dimension."""
    norms: Tensor = torch.linalg.vector_norm(wide(x).flatten(1), dim=1)
    return norms.square()
