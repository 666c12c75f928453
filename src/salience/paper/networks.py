"""The paper's networks, and narrower ones of the same shape for machines without a GPU.

Where the paper leaves a choice open, the authors' own programs decide: convolutions keep the size
of the image, batch normalisation follows the activation, the language model has two LSTM layers
(as the one of Zaremba et al. that it is modelled on).
"""

from typing import final

import torch
from torch import Tensor, nn

from salience.errors import ArgumentError

__all__ = ["WordModel", "check_size", "cifar10_network", "mnist_network", "ptb_network"]

CLASSES = 10
WORDS = 10_001  # with the end of sentence and padding


def mnist_network(size: str = "paper") -> nn.Module:
    """A small VGG without batch normalisation: [B, 1, 28, 28] -> [B, 10].

    ``paper``: 32 and 64 filters, 512 and 512 neurons. ``small``: a quarter of each.
    """
    part = _part(size, 4)
    return _fast(
        *_block(1, 32 // part, normalised=False),
        *_block(32 // part, 64 // part, normalised=False),
        *_classifier(64 // part * 7 * 7, 512 // part, 512 // part),
    )


def cifar10_network(size: str = "paper", *, dropout: bool = True) -> nn.Module:
    """A VGG with batch normalisation: [B, 3, 32, 32] -> [B, 10].

    ``paper``: 64, 128 and 256 filters, 1024 and 512 neurons. ``small``: an eighth of each.
    """
    part = _part(size, 8)
    layers = (
        *_block(3, 64 // part, normalised=True),
        *_block(64 // part, 128 // part, normalised=True),
        *_block(128 // part, 256 // part, normalised=True),
        *_classifier(256 // part * 4 * 4, 1024 // part, 512 // part),
    )
    return _fast(*(layer for layer in layers if dropout or not isinstance(layer, nn.Dropout)))


def ptb_network(size: str = "paper") -> "WordModel":
    """A language model: 20 words [B, 20] -> a score for each word that may follow [B, 10001].

    ``paper``: embedding 64, two layers of 256 LSTM units. ``small``: a quarter of each.
    """
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
    if size not in ("small", "paper"):
        raise ArgumentError(f"model must be small or paper; got {size!r}")


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
