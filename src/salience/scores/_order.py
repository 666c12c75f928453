"""Whether each layer meets the examples in the batch's order.

Gradients are linear in the weights of the losses: with sum_i w_i L_i in place of sum_i L_i, row i
of a layer's gradient g becomes w_i g_i where it belongs to example i alone. Where the model flips
or sorts its batch, row i gets the weight of another example.
"""

import torch
from torch import Tensor, nn

from salience.errors import ArgumentError
from salience.scores._taps import Gradients, Tap
from salience.scores.criterion import wide

__all__ = ["refuse_reordered", "unequal_weights"]


def unequal_weights(losses: Tensor) -> Tensor:
    """w_i, from 1 down to 1/16."""
    return torch.logspace(0, -4, len(losses), 2.0, dtype=losses.dtype, device=losses.device)


def refuse_reordered(
    model: nn.Module,
    taps: tuple[Tap, ...],
    dims: list[int | None],
    gradients: Gradients,
    weighted: Gradients,
    w: Tensor,
) -> None:
    """An error where a layer meets the examples in another order, or mixed with each other.

    This reads one value per layer back from the model's device.
    """
    layers, rows, half = list[nn.Module](), list[tuple[Tensor, Tensor]](), w.dtype.itemsize < 4
    for tap, dim, g, other in zip(taps, dims, gradients, weighted, strict=True):
        if dim is not None and g is not None and other is not None and not g.is_meta:
            layers.append(tap.module)
            rows.append(_rows(g.movedim(dim, 0), other.movedim(dim, 0), w))
            half = half or g.dtype.itemsize < 4
    if not rows:
        return
    errors, norms = (torch.stack(x) for x in zip(*rows, strict=True))
    rounding, noise = (0.03, 1e-2) if half else (0.005, 1e-5)
    # A gradient that is 0 but for rounding has no ratio: it is noise beside the largest.
    off = (errors > rounding * norms + noise * norms.amax()).any(1).tolist()
    if True in off:
        _refuse(model, layers[off.index(True)])


def _rows(g: Tensor, weighted: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """|| g'_i - w_i g_i || and || w_i g_i || of each row, with g' = ``weighted``."""
    expected, got = wide(g).flatten(1), wide(weighted).flatten(1)
    expected = expected * w.to(expected).unsqueeze(1)
    errors, norms = (got - expected).norm(dim=1), expected.norm(dim=1)
    return errors.to(w.device, torch.float32), norms.to(w.device, torch.float32)


def _refuse(model: nn.Module, layer: nn.Module) -> None:
    name = next(name for name, module in model.named_modules() if module is layer)
    raise ArgumentError(
        f"layer {name!r} ({type(layer).__name__}) does not meet the examples in the batch's "
        "order, or the examples influence each other, so their gradients cannot be told apart: "
        'keep the order inside the model (no flip, no sorting by length), or use score="loss"'
    )
