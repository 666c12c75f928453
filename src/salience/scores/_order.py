"""Whether each layer meets the examples in the batch's order.

Gradients are linear in the weights of the losses: with sum_i w_i L_i in place of sum_i L_i, row i
of a layer's gradient g becomes w_i g_i where it belongs to example i alone. Where the model flips
or sorts its batch, row i gets the weight of another example.
"""

from typing import Any, final

import torch
from torch import Tensor, nn

from salience.errors import ArgumentError
from salience.scores._taps import Gradients, Tap
from salience.scores.criterion import wide

__all__ = ["Order", "check_order", "unequal_weights"]


@final
class Order:
    """Which layers do not meet the examples in order, on its way from the model's device."""

    def __init__(self, layers: list[nn.Module], off: Tensor) -> None:
        self._layers, self.on_host = layers, off.device.type == "cpu"
        self._off = torch.empty(
            off.shape, dtype=torch.bool, device="cpu", pin_memory=not self.on_host
        )
        self._off.copy_(off, non_blocking=True)
        self._event: Any = None
        if not self.on_host:
            self._event = torch.Event(off.device)
            self._event.record()

    def refuse(self, model: nn.Module) -> None:
        """An error that names the first such layer of ``model``."""
        if self._event is not None:
            self._event.synchronize()
        off = self._off.tolist()
        if True not in off:
            return
        layer = self._layers[off.index(True)]
        name = next(name for name, module in model.named_modules() if module is layer)
        raise ArgumentError(
            f"layer {name!r} ({type(layer).__name__}) does not meet the examples in the batch's "
            "order, or the examples influence each other, so their gradients cannot be told apart: "
            'keep the order inside the model (no flip, no sorting by length), or use score="loss"'
        )


def unequal_weights(losses: Tensor) -> Tensor:
    """w_i, from 1 down to 1/16."""
    return torch.logspace(0, -4, len(losses), 2.0, dtype=losses.dtype, device=losses.device)


def check_order(
    taps: tuple[Tap, ...],
    dims: list[int | None],
    gradients: Gradients,
    weighted: Gradients,
    w: Tensor,
) -> Order | None:
    """Compare the gradients of sum_i L_i and of sum_i w_i L_i at each layer."""
    layers, rows, coarse = list[nn.Module](), list[tuple[Tensor, Tensor]](), _is_coarse(w)
    for tap, dim, g, other in zip(taps, dims, gradients, weighted, strict=True):
        if dim is not None and g is not None and other is not None and not g.is_meta:
            layers.append(tap.module)
            rows.append(_rows(g.movedim(dim, 0), other.movedim(dim, 0), w))
            coarse = coarse or _is_coarse(g)
    if not rows:
        return None
    errors, norms = (torch.stack(x) for x in zip(*rows, strict=True))
    rounding, noise = (0.1, 1e-2) if coarse else (0.005, 1e-5)
    # A gradient that is 0 but for rounding has no ratio: it is noise beside the largest.
    return Order(layers, (errors > rounding * norms + noise * norms.amax()).any(1))


def _is_coarse(x: Tensor) -> bool:
    """Half precision, or an accelerator, which may use it inside (TF32)."""
    return x.dtype.itemsize < 4 or x.device.type != "cpu"


def _rows(g: Tensor, weighted: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """|| g'_i - w_i g_i || and || w_i g_i || of each row, with g' = ``weighted``."""
    expected, got = wide(g).flatten(1), wide(weighted).flatten(1)
    expected = expected * w.to(expected).unsqueeze(1)
    errors, norms = (got - expected).norm(dim=1), expected.norm(dim=1)
    return errors.to(w.device, torch.float32), norms.to(w.device, torch.float32)
