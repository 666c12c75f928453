"""More images out of few: flipped and shifted copies that are always the same for an index.

Importance sampling remembers examples by their index. So copy 7 of an image has to look the same
whenever it comes, and what it looks like is computed from its index and the seed alone.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from salience.batches.rows import Stacked, collate
from salience.errors import ArgumentError
from salience.paper.data.images import Images

__all__ = ["FARTHEST", "Augmented", "moves"]

FARTHEST = 3  # pixels of shift: a tenth of 32, as the authors chose
WIDTH = 2 * FARTHEST + 1
STILL = 2 * (WIDTH * FARTHEST + FARTHEST)  # the outcome of no shift and no mirror

Array = np.ndarray[Any, np.dtype[Any]]


@final
class Augmented(Dataset[tuple[Tensor, ...]]):
    """``copies`` of each image: number 0 as it is, the others flipped and shifted at random.

    Index i is copy i // n of image i % n, so the first n examples are ``original`` itself. Copies
    are mirrored with probability 1/2 and shifted by -3 to 3 pixels each way, all equally likely;
    what comes in from outside repeats the border.
    """

    collate = staticmethod(collate)

    def __init__(self, original: Images, copies: int, seed: int = 0) -> None:
        if copies < 1:
            raise ArgumentError(f"copies must be at least 1; got {copies}")
        self.original, self.copies, self.seed = original, copies, seed
        self.targets = original.targets.repeat(copies)
        self._windows = _windows(original.images.numpy())

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: Sequence[int]) -> Stacked:
        chosen = np.asarray(indices)
        down, right, mirrored = moves(chosen, len(self.original), self.seed)
        images = self._windows[chosen % len(self.original), down, right]
        images[mirrored] = images[mirrored][..., ::-1]
        targets = self.targets.index_select(0, torch.from_numpy(chosen))
        return Stacked(self.original.scale(torch.from_numpy(images)), targets)


def moves(indices: Array, n: int, seed: int) -> tuple[Array, Array, Array]:
    """For each index: rows and columns of shift, counted from -3 as 0, and whether to mirror."""
    # By the remainder: of 2^64 numbers, so 98 outcomes are equally likely to one part in 10^17.
    drawn = _scrambled(indices, seed) % np.uint64(2 * WIDTH**2)
    outcome = np.where(indices < n, STILL, drawn.astype(np.int64))
    down, right, mirrored = np.unravel_index(outcome, (WIDTH, WIDTH, 2))
    return down, right, mirrored == 1


def _scrambled(indices: Array, seed: int) -> Array:
    """64 bits for each index that look random: the output function of SplitMix64 (Steele 2014)."""
    state = (indices + 1).astype(np.uint64) + np.uint64(seed % 2**32) * np.uint64(2**32)
    state = state * np.uint64(0x9E3779B97F4A7C15)  # wraps round, as it should
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _windows(images: Array) -> Array:
    """A view [n, 7, 7, C, H, W]: each image as seen through each shift. NumPy copies one in a go.

    The border is laid round all images once, which takes 40% more memory and saves doing it for
    each batch.
    """
    edge = (FARTHEST, FARTHEST)
    padded = np.pad(images, ((0, 0), (0, 0), edge, edge), mode="edge")
    seen = np.lib.stride_tricks.sliding_window_view(padded, images.shape[2:], axis=(2, 3))
    return seen.transpose(0, 2, 3, 1, 4, 5)
