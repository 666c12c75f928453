"""Datasets that are read a batch at a time."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor
from torch.utils.data import Dataset

from salience.batches.rows import Stacked, collate

__all__ = ["Examples"]


class Examples(Dataset[tuple[Tensor, ...]], ABC):
    """Examples (input, target) with all ``targets`` [n] known.

    Pass ``collate`` to DataLoader as its ``collate_fn``: a batch is then not stacked twice.
    """

    collate = staticmethod(collate)
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.__getitems__([range(len(self))[index]])[0]

    @abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> Stacked:
        """The examples at ``indices``, stacked."""
