"""Images and their classes: stored as bytes, normalised a batch at a time, augmented.

Importance sampling remembers examples by index. So copy 7 of an image in the paper's augmented set
must look the same every time: what it looks like is computed from its index and the seed alone.
``Cropped`` has each image once, and changes it each time it is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from salience.batches.rows import Stacked
from salience.errors import ArgumentError
from salience.paper.data.examples import Examples

__all__ = ["FARTHEST", "PADDING", "Augmented", "Cropped", "Images", "Scale", "moves"]

BRIGHTEST = 255
FARTHEST = 3  # pixels of shift: a tenth of 32, as the authors chose
WIDTH = 2 * FARTHEST + 1
PADDING = 4  # pixels around an image that is cropped at random
STILL = 2 * (WIDTH * FARTHEST + FARTHEST)  # the outcome of no shift and no mirror

Array = np.ndarray[Any, np.dtype[Any]]


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
class Images(Examples):
    """Images uint8 [n, C, H, W] as published, ``targets`` int64 [n], and the scale to apply.

    An example is (image, class): float32 [C, H, W] and int64 [].
    """

    def __init__(self, images: Tensor, targets: Tensor, scale: Scale) -> None:
        self.images, self.targets, self.scale = images, targets, scale

    def __getitems__(self, indices: Sequence[int]) -> Stacked:
        chosen = torch.as_tensor(indices)
        images = self.images.index_select(0, chosen)
        return Stacked(self.scale(images), self.targets.index_select(0, chosen))


@final
class Augmented(Examples):
    """``copies`` of each image: number 0 unchanged, the others flipped and shifted at random.

    Index i is copy i // n of image i % n, so the first n examples are ``original`` itself. Copies
    are mirrored with probability 1/2 and shifted by -3 to 3 pixels each way, all equally likely;
    pixels from outside the image repeat its border.
    """

    def __init__(self, original: Images, copies: int, seed: int = 0) -> None:
        if copies < 1:
            raise ArgumentError(f"copies must be at least 1; got {copies}")
        self.original, self.copies, self.seed = original, copies, seed
        self.targets = original.targets.repeat(copies)
        self._windows = _windows(original.images.numpy(), FARTHEST, "edge")

    def __getitems__(self, indices: Sequence[int]) -> Stacked:
        chosen = np.asarray(indices)
        down, right, mirrored = moves(chosen, len(self.original), self.seed)
        images = self._windows[chosen % len(self.original), down, right]
        images[mirrored] = images[mirrored][..., ::-1]
        targets = self.targets.index_select(0, torch.from_numpy(chosen))
        return Stacked(self.original.scale(torch.from_numpy(images)), targets)


@final
class Cropped(Examples):
    """``original``, each image cropped and mirrored at random whenever it is read.

    Black pixels are put around an image, 4 on each side, and a part of its own size is taken from
    anywhere; it is mirrored with probability 1/2. Random numbers are those of torch's global
    generator.
    """

    def __init__(self, original: Images) -> None:
        self.original, self.targets = original, original.targets
        self._windows = _windows(original.images.numpy(), PADDING, "constant")

    def __getitems__(self, indices: Sequence[int]) -> Stacked:
        chosen = np.asarray(indices)
        places = 2 * PADDING + 1
        drawn = torch.randint(0, 2 * places**2, (len(chosen),)).numpy()
        down, right, mirrored = np.unravel_index(drawn, (places, places, 2))
        images = self._windows[chosen, down, right]
        images[mirrored == 1] = images[mirrored == 1][..., ::-1]
        targets = self.targets.index_select(0, torch.from_numpy(chosen))
        return Stacked(self.original.scale(torch.from_numpy(images)), targets)


def moves(indices: Array, n: int, seed: int) -> tuple[Array, Array, Array]:
    """For each index: rows and columns of shift, counted from -3 as 0, and whether to mirror."""
    # The remainder of 64 bits: the 98 outcomes are equally likely to one part in 10^17.
    drawn = _hashed(indices, seed) % np.uint64(2 * WIDTH**2)
    outcome = np.where(indices < n, STILL, drawn.astype(np.int64))
    down, right, mirrored = np.unravel_index(outcome, (WIDTH, WIDTH, 2))
    return down, right, mirrored == 1


def _hashed(indices: Array, seed: int) -> Array:
    """64 pseudo-random bits for each index: the output function of SplitMix64 (Steele 2014)."""
    state = (indices + 1).astype(np.uint64) + np.uint64(seed % 2**32) * np.uint64(2**32)
    state = state * np.uint64(0x9E3779B97F4A7C15)  # overflow is part of the function
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _windows(images: Array, edge: int, mode: Literal["edge", "constant"]) -> Array:
    """A view [n, 2 e + 1, 2 e + 1, C, H, W]: each image under each shift, with e = ``edge``.

    NumPy copies one in a single step. All images are padded once, which takes 40% to 60% more
    memory and saves padding each batch. ``mode``: outside is its border, or black.
    """
    both = (edge, edge)
    padded = np.pad(images, ((0, 0), (0, 0), both, both), mode=mode)
    seen = np.lib.stride_tricks.sliding_window_view(padded, images.shape[2:], axis=(2, 3))
    return seen.transpose(0, 2, 3, 1, 4, 5)
