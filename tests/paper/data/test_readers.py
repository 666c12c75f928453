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

from salience.errors import DataError
from salience.paper.data import catalogue
from salience.paper.data.catalogue import CATALOGUE, File, inspect
from salience.paper.data.cifar10 import cifar10, cifar10_augmented, read_records
from salience.paper.data.images import Augmented
from salience.paper.data.mnist import mnist, read_idx
from salience.paper.data.ptb import Words, penn_treebank, read_sentences

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
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


# The genuine data.


def located(name):
    """The directory that has a whole data set, or None."""
    given = [Path(os.environ["SALIENCE_DATA"])] if "SALIENCE_DATA" in os.environ else []
    found = {
        place: set(inspect(CATALOGUE[name], place, thorough=False).values())
        for place in [*given, SHARED, UNPACKED]
    }
    return next((place for place, conditions in found.items() if conditions == {"ok"}), None)


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
