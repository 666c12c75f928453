"""CIFAR-10: 60,000 small colour images by Krizhevsky, from the published binary files."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from salience.errors import DataError
from salience.paper.data.catalogue import checked
from salience.paper.data.images import Augmented, Images, Scale

__all__ = ["SCALE", "cifar10", "cifar10_augmented", "read_records"]

SCALE = Scale(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))

SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # a class, then the planes R, G, B
CLASSES = 10
COPIES = 10  # of each image in the paper


def cifar10(train: bool, data_dir: str | Path | None = None) -> Images:
    """The 50,000 training images, or the 10,000 for testing: [3, 32, 32], classes 0..9.

    ``data_dir`` holds ``cifar10/cifar-10-batches-bin/*.bin``, or that folder without the first
    one; None is the directory that ``SALIENCE_DATA`` names.
    """
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if train else ["test_batch.bin"]
    images, labels = read_records(checked("cifar10", data_dir, names))
    return Images(images, labels, SCALE)


def cifar10_augmented(data_dir: str | Path | None = None, seed: int = 0) -> Augmented:
    """The paper's 500,000 training images: each original and nine flipped and shifted copies."""
    return Augmented(cifar10(True, data_dir), COPIES, seed)


def read_records(paths: list[Path]) -> tuple[Tensor, Tensor]:
    """All records of ``paths`` in order: images uint8 [n, 3, 32, 32] and classes int64 [n]."""
    # One allocation: the training set has 150 MB.
    content = np.concatenate([_records(path) for path in paths])
    labels = torch.from_numpy(content[:, 0].astype(np.int64))
    images = torch.from_numpy(np.ascontiguousarray(content[:, 1:])).view(-1, *SHAPE)
    return images, labels


def _records(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """One file as [n, 3073]."""
    content = np.fromfile(path, np.uint8)
    if len(content) == 0 or len(content) % RECORD:
        raise DataError(f"{path} is not whole records of {RECORD} bytes: it has {len(content)}")
    records = content.reshape(-1, RECORD)
    if records[:, 0].max() >= CLASSES:
        raise DataError(f"{path} has class {records[:, 0].max()}: CIFAR-10 has 0 to {CLASSES - 1}")
    return records
