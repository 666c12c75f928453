"""From what the user asked for to the parts of a sampler, for as many ranks as there are."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from salience.arguments import pool_size
from salience.batches.labels import Labels
from salience.distributed import Ranks, checksum
from salience.errors import ArgumentError
from salience.focus import Focus, check_factors, make_focus
from salience.functional import Scheme
from salience.generators import seeded
from salience.memory import PRIVATE, Storage
from salience.presets import Preset, Settings, make_preset
from salience.record import Record
from salience.scores import Score
from salience.shards import Sharding, sizes_of
from salience.smoothing import Smoothing
from salience.sources import Choice, Shard

__all__ = ["Parts", "Recipe"]

# Added to the seed, so that draws are not the numbers that users get from the same seed: a split or
# a subset made by randperm with seed 0 would come first, or last, in the first pass with seed 0.
SALT = 5_846_008_549_259_017_313


class Parts(NamedTuple):
    """What a sampler is made of."""

    name: str
    preset: Preset
    choice: Choice
    generator: torch.Generator
    examples: int | None  # to draw from on this rank; None: a stream
    size: int  # of a draw
    shard: Shard | None
    settings: dict[str, Any]  # what a state has to agree with
    ranks: Ranks
    interleaved: bool  # whether the examples of rank r are r, r + W, ... of the dataset
    focus: Focus | None
    record: Record | None

    def positions(self, indices: Tensor) -> Tensor:
        """In the dataset, of examples that are numbered within a shard of it."""
        return indices * self.ranks.world + self.ranks.rank if self.interleaved else indices

    def places(self, positions: Tensor) -> Tensor:
        """The numbers within a shard of examples at ``positions`` in the dataset."""
        return positions // self.ranks.world if self.interleaved else positions

    def factors(self, losses: Tensor, positions: Tensor) -> Tensor:
        """Those of the focus, for examples at ``positions`` in the dataset."""
        assert self.focus is not None
        indices = None if self.examples is None else self.places(positions)
        with torch.no_grad():
            given = self.focus.factors(losses, indices)
        return check_factors(given, losses)


@dataclass(frozen=True)
class Recipe:
    """The arguments of a sampler, checked."""

    n: int | None
    batch_size: int  # of one rank
    k: float
    score: str | Score
    smoothing: float | str | Smoothing
    presample: float | None
    scheme: Scheme
    labels: Labels | None
    model: nn.Module | None
    loss: Any
    seed: int
    drop_last: bool
    by_index: bool
    sharding: Sharding
    memory: Path | None  # the folder of what is kept of each example; None: in this process
    focus: str | Focus | None
    reference: Tensor | None
    proxy: nn.Module | None
    proxy_optimizer: torch.optim.Optimizer | None
    record: bool

    def sharded(self, ranks: Ranks) -> bool:
        return bool(self.sharding) and ranks.world > 1

    def assemble(self, ranks: Ranks, storage: Storage = PRIVATE) -> Parts:
        """For the batch of all ranks together or, with shards, for that of each."""
        batch, shard = self.batch_size * ranks.world, self._shard(ranks)
        size = batch if shard is None else self.batch_size
        n = self.n if shard is None else shard.sizes[ranks.rank]
        generator = seeded(self.seed_of(ranks))
        pool = pool_size(size, self.presample, self.by_index)
        settings = Settings(
            n=n,
            batch_size=size,
            k=self.k,
            smoothing=self.smoothing,
            scheme=self.scheme,
            generator=generator,
            pool=None if self.score == "uniform" else pool,
            pool_given=self.presample is not None,
            labels=self._labels(ranks),
            model=self.model,
            loss=self.loss,
            seed=self.seed,
            drop_last=self.drop_last,
            world=ranks.world,
            shard=shard,
            storage=storage,
            reference=self._reference(ranks),
            proxy=self.proxy,
            proxy_optimizer=self.proxy_optimizer,
        )
        name, preset = make_preset(self.score, settings)
        choice = Choice(preset.smoothing, self.k, self.scheme, generator)
        focus = make_focus(self.focus, n)
        saved = self._saved(name, preset.smoothing, batch, ranks)
        saved["focus"] = None if focus is None else _described(focus)
        saved["record"] = True if self.record else None  # None: as states without have it
        record = Record(n) if self.record and n is not None else None
        # Ranks ask each other at a draw, so all draw as many, from a small shard repeatedly.
        at_once = size if n is None or shard is not None else min(size, n)
        apart = shard is not None and self.sharding is True
        return Parts(
            *(name, preset, choice, generator, n, at_once, shard, saved, ranks, apart, focus),
            record,
        )

    def with_classes(self, own: Tensor, classes: list[list[int]]) -> "Recipe":
        """Classes numbered as by one process that has the examples of all ranks.

        ``own`` are the values of the classes on this rank, ``classes`` those on each.
        """
        assert self.labels is not None
        values = torch.tensor(sorted(set().union(*classes)), device="cpu")
        if len(values) == self.labels.number:
            return self
        numbers = torch.searchsorted(values, own)
        return replace(self, labels=Labels(numbers[self.labels.labels], len(values), values))

    def seed_of(self, ranks: Ranks, *more: int) -> int:
        """Of the draws: the same on all ranks, unless each draws from its own examples."""
        seed = (self.seed + SALT) % 2**64
        if not (self.sharded(ranks) or more):
            return seed
        mixed = np.random.SeedSequence([seed, ranks.rank, *more])
        return int(mixed.generate_state(1, np.uint64)[0])

    def _shard(self, ranks: Ranks) -> Shard | None:
        if not self.sharded(ranks):
            return None
        assert self.n is not None
        if self.sharding == "own":
            return Shard(self.n, *ranks)
        if self.n < ranks.world:
            raise ArgumentError(
                f"{self.n} examples cannot be cut into shards for {ranks.world} ranks: use fewer "
                f"ranks, or leave shard out"
            )
        shard = Shard(0, *ranks)
        shard.sizes = sizes_of(self.n, ranks.world)
        return shard

    def _reference(self, ranks: Ranks) -> Tensor | None:
        """Of the examples of this rank."""
        if self.reference is None or self.sharding is not True:
            return self.reference
        return self.reference[ranks.rank :: ranks.world].clone()

    def _labels(self, ranks: Ranks) -> Labels | None:
        """Of the examples of this rank."""
        if self.labels is None or self.sharding is not True:
            return self.labels
        return self.labels._replace(labels=self.labels.labels[ranks.rank :: ranks.world])

    def _saved(self, name: str, smoothing: Smoothing, batch: int, ranks: Ranks) -> dict[str, Any]:
        unknown = self.sharding == "own" and self.sharded(ranks)  # until the ranks are connected
        return {
            "dataset size": None if unknown else self.n,
            "batch_size": batch,
            "score": name,
            "k": self.k,
            "draw": self.scheme,
            "presample": self.presample,
            "smoothing": _described(smoothing),
            "shard": self.sharding,
            "reference": self._reference_known(),
            "proxy": None if self.proxy is None else _sized(self.proxy),
        }

    def _reference_known(self) -> str | None:
        """Enough to tell another one; with datasets of their own, ranks have one each."""
        if self.reference is None:
            return None
        own = self.sharding == "own"
        return "given" if own else f"{self.n} losses, checksum {checksum(self.reference)}"


def _sized(model: nn.Module) -> str:
    return f"{type(model).__name__} of {sum(p.numel() for p in model.parameters())} parameters"


def _described(part: Smoothing | Focus) -> str:
    """With its settings where it shows them; a default repr would be an address."""
    shows = type(part).__repr__ is not object.__repr__
    return repr(part) if shows else type(part).__name__
