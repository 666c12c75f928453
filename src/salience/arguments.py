"""What users give to samplers, checked before anything is made of it."""

import math
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from salience.errors import ArgumentError
from salience.functional import Scheme

__all__ = [
    "BadLoss",
    "as_reference",
    "check_arguments",
    "check_proxy",
    "check_record",
    "check_sharding",
    "folder_of",
    "host_indices",
    "pool_size",
    "whole_number",
    "whole_numbers",
]

BadLoss = Literal["raise", "skip"]


def host_indices(indices: Any, n: int | None) -> Tensor:
    """int64 [batch] on the host, within the dataset."""
    given: Tensor = torch.as_tensor(indices, device="cpu")
    if given.ndim != 1 or given.is_floating_point() or given.dtype == torch.bool:
        raise ArgumentError(
            f"indices must be whole numbers of shape [batch]; "
            f"got {given.dtype} of shape {list(given.shape)}"
        )
    outside = (given < 0) | (given >= n) if n is not None else given < 0
    if bool(outside.any()):
        value = int(given[outside][0])
        raise ArgumentError(f"index {value} is out of range for a dataset of {n} examples")
    return given.to(torch.int64)


def pool_size(batch: int, presample: float | None, by_index: bool) -> int | None:
    """Candidates per draw; None for the whole dataset."""
    if presample is None:
        presample = None if by_index else 2
    elif not (isinstance(presample, int | float) and 1 <= presample < math.inf):
        raise ArgumentError(
            f"presample must be a number >= 1 (the pool is that many batches) or None; "
            f"got {presample!r}"
        )
    return None if presample is None else round(presample * batch)


def whole_numbers(n: Any, batch_size: Any, seed: Any) -> tuple[int | None, int, int]:
    """Python's and NumPy's whole numbers, and nothing else."""
    size = None if n is None else whole_number("the dataset size", n)
    return size, whole_number("batch_size", batch_size, least=1), whole_number("seed", seed)


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    wanted = "a whole number" + ("" if least is None else f" >= {least}")
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ArgumentError(f"{name} must be {wanted}; got {value!r}")
    number = operator.index(value)
    if least is not None and number < least:
        raise ArgumentError(f"{name} must be {wanted}; got {value!r}")
    return number


def check_arguments(n: int | None, k: float, draw: str, on_bad_loss: str) -> None:
    if n is not None and not 1 <= n <= 2**32:
        what = "is empty" if n < 1 else "is too large"
        raise ArgumentError(f"the dataset {what} ({n} examples): give between 1 and 2^32 examples")
    if not (isinstance(k, int | float) and math.isfinite(k) and k <= 1):
        raise ArgumentError(f"k must be a finite number <= 1 (1 is unbiased); got {k!r}")
    if draw not in get_args(Scheme):
        raise ArgumentError(f"draw must be one of {', '.join(get_args(Scheme))}; got {draw!r}")
    if on_bad_loss not in get_args(BadLoss):
        raise ArgumentError(
            f"on_bad_loss must be one of {', '.join(get_args(BadLoss))}; got {on_bad_loss!r}"
        )


def check_sharding(
    shard: Any, score: Any, by_index: bool, presample: float | None, focus: Any = None
) -> None:
    """Only scores that are known by index, drawn from all examples of a rank."""
    if not (isinstance(shard, bool) or shard == "own"):
        raise ArgumentError(
            f"shard must be False, True (each rank draws from its part of the dataset) or 'own' "
            f"(each rank is given a dataset of its own); got {shard!r}"
        )
    if shard and (score == "auto" or not by_index or presample is not None):
        given = f"presample={presample!r}" if presample is not None else f"score {score!r}"
        default = ", the default" if presample is None and score == "auto" else ""
        raise ArgumentError(
            f"shard={shard!r} does not go with {given}{default}: use score='history', 'approx' or "
            f"'uniform' without presample, or leave shard out"
        )
    for what, own in (("score", score), ("focus", focus)):
        if shard is True and not (own is None or isinstance(own, str)):
            raise ArgumentError(
                f"shard=True does not go with a {what} of your own ({type(own).__name__}), which "
                f"knows examples by their place in the whole dataset: give each rank its part of "
                f"the dataset and a {what} for that part, with shard='own'"
            )


def check_proxy(proxy: Any, optimizer: Any, model: Any, score: Any) -> None:
    """A small network of its own, for the scores that run a model forward."""
    if proxy is None:
        if optimizer is not None:
            raise ArgumentError("proxy_optimizer= needs proxy=, the small network that it trains")
        return
    if score not in ("loss", "upper_bound"):
        raise ArgumentError(
            f"proxy= does not go with score {score!r}: use score='loss' or 'upper_bound', or leave "
            f"proxy out"
        )
    if not isinstance(proxy, nn.Module):
        raise ArgumentError(f"proxy must be an nn.Module; got {proxy!r}")
    own = {id(p) for p in proxy.parameters() if p.requires_grad}
    if not own:
        raise ArgumentError(f"proxy {type(proxy).__name__} has no parameters to train: give others")
    if model is not None and own & {id(p) for p in model.parameters()}:
        raise ArgumentError(
            "proxy shares parameters with model, which its training would change: give it its own"
        )
    if not (optimizer is None or isinstance(optimizer, torch.optim.Optimizer)):
        raise ArgumentError(f"proxy_optimizer must be a torch.optim.Optimizer; got {optimizer!r}")
    if optimizer is not None:
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not trained <= own:
            raise ArgumentError(
                "proxy_optimizer has parameters that are not the proxy's: make it of "
                "proxy.parameters()"
            )


def check_record(record: Any, n: int | None) -> bool:
    """Whether losses are recorded; only of examples with an index."""
    if not isinstance(record, bool):
        raise ArgumentError(f"record must be True or False; got {record!r}")
    if record and n is None:
        raise ArgumentError(
            "record=True needs examples with an index, which a stream does not have: give the "
            "dataset itself, or leave record out"
        )
    return record


def as_reference(reference: Any, n: int | None, score: Any) -> Tensor | None:
    """float32 [n] on the host, from one number per example or a mapping from index to number."""
    if reference is None:
        return None
    if score not in ("auto", "history", "loss"):
        raise ArgumentError(
            f"reference= does not go with score {score!r}: use score='auto', 'history' or 'loss', "
            f"or leave reference out"
        )
    if n is None:
        raise ArgumentError(
            "reference= needs examples with an index, which a stream does not have: give the "
            "dataset itself, or leave reference out"
        )
    if isinstance(reference, Mapping):
        missing = next((i for i in range(n) if i not in reference), None)
        if missing is not None:
            raise ArgumentError(
                f"reference has no loss for example {missing}: give one for each of {n} examples"
            )
        reference = [float(reference[i]) for i in range(n)]
    losses = torch.as_tensor(reference, dtype=torch.float32, device="cpu").detach()
    if losses.shape != (n,):
        raise ArgumentError(
            f"reference must be one loss per example, shape [{n}]; got {list(losses.shape)}"
        )
    bad = ~losses.isfinite()
    if bool(bad.any()):
        place = int(bad.nonzero()[0])
        raise ArgumentError(
            f"reference must be finite; reference[{place}] = {float(losses[place]):g}: leave the "
            f"example out of the dataset, or give it the mean of the others"
        )
    return losses.clone()


def folder_of(memory: Any, score: Any) -> Path | None:
    """Where what is kept of each example is to lie; None: nowhere but in this process."""
    if memory is None:
        return None
    if not isinstance(memory, str | os.PathLike):
        raise ArgumentError(f"memory must be a folder or None; got {memory!r}")
    if score not in ("auto", "history", "uniform"):
        raise ArgumentError(
            f"memory={str(memory)!r} does not go with score {score!r}: use score='auto' or "
            f"'history', or leave memory out"
        )
    return None if score == "uniform" else Path(memory)  # which keeps nothing
