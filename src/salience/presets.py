"""What each name means: a score, its smoothing, and where examples are drawn from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from salience.batches.labels import Labels
from salience.errors import ArgumentError
from salience.functional import Scheme
from salience.memory import PRIVATE, Storage
from salience.recency import Recency
from salience.scores import NEED_MODEL, Approx, Excess, History, Loss, Proxy, Score, Uniform
from salience.scores.model import ModelScore
from salience.smoothing import Constant, Fading, Smoothing, make_smoothing
from salience.sources import (
    AutoSource,
    ByScore,
    Choice,
    EvenIntervals,
    Passes,
    Pool,
    Shard,
    Shuffled,
    Source,
    Strata,
    WholeDataset,
    Worth,
)
from salience.trust import Discounted, Trust

__all__ = ["NAMES", "Preset", "ScoreName", "Settings", "make_preset"]

ScoreName = Literal["auto", "uniform", "history", "approx", "loss", "upper_bound", "gnorm"]
NAMES: tuple[str, ...] = get_args(ScoreName)


class Preset(NamedTuple):
    """A named method: three parts put together."""

    score: Score
    smoothing: Smoothing
    source: Source | None  # None: the user's own pools


@dataclass(frozen=True)
class Settings:
    """What the user asked for, and the parts that are made of it."""

    n: int | None  # None: a stream
    batch_size: int
    k: float
    smoothing: float | str | Smoothing
    scheme: Scheme
    generator: torch.Generator
    pool: int | None = None  # candidates per draw; None: the whole dataset where possible
    pool_given: bool = False  # by the user, and not by default
    labels: Labels | None = None
    model: nn.Module | None = None
    loss: Any = None
    seed: int = 0
    drop_last: bool = False
    world: int = 1  # ranks
    shard: Shard | None = None  # the part of this rank
    storage: Storage = PRIVATE  # of what is kept of each example
    reference: Tensor | None = None  # losses that scores are taken above
    proxy: nn.Module | None = None  # that scores for the model
    proxy_optimizer: torch.optim.Optimizer | None = None

    @property
    def size(self) -> int:
        return self.n or 0

    def smooth(self) -> Smoothing:
        return make_smoothing(self.smoothing)

    def passes(self, strata: Strata | None = None) -> Passes:
        return Passes(self.size, self.generator, strata)

    def shuffled(self, strata: Strata | None = None) -> Shuffled:
        return Shuffled(self.passes(strata), drop_last=self.drop_last, shard=self.shard)

    def above(self, score: Score) -> Score:
        """Above the reference, if there is one."""
        return score if self.reference is None else Excess(score, self.reference)

    def draws(self, score: Score, smoothing: Smoothing) -> Preset:
        """By ``score`` from pools, or from the whole dataset for a score known by index."""
        if self.n is None:
            return Preset(score, smoothing, None)
        if self.pool is None:
            parts = (score, smoothing, self.k, self.scheme, self.generator)
            source = WholeDataset(self.n, *parts, self.shard, self.storage)
            return Preset(score, smoothing, source)
        choice = Choice(smoothing, self.k, self.scheme, self.generator)
        # Of losses it is known what they cost, and what they gain from the losses that come back.
        worth = Worth() if isinstance(score, Loss) and not self.pool_given else None
        passes, sizes = self.passes(), (self.pool, self.batch_size)
        return Preset(score, smoothing, Pool(*sizes, passes, score, choice, self.world, worth))


def uniform(s: Settings) -> Preset:
    """Shuffled passes."""
    return Preset(Uniform(), Constant(0), s.shuffled())


def history(s: Settings) -> Preset:
    """The last loss of each example."""
    return s.draws(s.above(History(s.size, storage=s.storage)), s.smooth())


def approx(s: Settings) -> Preset:
    """The paper's LSTM; with pools it is trained at every step, as in the paper."""
    labels, classes, _ = s.labels or (None, None, None)
    every = 8 if s.pool is None else 1
    return s.draws(Approx(s.size, labels, seed=s.seed, every=every, classes=classes), s.smooth())


def auto(s: Settings) -> Preset:
    """Shuffled passes until importance pays, then a running mean of losses at even intervals."""
    record = History(s.size, decay=0.8, storage=s.storage)
    off, sizes = s.shuffled(_strata(s)), (s.size, s.batch_size)
    if s.pool or s.smoothing != "adaptive":
        score = s.above(record)
        smoothing = Fading() if s.smoothing == "adaptive" else s.smooth()
        on = s.draws(score, smoothing).source if s.pool else _even(s, score, smoothing)
        assert on is not None
        return Preset(score, smoothing, AutoSource(*sizes, score, smoothing, off, on))
    fading, recency = Fading(), Recency(record, s.size, s.batch_size, s.storage)
    trust = Trust(fading, None if s.labels is None else s.labels.labels)
    score = s.above(recency)
    on = _even(s, Discounted(score, trust), fading)
    source = AutoSource(*sizes, score, fading, off, on, fading, trust, recency)
    return Preset(score, fading, source)


def _even(s: Settings, score: Score, smoothing: Smoothing) -> Source:
    return EvenIntervals(s.size, score, ByScore(smoothing, s.k), s.scheme, s.generator)


def _strata(s: Settings) -> Strata | None:
    """Only of many classes: with fewer than places in a batch, chance does it well enough."""
    if s.labels is None or s.labels.number <= s.batch_size:
        return None
    return Strata(s.labels.labels, s.batch_size, s.generator)


BY_INDEX: dict[str, Callable[[Settings], Preset]] = {
    "auto": auto,
    "uniform": uniform,
    "history": history,
    "approx": approx,
}


def _by_model(name: str, s: Settings) -> Score:
    if s.proxy is None:
        return NEED_MODEL[name](s.model, s.loss)
    score = NEED_MODEL[name](s.proxy, s.loss)
    assert isinstance(score, ModelScore)
    return Proxy(score, s.proxy_optimizer)


def make_preset(score: str | Score, s: Settings) -> tuple[str, Preset]:
    """What the user wrote as ``score=``: its name and its parts."""
    if isinstance(score, str):
        if score in NEED_MODEL:
            return score, s.draws(s.above(_by_model(score, s)), s.smooth())
        if score in BY_INDEX:
            return score, BY_INDEX[score](s)
    elif isinstance(score, Score):
        return type(score).__name__, s.draws(score, s.smooth())
    raise ArgumentError(
        f"score must be one of {', '.join(NAMES)} or an object with by_index, unit, score, update, "
        f"state_dict and load_state_dict; got {score!r}"
    )
