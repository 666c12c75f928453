"""What DataLoader is asked to fetch, and with which random numbers."""

import copy
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import DataLoader

from salience.batches.rows import Rows

__all__ = ["Fetched", "Requests", "Seeded"]


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
    """A batch sampler: asks a method, ``next_indices()``, for one batch after the other.

    Its object is held weakly. In a reference cycle with its workers, a loader would take ten
    seconds to be collected.
    """

    def __init__(self, next_indices: Callable[[], list[int] | None], steps: int) -> None:
        self._next, self.steps = weakref.WeakMethod(next_indices), steps

    def __getstate__(self) -> tuple[Any, int]:
        return self._next(), self.steps

    def __setstate__(self, state: tuple[Any, int]) -> None:
        self._next, self.steps = weakref.WeakMethod(state[0]), state[1]

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        while (indices := self._ask()) is not None:
            yield indices

    def _ask(self) -> list[int] | None:
        """Nothing here outlives the call: persistent workers keep the iteration for good."""
        next_indices = self._next()
        return None if next_indices is None else next_indices()


@final
class Fetched:
    """The batches of ``loader``, a DataLoader whose batch sampler is a ``Requests``.

    Without workers or pinned memory its batches are read and collated right here, as DataLoader
    does it: what that does around them takes as long as everything that importance sampling adds.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self.dataset: Any = loader.dataset
        self.num_workers, self.collate_fn = loader.num_workers, loader.collate_fn

    def __len__(self) -> int:
        return len(self._loader)

    def renew(self, dataset: Any) -> None:
        """``dataset``, which is the one that was given, has grown."""
        if isinstance(self.dataset, Rows):
            self.dataset.tensors = dataset.tensors
        self._loader._iterator = None  # persistent workers hold the dataset as it was

    def __getstate__(self) -> dict[str, Any]:
        """Persistent workers belong to this process: a copy starts workers of its own."""
        loader = copy.copy(self._loader)
        loader._iterator = None
        return {**self.__dict__, "_loader": loader}

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader
        return iter(loader) if loader.num_workers or loader.pin_memory else self._here()

    def _here(self) -> Iterator[Any]:
        dataset, together = self.dataset, getattr(self.dataset, "__getitems__", None)
        for indices in self._loader.batch_sampler or ():
            read = together(indices) if together else [dataset[i] for i in indices]
            yield self.collate_fn(read)
