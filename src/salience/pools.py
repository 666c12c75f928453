"""Batches chosen from pools: for scores that need the model, and for streams."""

from typing import Any

import torch
from torch import Tensor, nn

from salience.batches.nested import Layout, move, pick, pool_size
from salience.draw import Draw
from salience.sampler import ImportanceSampler

__all__ = ["choose_batch", "to_model"]


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
    pool = to_model(model, pool)
    if candidates is None:
        candidates = torch.arange(pool_size(pool, layout), device="cpu")
    if (draw := sampler.choose_all(candidates)) is not None:
        return draw, pool
    positions, draw = sampler.choose(candidates, pool)
    batch = pick(pool, positions, len(candidates), layout)
    sampler.train_proxy(draw, batch)
    return draw, batch


def to_model(model: nn.Module | None, batch: Any) -> Any:
    """``batch`` where the model is; as it is without a model or parameters."""
    parameter = None if model is None else next(model.parameters(), None)
    return batch if parameter is None else move(batch, parameter.device)
