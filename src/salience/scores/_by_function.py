"""Gradient norms of single examples by ``torch.func``, for whatever no layer rule covers."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from salience.batches.nested import map_tensors
from salience.errors import ArgumentError
from salience.scores._taps import written_out
from salience.scores.criterion import LossFunction, per_example, wide

__all__ = ["Parameters", "by_function", "has_examples"]

Parameters = dict[str, nn.Parameter]


def has_examples(x: Tensor, n: int) -> bool:
    return x.dim() > 0 and len(x) == n


def by_function(
    model: nn.Module, loss: LossFunction, parameters: Parameters, batch: Any, n: int
) -> Tensor:
    """|| d L_i / d parameters ||^2 by ``vmap(grad)``, shape [n], where vmap can run the model."""
    tensors: list[Tensor] = []
    map_tensors(lambda x: tensors.append(x) if has_examples(x, n) else None, batch)

    def loss_of_one(values: dict[str, Tensor], rows: Iterator[Tensor]) -> Tensor:
        one = map_tensors(lambda x: next(rows).unsqueeze(0) if has_examples(x, n) else x, batch)
        with exchanged(model, {id(parameters[name]): value for name, value in values.items()}):
            return per_example(loss(model, one), 1).sum()

    def squares(*rows: Tensor) -> Tensor:
        gradients = torch.func.grad(loss_of_one)(values, iter(rows))
        return torch.stack([wide(g).square().sum() for g in gradients.values()]).sum()

    values = {name: p.detach() for name, p in parameters.items()}
    size = max(1, 2**24 // sum(p.numel() for p in parameters.values()))
    with written_out(model, None), _vectorised(list(parameters)):
        return torch.func.vmap(squares, randomness="different", chunk_size=size)(*tensors)


@contextmanager
def exchanged(model: nn.Module, values: dict[int, Tensor]) -> Iterator[None]:
    """Other values (by the parameter's id) wherever the model or the loss reads a parameter.

    ``torch.func.functional_call`` does not bring back the parameters of a module that the model
    holds under two names.
    """
    places = [
        (module._parameters, name, p)
        for module in model.modules()
        for name, p in module._parameters.items()
        if id(p) in values
    ]
    try:
        for own, name, p in places:
            own[name] = values[id(p)]  # type: ignore[assignment]
        yield
    finally:
        for own, name, p in places:
            own[name] = p


@contextmanager
def _vectorised(names: list[str]) -> Iterator[None]:
    """Attention in plain operations, which vmap knows; what it cannot run is named."""
    try:
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")
            yield
    except RuntimeError as error:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        reason = str(error).split("\n")[0].split(". ")[0]
        raise ArgumentError(
            f"no rule covers {shown}, and torch.func.vmap cannot run the model ({reason}): "
            'freeze these parameters, or use score="upper_bound" or score="loss"'
        ) from error
