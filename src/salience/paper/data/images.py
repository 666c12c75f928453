"""Images and their classes: kept as bytes, normalised a batch at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.utils.data import Dataset

from salience.batches.rows import Stacked, collate

__all__ = ["Images", "Scale"]

BRIGHTEST = 255


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of each channel, over the training set with pixels in 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor) -> Tensor:
        """Bytes [n, C, H, W] as floats with mean 0 and standard deviation 1 per channel."""
        mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (self.mean, self.std))
        return images.float().sub_(mean * BRIGHTEST).div_(std * BRIGHTEST)


@final
class Images(Dataset[tuple[Tensor, ...]]):
    """Images uint8 [n, C, H, W] as published, ``targets`` int64 [n], and the scale to apply.

    An example is (image, class): float32 [C, H, W] and int64 []. Pass ``collate`` to DataLoader as
    its ``collate_fn``: a batch is then read as a whole.
    """

    collate = staticmethod(collate)

    def __init__(self, images: Tensor, targets: Tensor, scale: Scale) -> None:
        self.images, self.targets, self.scale = images, targets, scale

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: Sequence[int]) -> Stacked:
        chosen = torch.as_tensor(indices)
        images = self.images.index_select(0, chosen)
        return Stacked(self.scale(images), self.targets.index_select(0, chosen))
