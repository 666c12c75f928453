"""Readers of MNIST, CIFAR-10 and Penn Treebank: small files exactly, the genuine ones by facts."""

import gzip
import hashlib
import os
import struct
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate

from salience import ImportanceLoader
from salience.batches.labels import find_labels
from salience.batches.rows import collate
from salience.errors import ArgumentError, DataError
from salience.paper.data import catalogue, images
from salience.paper.data.catalogue import CATALOGUE, File, folder
from salience.paper.data.cifar10 import cifar10, cifar10_augmented, read_records
from salience.paper.data.images import FARTHEST, Augmented, Images, Scale, moves
from salience.paper.data.mnist import mnist, read_idx
from salience.paper.data.ptb import Words, penn_treebank, read_sentences

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
UNPACKED = Path(tempfile.gettempdir()) / "salience-test-data"


# Small files in each format.

PIXELS = np.arange(3 * 2 * 4, dtype=np.uint8).reshape(3, 2, 4) * 10
VOCABULARY = ("<pad>", "<eos>", "a", "b", "c", "d")


def idx(array, kind=0x08):
    shape = struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(bytes([0, 0, kind, array.ndim]) + shape + array.tobytes())


def written(path, content):
    path.write_bytes(content)
    return path


def test_idx_has_its_shape_and_its_bytes(tmp_path):
    read = read_idx(written(tmp_path / "images.gz", idx(PIXELS)))
    assert read.dtype == torch.uint8
    assert np.array_equal(read.numpy(), PIXELS)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not gzip at all",
        idx(PIXELS)[:-12],
        idx(PIXELS)[:20] + b"\xff" + idx(PIXELS)[21:],
        gzip.compress(gzip.decompress(idx(PIXELS))[:-1]),
        gzip.compress(gzip.decompress(idx(PIXELS)) + b"\0"),
        gzip.compress(gzip.decompress(idx(PIXELS))[:9]),
        gzip.compress(b"\1" + gzip.decompress(idx(PIXELS))[1:]),
        idx(PIXELS, kind=0x0D),
        gzip.compress(b""),
    ],
    ids=["empty", "text", "cut", "damaged", "short", "long", "header", "magic", "type", "hollow"],
)
def test_what_is_not_idx_is_refused_by_name(tmp_path, content):
    with pytest.raises(DataError, match=r"images\.gz "):
        read_idx(written(tmp_path / "images.gz", content))


def records(labels, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)


def test_records_come_in_order_as_planes_of_red_green_blue(tmp_path):
    first, second = records([3, 9], seed=1), records([0], seed=2)
    paths = [written(tmp_path / "1", first.tobytes()), written(tmp_path / "2", second.tobytes())]
    images, labels = read_records(paths)
    assert labels.tolist() == [3, 9, 0]
    assert labels.dtype == torch.int64
    assert images.shape == (3, 3, 32, 32)
    for channel, row, column in [(0, 0, 0), (1, 0, 31), (2, 31, 0), (1, 17, 5)]:
        place = 1 + channel * 1024 + row * 32 + column
        expected = [first[0, place], first[1, place], second[0, place]]
        assert images[:, channel, row, column].tolist() == expected


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "it has 0"),
        (records([1, 2]).tobytes()[:-1], "it has 6145"),
        (records([1, 10]).tobytes(), "has class 10"),
    ],
)
def test_what_is_not_records_is_refused_by_name(tmp_path, content, sentence):
    with pytest.raises(DataError, match=f"batch.bin .*{sentence}"):
        read_records([written(tmp_path / "batch.bin", content)])


def test_sentences_end_with_a_word_of_their_own(tmp_path):
    path = written(tmp_path / "text", b" a b <unk> \n c\n\n")
    assert read_sentences(path) == [["a", "b", "<unk>", "<eos>"], ["c", "<eos>"], ["<eos>"]]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\xfa"])
def test_what_is_no_text_is_refused_by_name(tmp_path, content):
    with pytest.raises(DataError, match="text "):
        read_sentences(written(tmp_path / "text", content))


def test_a_word_is_predicted_from_what_its_sentence_has_so_far():
    words = Words([["a", "b", "c", "d", "<eos>"], ["b", "<eos>"]], VOCABULARY, context=3)
    assert words.targets.tolist() == [2, 3, 4, 5, 1, 3, 1]
    contexts, targets = words.collate(words.__getitems__(list(range(7))))
    assert targets.tolist() == words.targets.tolist()
    assert contexts.tolist() == [
        [0, 0, 0],
        [0, 0, 2],
        [0, 2, 3],
        [2, 3, 4],
        [3, 4, 5],
        [0, 0, 0],  # nothing of the sentence before
        [0, 0, 3],
    ]
    assert (contexts.dtype, targets.dtype) == (torch.int64, torch.int64)


def test_a_word_outside_the_vocabulary_is_named():
    with pytest.raises(DataError, match="'elephant'"):
        Words([["a", "elephant"]], VOCABULARY)


# The whole way from a directory, with small files in the place of the published ones.


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Write files of a data set and have the catalogue hold them for the published ones."""

    def put(name, contents):
        chosen = CATALOGUE[name]
        place = tmp_path / chosen.folders[0]
        place.mkdir(parents=True)
        for file, content in contents.items():
            written(place / file, content)
        files = tuple(
            File(file, len(content), hashlib.md5(content).hexdigest())
            for file, content in contents.items()
        )
        downloads = (replace(chosen.downloads[0], files=files),)
        monkeypatch.setitem(catalogue.CATALOGUE, name, replace(chosen, downloads=downloads))
        return tmp_path

    return put


def test_mnist_reads_the_part_that_was_asked_for(publish):
    digits = {
        "train-images-idx3-ubyte.gz": idx(PIXELS),
        "train-labels-idx1-ubyte.gz": idx(np.array([4, 0, 9], np.uint8)),
        "t10k-images-idx3-ubyte.gz": idx(PIXELS[:1] + 5),
        "t10k-labels-idx1-ubyte.gz": idx(np.array([7], np.uint8)),
    }
    directory = publish("mnist", digits)
    train, test = mnist(True, directory), mnist(False, directory)
    assert (train.targets.tolist(), test.targets.tolist()) == ([4, 0, 9], [7])
    image, label = train[1]
    expected = (torch.from_numpy(PIXELS[1:2]) / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(image, expected)
    assert (label.item(), label.dtype) == (0, torch.int64)
    assert test.images.squeeze().tolist() == (PIXELS[0] + 5).tolist()


def test_cifar10_reads_five_files_in_order_and_augments_them(publish):
    batches = {f"data_batch_{i}.bin": records([i, i + 1], seed=i).tobytes() for i in range(1, 6)}
    directory = publish("cifar10", {**batches, "test_batch.bin": records([9]).tobytes()})
    train = cifar10(True, directory)
    assert train.targets.tolist() == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert train.images[8].flatten().tolist() == records([5, 6], seed=5)[0, 1:].tolist()
    assert cifar10(False, str(directory)).targets.tolist() == [9]
    many = cifar10_augmented(directory, seed=3)
    assert (len(many), many.copies, many.seed) == (100, 10, 3)
    assert torch.equal(many.original.images, train.images)


def test_cifar10_is_found_without_the_outer_folder(publish):
    directory = publish("cifar10", {"test_batch.bin": records([8]).tobytes()})
    (directory / "cifar10/cifar-10-batches-bin").rename(directory / "cifar-10-batches-bin")
    assert cifar10(False, directory).targets.tolist() == [8]


def test_all_parts_of_the_treebank_share_the_training_vocabulary(publish):
    texts = {
        "ptb.train.txt": b" b a c \n c \n",
        "ptb.valid.txt": b" c b \n",
        "ptb.test.txt": b"a\n",
    }
    directory = publish("ptb", texts)
    train, valid, test = (penn_treebank(part, directory) for part in ("train", "valid", "test"))
    assert train.vocabulary == ("<pad>", "<eos>", "a", "b", "c")
    assert train.vocabulary == valid.vocabulary == test.vocabulary
    assert train.targets.tolist() == [3, 2, 4, 1, 4, 1]
    assert valid.targets.tolist() == [4, 3, 1]
    context, word = valid[1]
    assert (context.tolist(), word.item()) == ([0] * 19 + [4], 3)
    assert test.targets.tolist() == [2, 1]


@pytest.mark.parametrize(
    "load",
    [lambda d: mnist(True, d), lambda d: cifar10(False, d), lambda d: penn_treebank("test", d)],
)
def test_missing_data_is_one_sentence_with_the_command_to_get_it(tmp_path, load):
    with pytest.raises(
        DataError, match=r"is missing: get it with `salience data fetch \w+ --data-d"
    ):
        load(tmp_path)


# What all datasets share.


def some_images(n=12, channels=3, side=8):
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (n, channels, side, side), generator=generator).byte()
    scale = Scale(mean=(0.4, 0.5, 0.6)[:channels], std=(0.2, 0.25, 0.3)[:channels])
    return Images(images, torch.arange(n) % 3, scale)


def some_words():
    return Words([["a", "b", "c", "<eos>"]] * 3 + [["d", "<eos>"]], VOCABULARY)


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


# The genuine data.


def located(name):
    """The directory that has all files of a data set, or None."""
    given = [Path(os.environ["SALIENCE_DATA"])] if "SALIENCE_DATA" in os.environ else []
    for place in [*given, SHARED, UNPACKED]:
        home = folder(CATALOGUE[name], place)
        if all((home / file.name).is_file() for file in CATALOGUE[name].files):
            return place
    return None


def genuine(name):
    """The directory that has a data set; the test is skipped where there is none."""
    if name == "cifar10" and not located(name) and (SHARED / "cifar10/unpack.py").is_file():
        unpack_cifar10()
    return located(name) or pytest.skip(f"{name} is not in SALIENCE_DATA, nor in ../shared/data")


def unpack_cifar10():
    """``../shared`` has CIFAR-10 packed more tightly; once unpacked, it is kept for later runs."""
    final = UNPACKED / "cifar10/cifar-10-batches-bin"
    final.parent.mkdir(parents=True, exist_ok=True)
    packed = SHARED / "cifar10"
    with tempfile.TemporaryDirectory(dir=final.parent) as temporary:
        new = Path(temporary, "bin")
        command = [sys.executable, packed / "unpack.py", packed / "cifar10-med.xz", new]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        with suppress(OSError):  # another run was faster
            new.rename(final)


def per_channel(dataset):
    """Mean and standard deviation of the pixels in 0..1, exactly, from counts of each value."""
    values = torch.arange(256).double() / 255
    facts = []
    for channel in range(dataset.images.shape[1]):
        counts = dataset.images[:, channel].flatten().bincount(minlength=256).double()
        mean = (counts @ values) / counts.sum()
        facts.append((mean.item(), ((counts @ (values - mean) ** 2) / counts.sum()).sqrt().item()))
    return facts


def agrees(dataset):
    """Whether the constants are those of the data, to all four digits."""
    stored = zip(dataset.scale.mean, dataset.scale.std, strict=True)
    for (mean, std), (true_mean, true_std) in zip(stored, per_channel(dataset), strict=True):
        assert (mean, std) == (round(true_mean, 4), round(true_std, 4))


def test_genuine_mnist():
    directory = genuine("mnist")
    train, test = mnist(True, directory), mnist(False, directory)
    assert (train.images.shape, test.images.shape) == ((60000, 1, 28, 28), (10000, 1, 28, 28))
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert train.targets.bincount().tolist() == counts
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert test.targets.bincount().tolist() == counts
    assert train.targets[:5].tolist() == [5, 0, 4, 1, 9]
    agrees(train)


def test_genuine_cifar10():
    directory = genuine("cifar10")
    train, test = cifar10(True, directory), cifar10(False, directory)
    assert (train.images.shape, test.images.shape) == ((50000, 3, 32, 32), (10000, 3, 32, 32))
    assert train.targets.bincount().tolist() == [5000] * 10
    assert test.targets.bincount().tolist() == [1000] * 10
    assert train.targets[:5].tolist() == [6, 9, 9, 4, 1]
    agrees(train)
    many = Augmented(train, 10)
    assert len(many) == len(many.targets) == 500_000
    copies = [7 + 50_000 * copy for copy in range(10)]
    images, classes = many.collate(many.__getitems__(copies))
    assert classes.tolist() == [train.targets[7]] * 10
    assert torch.equal(images[0], train[7][0])
    assert len({tuple(image.flatten().tolist()) for image in images}) == 10


@pytest.mark.parametrize(
    ("part", "sentences", "words"),
    [("train", 42068, 929589), ("valid", 3370, 73760), ("test", 3761, 82430)],
)
def test_genuine_treebank(part, sentences, words):
    dataset = penn_treebank(part, genuine("ptb"))
    assert len(dataset) == len(dataset.targets) == words
    assert len(dataset.vocabulary) == 10_001
    end = dataset.vocabulary.index("<eos>")
    assert (dataset.targets == end).sum() == sentences
    ends = torch.nn.functional.pad((dataset.targets == end).nonzero()[:, 0], (1, 0), value=-1)
    lengths = ends.diff()
    everything = torch.arange(words).split(50_000)
    used = sum((dataset.__getitems__(each).tensors[0] != 0).sum() for each in everything)
    # A sentence of n words gives contexts of 0, 1, .. n - 1 words, 20 at most.
    short, long = lengths.clamp(max=20), (lengths - 20).clamp(min=0)
    assert used == (short * (short - 1) // 2 + 20 * long).sum()


def test_genuine_treebank_reads_as_the_text():
    dataset = penn_treebank("train", genuine("ptb"))
    context, word = dataset[25 + 5]
    text = [dataset.vocabulary[i] for i in [*context.tolist(), word.item()]]
    assert text == ["<pad>"] * 15 + ["pierre", "<unk>", "N", "years", "old", "will"]
