"""The digits that ship with the package: the right file, the right split."""

import hashlib
from importlib.resources import files

import numpy as np
import pytest
import torch

from salience.compare.digits import digits

SHA256 = "b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e"
PER_CLASS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # as the set's description has it


def test_the_stored_file_is_the_published_set_and_small():
    content = (files("salience.compare") / "digits.npz").read_bytes()
    assert hashlib.sha256(content).hexdigest() == SHA256
    assert len(content) < 80_000


def test_licence_and_attribution_lie_beside_the_data():
    text = (files("salience.compare") / "digits.LICENSE.md").read_text(encoding="utf-8")
    for part in ("Alpaydin", "Kaynak", "CC BY 4.0", "UCI Machine Learning"):
        assert part in text


@pytest.mark.parametrize(("train", "size"), [(True, 1437), (False, 360)])
def test_shapes_types_and_scale(train, size):
    images, classes = digits(train).tensors
    assert images.shape == (size, 1, 8, 8)
    assert classes.shape == (size,)
    assert images.dtype == torch.float32
    assert classes.dtype == torch.int64
    assert (images.min(), images.max()) == (0, 1)


def test_the_two_parts_make_up_the_whole_set():
    parts = [digits(train).tensors for train in (True, False)]
    with np.load(str(files("salience.compare") / "digits.npz"), allow_pickle=False) as stored:
        published = np.c_[stored["images"].reshape(-1, 64), stored["labels"]]
    split = np.concatenate([np.c_[x.flatten(1).numpy() * 16, y.numpy()] for x, y in parts])
    assert sorted(map(tuple, split)) == sorted(map(tuple, published))


def test_every_class_has_a_fifth_of_its_digits_in_the_test_part():
    train, test = (digits(part).tensors[1].bincount().tolist() for part in (True, False))
    assert [a + b for a, b in zip(train, test, strict=True)] == PER_CLASS
    assert all(abs(b - n / 5) < 1 for b, n in zip(test, PER_CLASS, strict=True))


def test_the_split_is_always_the_same():
    torch.manual_seed(1)
    first = digits(train=False).tensors
    torch.manual_seed(2)
    second = digits(train=False).tensors
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
