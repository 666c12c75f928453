"""Hand-written digits that ship with the package: small enough to carry, real enough to learn.

1,797 images of 8 x 8 pixels by E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, 1998,
CC BY 4.0); attribution and licence are in ``digits.LICENSE.md`` beside the data.
"""

from importlib.resources import files

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

__all__ = ["digits"]

BRIGHTEST = 16  # each pixel counts the set bits of a 4 x 4 block
TEST_EVERY = 5


def digits(train: bool) -> TensorDataset:
    """The 1,437 training digits, or the 360 for testing: images [n, 1, 8, 8] in 0..1, classes [n].

    The split is fixed: with the digits sorted by class, and by their place in the file within a
    class, every fifth is for testing. So both parts have every class in the same proportion. The
    13 writers appear in both parts, which makes the test easier than one with unseen writers.

    >>> images, classes = digits(train=True).tensors
    >>> images.shape, classes.dtype
    (torch.Size([1437, 1, 8, 8]), torch.int64)
    """
    images, labels = _stored()
    chosen = _split(labels, train=train)
    return TensorDataset(images[chosen].float().unsqueeze(1) / BRIGHTEST, labels[chosen])


def _stored() -> tuple[Tensor, Tensor]:
    """Images uint8 [1797, 8, 8] and classes int64 [1797], as published."""
    with (
        (files("salience.compare") / "digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as stored,
    ):
        return torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"]).long()


def _split(labels: Tensor, *, train: bool) -> Tensor:
    """Positions of one part of the split, ordered by class."""
    by_class = torch.argsort(labels, stable=True)
    is_test = torch.arange(len(labels)) % TEST_EVERY == 0
    return by_class[~is_test if train else is_test]
