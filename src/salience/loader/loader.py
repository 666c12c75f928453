"""The two changed lines: a loader that chooses, and a mean that weighs."""

import time
import warnings
from collections.abc import Iterable, Iterator, Sized
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from salience.batches.labels import find_labels
from salience.batches.nested import move, pick, pool_size
from salience.batches.rows import Rows, collate
from salience.distribution import Pool, Smoothing, Switched, Uniform
from salience.errors import ArgumentError, StateError, UsageError
from salience.functional import Scheme
from salience.loader.feed import Feed, Ticket
from salience.loader.sampler import BadLoss, ImportanceSampler, Record
from salience.loader.transfer import Transfer
from salience.scores import Score
from salience.weights import per_example, weighted_mean

__all__ = ["ImportanceLoader"]

OURS = {
    "shuffle": "the score decides the order",
    "sampler": "the score decides what is drawn",
    "batch_sampler": "the score decides what is drawn",
}
UNWEIGHED = 10  # batches in a row that never reached mean() before we say so


@final
class ImportanceLoader:
    """A DataLoader that draws examples by importance.

    ::

        loader = ImportanceLoader(dataset, batch_size=128)   # was DataLoader(..., shuffle=True)
        for x, y in loader:                                  # what DataLoader would have yielded
            losses = F.cross_entropy(model(x), y, reduction="none")
            loader.mean(losses).backward()                   # was losses.mean().backward()
            optimizer.step(); optimizer.zero_grad()

    Arguments:
        score: ``"auto"``, ``"uniform"``, ``"history"``, ``"approx"``, ``"loss"``,
            ``"upper_bound"``, ``"gnorm"``, or an object with the methods of ``salience.Score``.
        k: the bias, any number <= 1. 1 is unbiased; smaller focuses on hard examples.
        smoothing: ``"adaptive"`` (half the running mean loss), a number >= 0, or an object.
        presample: pool size as a multiple of ``batch_size``; None is the whole dataset for scores
            known by index, and 2 for scores that need the model.
        draw: ``"systematic"`` (least variance) or ``"multinomial"`` (the paper's).
        model, loss: for the scores that need them; ``loss`` is a callable
            ``(model, batch) -> per-example losses`` or a criterion with ``reduction="none"``.
        labels: class per example for ``"approx"`` and ``"auto"``; found by itself where the
            dataset has ``targets``, ``labels`` or ``tensors``.
        steps_per_epoch: batches per epoch; None is what DataLoader would give.
        on_bad_loss: ``"raise"``, or ``"skip"`` (the example weighs 0 and is counted).
        dataloader_options: everything else goes to ``DataLoader`` untouched.

    With a score that needs the model, batches arrive on the model's device, where they were scored.

    Draws from a pool that repeat an example are merged on the host: it comes once, with its
    weights added, so such a batch may be shorter than ``batch_size``.

    Call ``mean`` once per batch. A second call for the same batch (LBFGS, SAM) weighs again and
    records nothing; a batch that is never passed to ``mean`` teaches nothing.
    """

    deferred: bool | None = None
    """Process losses one step late: None, on accelerators only; True, on the host as well."""

    _feed: Feed | None
    _worker_seeds: torch.Generator | None

    def __init__(
        self,
        dataset: Dataset[Any],
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
        steps_per_epoch: int | None = None,
        on_bad_loss: BadLoss = "raise",
        seed: int = 0,
        **dataloader_options: Any,
    ) -> None:
        _refuse_options(dataloader_options)
        drop_last = bool(dataloader_options.pop("drop_last", False))
        if labels is None and score in ("approx", "auto"):
            labels = find_labels(dataset)
        sampler = ImportanceSampler(
            _size(dataset),
            batch_size,
            score=score,
            k=k,
            smoothing=smoothing,
            presample=presample,
            draw=draw,
            model=model,
            loss=loss,
            labels=labels,
            on_bad_loss=on_bad_loss,
            seed=seed,
            drop_last=drop_last,
        )
        self._feed = _make_feed(sampler, steps_per_epoch, drop_last)
        # DataLoader takes a seed for its workers at the start of each epoch. From the global
        # generator, that would make a resumed run (which starts one more) go another way.
        own = torch.Generator(device="cpu").manual_seed(seed)
        self._worker_seeds = dataloader_options.setdefault("generator", own)
        if type(dataset) is TensorDataset and dataloader_options.get("collate_fn") is None:
            dataset, dataloader_options["collate_fn"] = Rows(dataset.tensors), collate
        source = DataLoader(dataset, batch_sampler=self._feed, **dataloader_options)
        self._begin(source, sampler, model)

    @classmethod
    def from_loader(
        cls,
        pools: Iterable[Any],
        batch_size: int,
        *,
        score: str | Score = "loss",
        k: float = 0.5,
        smoothing: float | str | Smoothing = "adaptive",
        draw: Scheme = "systematic",
        model: nn.Module | None = None,
        loss: Any = None,
        on_bad_loss: BadLoss = "raise",
        seed: int = 0,
    ) -> "ImportanceLoader":
        """Choose from pools that the user's own loader or stream yields, one batch from each.

        Pools hold more examples than a batch: twice as many is the paper's choice. Scores that
        need the model only; ``indices`` are then positions in the pool.
        """
        self = cls.__new__(cls)
        self._feed = self._worker_seeds = None
        sampler = ImportanceSampler(
            None,
            batch_size,
            score=score,
            k=k,
            smoothing=smoothing,
            draw=draw,
            model=model,
            loss=loss,
            on_bad_loss=on_bad_loss,
            seed=seed,
        )
        if sampler.score.by_index:
            raise ArgumentError(
                f"score {sampler.score_name!r} needs examples with an index, which a stream does "
                f"not have: use 'loss', 'upper_bound' or 'gnorm', or give the dataset itself"
            )
        self._begin(pools, sampler, model)
        return self

    def _begin(
        self, source: Iterable[Any], sampler: ImportanceSampler, model: nn.Module | None
    ) -> None:
        self._source, self._sampler = source, sampler
        self._model = model if model is not None else getattr(sampler.score, "model", None)
        self._record: Record | None = None
        self._recorded = True
        self._unweighed = 0
        self._pending: Transfer | None = None
        self._started = 0.0
        self._elapsed = 0.0

    def __len__(self) -> int:
        if isinstance(self._source, Sized):
            return len(self._source)
        raise TypeError("a stream has no length")

    def __iter__(self) -> Iterator[Any]:
        tickets = None if self._feed is None else self._feed.begin()
        self._started = time.perf_counter()
        for batch in self._source:
            yield self._hand_out(batch, None if tickets is None else tickets.popleft())
            self._count_step()
        if self._feed is not None:
            self._feed.finished()
        self._flush()

    def _hand_out(self, batch: Any, ticket: Ticket | None) -> Any:
        if self._sampler.score.by_index and ticket is not None:
            self._record = Record(*ticket)
        else:
            batch = self._choose(batch, ticket)
        if self._feed is not None:
            self._feed.handed_out()
        self._recorded = False
        return batch

    def _choose(self, batch: Any, ticket: Ticket | None) -> Any:
        """Score a pool where the model is, and pick the batch there."""
        device = _device(self._model)
        if device is not None:
            batch = move(batch, device)
        indices = torch.arange(pool_size(batch), device="cpu") if ticket is None else ticket[0]
        self._sampler.deferred = bool(self.deferred)
        positions, self._record = self._sampler.choose(indices, batch)
        return pick(batch, positions, len(indices))

    def _count_step(self) -> None:
        now = time.perf_counter()
        self._elapsed, self._started = self._elapsed + now - self._started, now
        self._unweighed = 0 if self._recorded else self._unweighed + 1
        if self._unweighed == UNWEIGHED and self._sampler.active:
            warnings.warn(
                f"{UNWEIGHED} batches in a row were not passed to mean(losses): examples are drawn "
                f"by importance, so training on losses.mean() is biased and nothing is learned "
                f"about them; call loader.mean(losses) once per batch",
                stacklevel=3,
            )

    def mean(self, losses: Tensor) -> Tensor:
        """The importance-weighted mean of the losses of the batch last yielded, recorded as well.

        ``losses``: one per example, shape [B], or [B, T, ...] to be averaged over the rest.
        """
        if self._record is None:
            raise UsageError("mean() needs a batch: iterate over the loader first")
        record, sampler = self._record, self._sampler
        losses = per_example(losses, len(record.indices))
        if not self._recorded:
            self._learn(record, losses.detach())
            self._recorded = True
        weights = None if sampler.uniform else record.weights
        return weighted_mean(losses, weights, skip_bad=sampler.skips_bad)

    def _learn(self, record: Record, losses: Tensor) -> None:
        self._sampler.deferred = bool(self.deferred)
        if self._sampler.readable(losses):
            self._sampler.learn(record, losses.to(torch.float32))
            return
        self._flush()
        self._pending = Transfer(*record, losses)

    def _flush(self) -> None:
        """Process the losses that are still on their way."""
        pending, self._pending = self._pending, None
        if pending is not None:
            *record, losses = pending.result()
            self._sampler.learn(Record(*record), losses.to(torch.float32))

    @property
    def indices(self) -> Tensor:
        """Dataset positions of the batch last yielded."""
        return self._last().indices

    @property
    def weights(self) -> Tensor:
        """Weights of the batch last yielded."""
        return self._last().weights

    def _last(self) -> Record:
        if self._record is None:
            raise UsageError("no batch has been yielded yet: iterate over the loader first")
        return self._record

    def metrics(self) -> dict[str, float]:
        """What the last steps looked like: plain floats, nan where nothing is known yet.

        ``mean_loss`` (unbiased estimate), ``variance_reduction`` (how many times fewer examples
        draws by loss need), ``effective_sample_size``, ``unique_fraction``, ``tracking`` (slope of
        loss on score), ``scoring_fraction`` (of the time, on the host), ``active`` (0 or 1),
        ``skipped_losses``.
        """
        share = self._sampler.seconds / self._elapsed if self._elapsed else 0.0
        return {**self._sampler.metrics(), "scoring_fraction": min(share, 1.0)}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly, also in the middle of an epoch.

        Iterating after ``load_state_dict`` yields what was left of the epoch. The position in a
        stream (``from_loader``) is the stream's own to save.
        """
        self._flush()
        seeds = None if self._worker_seeds is None else self._worker_seeds.get_state()
        feed = None if self._feed is None else self._feed.state_dict()
        return {**self._sampler.state_dict(), "feed": feed, "worker_seeds": seeds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken; refuses the state of another dataset."""
        if "feed" not in state:
            raise StateError("this is not the state of an ImportanceLoader: it has no 'feed'")
        self._sampler.load_state_dict(state)
        if self._feed is not None:
            self._feed.load_state_dict(state["feed"])
        if self._worker_seeds is not None:
            self._worker_seeds.set_state(state["worker_seeds"].cpu())
        self._record, self._recorded, self._pending = None, True, None


def _make_feed(sampler: ImportanceSampler, steps_per_epoch: int | None, drop_last: bool) -> Feed:
    source = sampler.source
    assert source is not None
    assert sampler.n is not None
    whole, rest = divmod(sampler.n, sampler.batch_size)
    steps = whole if drop_last or not rest else whole + 1
    if steps_per_epoch is not None:
        if not isinstance(steps_per_epoch, int) or steps_per_epoch < 1:
            raise ArgumentError(
                f"steps_per_epoch must be a whole number >= 1; got {steps_per_epoch!r}"
            )
        steps = steps_per_epoch
    if isinstance(source, Pool) and not sampler.score.by_index:
        pool = source
        return Feed(lambda: (pool.passes.take(pool.size),), lambda: None, steps)
    if isinstance(source, Uniform | Switched) and steps_per_epoch is None:
        return Feed(sampler.next_record, source.passes.end, steps)
    return Feed(sampler.next_record, lambda: None, steps)


def _refuse_options(options: dict[str, Any]) -> None:
    for name, why in OURS.items():
        if options.pop(name, None):
            raise ArgumentError(f"{name} cannot be given to ImportanceLoader: {why}; leave it out")
    if options.get("in_order") is False:
        raise ArgumentError(
            "in_order=False is not supported: weights follow the batches in order; leave it out"
        )


def _size(dataset: Any) -> int:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ArgumentError(
            f"{type(dataset).__name__} has no length to draw from: put a DataLoader of pools "
            f"around it and use ImportanceLoader.from_loader(pools, batch_size, ...)"
        )
    return len(dataset)


def _device(model: nn.Module | None) -> torch.device | None:
    parameter = None if model is None else next(model.parameters(), None)
    return None if parameter is None else parameter.device
