"""What happens to the losses of a batch: one per example, checked, weighed, averaged."""

import torch
from torch import Tensor

from salience.errors import LossError

__all__ = ["bad_losses", "per_example", "refuse_bad", "weighted_mean"]


def per_example(losses: Tensor, batch: int) -> Tensor:
    """[B] or [B, T, ...] -> [B], averaged over everything but the examples."""
    if losses.ndim == 0:
        raise LossError(
            "losses must be one per example, got a single number: "
            "compute them with reduction='none' and let mean() average"
        )
    if len(losses) != batch:
        raise LossError(
            f"losses must be one per example of the batch last yielded: "
            f"got shape {list(losses.shape)} for a batch of {batch}"
        )
    if losses.numel() == 0:
        raise LossError(f"losses are empty: got shape {list(losses.shape)}")
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)


def bad_losses(losses: Tensor) -> Tensor:
    """True where a loss is nan, infinite or negative."""
    return ~((losses >= 0) & (losses < torch.inf))


def refuse_bad(bad: Tensor, losses: Tensor, indices: Tensor, step: int) -> None:
    """Raise with step, indices and values; everything is on the host here."""
    places = bad.nonzero().flatten()[:5].tolist()
    named = ", ".join(f"example {int(indices[i])}: {float(losses[i]):g}" for i in places)
    more = int(bad.sum()) - len(places)
    raise LossError(
        f"losses must be finite and >= 0; at step {step} {named}"
        f"{f' and {more} more' if more else ''}: look at these examples and the learning rate, "
        f"or pass on_bad_loss='skip' to leave such examples out"
    )


def weighted_mean(losses: Tensor, weights: Tensor | None, *, skip_bad: bool) -> Tensor:
    """(1/B) sum_i alpha_i L_i, in float32 at least; no weights: all are 1.

    With ``skip_bad``, nan, infinite and negative losses weigh 0.
    """
    if skip_bad:
        # where and not a product: 0 x nan is nan. The mask is made and used on the device.
        losses = torch.where(bad_losses(losses.detach()), torch.zeros_like(losses), losses)
    dtype = torch.promote_types(losses.dtype, torch.float32)
    if weights is None:
        return losses.mean(dtype=dtype)
    weights = weights.to(losses.device, dtype, non_blocking=True)
    # One product instead of a multiplication and a mean: half the work for autograd.
    return torch.dot(losses.to(dtype), weights) / len(losses)
