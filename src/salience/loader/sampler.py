"""Draws and what is learned from them, for people with their own plumbing."""

import math
import time
from typing import Any, Literal, NamedTuple, final, get_args

import numpy as np
import torch
from torch import Tensor, nn

from salience import functional
from salience.batches.labels import Labels, as_labels
from salience.distribution import (
    Drawn,
    Fading,
    Pool,
    RunningMean,
    ShuffledPasses,
    Smoothing,
    Source,
    Switched,
    Turns,
    Uniform,
    WholeDataset,
    draw_from_pool,
    make_smoothing,
)
from salience.errors import ArgumentError, LossError, StateError, UsageError
from salience.functional import Scheme
from salience.loader.metrics import Seen, Window
from salience.loader.switch import Switch
from salience.scores import Score, make_score
from salience.scores import Uniform as UniformScore
from salience.weights import bad_losses, per_example, refuse_bad

__all__ = ["BadLoss", "Draw", "ImportanceSampler", "Record"]

BadLoss = Literal["raise", "skip"]

VERSION = 4  # of the saved state
# Added to the seed, so that draws are not the numbers that users get from the same seed: a split or
# a subset made by randperm with seed 0 would come first, or last, in the first pass with seed 0.
SALT = 5_846_008_549_259_017_313
OUTSTANDING = 4096  # draws that never come back are forgotten beyond this many


class Draw(NamedTuple):
    """Which examples to train on, and by what to multiply their losses."""

    indices: Tensor  # [batch] positions in the dataset
    weights: Tensor  # [batch] multiply the per-example losses by these


class Record(NamedTuple):
    """A draw with what must be remembered of it until its losses come back."""

    indices: Tensor  # [batch]
    weights: Tensor  # [batch] alpha_i, those of repeated draws added
    inverse: Tensor  # [batch] 1 / (M p_i): makes a mean over the batch unbiased
    scores: Tensor  # [batch] what they were drawn by
    counts: Tensor  # [batch] how often each was drawn, float32


@final
class ImportanceSampler:
    """Draws batches of indices by importance, with weights; learns from the losses.

    Example::

        sampler = ImportanceSampler(len(dataset), batch_size=128)
        indices, weights = sampler.draw()
        losses = per_example_losses(dataset[indices])
        (weights * losses).mean().backward()
        sampler.update(indices, losses)

    ``draw`` serves the scores that are known by index (``uniform``, ``history``, ``approx``);
    ``choose`` serves those that need the model and a pool of examples (there ``n`` may be None:
    a stream). The arguments are those of ``ImportanceLoader``.
    """

    def __init__(
        self,
        n: int | None,
        batch_size: int,
        *,
        score: str | Score = "auto",
        k: float = 0.5,
        smoothing: float | str | Smoothing = "adaptive",
        presample: float | None = None,
        draw: Scheme = "systematic",
        model: nn.Module | None = None,
        loss: Any = None,
        labels: Any = None,
        on_bad_loss: BadLoss = "raise",
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        _check(n, batch_size, k, draw, on_bad_loss, seed)
        self.n, self.batch_size, self.k = n, batch_size, float(k)
        classes = None if labels is None or n is None else as_labels(labels, n)
        chooses = score == "auto"
        self._smoothing = (
            Fading() if chooses and smoothing == "adaptive" else make_smoothing(smoothing)
        )
        self._switch = (
            Switch(n, batch_size) if chooses and n is not None and presample is None else None
        )
        self.score_name, self.score = make_score(
            score,
            n=n or 0,
            labels=None if classes is None else classes.labels,
            model=model,
            loss=loss,
            seed=seed,
            pools=presample is not None,
        )
        self.deferred = False
        self._scheme: Scheme = draw
        self._on_bad_loss = on_bad_loss
        self._generator = torch.Generator(device="cpu").manual_seed((seed + SALT) % 2**64)
        self.source = self._make_source(presample, drop_last, classes)
        self._ones = torch.ones(batch_size, dtype=torch.float32, device="cpu")
        self._outstanding: dict[bytes, Record] = {}
        self._mean_loss = RunningMean()
        self._window = Window()
        self._chosen = False
        self.step = 0
        self.skipped = 0
        self.seconds = 0.0

    @property
    def uniform(self) -> bool:
        """Whether this is ordinary shuffling for ever, with every weight 1."""
        return isinstance(self.score, UniformScore)

    @property
    def active(self) -> bool:
        """Whether the next draw is by importance."""
        return not self.uniform and (self._switch is None or self._switch.active)

    @property
    def skips_bad(self) -> bool:
        """Whether bad losses are left out instead of reported."""
        return self._on_bad_loss == "skip"

    def _make_source(
        self, presample: float | None, drop_last: bool, classes: Labels | None
    ) -> Source | None:
        pool = _pool_size(self.n, self.batch_size, presample, self.score)
        if self.n is None:
            return None
        if self.uniform:
            return Uniform(ShuffledPasses(self.n, self._generator), drop_last=drop_last)
        parts = (self.score, self._smoothing, self._scheme, self._generator)
        if self._switch is not None:
            uniform = Uniform(self._free_passes(self.n, classes), drop_last=drop_last)
            return Switched(uniform, Turns(self.n, *parts, lambda: self._mean_loss.value))
        if pool is None:
            return WholeDataset(self.n, *parts)
        return Pool(self.n, pool, *parts)

    def _free_passes(self, n: int, classes: Labels | None) -> ShuffledPasses:
        """What ``auto`` does at no cost: of many classes, every batch gets its share."""
        # With fewer classes than places in a batch, chance sees to that well enough.
        if classes is None or classes.number <= self.batch_size:
            return ShuffledPasses(n, self._generator)
        return ShuffledPasses(
            n, self._generator, classes=classes.labels, batch_size=self.batch_size
        )

    def draw(self) -> Draw:
        """The next batch: indices and weights, both on the host."""
        record = self.next_record()
        if len(self._outstanding) >= OUTSTANDING:
            del self._outstanding[next(iter(self._outstanding))]
        self._outstanding[record.indices.numpy().tobytes()] = record
        return Draw(record.indices, record.weights)

    def next_record(self) -> Record:
        """``draw``, for callers that keep the record themselves and give it back to ``learn``."""
        if self.source is None or not self.score.by_index:
            raise UsageError(
                f"score {self.score_name!r} needs the examples themselves: use ImportanceLoader, "
                f"or choose(indices, batch) with a pool of them"
            )
        start = time.perf_counter()
        drawn = self.source.draw(self.batch_size)
        if not self.active:
            ones = self._ones[: len(drawn.indices)]
            record = Record(drawn.indices, ones, drawn.scores, drawn.scores, ones)
        else:
            record = self._weigh(drawn)
        self.seconds += time.perf_counter() - start
        return record

    def choose(self, indices: Tensor, batch: Any) -> tuple[Tensor, Record]:
        """For scores that need the model: positions in a pool of examples, and their record.

        ``indices`` [M] are the pool's dataset positions on the host, ``batch`` is the pool on the
        model's device, where positions and record then live. Nothing waits for that device.
        """
        if len(indices) < self.batch_size and not self._chosen:
            raise ArgumentError(
                f"batch_size {self.batch_size} is larger than the pool of {len(indices)} examples: "
                f"give larger pools or a smaller batch_size"
            )
        self._chosen = True
        start = time.perf_counter()
        # The last pool of a finite stream may be short: a batch as short is drawn from it.
        batch_size = min(self.batch_size, len(indices))
        scores = self.score.score(indices, batch)
        bad = bad_losses(scores)
        if self.readable(scores) and bool(bad.any()):
            self._bad_scores(bad, scores, indices)
        # A bad score counts for nothing; if its example is drawn all the same, the loss tells.
        scores = torch.where(bad, torch.zeros_like(scores), scores)
        parts = (self._smoothing, self._scheme, self._generator)
        merge = self.readable(scores)
        positions, p, counts = draw_from_pool(scores, batch_size, *parts, merge=merge)
        chosen = indices.to(scores.device, non_blocking=True)[positions]
        record = self._weigh(Drawn(chosen, p, len(indices), scores[positions], counts))
        self.seconds += time.perf_counter() - start
        return positions, record

    def _weigh(self, drawn: Drawn) -> Record:
        if self.score.by_index:
            p = drawn.p.numpy()
            alpha = torch.from_numpy(functional.weights(p, self.k, drawn.pool).astype(np.float32))
            inverse = torch.from_numpy(functional.weights(p, 1.0, drawn.pool))
        else:
            alpha = functional.weights(drawn.p, self.k, drawn.pool).to(torch.float32)
            inverse = functional.weights(drawn.p, 1.0, drawn.pool)
        counts = drawn.counts
        if counts is None:
            return Record(drawn.indices, alpha, inverse, drawn.scores, torch.ones_like(alpha))
        # Means over the rows then equal means over the draws, with repeated ones added up.
        share = counts * len(counts) / counts.sum()
        alpha, counts = (alpha * share).to(torch.float32), counts.to(torch.float32)
        return Record(drawn.indices, alpha, inverse * share, drawn.scores, counts)

    def readable(self, tensor: Tensor) -> bool:
        """Whether its values can be looked at without waiting for an accelerator."""
        return tensor.device.type == "cpu" and not self.deferred

    def update(self, indices: Tensor, losses: Tensor) -> None:
        """Learn the losses of a training pass, one per index.

        Give back the indices of a draw as they were, so that the probabilities at the time of the
        draw are found again; other indices are taken as a uniform sample. Repeated indices count
        as one observation with the mean of their losses.
        """
        indices = _host_indices(indices, self.n)
        losses = per_example(losses.detach(), len(indices)).to("cpu", torch.float32)
        key = indices.numpy().tobytes()
        record = self._outstanding.get(key)
        if record is None:
            ones = torch.ones(len(indices), dtype=torch.float64, device="cpu")
            record = Record(indices, ones.float(), ones, ones, ones.float())
        self.learn(record, losses)
        self._outstanding.pop(key, None)

    def learn(self, record: Record, losses: Tensor) -> None:
        """Learn the losses of ``record``; everything is on the host, ``losses`` float32 [batch]."""
        start = time.perf_counter()
        values = losses.numpy()
        # One look at the extremes finds every bad loss: nan passes no comparison.
        if not (values.min() >= 0 and values.max() < math.inf):
            record, losses = self._without_bad(record, losses)
        self.step += 1
        if len(losses):
            self._learn(record, losses)
        own = time.perf_counter() - start
        self.seconds += own
        if self._switch is not None:
            self._switch.clock(own)

    def _without_bad(self, record: Record, losses: Tensor) -> tuple[Record, Tensor]:
        bad = bad_losses(losses)
        if not self.skips_bad:
            refuse_bad(bad, losses, record.indices, self.step + 1)
        self.skipped += int(bad.sum())
        return Record(*(part[~bad] for part in record)), losses[~bad]

    def _learn(self, record: Record, losses: Tensor) -> None:
        mean_loss = _mean(record.inverse, losses)
        self._mean_loss.update(mean_loss)
        self._window.append(Seen(*record, losses))
        if self.uniform:
            return
        in_losses = self.score.unit == "loss"
        self._smoothing.update(mean_loss if in_losses else _mean(record.inverse, record.scores))
        changed = self.score.update(*_distinct(record.indices, losses))
        if self.source is not None:
            self.source.refresh(changed)
        if self._switch is not None:
            self._look(record, losses, mean_loss)

    def _look(self, record: Record, losses: Tensor, mean_loss: float) -> None:
        """Let the switch decide how the next batches are drawn."""
        assert self._switch is not None
        assert isinstance(self.source, Switched)
        self._switch.learn(len(losses), mean_loss, _mean(record.inverse, losses.square()))
        if not self._switch.due:
            return
        if self._switch.changes(float(self._smoothing.constant(self._mean_loss.value))):
            self.source.switch(self._switch.active)

    def metrics(self) -> dict[str, float]:
        """Plain floats about the last steps; nan where nothing is known yet."""
        return {
            "mean_loss": self._mean_loss.value,
            **self._window.summary(),
            "active": float(self.active),
            "skipped_losses": float(self.skipped),
        }

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, enough to continue exactly."""
        return {
            "version": VERSION,
            "dataset size": self.n,
            "score": self.score_name,
            **self._kinds(),
            "step": self.step,
            "skipped": self.skipped,
            "rng": self._generator.get_state(),
            "mean_loss": self._mean_loss.state_dict(),
            "smoothing": self._smoothing.state_dict(),
            "score_state": self.score.state_dict(),
            "source": {} if self.source is None else self.source.state_dict(),
            "switch": {} if self._switch is None else self._switch.state_dict(),
            "outstanding": [tuple(record) for record in self._outstanding.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken; refuses the state of something else."""
        self._check_state(state)
        self.step, self.skipped = state["step"], state["skipped"]
        self._generator.set_state(state["rng"].cpu())
        self._mean_loss.load_state_dict(state["mean_loss"])
        self._smoothing.load_state_dict(state["smoothing"])
        self.score.load_state_dict(state["score_state"])
        if self.source is not None:
            self.source.load_state_dict(state["source"])
        if self._switch is not None:
            self._switch.load_state_dict(state["switch"])
        records = [Record(*parts) for parts in state["outstanding"]]
        self._outstanding = {record.indices.numpy().tobytes(): record for record in records}
        self._window = Window()

    def _check_state(self, state: dict[str, Any]) -> None:
        if state.get("version") != VERSION:
            raise StateError(
                f"state has version {state.get('version')!r}, this release reads {VERSION}: "
                f"pass what state_dict() of an ImportanceLoader or ImportanceSampler returned"
            )
        mine = {"dataset size": self.n, "score": self.score_name, **self._kinds()}
        for what, value in mine.items():
            if state[what] != value:
                raise StateError(
                    f"state was saved with {what} {state[what]!r}, this one has {value!r}: "
                    f"load it into a loader made with the same arguments"
                )

    def _kinds(self) -> dict[str, str]:
        """What decides which parts a state has."""
        return {
            "kind of draw": type(self.source).__name__,
            "kind of smoothing": type(self._smoothing).__name__,
        }

    def _bad_scores(self, bad: Tensor, scores: Tensor, indices: Tensor) -> None:
        if self.skips_bad:
            return
        i = int(bad.nonzero()[0])
        raise LossError(
            f"scores must be finite and >= 0; score {float(scores[i]):g} of example "
            f"{int(indices[i])} (pool of {len(indices)}) at step {self.step + 1}: the model gave a "
            f"bad loss; lower the learning rate, or pass on_bad_loss='skip'"
        )


def _mean(inverse: Tensor, values: Tensor) -> float:
    """(1/B) sum_i values_i / (M p_i), unbiased for the mean over the dataset."""
    return float(inverse.numpy() @ values.numpy()) / len(values)


def _distinct(indices: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
    """One loss per distinct index, the mean of the repeated ones."""
    at = indices.numpy()
    order = at.argsort(kind="stable")
    ordered = at[order]
    starts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    if len(starts) == len(at) - 1:
        return indices, losses
    starts = np.append(0, starts)
    means = np.add.reduceat(losses.numpy()[order], starts) / np.diff(starts, append=len(at))
    return torch.from_numpy(ordered[starts]), torch.from_numpy(means.astype(np.float32))


def _host_indices(indices: Any, n: int | None) -> Tensor:
    """int64 [batch] on the host, within the dataset."""
    given: Tensor = torch.as_tensor(indices, device="cpu")
    if given.ndim != 1 or given.is_floating_point() or given.dtype == torch.bool:
        raise ArgumentError(
            f"indices must be whole numbers of shape [batch]; "
            f"got {given.dtype} of shape {list(given.shape)}"
        )
    outside = (given < 0) | (given >= n) if n is not None else given < 0
    if bool(outside.any()):
        value = int(given[outside][0])
        raise ArgumentError(f"index {value} is out of range for a dataset of {n} examples")
    return given.to(torch.int64)


def _pool_size(n: int | None, batch: int, presample: float | None, score: Score) -> int | None:
    """Candidates per draw; None for the whole dataset."""
    if presample is not None and not (
        isinstance(presample, int | float) and math.isfinite(presample) and presample > 0
    ):
        raise ArgumentError(f"presample must be a number >= 1 or None; got {presample!r}")
    if presample is None and not score.by_index:
        presample = 2
    size = None if presample is None else round(presample * batch)
    pool = min(size or n, n) if n is not None else size
    if not isinstance(score, UniformScore) and pool is not None and batch > pool:
        where = (
            f"dataset of {n} examples" if pool == n else f"pool of {pool} (presample {presample})"
        )
        raise ArgumentError(
            f"batch_size {batch} is larger than the {where}: make the batch smaller"
            + ("" if pool == n else " or presample at least 1")
        )
    return None if size is None else pool


def _check(
    n: int | None, batch_size: int, k: float, draw: str, on_bad_loss: str, seed: int
) -> None:
    if n is not None and n < 1:
        raise ArgumentError(f"the dataset is empty ({n} examples): there is nothing to draw")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ArgumentError(f"batch_size must be a whole number >= 1; got {batch_size!r}")
    if not (isinstance(k, int | float) and math.isfinite(k) and k <= 1):
        raise ArgumentError(f"k must be a finite number <= 1 (1 is unbiased); got {k!r}")
    if draw not in get_args(Scheme):
        raise ArgumentError(f"draw must be one of {', '.join(get_args(Scheme))}; got {draw!r}")
    if on_bad_loss not in get_args(BadLoss):
        raise ArgumentError(
            f"on_bad_loss must be one of {', '.join(get_args(BadLoss))}; got {on_bad_loss!r}"
        )
    if not isinstance(seed, int):
        raise ArgumentError(f"seed must be a whole number; got {seed!r}")
