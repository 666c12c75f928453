"""Batches that are stacked where they are read, so that collating them costs nothing."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

__all__ = ["Rows", "Stacked", "collate", "one_example"]


@final
class Stacked:
    """What ``__getitems__`` of our datasets returns: examples to look at, stacked already.

    torch's own collate takes it for the list of examples that it looks like, and stacks them once
    more; ``collate`` takes the tensors as they are, in a quarter of the time.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    @cached_property
    def _examples(self) -> list[tuple[Tensor, ...]]:
        return list(zip(*(tensor.unbind(0) for tensor in self.tensors), strict=True))

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, position: int) -> tuple[Tensor, ...]:
        return self._examples[position]

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return iter(self._examples)


def collate(examples: Any) -> Any:
    """A ``collate_fn`` for DataLoader; anything but ``Stacked`` goes to torch's own."""
    return list(examples.tensors) if isinstance(examples, Stacked) else default_collate(examples)


@final
class Rows(Dataset[Any]):
    """The rows of some tensors, read a batch at a time: a TensorDataset without its detour.

    Taking 64 rows one by one and stacking them again takes longer than a small network's step.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitems__(self, indices: Sequence[int]) -> Stacked:
        chosen = torch.as_tensor(indices, device="cpu")
        return Stacked(*(tensor[chosen.to(tensor.device)] for tensor in self.tensors))


def one_example(dataset: Any, collate_fn: Callable[[Any], Any]) -> Any:
    """The batch of the first example alone; the random numbers of the run stay as they are."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            many = getattr(dataset, "__getitems__", None)
            return collate_fn(many([0]) if many else [dataset[0]])
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
