"""Datasets that are read a batch at a time, and augmented copies of images."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate

from salience import ImportanceLoader
from salience.batches.labels import find_labels
from salience.batches.rows import collate
from salience.errors import ArgumentError
from salience.paper.data import images
from salience.paper.data.images import FARTHEST, PADDING, Augmented, Cropped, Images, Scale, moves
from salience.paper.data.ptb import Words

# What all datasets share.


def some_images(n=12, channels=3, side=8):
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (n, channels, side, side), generator=generator).byte()
    scale = Scale(mean=(0.4, 0.5, 0.6)[:channels], std=(0.2, 0.25, 0.3)[:channels])
    return Images(images, torch.arange(n) % 3, scale)


def some_words():
    vocabulary = ("<pad>", "<eos>", "a", "b", "c", "d")
    return Words([["a", "b", "c", "<eos>"]] * 3 + [["d", "<eos>"]], vocabulary)


DATASETS = {
    "images": some_images,
    "augmented": lambda: Augmented(some_images(), copies=4, seed=1),
    "words": some_words,
}
every_dataset = pytest.mark.parametrize("make", DATASETS.values(), ids=DATASETS)
CHOSEN = [7, 0, 7, 11, 3]


def same(batch, other):
    assert len(batch) == len(other) == 2
    for part, expected in zip(batch, other, strict=True):
        assert part.dtype == expected.dtype
        assert torch.equal(part, expected)


@every_dataset
def test_a_batch_is_its_examples_stacked(make):
    dataset = make()
    expected = [torch.stack(parts) for parts in zip(*(dataset[i] for i in CHOSEN), strict=True)]
    many = dataset.__getitems__(CHOSEN)
    assert len(many) == 5
    same(dataset.collate(many), expected)
    same(default_collate(many), expected)
    same(collate([dataset[i] for i in CHOSEN]), expected)
    assert torch.equal(expected[1], dataset.targets[CHOSEN])


@every_dataset
def test_loaders_read_batches_as_a_whole(make, monkeypatch):
    dataset = make()
    expected = [
        default_collate([dataset[i] for i in part]) for part in ([0, 1, 2, 3], [4, 5, 6, 7])
    ]
    monkeypatch.setattr(type(dataset), "__getitem__", lambda *_: pytest.fail("one by one"))
    part = Subset(dataset, range(8))
    for options in ({}, {"collate_fn": dataset.collate}, {"num_workers": 1}):
        for batch, other in zip(DataLoader(part, 4, **options), expected, strict=True):
            same(batch, other)


@every_dataset
def test_importance_sampling_finds_labels_and_reads_batches(make):
    dataset = make()
    assert torch.equal(find_labels(dataset), dataset.targets)
    loader = ImportanceLoader(dataset, 4, score="approx", collate_fn=dataset.collate)
    for x, y in loader:
        same((x, y), dataset.__getitems__(loader.indices.tolist()).tensors)
        loader.mean(x.flatten(1).float().abs().mean(1) + y)


@every_dataset
def test_indices_behave_as_those_of_a_list(make):
    dataset = make()
    same(dataset[-1], dataset[len(dataset) - 1])
    for beyond in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError):
            dataset[beyond]


def test_images_are_normalised_per_channel_and_kept_as_they_were():
    dataset = some_images()
    before = dataset.images.clone()
    image, _ = dataset[4]
    for channel, (mean, std) in enumerate([(0.4, 0.2), (0.5, 0.25), (0.6, 0.3)]):
        expected = (dataset.images[4, channel].double() / 255 - mean) / std
        torch.testing.assert_close(image[channel].double(), expected, atol=1e-6, rtol=0)
    assert torch.equal(dataset.images, before)


# Augmentation.


def seen_through(image, down, right, mirrored):
    """The slow, obvious way: every pixel from where it came, the nearest where that is outside."""
    height, width = image.shape[1:]
    out = torch.empty_like(image)
    for row in range(height):
        for column in range(width):
            place = width - 1 - column if mirrored else column
            from_row = min(max(row + down - FARTHEST, 0), height - 1)
            from_column = min(max(place + right - FARTHEST, 0), width - 1)
            out[:, row, column] = image[:, from_row, from_column]
    return out


def test_copies_are_flipped_and_shifted_as_drawn():
    original = some_images()
    many = Augmented(original, copies=10, seed=2)
    indices = np.arange(len(many))
    found = many.collate(many.__getitems__(indices.tolist()))[0]
    drawn = list(zip(*moves(indices, len(original), 2), strict=True))
    assert len(set(drawn)) > 40
    for i, (down, right, mirrored) in enumerate(drawn):
        expected = seen_through(original.images[i % 12], int(down), int(right), bool(mirrored))
        assert torch.equal(found[i], original.scale(expected[None])[0]), f"copy {i}"


def test_crops_are_parts_of_the_image_in_black_mirrored_or_not_all_equally_likely():
    original = some_images(n=2, side=6)
    crops = Cropped(original)
    assert torch.equal(crops.targets, original.targets)
    torch.manual_seed(0)
    read = crops.__getitems__([1, 0] * 8000).tensors
    assert read[1].tolist() == [int(original.targets[1]), int(original.targets[0])] * 8000
    padded = torch.nn.functional.pad(original.images[1], [PADDING] * 4)  # black is 0
    places = 2 * PADDING + 1
    parts = [padded[:, i : i + 6, j : j + 6] for i in range(places) for j in range(places)]
    every = torch.stack([*parts, *(part.flip(-1) for part in parts)])
    wanted = original.scale(every).flatten(1)
    where = torch.cdist(read[0][::2].flatten(1).double(), wanted.double()).min(1)
    assert float(where.values.max()) < 1e-5
    counts = torch.bincount(where.indices, minlength=2 * places**2)
    expected = 8000 / len(every)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < len(every) + 5 * (2 * len(every)) ** 0.5


def test_crops_follow_the_global_random_numbers():
    crops = Cropped(some_images())
    torch.manual_seed(3)
    first, second = crops.__getitems__([0, 1, 2] * 9), crops.__getitems__([0, 1, 2] * 9)
    torch.manual_seed(3)
    assert torch.equal(crops.__getitems__([0, 1, 2] * 9).tensors[0], first.tensors[0])
    assert not torch.equal(first.tensors[0], second.tensors[0])


def test_the_first_copy_is_the_original():
    original = some_images()
    many = Augmented(original, copies=3)
    numbers = list(range(12))
    same(many.__getitems__(numbers).tensors, original.__getitems__(numbers).tensors)
    assert torch.equal(many.targets, original.targets.repeat(3))


def test_a_copy_is_always_the_same_and_nobody_elses_randomness_is_touched():
    many = Augmented(some_images(), copies=5, seed=9)
    torch.manual_seed(1)
    ours, theirs = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    alone = [many[i][0] for i in range(60)]
    assert torch.equal(torch.get_rng_state(), ours)
    assert np.array_equal(np.random.get_state()[1], theirs)  # noqa: NPY002
    torch.manual_seed(2)
    again = Augmented(some_images(), copies=5, seed=9)
    together = again.collate(again.__getitems__(list(reversed(range(60)))))[0].flip(0)
    assert torch.equal(torch.stack(alone), together)


def test_seeds_give_different_copies():
    indices = np.arange(1000, 2000)
    drawn = [np.stack(moves(indices, 0, seed)) for seed in (0, 1, 2**32 - 1)]
    for i, j in [(0, 1), (0, 2), (1, 2)]:
        equal = (drawn[i] == drawn[j]).all(axis=0).sum()
        assert equal < 40  # of 1000; 10 by chance


def test_all_98_moves_are_equally_likely():
    n = 98 * 5000
    drawn = moves(np.arange(10, n + 10), 10, seed=4)
    counts = np.bincount(np.ravel_multi_index([*drawn[:2], drawn[2] * 1], (7, 7, 2)), minlength=98)
    chi_square = ((counts - 5000) ** 2 / 5000).sum()
    assert 97 - 6 * 14 < chi_square < 97 + 6 * 14  # 97 +- 13.9 if they are


def test_the_hash_is_splitmix64():
    # The generator's first numbers from seed 0, as its authors published it.
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert images._hashed(np.arange(3), 0).tolist() == expected


def test_no_copies_are_refused():
    with pytest.raises(ArgumentError, match="copies must be at least 1; got 0"):
        Augmented(some_images(), copies=0)
