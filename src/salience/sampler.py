"""Draws and what is learned from them, for custom loops."""

import math
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from salience import saved
from salience.arguments import (
    BadLoss,
    as_reference,
    check_arguments,
    check_proxy,
    check_record,
    check_sharding,
    folder_of,
    host_indices,
    whole_number,
    whole_numbers,
)
from salience.assembly import Parts, Recipe
from salience.batches.labels import as_labels, class_values
from salience.distributed import Exchange, Ranks, average, checksum, counted, current_ranks, rows_of
from salience.draw import Draw
from salience.errors import ArgumentError, LossError, StateError, UsageError
from salience.feedback import Arrived, Arriving, Means, Seen, bad_losses, per_example
from salience.focus import Focus, FocusName
from salience.functional import Scheme
from salience.growing import grow, grown, refuse_to_grow
from salience.history import LossHistory
from salience.learning import Learning
from salience.memory import BLANK, PRIVATE, Files, Turns, share
from salience.presets import ScoreName
from salience.scores import NEED_MODEL, Proxy, Score
from salience.scores.checks import check_scores
from salience.shards import Sharding
from salience.smoothing import Fading, Smoothing
from salience.sources import AutoSource, Pool
from salience.sources.scoring import CHUNK
from salience.states import VERSION, check_state, state_of_rank
from salience.trust import Begun, judge, suspects

__all__ = ["ImportanceSampler"]

OUTSTANDING = 4096  # draws that never come back are forgotten beyond this many


@final
class ImportanceSampler:
    """Draws batches of indices by importance, with weights; learns from the losses.

    Example::

        sampler = ImportanceSampler(len(dataset), batch_size=128)
        indices, weights = draw = sampler.draw()
        losses = per_example_losses(dataset[indices])
        (weights * losses).mean().backward()
        sampler.update(draw, losses)

    ``draw`` serves the scores that are known by index (``uniform``, ``history``, ``approx``,
    ``auto``); ``choose`` serves those that need the model and a pool of examples (there ``n`` may
    be None: a stream). The arguments are those of ``ImportanceLoader``.
    """

    def __init__(
        self,
        n: int | None,
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
        on_bad_loss: BadLoss = "raise",
        seed: int = 0,
        drop_last: bool = False,
        shard: Sharding = False,
        memory: str | Path | None = None,
        focus: FocusName | Focus | None = None,
        reference: Any = None,
        proxy: nn.Module | None = None,
        proxy_optimizer: torch.optim.Optimizer | None = None,
        record: bool = False,
    ) -> None:
        n, batch_size, seed = whole_numbers(n, batch_size, seed)
        check_arguments(n, k, draw, on_bad_loss)
        self.n, self.batch_size, self.k = n, batch_size, float(k)
        self._on_bad_loss = on_bad_loss
        by_index = score not in NEED_MODEL if isinstance(score, str) else _by_index(score)
        if n is None and by_index:
            raise ArgumentError(
                f"score {score!r} needs examples with an index, which a stream does not have: "
                f"use 'loss', 'upper_bound' or 'gnorm', or give the dataset itself"
            )
        check_proxy(proxy, proxy_optimizer, model, score)
        check_sharding(shard, score, by_index, presample, focus)
        self._recipe = Recipe(
            n=n,
            batch_size=batch_size,
            k=self.k,
            score=score,
            smoothing=smoothing,
            presample=presample,
            scheme=draw,
            labels=None if labels is None or n is None else as_labels(labels, n),
            model=model,
            loss=loss,
            seed=seed,
            drop_last=drop_last,
            by_index=by_index,
            sharding=shard,
            memory=folder_of(memory, score),
            focus=focus,
            reference=as_reference(reference, n, score),
            proxy=proxy,
            proxy_optimizer=proxy_optimizer,
            record=check_record(record, n),
        )
        # Of the datasets of several ranks, classes have to be numbered alike.
        own = shard == "own" and labels is not None and score == "approx"
        self._classes = class_values(labels) if own else None
        self._learning = Learning(skips_bad=self.skips_bad)
        self._turns: Turns | None = None  # with ranks that share memory
        self._assemble(self._current_ranks())
        self.outstanding: dict[int, Draw] = {}  # drawn, of all ranks together, and not learned
        self.deferred = False
        # What else has to be the same on all ranks.
        given = {"labels": labels is not None, "memory": memory is not None}
        self.alike: dict[str, Any] = {"seed": seed, **given}
        if proxy is not None:
            values = [p.detach().cpu() for p in proxy.parameters()]
            self.alike["the initial parameters of the proxy"] = checksum(*values)
        self._exchange: Exchange | None = None
        self._connected = False
        self._arriving: deque[Arriving] = deque()  # from all ranks
        self._number = 0
        self._seconds = 0.0

    def _assemble(self, ranks: Ranks) -> None:
        """Put the parts together for all ranks; with ``memory``, without it until ``connect``."""
        self._blank = self._recipe.memory is not None
        self._use(self._recipe.assemble(ranks, BLANK if self._blank else PRIVATE))

    def _use(self, parts: Parts) -> None:
        self._parts, self.ranks = parts, parts.ranks
        self.sharded, self._shard = parts.shard is not None, parts.shard
        self.score_name, self._settings = parts.name, parts.settings
        self._generator = parts.generator
        self._score, self._smoothing, self.source = parts.preset
        self._learning.use(parts, self._turns)

    def __repr__(self) -> str:
        size = "a stream" if self.n is None else f"{self.n} examples"
        name = type(self).__name__
        return (
            f"{name}({size}, batch_size={self.batch_size}, score={self.score_name!r}, k={self.k:g})"
        )

    @property
    def score(self) -> Score:
        """The score, with everything learned that has come back.

        With memory that ranks share and another one writes: what that one has written by now.
        """
        self.catch_up()
        self._learning.settle()
        return self._score

    @property
    def by_index(self) -> bool:
        """Whether scores are known before an example is loaded."""
        return self._score.by_index

    @property
    def active(self) -> bool:
        """Whether the next draw is by importance."""
        return self.source is None or self.source.active

    @property
    def has_labels(self) -> bool:
        """Whether the classes of the examples are known."""
        return self._recipe.labels is not None

    @property
    def begun(self) -> bool:
        """Whether something was drawn, now or before the state that was loaded."""
        return self._number > 0

    @property
    def focused(self) -> bool:
        """Whether losses are multiplied by more than weights."""
        return self._parts.focus is not None

    @property
    def step(self) -> int:
        """How many draws were learned from, or wait for that."""
        return self._learning.step

    @property
    def seconds(self) -> float:
        """Spent so far on draws by importance, and on learning."""
        return self._seconds + self._learning.seconds

    @property
    def skips_bad(self) -> bool:
        """Whether bad losses are left out instead of reported."""
        return self._on_bad_loss == "skip"

    # ------------------------------------------------------------------------------------ ranks

    def _current_ranks(self) -> Ranks:
        return Ranks() if self.n is None else current_ranks()  # a stream is each rank's own

    def join(self) -> None:
        """Draw for all ranks of the process group together, if one was made since construction.

        Groups are often made after loaders, so this is settled when the first batch is drawn.
        """
        ranks = self._current_ranks()
        if ranks == self.ranks:
            return
        if self.begun:
            raise UsageError(
                f"this sampler has drawn for {counted(self.ranks.world)} and now there are "
                f"{counted(ranks.world)}: make the process group before the first batch, or load "
                f"its state into a new one"
            )
        self._assemble(ranks)
        self._connected = False

    def connect(self) -> None:
        """All ranks come here at once, at the first draw of each."""
        if self._connected:
            return
        self.join()
        if self.ranks.world > 1:
            self._exchange = Exchange(self.ranks, {**self._settings, **self.alike})
            if self._classes is not None:
                self._number_classes(self._exchange.all(self._classes.tolist()))
        if self._blank:
            self._open_memory()
        if self._exchange is not None and self._shard is not None:
            sizes = [int(size) for size in self._exchange.all(self._parts.examples)]
            self._shard.connect(sizes, self._exchange.numbers)
            self._settings["dataset size"] = self._shard.n
        self._connected = True

    def _open_memory(self) -> None:
        folder = self._recipe.memory
        assert folder is not None
        make = partial(self._recipe.assemble, self.ranks)
        if self._exchange is None or self.sharded:
            parts = make(Files(folder))
        else:
            parts, self._turns = share(folder, self.ranks.rank, self._exchange.all, make)
        self._use(parts)
        self._blank = False

    def _number_classes(self, classes: list[list[int]]) -> None:
        """As one process would, that has the examples of all ranks."""
        assert self._classes is not None
        recipe = self._recipe.with_classes(self._classes, classes)
        if recipe is not self._recipe:
            self._recipe = recipe
            self._assemble(self.ranks)

    @property
    def counts_others(self) -> bool:
        """Whether the size of the dataset is known only once the ranks are connected."""
        return self.sharded and self._recipe.sharding == "own"

    @property
    def examples(self) -> int:
        """Of all ranks together, as far as they are known."""
        return self._shard.n if self._shard is not None else self.n or 0

    def own(self, draw: Draw) -> Draw:
        """The rows of a draw that this rank trains on, with positions in its dataset."""
        if not self.sharded:
            return rows_of(draw, self.ranks)
        own = draw.map(_unchanged)
        own.indices = self._parts.positions(own.indices)
        return own

    @property
    def _shares_memory(self) -> bool:
        """Whether only one rank of each machine has the whole state."""
        return self._turns is not None

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes connections of its own."""
        if self._turns is not None:
            raise UsageError(
                "a sampler whose memory other ranks share cannot be copied: load its state_dict() "
                "into a new one"
            )
        self.collect()
        return {**self.__dict__, "_exchange": None, "_connected": False}

    # ------------------------------------------------------------------------------------ draws

    def draw(self) -> Draw:
        """The next batch: indices and weights, both on the host and the caller's to change.

        With several ranks, the rows of this one.
        """
        while len(self.outstanding) >= OUTSTANDING:
            del self.outstanding[next(iter(self.outstanding))]
        draw = self.own(self.next_draw()).map(torch.clone)
        draw.weights, draw.scale = draw.step_weights().float(), 1.0
        return draw

    def next_draw(self) -> Draw:
        """The next draw of all ranks together, for callers that do not change it."""
        if self.source is None or not self._score.by_index:
            raise UsageError(
                f"score {self.score_name!r} needs the examples themselves: use ImportanceLoader, "
                f"or choose(indices, batch) with a pool of them"
            )
        self.connect()
        self.collect()  # every rank at the same draw: errors come on all of them
        if self.source.ready(self._parts.size, self._number):
            draw = self.source.draw(self._parts.size, self._number)
        else:
            self.catch_up()
            if self._turns is not None:
                self._turns.wait()
            start = time.perf_counter()
            self._learning.write()
            draw = self.source.draw(self._parts.size, self._number)
            self._seconds += time.perf_counter() - start
        if self._turns is not None:
            self._turns.finish()
        self._number += 1
        self.outstanding[draw.number] = draw
        return draw

    def candidates(self) -> Tensor:
        """For scores that need the model: positions of the next pool, of all ranks together."""
        assert isinstance(self.source, Pool)
        self.connect()
        self.catch_up()
        return self.source.candidates()

    def choose(self, indices: Tensor, batch: Any) -> tuple[Tensor, Draw]:
        """For scores that need the model: positions in a pool of examples, and their draw.

        ``indices`` [M] are the pool's dataset positions on the host, ``batch`` is the pool on the
        model's device, where positions and draw then live. Nothing waits for that device.
        """
        if len(indices) < self.batch_size and self._number == 0 and self.n is None:
            raise ArgumentError(
                f"batch_size {self.batch_size} is larger than the pool of {len(indices)} examples: "
                f"give larger pools or a smaller batch_size"
            )
        start = time.perf_counter()
        # The last pool of a finite stream may be short: a batch as short is drawn from it.
        size = min(self.batch_size, len(indices))
        self.catch_up()
        scores = self._pool_scores(indices, batch)
        indices = indices.to(scores.device, non_blocking=True)
        merge = self.readable(scores)
        positions, draw = self._parts.choice.draw(size, self._number, scores, indices, merge=merge)
        self._keep(draw)
        self._seconds += time.perf_counter() - start
        return positions, draw

    def choose_all(self, indices: Tensor) -> Draw | None:
        """A whole pool as a draw, if it is no larger than a batch because scores do not pay."""
        if self.active or len(indices) > self.batch_size:
            return None
        draw = self._parts.choice.everything(self._number, indices)
        self._keep(draw)
        return draw

    def _keep(self, draw: Draw) -> None:
        self._number += 1
        self.outstanding[draw.number] = draw

    def train_proxy(self, draw: Draw, batch: Any) -> None:
        """Let the proxy learn from the ``batch`` that was chosen, at one call in four.

        Nothing happens without a proxy. With several ranks, its gradients are averaged over them.
        """
        proxy = getattr(self._score, "inner", self._score)
        if isinstance(proxy, Proxy):
            start = time.perf_counter()
            proxy.train(draw.weights, batch, average if self.ranks.world > 1 else None)
            self._seconds += time.perf_counter() - start

    def _pool_scores(self, indices: Tensor, batch: Any) -> Tensor:
        """A bad score counts for nothing; if its example is drawn all the same, the loss tells."""
        scores = check_scores(
            self._score.score(indices, batch), len(indices), self.score_name, values=False
        )
        bad = bad_losses(scores)
        if self.readable(scores) and not self.skips_bad and bool(bad.any()):
            i = int(bad.nonzero()[0])
            raise LossError(
                f"scores must be finite and >= 0; score {float(scores[i]):g} of example "
                f"{int(indices[i])} (pool of {len(indices)}) at step {self.step + 1}: the model "
                f"gave a bad loss; lower the learning rate, or pass on_bad_loss='skip'"
            )
        return torch.where(bad, torch.zeros_like(scores), scores)

    def readable(self, tensor: Tensor) -> bool:
        """Whether its values can be looked at without waiting for an accelerator."""
        return tensor.device.type == "cpu" and not self.deferred

    def new_epoch(self) -> None:
        """An epoch begins: shuffled passes begin anew."""
        if self.source is not None:
            self.source.new_epoch()

    # ----------------------------------------------------------------------------------- losses

    def update(self, draw: Draw | Tensor, losses: Tensor) -> None:
        """Learn the losses of a training pass: those of a draw, or of the indices of one.

        For indices the oldest draw with the same ones is looked up, so that the probabilities at
        the time of the draw are known; other indices are taken as a uniform sample. Repeated
        indices count as one observation with the mean of their losses.
        """
        if isinstance(draw, Draw):
            found = self._drawn(draw)
        else:
            indices = host_indices(draw, self.n)
            found = self._matching(indices) or self._uniform_sample(indices)
            if found.number < 0 and self.ranks.world > 1:
                raise UsageError(
                    "these indices belong to no draw of this rank: with several ranks, pass each "
                    "draw itself, update(draw, losses)"
                )
        losses = per_example(losses.detach(), len(found)).to("cpu", torch.float32)
        self.learn(found, losses)

    def factors(self, draw: Draw, losses: Tensor) -> Tensor:
        """What else to multiply the losses of ``draw`` by, [B], before ``update`` learns them.

        Those of ``focus``, where the losses are; all 1 without one.
        """
        losses = per_example(losses.detach(), len(draw))
        losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
        if not self.focused:
            return torch.ones_like(losses)
        counts = draw.weights.to(losses.device, non_blocking=True) > 0
        if self.skips_bad:
            counts = counts & ~bad_losses(losses)
        return self.factors_of(torch.where(counts, losses, torch.zeros_like(losses)), draw.indices)

    def factors_of(self, losses: Tensor, indices: Tensor) -> Tensor:
        """The same for losses that are checked, of examples at ``indices`` in the dataset."""
        self.collect()  # factors follow from the losses of all ranks before these
        return self._parts.factors(losses, indices)

    def _drawn(self, draw: Draw) -> Draw:
        if draw.number not in self.outstanding:
            raise UsageError(
                f"draw {draw.number} does not wait for losses: pass each draw of this sampler once"
            )
        return self.own(self.outstanding[draw.number])

    def _matching(self, indices: Tensor) -> Draw | None:
        for draw in self.outstanding.values():
            own = self.own(draw)
            if torch.equal(own.indices, indices):
                return own
        return None

    def _uniform_sample(self, indices: Tensor) -> Draw:
        ones = torch.ones(len(indices), dtype=torch.float64, device="cpu")
        return Draw(-1, indices, ones.float(), ones, ones, 1)

    def learn(self, draw: Draw, losses: Tensor) -> None:
        """Take the losses of this rank's rows of a draw, float32 [batch], all on the host.

        With several ranks they are sent to the others and taken when those of all have come.
        """
        if self.ranks.world > 1:
            self._arriving.append(self.learn_late(Arrived(draw, losses)))
        else:
            self.take(draw, losses)

    def learn_late(self, local: Arriving) -> Arriving:
        """The same for losses on their way; whoever calls ``take``s what comes of them."""
        if self.ranks.world > 1:
            self.connect()  # a resumed run may weigh what was drawn before it draws itself
        if self._exchange is None:
            return local
        whole, means = self.outstanding.pop(local.number), self._learning.means
        if self.sharded:
            means = self._learning.means_of_shard
            return self._exchange.means(local, means, 0, whole, skip_bad=self.skips_bad)
        if self.by_index:
            return self._exchange.rows(whole, local, self.batch_size)
        # Pools are each rank's own: only what smoothing follows is the mean over all ranks, and
        # only a focus and a record learn the losses of all.
        check = checksum(self._generator.get_state())
        wanted = self.focused or self._recipe.record
        rows = self.batch_size if wanted else 0
        return self._exchange.means(local, means, check, skip_bad=self.skips_bad, rows=rows)

    def collect(self) -> None:
        """Take what all ranks have sent."""
        while self._arriving:
            self.take(*self._arriving.popleft().result())

    def take(
        self, draw: Draw, losses: Tensor, means: Means | None = None, seen: Seen | None = None
    ) -> None:
        """Check the losses of a draw now, and learn them before anything depends on them."""
        self._learning.take(draw, losses, means, seen)
        self.outstanding.pop(draw.number, None)

    def catch_up(self) -> None:
        """Learn what has come back and is not learned yet. When this happens changes no draw."""
        self.collect()
        self._learning.learn()

    def extend(self, n: int, labels: Any = None) -> None:
        """The dataset has grown to ``n`` examples; new ones have not been seen yet.

        ``labels``: the classes of all ``n``, if classes were given. With several ranks, all of
        them do this at the same step.
        """
        n = whole_number("the dataset size", n)
        refuse_to_grow(self._recipe, self._parts, n)
        if n == self.n:
            return
        if self._blank:
            self.connect()
        recipe = grown(self._recipe, self._parts, n, labels)
        self.catch_up()
        self._use(grow(self._parts, recipe))
        self._recipe, self.n = recipe, n

    def validation(self, loss: float) -> None:
        """Tell the loss on examples that are not trained on; with several ranks, the same on all.

        ``auto`` turns off when it was 2 % above the lowest one twice in a row, until it is back.
        Other scores take no notice.
        """
        value = float(loss)
        if math.isnan(value):
            raise ArgumentError("the validation loss is nan: leave it out, or measure it again")
        if isinstance(self.source, AutoSource):
            self.source.validation(value)

    def decision(self) -> dict[str, Any]:
        """What ``auto`` decided, and by which numbers; empty for other scores.

        ``mode``; ``gain`` and ``doubt`` of the scores as they are; ``why`` it is off;
        ``turned_on``, None or the numbers when it first was on, with that of the ``draw``.
        """
        self.catch_up()
        if not isinstance(self.source, AutoSource):
            return {}
        return self.source.decision(self._number)

    def forget(self) -> None:
        """Forget the draws whose losses never came back."""
        self.outstanding.clear()

    # ------------------------------------------------------------------------- metrics and state

    def scores(self, indices: Tensor | None = None) -> Tensor:
        """float32 scores of all examples, or of those at ``indices``; nan where none is known.

        A copy, on the host. For scores that are known by index.
        """
        if self.n is None or not self.by_index:
            raise UsageError(
                f"score {self.score_name!r} needs the examples themselves, so it is not known for "
                f"the whole dataset: look at recent()['scores']"
            )
        if indices is None:
            indices = torch.arange(self.n, device="cpu")
        at = host_indices(indices, self.n)
        if self.sharded and self._recipe.sharding is True:
            return self._scores_of_shard(at)
        return self._scores(at)

    def _scores_of_shard(self, indices: Tensor) -> Tensor:
        """Of other ranks' examples nothing is known here."""
        rank, world = self.ranks
        mine = indices % world == rank
        found = torch.full((len(indices),), math.nan, dtype=torch.float32, device="cpu")
        found[mine] = self._scores(indices[mine] // world)
        return found

    def _scores(self, at: Tensor) -> Tensor:
        score, found = self.score, torch.empty(len(at), dtype=torch.float32, device="cpu")
        for part, out in zip(torch.split(at, CHUNK), torch.split(found, CHUNK), strict=True):
            out.copy_(check_scores(score.score(part, None), len(part), unknown=True))
        return found

    def suspects(self, n: int | None = None) -> Tensor:
        """Positions of examples whose labels contradict what was learned, the clearest first.

        The first ``n`` in this order or, with None, as many as stand apart from all others: none
        where losses do not fall into two groups. For ``auto`` and ``history``, which record losses,
        and for every score with ``record=True``.
        """
        count = None if n is None else whole_number("n", n, least=0)
        examples, losses, begun, classes = self._recorded()
        return examples[suspects(losses, count, begun, classes)]

    def history(self) -> LossHistory:
        """What is known of the losses of each example, or of those of this rank with shards.

        With ``record=True`` everything that ``LossHistory`` has; else what ``auto`` and ``history``
        keep anyway: a loss of each example, and the suspects.
        """
        examples, losses, begun, classes = self._recorded()
        labels, record = self._recipe.labels, self._parts.record
        return LossHistory.made(
            examples,
            losses,
            judge(losses, begun, classes),
            None if labels is None or classes is None else labels.values[classes],
            record,
            self.step,
        )

    def _recorded(self) -> tuple[Tensor, Tensor, Begun | None, Tensor | None]:
        """Examples, their recorded losses, how the training began, and their classes."""
        self.catch_up()
        record, labels = self._parts.record, self._recipe.labels
        if record is None and (self.n is None or self.score_name not in ("auto", "history")):
            remedy = (
                "a stream has no examples that could be told apart"
                if self.n is None
                else "use 'auto' or 'history', or record=True"
            )
            raise UsageError(f"score {self.score_name!r} records no losses of examples: {remedy}")
        examples = self._parts.positions(torch.arange(self._parts.examples or 0, device="cpu"))
        classes = None if labels is None else labels.labels[examples]
        if record is not None:
            return examples, record.means(), record, classes
        begun = self._smoothing if isinstance(self._smoothing, Fading) else None
        return examples, self.scores(examples), begun, classes

    def recent(self) -> dict[str, Tensor]:
        """``indices``, ``weights``, ``scores``, ``losses`` of the steps that metrics look at."""
        self.catch_up()
        return self._learning.rows()

    def metrics(self) -> dict[str, float]:
        """Plain floats about the last steps; nan where nothing is known yet."""
        self.catch_up()
        return {**self._learning.metrics(), "active": float(self.active)}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, enough to continue exactly.

        With shards it holds those of all ranks, and all of them have to call it.
        """
        return self.together(self.own_state(self.outstanding.values()))

    def own_state(self, outstanding: Iterable[Draw]) -> dict[str, Any]:
        """What this rank has to save, with the draws that are to come again."""
        self.catch_up()
        self._learning.settle()
        turns, focus, record = self._turns, self._parts.focus, self._parts.record
        return {
            "version": VERSION,
            "settings": dict(self._settings),
            **({} if turns is None or turns.writes else {"elsewhere": turns.writer}),
            "number": self._number,
            **self._learning.state_dict(),
            "rng": self._generator.get_state(),
            "smoothing": self._smoothing.state_dict(),
            "score": self._score.state_dict(),
            "source": {} if self.source is None else self.source.state_dict(),
            **({} if focus is None else {"focus": focus.state_dict()}),
            **({} if record is None else {"record": record.state_dict()}),
            "outstanding": [draw.state_dict() for draw in outstanding],
        }

    def together(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state of all ranks from that of this one: the same, unless they have shards."""
        if not self.sharded:
            return state
        if not self._connected:
            self.connect()
            state["settings"] = dict(self._settings)
        assert self._exchange is not None
        parts = self._exchange.all({**state, "examples": self._parts.examples})
        return {"version": VERSION, "settings": state["settings"], "parts": parts}

    def apart(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state of this rank from that of all, or of others: one process is one shard."""
        if not self._recipe.sharding:
            return state
        sizes = [self.examples] if self._shard is None else self._shard.sizes
        return state_of_rank(state, self.ranks, sizes, self._recipe)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken; the state of something else changes nothing."""
        self.check_state(state)
        self.load_own_state(self.apart(state))

    def load_own_state(self, state: dict[str, Any]) -> None:
        """The same for a state that was checked and is this rank's."""
        if self._turns is not None:
            self._turns.wait()
        before, window = self.own_state(self.outstanding.values()), self._learning.window
        try:
            self._load(state)
        except Exception as error:
            self._load(before)
            self._learning.window = window
            raise StateError(f"the state is damaged ({error!r}): nothing was loaded") from error
        finally:
            if self._turns is not None:
                self._turns.finish()

    def check_state(self, state: dict[str, Any]) -> None:
        """Refuse what ``state_dict`` did not return, or returned with other arguments."""
        if not self.begun:
            self.join()
        if self.sharded or self._blank:
            self.connect()
        check_state(state, self._settings, self.ranks, self.batch_size)

    def _load(self, state: dict[str, Any]) -> None:
        self._arriving = deque()
        self._number = saved.whole(state["number"])
        self._learning.load_state_dict(state)
        if state["rng"] is None:  # from other ranks
            self._generator.manual_seed(self._recipe.seed_of(self.ranks, self._number))
        else:
            self._generator.set_state(state["rng"].cpu())
        self._smoothing.load_state_dict(state["smoothing"])
        self._score.load_state_dict(state["score"])
        if self._parts.focus is not None:
            self._parts.focus.load_state_dict(state["focus"])
        if self._parts.record is not None:
            self._parts.record.load_state_dict(state["record"])
        if self.source is not None and state["source"] is None:
            self.source.refresh()
        elif self.source is not None:
            self.source.load_state_dict(state["source"])
        draws = [Draw.from_state(parts, self._parts.examples) for parts in state["outstanding"]]
        self.outstanding = {draw.number: draw for draw in draws}


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _by_index(score: Any) -> bool:
    return bool(getattr(score, "by_index", True))
