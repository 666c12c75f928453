"""Hand-written digits that ship with the package, and a small network to learn them.

1,797 images of 8 x 8 pixels by E. Alpaydin and C. Kaynak (UCI Machine Learning Repository, 1998,
CC BY 4.0); attribution and licence are in ``digits.LICENSE.md`` beside the data.
"""

from functools import partial
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from salience.compare.task import Task, adam, cross_entropy, wrong

__all__ = ["digits", "digits_task", "network"]

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
    with (files("salience.compare") / "digits.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        images, labels = (torch.from_numpy(stored[name]) for name in ("images", "labels"))
    labels = labels.long()
    by_class = torch.argsort(labels, stable=True)
    is_test = torch.arange(len(labels)) % TEST_EVERY == 0
    chosen = by_class[~is_test if train else is_test]
    return TensorDataset(images[chosen].float().unsqueeze(1) / BRIGHTEST, labels[chosen])


def digits_task() -> Task:
    """1,437 digits to learn and 360 to test on, for a network of 38,282 weights with dropout."""
    train = digits(train=True)
    return Task(
        name="digits",
        train=train,
        test=digits(train=False),
        model=network,
        optimizer=adam,
        loss=cross_entropy,
        wrong=wrong,
        batch_size=128,
        show=partial(_contrasted, train.tensors[0]),
    )


def network() -> nn.Module:
    """Two convolutions, one pooling, two linear layers: [B, 1, 8, 8] -> [B, 10]."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(64, 10),
    )


def _contrasted(images: Tensor, index: int) -> Tensor:
    """An image [1, 8, 8] whose darkest pixel is 0 and whose brightest is 1."""
    image = images[index]
    return (image - image.min()) / (image.max() - image.min()).clamp(min=1e-6)
