"""Batches chosen from pools: for scores that need the model, and for streams."""

from typing import Any

import torch
from torch import Tensor, nn

from salience.batches.nested import Layout, move, pick, pool_size
from salience.draw import Draw
from salience.sampler import ImportanceSampler

__all__ = ["choose_batch", "device_of"]


def choose_batch(
    sampler: ImportanceSampler,
    model: nn.Module | None,
    layout: Layout,
    candidates: Tensor | None,
    pool: Any,
) -> tuple[Draw, Any]:
    """Score ``pool`` where the model is, and pick the batch there.

    ``candidates`` are its dataset positions; None for a stream, whose examples are known by their
    place in the pool.
    """
    device = device_of(model)
    if device is not None:
        pool = move(pool, device)
    if candidates is None:
        candidates = torch.arange(pool_size(pool, layout), device="cpu")
    positions, draw = sampler.choose(candidates, pool)
    return draw, pick(pool, positions, len(candidates), layout)


def device_of(model: nn.Module | None) -> torch.device | None:
    """Where the model is; None without a model or parameters."""
    parameter = None if model is None else next(model.parameters(), None)
    return None if parameter is None else parameter.device
