"""Where the next examples come from: shuffled passes, the whole dataset, or a pool."""

from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from salience import functional
from salience.distribution.passes import ShuffledPasses
from salience.distribution.smoothing import Smoothing
from salience.distribution.tree import SumTree
from salience.errors import ArgumentError
from salience.functional import Scheme
from salience.scores import Score

__all__ = [
    "Drawn",
    "Pool",
    "Source",
    "Uniform",
    "WholeDataset",
    "ask",
    "draw_from_pool",
]

CHUNK = 65536  # examples scored at a time when the whole dataset is
AHEAD = 32  # batches that one systematic draw is dealt to
PART = 8  # of a pass: such a draw is at most one in so many


class Drawn(NamedTuple):
    """A draw and everything about it that changes later, fixed now."""

    indices: Tensor  # [n] positions in the dataset
    p: Tensor  # [n] their probabilities, float64
    pool: int  # M, the number of candidates
    scores: Tensor  # [n] what they were drawn by
    counts: Tensor | None = None  # [n] how often each was drawn; None: not merged, once per row


class Source(Protocol):
    """Draws examples known by index, and is told which scores have changed."""

    def draw(self, n: int) -> Drawn: ...

    def refresh(self, indices: Tensor) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


_Hand = tuple[Tensor, ...]  # indices, probabilities and scores of what is drawn and not dealt yet


@final
class Uniform:
    """Ordinary shuffled epochs: p_i = 1 / N and no score."""

    def __init__(self, passes: ShuffledPasses, *, drop_last: bool = False) -> None:
        self.passes = passes
        self._drop_last = drop_last
        self._ones = torch.empty(0, dtype=torch.float64, device="cpu")

    def draw(self, n: int) -> Drawn:
        indices = self.passes.take(n, whole=False)
        if self._drop_last and len(indices) < n:
            indices = self.passes.take(n, whole=False)
        if len(self._ones) < n:
            self._ones = torch.ones(n, dtype=torch.float64, device="cpu")
        ones = self._ones[: len(indices)]
        return Drawn(indices, ones / self.passes.n, self.passes.n, ones)

    def refresh(self, indices: Tensor) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return self.passes.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes.load_state_dict(state)


@final
class WholeDataset:
    """Draws from all N examples through a sum tree, in time that hardly grows with N.

    A systematic draw is made for several batches at once and dealt to them at random. For one batch
    alone its evenly spaced points would bring the same examples together again and again.

    Examples whose score is not known yet (nan) stand at the largest score seen so far, so that
    they are visited first. As one number for all of them it can move without touching the tree.
    """

    _SCORE, _UNKNOWN = 0, 1

    def __init__(
        self,
        n: int,
        score: Score,
        smoothing: Smoothing,
        scheme: Scheme,
        generator: torch.Generator,
    ) -> None:
        self._score, self._smoothing = score, smoothing
        self._scheme: Scheme = scheme
        self._generator = generator
        self._tree = SumTree(n, columns=2)
        self._optimism = 0.0
        self._unknown = float(n)
        self._hand: _Hand = ()
        self._fill(ask(score, n).numpy())

    def draw(self, n: int) -> Drawn:
        if not self._hand or len(self._hand[0]) < n:
            self._hand = self._draw(n * self._batches(n))
        indices, p, scores = (part[:n] for part in self._hand)
        self._hand = tuple(part[n:] for part in self._hand)
        return Drawn(indices, p, self._tree.n, scores)

    def _batches(self, n: int) -> int:
        """How many batches of ``n`` to draw for at once; multinomial draws are independent."""
        return min(max(self._tree.n // (PART * n), 1), AHEAD) if self._scheme == "systematic" else 1

    def _draw(self, n: int) -> _Hand:
        tree = self._tree
        # With nothing known, any positive number makes all equal.
        rates = (1.0, (self._optimism or 1.0) if self._unknown else 0.0)
        total = tree.total(rates)
        floor = float(self._smoothing.constant(total / tree.n))
        if total + floor <= 0:  # every score and the smoothing are zero: all alike
            rates, total, floor = (0.0, 0.0), 0.0, 1.0
        total += floor * tree.n
        points = functional.points(n, generator=self._generator, scheme=self._scheme)
        found = tree.find(points.numpy() * total, rates, floor)
        mass = tree.mass(found, rates, floor)
        parts = (found, mass / total, mass - floor)
        return tuple(torch.from_numpy(part) for part in parts)

    def refresh(self, indices: Tensor) -> None:
        if not len(indices):
            return
        at = indices.numpy()
        scores = self._score.score(indices, None).numpy().astype(np.float64)
        highest = float(scores.max())
        if self._unknown or not (scores.min() >= 0 and highest < np.inf):
            unknown = _unknown(scores, at)
            self._tree.put(self._UNKNOWN, at, unknown.astype(np.float64))
            self._unknown = self._tree.total((0.0, 1.0))
            scores[unknown] = 0.0
            highest = float(scores.max())
        self._tree.put(self._SCORE, at, scores)
        self._optimism = max(self._optimism, highest)

    def _fill(self, scores: Any) -> None:
        unknown = _unknown(scores, None)
        known = np.where(unknown, 0.0, scores)
        self._tree.fill(self._SCORE, known)
        self._tree.fill(self._UNKNOWN, unknown.astype(np.float64))
        self._unknown = float(unknown.sum())
        self._optimism = max(self._optimism, float(known.max()))

    def state_dict(self) -> dict[str, Any]:
        scores = self._tree.column(self._SCORE).copy()
        scores[self._tree.column(self._UNKNOWN) > 0] = np.nan
        hand = [part.clone() for part in self._hand]
        return {"scores": torch.from_numpy(scores), "optimism": self._optimism, "hand": hand}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimism = state["optimism"]
        self._fill(state["scores"].numpy())
        self._hand = tuple(part.clone() for part in state["hand"])


@final
class Pool:
    """The paper's Algorithm 1: a uniform pool of ``size`` candidates, then a draw within it."""

    def __init__(
        self,
        n: int,
        size: int,
        score: Score,
        smoothing: Smoothing,
        scheme: Scheme,
        generator: torch.Generator,
    ) -> None:
        self.size = size
        self.passes = ShuffledPasses(n, generator)
        self._score, self._smoothing = score, smoothing
        self._scheme: Scheme = scheme
        self._generator = generator
        self._optimism = 0.0

    def draw(self, n: int) -> Drawn:
        candidates = self.passes.take(self.size)
        scores = self._score.score(candidates, None)
        unknown = torch.from_numpy(_unknown(scores.numpy(), candidates.numpy()))
        self._optimism = max(self._optimism, float(scores.masked_fill(unknown, 0.0).max()))
        scores = scores.masked_fill(unknown, self._optimism)
        parts = (self._smoothing, self._scheme, self._generator)
        positions, p, counts = draw_from_pool(scores, n, *parts, merge=True)
        return Drawn(candidates[positions], p, self.size, scores[positions], counts)

    def refresh(self, indices: Tensor) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {**self.passes.state_dict(), "optimism": self._optimism}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes.load_state_dict(state)
        self._optimism = state["optimism"]


def ask(score: Score, n: int) -> Tensor:
    """The scores of all ``n`` examples, on the host."""
    parts = torch.split(torch.arange(n, device="cpu"), CHUNK)
    return torch.cat([score.score(part, None) for part in parts])


def _unknown(scores: Any, indices: Any) -> Any:
    """True where a score is nan, after refusing what no score can be."""
    unknown = np.isnan(scores)
    bad = ~(unknown | ((scores >= 0) & (scores < np.inf)))
    if bad.any():
        i = int(bad.argmax())
        raise ArgumentError(
            f"scores must be finite and >= 0 (nan: not known yet); the score of example "
            f"{i if indices is None else indices[i]} is {scores[i]:g}: look at the score given"
        )
    return unknown


def draw_from_pool(
    scores: Tensor,
    n: int,
    smoothing: Smoothing,
    scheme: Scheme,
    generator: torch.Generator,
    *,
    merge: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``n`` draws from the pool that ``scores`` belong to: positions, probabilities, counts.

    With ``merge`` each position comes once, with the number of its draws; how many there are has
    to be known on the host, so an accelerator would be waited for.
    """
    q = functional.smooth(scores, smoothing.constant(scores.mean()))
    p = functional.probabilities(q)
    positions = functional.draw(p, n, generator=generator, scheme=scheme)
    if not merge:
        return positions, p[positions], None
    positions, counts = functional.merge_duplicates(positions, p.new_ones(n))
    return positions, p[positions], counts
