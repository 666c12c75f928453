"""The paper's networks, narrower ones for machines without a GPU, and others' on the same data.

Where the paper leaves a choice open, the authors' own programs decide: convolutions keep the size
of the image, batch normalisation follows the activation, the language model has two LSTM layers
(as the one of Zaremba et al. that it is modelled on).

``tiny`` networks are for long comparisons on a CPU: a step of 128 examples takes 6 to 10 ms on one
core. They have one convolution per block, and pool before the activation, which is the same for
ReLU and cheaper.
"""

from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor, nn

from salience.errors import ArgumentError

__all__ = [
    *("SIZES", "WordModel", "check_size", "cifar10_network", "lenet", "mnist_network"),
    *("perceptron", "ptb_network", "strided"),
]

SIZES = ("tiny", "small", "paper", "perceptron", "strided")
OF = {"perceptron": "MNIST", "strided": "CIFAR-10"}  # networks for one data set alone

CLASSES = 10
WORDS = 10_001  # with the end of sentence and padding


def mnist_network(size: str = "paper") -> nn.Module:
    """A small VGG without batch normalisation: [B, 1, 28, 28] -> [B, 10].

    ``paper``: 32 and 64 filters, 512 and 512 neurons. ``small``: a quarter of each. ``tiny``: 8 and
    16 filters, 64 neurons. ``perceptron``: no convolutions.
    """
    _check_for("MNIST", size)
    if size == "perceptron":
        return perceptron()
    if size == "tiny":
        first, second = (_tiny_block(*each, dropout=True) for each in ((1, 8), (8, 16)))
        return _fast(*first, *second, *_classifier(16 * 7 * 7, 64))
    part = _part(size, 4)
    return _fast(
        *_block(1, 32 // part, normalised=False),
        *_block(32 // part, 64 // part, normalised=False),
        *_classifier(64 // part * 7 * 7, 512 // part, 512 // part),
    )


def cifar10_network(size: str = "paper", *, dropout: bool = True) -> nn.Module:
    """A VGG with batch normalisation: [B, 3, 32, 32] -> [B, 10].

    ``paper``: 64, 128 and 256 filters, 1024 and 512 neurons. ``small``: an eighth of each.
    ``tiny``: 8, 16 and 32 filters, 64 neurons, and never dropout: 39,626 weights underfit augmented
    images, so there is nothing for it to prevent. ``strided``: no VGG.
    """
    _check_for("CIFAR-10", size)
    if size == "strided":
        return strided()
    if size == "tiny":
        filters = ((3, 8), (8, 16), (16, 32))
        blocks = (layer for each in filters for layer in _tiny_block(*each, normalised=True))
        return _fast(*blocks, *_undropped(_classifier(32 * 4 * 4, 64)))
    part = _part(size, 8)
    layers = (
        *_block(3, 64 // part, normalised=True),
        *_block(64 // part, 128 // part, normalised=True),
        *_block(128 // part, 256 // part, normalised=True),
        *_classifier(256 // part * 4 * 4, 1024 // part, 512 // part),
    )
    return _fast(*(layers if dropout else _undropped(layers)))


def perceptron() -> nn.Module:
    """784-500-300-10 with ReLU and nothing else: [B, 1, 28, 28] -> [B, 10].

    BARE (Patel and Sastry, 2023) trains it on MNIST with wrong labels.
    """
    layers = (nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 300), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(300, CLASSES))


def strided() -> nn.Module:
    """Convolutions of 24, 48 and 96 filters that halve the image: [B, 3, 32, 32] -> [B, 10].

    68,698 weights, most of them where the image is small, so that a step is short for what the
    network can learn: 20 to 25 ms on one core.
    """
    layers: list[nn.Module] = []
    for inputs, filters, kernel in ((3, 24, 4), (24, 48, 3), (48, 96, 3)):
        halving = nn.Conv2d(inputs, filters, kernel, stride=2, padding=1, bias=False)
        layers += [halving, nn.BatchNorm2d(filters), nn.ReLU()]
    return _fast(*layers, nn.Flatten(), nn.Linear(96 * 4 * 4, CLASSES))


def lenet() -> nn.Module:
    """LeNet-5 with ReLU and maximum pooling: [B, 1, 28, 28] -> [B, 10].

    Ordered SGD (Kawaguchi and Lu, 2020) was tried on a LeNet, among others.
    """
    first, second = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
    pooled = (layer for conv in (first, second) for layer in (conv, nn.MaxPool2d(2), nn.ReLU()))
    dense = (nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())
    return _fast(*pooled, nn.Flatten(), *dense, nn.Linear(84, CLASSES))


def ptb_network(size: str = "paper") -> "WordModel":
    """A language model: 20 words [B, 20] -> a score for each word that may follow [B, 10001].

    ``paper``: embedding 64, two layers of 256 LSTM units. ``small``: a quarter of each. ``tiny``:
    embedding 16 and 16 units.
    """
    _check_for("Penn Treebank", size)
    if size == "tiny":
        return WordModel(WORDS, embedding=16, units=16)
    part = _part(size, 4)
    return WordModel(WORDS, embedding=64 // part, units=256 // part)


@final
class WordModel(nn.Module):
    """Embedding, two LSTM layers, and the last state of the upper one predicts the next word.

    Dropout follows each layer. Padding (number 0) is embedded as zeros, and stays so.
    """

    def __init__(self, words: int, embedding: int, units: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding, units, num_layers=2, dropout=0.5, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(units, words)

    def forward(self, context: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(context))  # [B, 20, units]
        scores: Tensor = self.output(self.dropout(states[:, -1]))
        return scores


def check_size(size: str) -> None:
    """Refuse what is no size of a network."""
    if size not in SIZES:
        raise ArgumentError(f"model must be one of {', '.join(SIZES)}; got {size!r}")


def _check_for(data: str, size: str) -> None:
    if OF.get(size, data) != data:
        raise ArgumentError(f"model {size} is for {OF[size]}, not for {data}: choose small or tiny")


def _part(size: str, small: int) -> int:
    """By what to divide the widths."""
    check_size(size)
    return 1 if size == "paper" else small


def _block(inputs: int, filters: int, *, normalised: bool) -> list[nn.Module]:
    """Two convolutions, pooling that halves the image, dropout."""
    layers: list[nn.Module] = []
    for channels in (inputs, filters):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()]
        layers += [nn.BatchNorm2d(filters)] if normalised else []
    return [*layers, nn.MaxPool2d(2), nn.Dropout(0.25)]


def _tiny_block(
    inputs: int, filters: int, *, normalised: bool = False, dropout: bool = False
) -> list[nn.Module]:
    """One convolution, pooling that halves the image, ReLU."""
    layers = [nn.Conv2d(inputs, filters, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    layers += [nn.BatchNorm2d(filters)] if normalised else []
    return [*layers, nn.Dropout(0.25)] if dropout else layers


def _undropped(layers: Iterable[nn.Module]) -> list[nn.Module]:
    return [layer for layer in layers if not isinstance(layer, nn.Dropout)]


def _classifier(inputs: int, *widths: int) -> list[nn.Module]:
    """Fully connected layers with dropout after each, and a last one for the classes."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.5)]
        inputs = width
    return [*layers, nn.Linear(inputs, CLASSES)]


def _fast(*layers: nn.Module) -> nn.Module:
    """In the order of memory that convolutions on a CPU like best; results are the same."""
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
