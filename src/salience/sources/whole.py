"""Draws from the whole dataset through a sum tree, in time that hardly grows with its size."""

from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from salience import functional, saved
from salience.draw import Draw
from salience.functional import Scheme
from salience.memory import PRIVATE, Storage
from salience.scores import Score
from salience.smoothing import Smoothing
from salience.sources.queue import Queue
from salience.sources.scoring import CHUNK, known_scores
from salience.sources.shard import Shard
from salience.sources.tree import Floats, SumTree

__all__ = ["WholeDataset"]

AHEAD = 32  # batches that one systematic draw is split across, at most
POINTS = 4096  # of such a draw, at most, unless a single batch is larger
PART = 8  # of a pass: such a draw is at most one in so many
FOUND = 1024  # points that are looked up at a time, so that no step has to wait for all of a draw

_SCORE, _UNKNOWN = 0, 1  # columns of the tree
FINITE = float(np.finfo(np.float32).max)  # scores are no larger


class Line(NamedTuple):
    """The masses of all examples in line, and points on it whose examples are not found yet."""

    points: Floats
    rates: tuple[float, float]  # of known and unknown scores
    floor: float  # c
    length: float
    own: float  # the mass of all examples here: the length, unless they have none
    total: float  # and on all ranks
    order: NDArray[np.int64] | None  # of the tree's top nodes


@final
class WholeDataset:
    """p_i = q_i / sum_j q_j over all N examples.

    A systematic draw is made for several batches at once and split across them at random. For one
    batch alone its evenly spaced points would bring the same examples together again and again.
    Large batches, which share a draw with few others or with none, are drawn from parts of the
    dataset that are laid in line in another random order each time.

    Examples whose score is not known yet (nan) get the largest score seen so far, so that they are
    visited first. As one number for all of them it can change without touching the tree.

    With a ``shard``, q_i / Q_r over the examples of this rank: smoothing and the score of unseen
    examples are those of all ranks together, and weights those of one draw from all examples.
    """

    active = True

    def __init__(
        self,
        n: int,
        score: Score,
        smoothing: Smoothing,
        k: float,
        scheme: Scheme,
        generator: torch.Generator,
        shard: Shard | None = None,
        storage: Storage = PRIVATE,
    ) -> None:
        self._writes = storage.writable  # else another rank does, and this one reads
        self._shared = storage.shared
        self._shard = shard or Shard(n)
        self._score, self._smoothing, self._k = score, smoothing, k
        self._scheme: Scheme = scheme
        self._generator = generator
        self._tree = SumTree(n, 2, storage)
        self._numbers = storage.array(2, np.float64)
        self._queue = Queue()
        self._line: Line | None = None  # the draw under way; the tree does not change meanwhile
        self._changed: list[Tensor] = []  # examples whose score in the tree is out of date
        self._behind = 0  # how many they are
        self._others_unknown = self._shard.world > 1  # whether other ranks may have unseen examples
        if self._writes:
            self._fill(self._ask)

    @property
    def _initial(self) -> float:
        """The score of examples that were not seen yet."""
        return float(self._numbers[0])

    @_initial.setter
    def _initial(self, score: float) -> None:
        self._numbers[0] = score

    @property
    def _unknown(self) -> float:
        """How many they are, as of the tree."""
        return float(self._numbers[1])

    @_unknown.setter
    def _unknown(self, number: float) -> None:
        self._numbers[1] = number

    def extend(self, n: int, classes: Tensor | None = None) -> None:  # noqa: ARG002
        """Grow to ``n`` examples, which the score knows already; drawn from the next draw on."""
        before = self._tree.n
        self._tree.extend(n)
        self._shard.extend(n)
        self._fill(self._ask, before)
        self._forget()  # the probabilities are those among fewer examples

    def _forget(self) -> None:
        """What is drawn and not handed out."""
        self._queue.clear()
        self._line = None

    def ready(self, n: int, number: int) -> bool:  # noqa: ARG002
        return len(self._queue) >= n

    def draw(self, n: int, number: int) -> Draw:
        if len(self._queue) < n and self._line is None:
            self._queue.clear()
            self._begin(n * self._batches(n), mixed=n > POINTS // AHEAD)
        while len(self._queue) < n:
            self._find(max(FOUND // n, 1) * n)
        return self._queue.take(n, number, self._tree.n)

    def _batches(self, n: int) -> int:
        """How many batches of ``n`` to draw for at once; multinomial draws are independent."""
        if self._scheme == "multinomial":
            return 1
        # As many on every rank, for all of them ask each other at a draw.
        examples = self._shard.n // self._shard.world
        return max(min(examples // (PART * n), POINTS // n, AHEAD), 1)

    def _begin(self, n: int, *, mixed: bool) -> None:
        """One draw of ``n`` points."""
        self._apply()
        rates, floor, totals = self._masses()
        own, total = totals[self._shard.rank], sum(totals)
        length = own
        if own <= 0:  # one process would never draw any of these: they weigh 0
            rates, floor, length = (0.0, 0.0), 1.0, float(self._tree.n)
        points = functional.points(n, generator=self._generator, scheme=self._scheme)
        order = self._order() if mixed and self._scheme == "systematic" else None
        self._line = Line(points.numpy() * length, rates, floor, length, own, total, order)

    def _find(self, n: int) -> None:
        """Queue the examples of the next ``n`` points, or of those that are left."""
        assert self._line is not None
        points, rates, floor, length, own, total, order = self._line
        found = self._tree.find(points[:n], rates, floor, order)
        mass = self._tree.mass(found, rates, floor)
        shard = self._shard
        weights = functional.shard_weights(
            mass, self._k, n=shard.n, total=total, own=own, world=shard.world
        )
        parts = (found, weights.astype(np.float32), mass / length, mass - floor)
        self._queue.put(*(torch.from_numpy(part) for part in parts))
        self._line = self._line._replace(points=points[n:]) if len(points) > n else None

    def _find_all(self) -> None:
        """Before the tree changes."""
        if self._line is not None:
            self._find(len(self._line.points))

    def _masses(self) -> tuple[tuple[float, float], float, list[float]]:
        """The rates of known and unknown scores, c, and the total mass on each rank."""
        known = self._tree.total((1.0, 0.0))
        ranks = self._shard.all([known, self._unknown, self._initial])
        # With nothing known, any positive number makes all equal.
        initial = max(initial for _, _, initial in ranks) or 1.0
        anywhere = any(unknown for _, unknown, _ in ranks)
        self._others_unknown = anywhere and self._shard.world > 1
        rates = (1.0, initial if anywhere else 0.0)
        totals = [rates[0] * known + rates[1] * unknown for known, unknown, _ in ranks]
        floor = float(self._smoothing.constant(sum(totals) / self._shard.n))
        if sum(totals) + floor <= 0:  # every score and the smoothing are zero: all alike
            rates, totals, floor = (0.0, 0.0), [0.0] * len(totals), 1.0
        sizes = self._shard.sizes
        return rates, floor, [t + floor * n for t, n in zip(totals, sizes, strict=True)]

    def _order(self) -> NDArray[np.int64]:
        order: NDArray[np.int64] = torch.randperm(
            self._tree.top, generator=self._generator, device="cpu"
        ).numpy()
        return order

    def update(self, indices: Tensor) -> None:
        self._changed.append(indices)
        self._behind += len(indices)
        # Somebody learns a lot without drawing. Others may be about to find points in the tree.
        if self._behind > CHUNK and not self._shared:
            self._apply()
        if (self._unknown or self._others_unknown) and len(indices):
            scores, _ = known_scores(self._score, indices)
            self._initial = max(self._initial, float(scores.max()))

    def _apply(self) -> None:
        """Bring the tree up to date: several steps at once, when somebody is about to read it."""
        if not self._changed:
            return
        self._find_all()
        indices = torch.cat(self._changed)
        self._changed, self._behind = [], 0
        scores, unknown = known_scores(self._score, indices)
        if self._unknown:
            self._tree.put(_UNKNOWN, indices.numpy(), unknown.numpy().astype(np.float64))
            self._unknown = self._tree.total((0.0, 1.0))
        self._tree.put(_SCORE, indices.numpy(), scores.numpy())

    def _ask(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return known_scores(self._score, indices)

    def _fill(self, ask: Callable[[Tensor], tuple[Tensor, Tensor]], first: int = 0) -> None:
        """Set all scores from ``first`` on, a part at a time: there is no further copy of them."""
        for start in range(first, self._tree.n, CHUNK):
            stop = min(start + CHUNK, self._tree.n)
            scores, unknown = ask(torch.arange(start, stop, device="cpu"))
            self._tree.column(_SCORE)[start:stop] = scores.numpy()
            self._tree.column(_UNKNOWN)[start:stop] = unknown.numpy()
            self._initial = max(self._initial, float(scores.max()))
        self._tree.sum_up()
        self._unknown = self._tree.total((0.0, 1.0))

    def refresh(self) -> None:
        """Read all scores anew, after the score has learned or loaded something by itself."""
        self._initial, self._changed, self._behind = 0.0, [], 0
        self._forget()
        self._fill(self._ask)

    def new_epoch(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        # The tree is not brought up to date for this: scores of a model that learns would be read
        # sooner than in a run that is not saved.
        self._find_all()
        return {
            "scores": self._saved_scores(),
            "initial": self._initial,
            "changed": [indices.clone() for indices in self._changed],
            "queue": self._queue.state_dict(),
        }

    def _saved_scores(self) -> Tensor | None:
        if not self._writes and self._shared:
            return None
        scores = self._tree.column(_SCORE).copy()
        # Before anything is kept, nothing is known.
        scores[self._tree.column(_UNKNOWN) > 0 if self._writes else ...] = np.nan
        return torch.from_numpy(scores)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        scores, n = state["scores"], self._tree.n
        if scores is not None:
            scores = saved.floats(scores, n, 0, FINITE, unknown=True)
        if self._writes:
            changed = [saved.indices(part, n).clone() for part in state["changed"]]
            self._changed = [part for part in changed if len(part)]
            self._behind = sum(map(len, self._changed))
            self._fill(lambda part: (scores[part].nan_to_num(nan=0.0), scores[part].isnan()))
            # Of its own time: not the most that is there now.
            self._initial = saved.at_least_zero(state["initial"])
        self._line = None
        self._queue.load_state_dict(state["queue"], n)
