"""The two changed lines: a loader that chooses, and a mean that weighs."""

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from salience import saved
from salience.arguments import BadLoss
from salience.batches.fetching import Fetched, Requests, Seeded
from salience.batches.labels import find_labels
from salience.batches.nested import Layout
from salience.batches.rows import Rows, collate, one_example
from salience.batches.slots import attach
from salience.draw import Draw
from salience.errors import ArgumentError, StateError, UsageError
from salience.feedback import Feedback, outside_graphs
from salience.focus import Focus, FocusName
from salience.functional import Scheme
from salience.generators import seeded
from salience.history import LossHistory
from salience.pools import choose_batch, to_model
from salience.presets import ScoreName
from salience.sampler import ImportanceSampler
from salience.scores import Score
from salience.shards import Sharding
from salience.smoothing import Smoothing

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
            known by index, and 2 for scores that need the model; with ``"loss"``, scored while that
            pays.
        draw: ``"systematic"`` (least variance) or ``"multinomial"`` (the paper's).
        model, loss: for the scores that need them; ``loss`` is a callable
            ``(model, batch) -> per-example losses`` or a criterion with ``reduction="none"``.
        labels: class per example for ``"approx"`` and ``"auto"``; found by itself where the
            dataset has ``targets``, ``labels`` or ``tensors``.
        steps_per_epoch: batches per epoch; None is what DataLoader would give.
        on_bad_loss: ``"raise"``, or ``"skip"`` (the example weighs 0 and is counted).
        slots: put one int64 per example into each batch, for consumers that fetch ahead: the key
            ``salience_slot`` of a mapping, or one more element. Pass them to ``mean``.
        shard: with several ranks, True lets each draw from its own part of the dataset, and
            ``"own"`` says that each is given a dataset of its own. False, the default: all draw
            from the whole dataset, as one process.
        memory: a folder, such as one in ``/dev/shm``, for what ``"auto"`` and ``"history"`` keep of
            each example. The ranks of one machine then share one copy. None: in each process.
        focus: what else ``mean`` multiplies the losses by: ``"ordered"`` (only the largest of a
            batch), ``"closeness"`` (those that are neither learned nor contradicted), or an object
            with the methods of ``salience.Focus``. None: nothing.
        reference: the loss of each example under a model that was not trained on it, such as
            ``salience.cross_fit`` gives. ``"auto"``, ``"history"`` and ``"loss"`` then score by the
            part of the loss above it.
        proxy: a small network that scores for the model, with ``"loss"`` or ``"upper_bound"``; it
            trains along on the chosen batches, at one step in four, with ``proxy_optimizer``
            (None: Adam with a learning rate of 1e-3).
        record: keep 64 bytes of each example for ``history()``: how often it was seen, and the
            course of its loss. No draw changes.
        dataloader_options: everything else goes to ``DataLoader`` untouched.

    With a score that needs the model, batches arrive on the model's device, where they were scored.

    Draws from a pool that repeat an example are merged on the host: it comes once, with its
    weights added, so such a batch may be shorter than ``batch_size``.
    """

    deferred: bool | None = None
    """Process losses one step late: None, on accelerators only; True, on the host as well."""

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        score: ScoreName | Score = "auto",
        k: float = 0.5,
        smoothing: float | Literal["adaptive"] | Smoothing = "adaptive",
        presample: float | None = None,
        draw: Scheme = "systematic",
        model: nn.Module | None = None,
        loss: Any = None,
        labels: Any = None,
        steps_per_epoch: int | None = None,
        on_bad_loss: BadLoss = "raise",
        slots: bool = False,
        shard: Sharding = False,
        memory: str | Path | None = None,
        focus: FocusName | Focus | None = None,
        reference: Any = None,
        proxy: nn.Module | None = None,
        proxy_optimizer: torch.optim.Optimizer | None = None,
        record: bool = False,
        seed: int = 0,
        **dataloader_options: Any,
    ) -> None:
        _refuse_options(dataloader_options)
        drop_last = bool(dataloader_options.pop("drop_last", False))
        if labels is None and (record or score in ("approx", "auto")):
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
            shard=shard,
            memory=memory,
            focus=focus,
            reference=reference,
            proxy=proxy,
            proxy_optimizer=proxy_optimizer,
            record=record,
        )
        self._given_steps = steps_per_epoch
        self._steps = _steps(sampler, steps_per_epoch, drop_last)
        self._seed, self._drop_last = int(seed), drop_last
        # DataLoader takes a seed for its workers from here, and not from the global generator.
        dataloader_options.setdefault("generator", seeded(0))
        self._dataset: Any = dataset
        if type(dataset) is TensorDataset and dataloader_options.get("collate_fn") is None:
            dataset, dataloader_options["collate_fn"] = Rows(dataset.tensors), collate
        self._requests = Requests(self._request, self._steps)
        inner = DataLoader(dataset, batch_sampler=self._requests, **dataloader_options)
        ahead = {"num_workers": inner.num_workers, "prefetch_factor": inner.prefetch_factor}
        sampler.alike.update({**ahead, "steps_per_epoch": steps_per_epoch, "slots": slots})
        self._layout = Layout(partial(one_example, dataset, inner.collate_fn))
        self._begin(Fetched(inner), sampler, proxy if model is None else model, slots)

    @classmethod
    def from_loader(
        cls,
        pools: Iterable[Any],
        batch_size: int,
        *,
        score: ScoreName | Score = "loss",
        k: float = 0.5,
        smoothing: float | Literal["adaptive"] | Smoothing = "adaptive",
        draw: Scheme = "systematic",
        model: nn.Module | None = None,
        loss: Any = None,
        on_bad_loss: BadLoss = "raise",
        slots: bool = False,
        focus: FocusName | Focus | None = None,
        proxy: nn.Module | None = None,
        proxy_optimizer: torch.optim.Optimizer | None = None,
        seed: int = 0,
    ) -> "ImportanceLoader":
        """Choose from pools that the user's own loader or stream yields, one batch from each.

        Pools hold more examples than a batch: twice as many is the paper's choice. Scores that
        need the model only; ``indices`` are then positions in the pool.
        """
        self = cls.__new__(cls)
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
            focus=focus,
            proxy=proxy,
            proxy_optimizer=proxy_optimizer,
        )
        self._given_steps = self._steps = None
        self._seed, self._drop_last = int(seed), False
        self._dataset = getattr(pools, "dataset", None)
        self._layout = Layout()
        self._begin(pools, sampler, proxy if model is None else model, slots)
        return self

    _steps: int | None  # of the epoch under way; None: as many as the user's pools

    def _begin(
        self,
        source: Iterable[Any],
        sampler: ImportanceSampler,
        model: nn.Module | None,
        slots: bool,
    ) -> None:
        self._source, self._sampler, self._slots = source, sampler, slots
        self._workers = int(getattr(source, "num_workers", 0))
        self._model = model if model is not None else getattr(sampler.score, "model", None)
        self._feedback = Feedback(sampler, sampler.batch_size, skip_bad=sampler.skips_bad)
        self.epoch = 0
        self._handed = 0  # batches handed out in this epoch
        self._asked = 0  # and asked for
        self._begun = 0  # done before this iteration, or before the state that was loaded
        self._exhausted = False
        # What was asked for: draws, or the candidates of a pool that is still to be chosen from.
        self._again: deque[Draw | Tensor] = deque()
        self._ahead: deque[Draw | Tensor] = deque()
        self._pools: dict[int, Tensor] = {}  # that batches not weighed yet were chosen from
        self._iteration: object | None = None
        self._unweighed = 0
        self._started = self._elapsed = 0.0

    # --------------------------------------------------------------------------- like a DataLoader

    def __repr__(self) -> str:
        return repr(self._sampler).replace("ImportanceSampler", "ImportanceLoader", 1)

    def __len__(self) -> int:
        if isinstance(self._source, Sized):
            if not self._sampler.begun:
                self._join()
            return len(self._source)
        raise TypeError("a stream has no length")

    @property
    def dataset(self) -> Any:
        """As it was given."""
        return self._dataset

    @property
    def batch_size(self) -> int:
        return self._sampler.batch_size

    @property
    def drop_last(self) -> bool:
        return self._drop_last

    @property
    def num_workers(self) -> int:
        return self._workers

    @property
    def collate_fn(self) -> Callable[[Any], Any] | None:
        return getattr(self._source, "collate_fn", None)

    def as_dataloader(self) -> DataLoader[Any]:
        """A real DataLoader that yields this loader's batches, for frameworks that want one."""
        return DataLoader(
            _View(self),
            batch_size=None,
            collate_fn=_unchanged,
            generator=seeded(0),
        )

    # ------------------------------------------------------------------------------------ batches

    def __iter__(self) -> Iterator[Any]:
        self._begin_epoch()
        mine = self._iteration = object()
        self._started = time.perf_counter()
        try:
            for batch in self._source:
                yield self._hand_out(batch)
                if self._iteration is not mine:
                    raise UsageError(
                        "another iteration over this loader has begun: use one at a time"
                    )
                self._count_step()
        finally:
            if self._iteration is mine:
                self._iteration = None
        self._exhausted = True
        self._feedback.flush()
        if not self._slots:  # nobody can name these batches any more
            self._feedback.forget()
        self._end_if_weighed()

    def _begin_epoch(self) -> None:
        """Begin an epoch, or go on with one that nothing was done in since it began or resumed."""
        self._join()
        if self._done > self._begun or self._exhausted:
            self._leave_epoch()
        self._again = deque([*self._unweighed_draws(), *self._pools_ahead()])
        if not (self._again or self._done):  # else losses on their way are learned when they were
            self._feedback.flush()
            self._new_epoch()
        self._handed = self._asked = self._begun = self._done
        self._exhausted = False
        self._feedback.forget()
        self._ahead = deque()

    def _new_epoch(self) -> None:
        if self._steps is None:
            return
        self._steps = self._requests.steps
        # With steps of its own, or shards of several sizes, an epoch is no pass: shuffled passes
        # then run across epochs.
        if self._given_steps is None and not self._sampler.sharded:
            self._sampler.new_epoch()

    def _join(self) -> None:
        """Process groups are often made after loaders: an epoch is one of all ranks together."""
        self._sampler.join()
        if self._sampler.counts_others:
            self._sampler.connect()
        if self._steps is not None:
            self._requests.steps = _steps(self._sampler, self._given_steps, self._drop_last)

    def _end_epoch(self) -> None:
        """What was not weighed by now never will be."""
        self._feedback.flush()
        self._sampler.forget()
        self._ahead.clear()
        self.epoch += 1
        self._handed = self._begun = 0
        self._exhausted = False

    def _leave_epoch(self) -> None:
        """Left in the middle; batches that were handed out are no part of the next epoch."""
        self._end_epoch()
        self._feedback.forget()

    def _end_early(self) -> None:
        """For consumers that know that they leave: a state saved now begins the next epoch."""
        if self._done and not self._finished:
            self._leave_epoch()

    def _end_if_weighed(self) -> None:
        """Consumers that fetch ahead see the end before they have trained on the last batches."""
        if self._exhausted and not self._feedback.waiting:
            self._end_epoch()

    @property
    def _done(self) -> int:
        """Batches of this epoch that were weighed or skipped."""
        return self._handed - len(self._feedback.waiting)

    @property
    def _shares_memory(self) -> bool:
        return self._sampler._shares_memory

    @property
    def _finished(self) -> bool:
        """Whether nothing of this epoch remains."""
        return (self._exhausted and not self._feedback.waiting) or self._done == self._steps

    @property
    def _at_last_batch(self) -> bool:
        """Whether the batch last yielded is the last of its epoch; never known with pools."""
        return self._handed == self._steps

    @property
    def _by_index(self) -> bool:
        return self._sampler.by_index

    def _request(self) -> list[int] | None:
        """The indices of the next batch or pool; None at the end of the epoch.

        DataLoader asks up to ``num_workers x prefetch_factor`` batches ahead and returns them in
        the order it asked, so the oldest request belongs to the batch that arrives next.
        """
        if self._asked == self._steps:
            return None
        request = self._again.popleft() if self._again else self._new_request()
        self._ahead.append(request)
        self._asked += 1
        indices = self._own(request)
        if not self._workers:
            return indices.tolist()
        seeded = Seeded(indices.tolist())
        seeded.seed = _mixed(self._seed, self.epoch, self._asked)
        return seeded

    def _own(self, request: Draw | Tensor) -> Tensor:
        """The positions that this rank fetches."""
        if isinstance(request, Draw):
            return self._sampler.own(request).indices
        return self._sampler.ranks.own(request)

    def _new_request(self) -> Draw | Tensor:
        return self._sampler.next_draw() if self._by_index else self._sampler.candidates()

    def _unweighed_draws(self) -> list[Draw]:
        """Draws that were made and not weighed yet, oldest first."""
        late = self._feedback.late
        return [d for number, d in self._sampler.outstanding.items() if number not in late]

    def _pools_ahead(self) -> list[Tensor]:
        """Candidates that were asked for and not chosen from yet."""
        return [r for r in (*self._ahead, *self._again) if isinstance(r, Tensor)]

    def _hand_out(self, batch: Any) -> Any:
        request = self._ahead.popleft() if self._steps is not None else None
        if isinstance(request, Draw):
            draw = self._sampler.own(request)
            if not self._by_index:  # chosen before a resume: it comes where it came before
                batch = to_model(self._model, batch)
        else:
            self._sampler.deferred = bool(self.deferred)
            mine = None if request is None else self._own(request)
            draw, batch = choose_batch(self._sampler, self._model, self._layout, mine, batch)
            if request is not None:
                self._pools[draw.number] = request
        self._feedback.hand_out(draw)
        self._pools = {n: pool for n, pool in self._pools.items() if n in self._feedback.waiting}
        self._handed += 1
        return attach(batch, self._feedback.slots(draw)) if self._slots else batch

    def _count_step(self) -> None:
        now = time.perf_counter()
        self._elapsed, self._started = self._elapsed + now - self._started, now
        self._unweighed = self._unweighed + 1 if self._feedback.waiting else 0
        if self._unweighed == UNWEIGHED and self._sampler.active and not self._slots:
            warnings.warn(
                f"{UNWEIGHED} batches in a row were not passed to mean(losses): examples are drawn "
                f"by importance, so training on losses.mean() is biased and nothing is learned "
                f"about them; call loader.mean(losses) once per batch",
                stacklevel=3,
            )

    # ------------------------------------------------------------------------------------- losses

    def mean(
        self,
        losses: Tensor,
        slots: Tensor | None = None,
        divisor: float | Tensor | None = None,
    ) -> Tensor:
        """The importance-weighted mean of the losses of the batch last yielded, recorded as well.

        ``losses``: one per example, shape [B], or [B, T, ...] to be averaged over the rest.
        ``slots``: those that came with the examples, whatever was fetched since and however the
        examples were split, shuffled or put together. ``divisor`` replaces B.

        With ``focus``, its factors multiply the losses as well: those of the examples of this call.

        Called again for the same examples (LBFGS, SAM), it weighs them again, by the same factors,
        and records nothing.
        """
        if torch.compiler.is_dynamo_compiling():
            outside: Tensor = _mean_outside_graphs(self, losses, slots, divisor)
            return outside
        feedback = self._feedback
        feedback.deferred = self.deferred
        mean = feedback.mean(losses, slots, divisor)
        self._end_if_weighed()
        return mean

    def skip(self) -> None:
        """The batch last yielded is deliberately not trained on."""
        self._sampler.outstanding.pop(self._feedback.skip().number, None)

    def validation(self, loss: float) -> None:
        """Tell the loss on examples that are not trained on; with several ranks, the same on all.

        ``auto`` turns off when it was 2 % above the lowest one twice in a row, until it is back.
        Other scores take no notice.
        """
        self._sampler.validation(loss)

    def decision(self) -> dict[str, Any]:
        """What ``auto`` decided, and by which numbers; empty for other scores.

        ``mode``; ``gain`` and ``doubt`` of the scores as they are; ``why`` it is off;
        ``turned_on``, None or the numbers when it first was on, with that of the ``draw``.
        """
        return self._sampler.decision()

    @property
    def indices(self) -> Tensor:
        """Dataset positions of the batch last yielded: a copy."""
        return self._last().indices.clone()

    @property
    def weights(self) -> Tensor:
        """Weights of the batch last yielded: a copy."""
        return self._last().step_weights().to(torch.float32, copy=True)

    @property
    def last_draw(self) -> Draw:
        """The draw of the batch last yielded: a copy."""
        return self._last().map(torch.clone)

    def _last(self) -> Draw:
        if self._feedback.last is None:
            raise UsageError("no batch has been yielded yet: iterate over the loader first")
        return self._feedback.last

    def metrics(self) -> dict[str, float]:
        """What the last steps looked like: plain floats, nan where nothing is known yet.

        ``mean_loss`` (unbiased estimate), ``variance_reduction`` (how many times fewer examples
        draws by loss need), ``effective_sample_size``, ``unique_fraction``, ``tracking`` (slope of
        loss on score), ``scoring_fraction`` (of the time, on the host), ``active`` (0 or 1),
        ``skipped_losses``.
        """
        share = self._sampler.seconds / self._elapsed if self._elapsed else 0.0
        return {**self._sampler.metrics(), "scoring_fraction": min(share, 1.0)}

    def scores(self, indices: Tensor | None = None) -> Tensor:
        """float32 scores of all examples, or of those at ``indices``; nan where none is known.

        A copy, on the host, for scores that are known by index (``auto``, ``history``, ...).
        """
        return self._sampler.scores(indices)

    def suspects(self, n: int | None = None) -> Tensor:
        """Positions of examples whose labels contradict what was learned, the clearest first.

        The first ``n`` in this order or, with None, as many as stand apart from all others: none
        where losses do not fall into two groups. For ``auto`` and ``history``, which record losses,
        and for every score with ``record=True``.
        """
        return self._sampler.suspects(n)

    def history(self) -> LossHistory:
        """What is known of the losses of each example: to look at, to save, to export.

        With ``record=True`` everything that ``salience.LossHistory`` has; else what ``auto`` and
        ``history`` keep anyway: a loss of each example, and the suspects.
        """
        return self._sampler.history()

    def recent(self) -> dict[str, Tensor]:
        """The rows of the last 64 steps: ``indices``, ``weights``, ``scores`` (at the time of the
        draw) and ``losses``, on the host, oldest first. Copies.
        """
        return self._sampler.recent()

    def extend(self, labels: Any = None) -> None:
        """The dataset has grown: draw from all of it.

        New examples are at the end of ``dataset``, and have not been seen yet. ``labels`` are
        found as at the beginning, or given for all examples. Several ranks do this after the same
        step.

        An epoch under way keeps its number of steps; ``len`` is that of the next one. ``history``
        and ``approx`` draw the new examples from the next draw on, ``uniform`` and pools from the
        next pass, ``auto`` from the next pass or sweep. Workers hold the dataset as it was when
        their epoch began: with workers, call this between epochs.
        """
        if self._steps is None:
            raise UsageError("a stream has no size that could grow")
        if self._workers and self._iteration is not None:
            raise UsageError(
                "workers hold the dataset as it was when this epoch began: call extend() between "
                "epochs, or use num_workers=0"
            )
        if labels is None and self._sampler.has_labels:
            labels = find_labels(self._dataset)
        self._sampler.extend(_size(self._dataset), labels)
        assert isinstance(self._source, Fetched)
        self._source.renew(self._dataset)
        self._requests.steps = _steps(self._sampler, self._given_steps, self._drop_last)

    # -------------------------------------------------------------------------------------- state

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: the copy goes on where this one is."""
        self._feedback.settle()
        if self._finished:
            return {**self.__dict__, "_iteration": None}
        goes_on = {"_begun": self._done, "_exhausted": False, "_iteration": None}
        return {**self.__dict__, **goes_on}

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue exactly, also in the middle of an epoch.

        Iterating after ``load_state_dict`` yields what was left of the epoch, beginning with the
        batches that were handed out and not weighed. The position in a stream (``from_loader``) is
        the stream's own to save.
        """
        late = self._feedback.state_dict()
        draws, pools = self._unweighed_draws(), self._pools_ahead()
        if self._sampler.ranks.world > 1 and not self._by_index:
            # What each rank chose from its part of a pool is not in the state of another one: it
            # is chosen again.
            pools = [*(self._pools[draw.number] for draw in draws), *pools]
            draws = []
        finished = self._finished
        own = {
            **self._sampler.own_state(draws),
            "loader": {
                "epoch": self.epoch + finished,
                "done": 0 if finished else self._done,
                "steps": self._steps,
                "pools": [pool.clone() for pool in pools],
                "late": late,
            },
        }
        return self._sampler.together(own)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken; a state that does not fit changes nothing."""
        self._sampler.check_state(state)
        self._join()
        state = self._sampler.apart(state)
        if "loader" not in state:
            raise StateError(
                "this is the state of an ImportanceSampler: load it into one, or save the loader's"
            )
        own = state["loader"]
        try:
            late, pools, epoch, done, steps = self._read(own)
        except Exception as error:
            raise StateError(f"the state is damaged ({error!r}): nothing was loaded") from error
        self._sampler.load_own_state(state)
        self._feedback.load(late)
        self._ahead, self._again = deque(pools), deque()
        self.epoch, self._exhausted = epoch, False
        self._handed = self._begun = done
        self._steps, self._iteration = steps, None

    def _read(self, own: dict[str, Any]) -> tuple[Any, list[Tensor], int, int, int | None]:
        """What a state says about the loader itself; nothing is changed yet."""
        n, steps = self._sampler.n, own["steps"]
        if (steps is None) != (self._steps is None):
            raise ValueError(f"steps {steps!r}")
        done = saved.whole(own["done"], 0, saved.LIMIT if steps is None else saved.whole(steps))
        late = self._feedback.read_state(own["late"], n)
        pools = [saved.indices(pool, n).clone() for pool in own["pools"]]
        return late, pools, saved.whole(own["epoch"]), done, steps


@outside_graphs
def _mean_outside_graphs(loader: ImportanceLoader, *args: Any) -> Tensor:
    return loader.mean(*args)


@final
class _View(IterableDataset[Any]):
    """The batches of a loader, as a dataset."""

    def __init__(self, loader: ImportanceLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        if (worker := get_worker_info()) is not None:
            raise UsageError(
                f"as_dataloader() was moved into worker {worker.id} of {worker.num_workers}, whose "
                f"copy of the loader would draw by itself: give num_workers to ImportanceLoader"
            )
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)


def _unchanged(batch: Any) -> Any:
    return batch


def _steps(sampler: ImportanceSampler, given: Any, drop_last: bool) -> int:
    """Batches per epoch."""
    if given is None:
        assert sampler.n is not None
        n, batch = sampler.examples, sampler.batch_size * sampler.ranks.world
        return n // batch if drop_last else -(-n // batch)
    if isinstance(given, bool) or not hasattr(given, "__index__") or given < 1:
        raise ArgumentError(f"steps_per_epoch must be a whole number >= 1; got {given!r}")
    return int(given)


def _mixed(*numbers: int) -> int:
    """One seed from several numbers."""
    positive = [number % 2**64 for number in numbers]
    return int(np.random.SeedSequence(positive).generate_state(1, np.uint64)[0] >> 1)


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
