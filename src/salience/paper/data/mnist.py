"""MNIST: 70,000 hand-written digits by LeCun, Cortes and Burges, from the published IDX files."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from salience.errors import DataError
from salience.paper.data.catalogue import checked
from salience.paper.data.images import Images, Scale

__all__ = ["SCALE", "mnist", "read_idx"]

SCALE = Scale(mean=(0.1307,), std=(0.3081,))

BYTES = 0x08  # the only type of number in these files


def mnist(train: bool, data_dir: str | Path | None = None) -> Images:
    """The 60,000 training digits, or the 10,000 for testing: images [1, 28, 28], classes 0..9.

    ``data_dir`` holds ``mnist/*.gz``; None is the directory that ``SALIENCE_DATA`` names.
    """
    part = "train" if train else "t10k"
    names = [f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"]
    images, labels = (read_idx(path) for path in checked("mnist", data_dir, names))
    return Images(images.unsqueeze(1), labels.long(), SCALE)


def read_idx(path: Path) -> Tensor:
    """The bytes of a gzipped IDX file as uint8, in the shape that its header gives.

    The header: two zeros, the type of number, the count of dimensions; then each dimension in four
    bytes, the most significant first.
    """
    try:
        content = gzip.decompress(path.read_bytes())
        zeros, kind, dimensions = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{dimensions}I", content, offset=4)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise DataError(f"{path} cannot be read as gzipped IDX: {error}") from error
    start = 4 + 4 * dimensions
    # Without numbers torch refuses the file's memory, and no data set is without any.
    if zeros or kind != BYTES or not shape or not 0 < math.prod(shape) == len(content) - start:
        raise DataError(f"{path} is not IDX: its header does not fit its {len(content)} bytes")
    # A bytearray, because torch warns of memory that it may not write to.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).view(shape)
