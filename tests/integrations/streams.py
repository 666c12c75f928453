"""A stream, which has no length, read one batch ahead as frameworks do to see its end."""

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from harness import BATCH, EPOCHS, Examples, Watched, sgd
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from salience import ImportanceLoader


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from Examples()


def make_stream(model: nn.Module, slots: bool = True) -> ImportanceLoader:
    pools = DataLoader(Stream(), batch_size=BATCH)
    return ImportanceLoader.from_loader(
        pools, 3, score="loss", model=model, loss=F.cross_entropy, slots=slots, seed=3
    )


def one_ahead(loader: ImportanceLoader) -> Iterator[tuple[Any, bool]]:
    """The next batch is fetched before one is handed on, and whether there is a next one."""
    batches = iter(loader)
    now = next(batches, None)
    while now is not None:
        following = next(batches, None)
        yield now, following is not None
        now = following


def plain_stream_loop(
    model: Watched, accumulate: int = 1, loader: ImportanceLoader | None = None
) -> None:
    """Of a stream, or of a loader that is read like one."""
    loader, optimizer = make_stream(model) if loader is None else loader, sgd(model)
    for _ in range(EPOCHS):
        for done, ((x, y, slots), more) in enumerate(one_ahead(loader), start=1):
            loss = loader.mean(F.cross_entropy(model(x), y, reduction="none"), slots)
            (loss / accumulate).backward()
            if done % accumulate == 0 or not more:
                optimizer.step()
                optimizer.zero_grad()
