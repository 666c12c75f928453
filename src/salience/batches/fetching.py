"""What DataLoader is asked to fetch, and with which random numbers."""

import random
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import DataLoader

__all__ = ["Requests", "Seeded", "fetched"]


@final
class Seeded(list[int]):
    """Indices that, when they reach a worker process, set its random numbers.

    A worker would go on with the numbers of the batch before, whatever that was: after a resume in
    the middle of an epoch, it is another one. So each batch has a seed of its own. In the main
    process nothing is pickled and nothing is seeded.
    """

    seed: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (list(self), self.seed)


def _arrived(indices: list[int], seed: int) -> list[int]:
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what users' transforms read
    return indices


@final
class Requests:
    """A batch sampler: asks ``next_indices()`` for one batch after the other."""

    def __init__(self, next_indices: Callable[[], list[int] | None], steps: int) -> None:
        self._next, self._steps = next_indices, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        while (indices := self._next()) is not None:
            yield indices


def fetched(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches of ``loader``, whose batch sampler is a ``Requests``.

    Without workers or pinned memory its batches are read and collated right here, as DataLoader
    does it: what that does around them takes as long as everything that importance sampling adds.
    """
    if loader.num_workers or loader.pin_memory:
        yield from loader
        return
    dataset: Any = loader.dataset
    together = getattr(dataset, "__getitems__", None)
    for indices in loader.batch_sampler or ():
        read = together(indices) if together else [dataset[i] for i in indices]
        yield loader.collate_fn(read)
