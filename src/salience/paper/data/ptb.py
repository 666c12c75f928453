"""Penn Treebank as Mikolov prepared it: predict each word from the words before it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, final

import torch
from torch import Tensor

from salience.batches.rows import Stacked
from salience.errors import DataError
from salience.paper.data.catalogue import checked
from salience.paper.data.examples import Examples

__all__ = ["CONTEXT", "END", "PADDING", "Words", "penn_treebank", "read_sentences"]

CONTEXT = 20  # words, in the paper
PADDING, END = "<pad>", "<eos>"


@final
class Words(Examples):
    """One example per word, the end of a sentence included: (context [20], the word []).

    The paper splits the text into sentences and gives each word the previous 20, "if available":
    the context is the sentence so far, padded on the left (number 0), so the first word of a
    sentence is predicted from padding alone. ``vocabulary[i]`` is the word of number i, and
    ``targets`` [n] is the text itself, from which contexts are sliced on demand.
    """

    def __init__(
        self, sentences: list[list[str]], vocabulary: tuple[str, ...], context: int = CONTEXT
    ) -> None:
        self.vocabulary, self.context = vocabulary, context
        self.targets = _numbers(sentences, vocabulary)
        self._available = torch.cat([torch.arange(len(words)) for words in sentences])
        self._before = torch.arange(-context, 0)

    def __getitems__(self, indices: Sequence[int]) -> Stacked:
        chosen = torch.as_tensor(indices)
        positions = (chosen.unsqueeze(1) + self._before).clamp_(min=0)
        # Positions before the start of the sentence hold words of the previous one.
        outside = self._available.index_select(0, chosen).unsqueeze(1) < -self._before
        contexts = self.targets.take(positions).masked_fill_(outside, 0)
        return Stacked(contexts, self.targets.index_select(0, chosen))


def penn_treebank(
    part: Literal["train", "valid", "test"], data_dir: str | Path | None = None
) -> Words:
    """929,589 words to train on, 73,760 to validate, 82,430 to test; 10,001 numbers with padding.

    The vocabulary is the training text's, in alphabetical order. ``data_dir`` holds
    ``ptb/ptb.*.txt``; None is the directory that ``SALIENCE_DATA`` names.
    """
    train, chosen = checked("ptb", data_dir, ["ptb.train.txt", f"ptb.{part}.txt"])
    sentences = read_sentences(train)
    vocabulary = (PADDING, *sorted({word for words in sentences for word in words}))
    return Words(sentences if part == "train" else read_sentences(chosen), vocabulary)


def read_sentences(path: Path) -> list[list[str]]:
    """One sentence a line, words separated by spaces; each gets an end-of-sentence word."""
    try:
        with path.open(encoding="utf-8") as lines:
            sentences = [[*line.split(), END] for line in lines]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text: {error}") from error
    if not sentences:
        raise DataError(f"{path} has no sentence in it")
    return sentences


def _numbers(sentences: list[list[str]], vocabulary: tuple[str, ...]) -> Tensor:
    number = {word: i for i, word in enumerate(vocabulary)}
    try:
        return torch.tensor([number[word] for words in sentences for word in words])
    except KeyError as error:
        raise DataError(f"the word {error} is not in the vocabulary") from error
