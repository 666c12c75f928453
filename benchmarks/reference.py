"""A slow sampler, written from the definitions in plain Python and float64, to compare with.

It draws nothing itself: which examples come is up to chance. Given those, it recomputes what does
not depend on chance: probabilities, weights, scores, what is known of each example, means, metrics,
and the order of epochs. Nothing here is imported from the library.

    q_i = s_i + c      p_i = q_i / sum_j q_j      alpha_i = (1 / (N p_i))^k
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Epochs", "Line", "MeanOverTime", "Reference", "WrongError", "closeness", "ordered"]

EXACT = 1e-12  # relative, of what is computed in float64
SINGLE = 3e-7  # of what is kept in float32
STEPS = 64  # that metrics look back on


class WrongError(AssertionError):
    """The library and the definitions do not agree."""


def same(found: Any, expected: Any, what: str, within: float = EXACT) -> None:
    """Relative to the largest of both; nan equals nan."""
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape:
        raise WrongError(f"{what}: shape {a.shape}, expected {b.shape}")
    both = np.isnan(a) & np.isnan(b)
    far = np.abs(a - b) > within * np.maximum(np.abs(a), np.abs(b)) + 1e-300
    off = ~both & (far | (np.isnan(a) != np.isnan(b)))
    if off.any():
        at = tuple(np.argwhere(off)[0]) if off.ndim else ()
        raise WrongError(f"{what}{list(at)}: {a[at]!r}, expected {b[at]!r}")


@dataclass
class MeanOverTime:
    """sum_t 0.95^(T-t) x_t over the sum of these weights."""

    decay: float = 0.95
    values: list[float] = field(default_factory=list)

    def value(self) -> float:
        if not self.values:
            return math.nan
        weights = [self.decay**age for age in range(len(self.values))][::-1]
        return math.fsum(w * x for w, x in zip(weights, self.values, strict=True)) / math.fsum(
            weights
        )


@dataclass
class Line:
    """One distribution over all examples, that several batches are drawn from."""

    p: np.ndarray
    scores: np.ndarray
    batches: int  # that are still to come of it
    points: int  # all of them
    drawn: list[int] = field(default_factory=list)


@dataclass
class Step:
    """A batch whose losses are known."""

    weights: np.ndarray
    inverse: np.ndarray  # 1 / (M p)
    scores: np.ndarray
    losses: np.ndarray
    unique: float


class Reference:
    """What ``ImportanceSampler(n, batch, score=..., k=..., smoothing=..., draw=...)`` has to do.

    ``score``: "uniform", "history", or "auto" as long as it is off. ``smoothing``: a number, or
    None for half the mean loss over time.
    """

    def __init__(
        self, n: int, batch: int, score: str, k: float, smoothing: float | None, scheme: str
    ) -> None:
        self.n, self.batch, self.score, self.k = n, batch, score, k
        self.smoothing, self.scheme = smoothing, scheme
        self.known = np.full(n, np.nan)  # the score of each example
        self.mean = MeanOverTime()
        self.highest, self.unseen = 0.0, True  # the most that was seen; is anything unseen?
        self.line: Line | None = None
        self.rest: set[int] = set()  # of the pass under way
        self.window: deque[Step] = deque(maxlen=STEPS)
        self.skipped = self.steps = self.size = 0

    # ---------------------------------------------------------------------------------- draws

    def check(self, draw: Any) -> None:
        """A draw that was just made."""
        at = draw.indices.numpy()
        if len(at) and (at.min() < 0 or at.max() >= self.n):
            raise WrongError(f"index outside of 0..{self.n - 1}: {at}")
        if self.score == "history":
            self._check_line(draw, at)
        else:
            self._check_pass(draw, at)

    def _check_pass(self, draw: Any, at: np.ndarray) -> None:
        """Every example once per pass, all weights 1; the last batch of a pass may be short."""
        if not self.rest:
            self.rest, self.size = set(range(self.n)), self.n
        if len(set(at.tolist())) != len(at) or not set(at.tolist()) <= self.rest:
            raise WrongError(f"{at} is not from the rest of the pass")
        if len(at) != min(self.batch, self.n, len(self.rest)):
            raise WrongError(f"{len(at)} examples of {len(self.rest)} that are left")
        self.rest -= set(at.tolist())
        same(draw.weights, np.ones(len(at)), "weights")
        same(draw.probabilities, np.full(len(at), 1 / self.size), "probabilities")
        same(draw.pool, self.size, "pool")

    def new_epoch(self) -> None:
        """Passes begin anew."""
        self.rest = set()

    def _check_line(self, draw: Any, at: np.ndarray) -> None:
        size = min(self.batch, self.n)
        if self.line is None or not self.line.batches:
            self.line = self._new_line(size)
        line = self.line
        line.batches -= 1
        if len(at) != size:
            raise WrongError(f"{len(at)} examples, expected {size}")
        same(draw.probabilities, line.p[at], "probabilities")
        same(draw.weights, (1 / (self.n * line.p[at])) ** self.k, "weights", SINGLE)
        same(draw.pool, self.n, "pool")
        same(draw.scores + 1, line.scores[at] + 1, "scores", 1e-9)
        line.drawn += at.tolist()
        if self.scheme == "systematic" and not line.batches:
            expected = line.points * line.p
            counts = np.bincount(line.drawn, minlength=self.n)
            if (np.abs(counts - expected) > 1 + 1e-6).any():
                raise WrongError(f"drawn {counts} times, expected {expected}")

    def _new_line(self, size: int) -> Line:
        """p of all examples, now."""
        unknown = np.isnan(self.known)
        self.unseen = bool(unknown.any())
        scores = np.where(unknown, self.highest or 1.0, self.known)
        mean = math.fsum(scores) / self.n
        c = self._constant(mean)
        q = scores + c
        if not q.sum() > 0:
            q = np.ones(self.n)
        batches = 1
        if self.scheme == "systematic":
            batches = max(min(self.n // (8 * size), 4096 // size, 32), 1)
        return Line(q / math.fsum(q), scores, batches, batches * size)

    def _constant(self, mean_score: float) -> float:
        if self.smoothing is not None:
            return self.smoothing
        mean = self.mean.value()
        return 0.5 * (mean_score if math.isnan(mean) else max(mean, 0.5 * mean_score))

    # --------------------------------------------------------------------------------- losses

    def update(self, draw: Any | None, indices: np.ndarray, losses: np.ndarray) -> None:
        """Learn the losses of a draw, or (None) of a uniform sample. Bad ones are left out."""
        good = (losses >= 0) & (losses < np.inf)
        self.skipped += int((~good).sum())
        self.steps += 1
        at, losses = indices[good], losses[good].astype(np.float64)
        if not len(at):
            return
        if draw is None:
            weights = inverse = scores = np.ones(len(at))
        else:
            weights = draw.weights.numpy().astype(np.float64)[good]
            inverse = 1 / (draw.pool * draw.probabilities.numpy()[good])
            scores = draw.scores.numpy().astype(np.float64)[good]
        self.mean.values.append(float((inverse * losses).mean()))
        unique = len(set(at.tolist())) / len(at)
        self.window.append(Step(weights, inverse, scores, losses, unique))
        for i in dict.fromkeys(at.tolist()):
            self._observe(i, float(np.float32(losses[at == i].mean())))

    def _observe(self, i: int, loss: float) -> None:
        if self.score == "auto":
            before = self.known[i]
            self.known[i] = loss if math.isnan(before) else 0.8 * before + 0.2 * loss
        elif self.score == "history":
            self.known[i] = loss
        if self.unseen:
            self.highest = max(self.highest, loss)

    def extend(self, n: int) -> None:
        """New examples, of which nothing is known; a pass under way ends without them."""
        self.known = np.concatenate([self.known, np.full(n - self.n, np.nan)])
        if n > self.n:
            self.unseen, self.line = True, None
        self.n = n

    # -------------------------------------------------------------------------------- metrics

    def check_metrics(self, found: dict[str, float]) -> None:
        steps = list(self.window)

        def mean(values: list[float]) -> float:
            return math.fsum(values) / len(values) if values else math.nan

        expected = {
            "mean_loss": self.mean.value(),
            "skipped_losses": float(self.skipped),
            "effective_sample_size": mean(
                [s.weights.sum() ** 2 / (s.weights**2).sum() for s in steps]
            ),
            "unique_fraction": mean([s.unique for s in steps]),
            "variance_reduction": self._variance_reduction(steps),
        }
        for name, value in expected.items():
            same(found[name], value, name, 1e-6)
        if steps:
            same(found["tracking"], mean([_slope(s) for s in steps]), "tracking", 1e-4)

    @staticmethod
    def _variance_reduction(steps: list[Step]) -> float:
        if not steps:
            return math.nan
        inverse = np.concatenate([s.inverse for s in steps])
        losses = np.concatenate([s.losses for s in steps])
        mean = (inverse * losses).sum() / inverse.sum()
        return float((inverse * losses**2).sum() / inverse.sum() / mean**2) if mean > 0 else 1.0

    def check_scores(self, found: Any) -> None:
        expected = np.ones(self.n) if self.score == "uniform" else self.known
        same(found, expected, "scores()", 1e-5 if self.score == "auto" else SINGLE)


def _slope(step: Step) -> float:
    """Of the least squares line of losses on scores; 0 where all scores are equal."""
    x = step.scores - step.scores.mean()
    y = step.losses - step.losses.mean()
    spread = float((x * x).sum())
    size = float((step.scores**2).sum())
    return float((x * y).sum()) / spread if spread > 1e-24 * size else 0.0


# ------------------------------------------------------------------------------------------ focus


def ordered(losses: np.ndarray, wrong: float) -> np.ndarray:
    """B / q for the q largest; ``wrong``: the share of examples with exp(-L) <= 1/2, or nan."""
    stages = ((0.995, 16), (0.95, 8), (0.9, 4), (0.8, 2))
    part = next((part for least, part in stages if 1 - wrong >= least), 1)
    q = max(len(losses) // part, 1)
    largest = sorted(range(len(losses)), key=lambda i: (-losses[i], i))[:q]
    return np.array([len(losses) / q if i in largest else 0.0 for i in range(len(losses))])


def closeness(losses: np.ndarray, before: np.ndarray) -> np.ndarray:
    """p (1 - p) + 0.01 over its mean; p = 0.8 of what it was and 0.2 of exp(-L)."""
    p = np.exp(-losses)
    p = np.where(np.isnan(before), p, 0.8 * before + 0.2 * p)
    close = p * (1 - p) + 0.01
    return np.asarray(close / close.mean())


# ----------------------------------------------------------------------------------------- epochs


class Epochs:
    """Which batch comes next, as a loader without workers hands them out.

    A batch is done once it is weighed or skipped. An iteration that begins after something was done
    begins the next epoch; one that begins with nothing done repeats what was handed out.
    """

    def __init__(self, steps: int, slots: bool) -> None:
        self.steps, self.slots = steps, slots
        self.epoch = self.handed = self.begun = 0
        self.waiting: list[int] = []  # numbers of draws that were handed out
        self.again: list[int] = []
        self.exhausted = False

    @property
    def done(self) -> int:
        return self.handed - len(self.waiting)

    def begin(self, steps: int) -> bool:
        """An iteration begins; whether passes begin anew. ``steps``: of an epoch from now on."""
        if self.done > self.begun or self.exhausted:
            self._end()
        self.handed = self.begun = self.done
        self.again, self.waiting = [*self.waiting, *self.again], []
        anew = not (self.again or self.handed)
        self.exhausted = False
        if anew:
            self.steps = steps
        return anew

    def _end(self) -> None:
        self.epoch += 1
        self.handed = self.begun = 0
        self.waiting, self.again, self.exhausted = [], [], False

    def next(self) -> int | None:
        """The number of a draw that comes again, -1 for a new one, None: the epoch is over."""
        if self.handed == self.steps:
            self.exhausted = True
            if not self.slots:
                self.waiting = []
            self._end_if_done()
            return None
        return self.again.pop(0) if self.again else -1

    def hand_out(self, number: int) -> None:
        self.waiting.append(number)
        self.handed += 1

    def weigh(self, number: int) -> None:
        self.waiting.remove(number)
        self._end_if_done()

    def skip(self) -> None:
        self.waiting.pop()

    def _end_if_done(self) -> None:
        if self.exhausted and not self.waiting:
            self._end()

    @property
    def finished(self) -> bool:
        return (self.exhausted and not self.waiting) or self.done == self.steps

    def saved(self) -> "Epochs":
        """As a state says: what was handed out and not weighed comes first again."""
        other = Epochs(self.steps, self.slots)
        other.epoch = self.epoch + self.finished
        if not self.finished:
            other.handed = other.begun = self.done
        other.again = [*self.waiting, *self.again]
        return other

    def copied(self) -> "Epochs":
        """As a copy goes on."""
        other = Epochs(self.steps, self.slots)
        other.__dict__.update(self.__dict__)
        other.waiting, other.again = list(self.waiting), list(self.again)
        if not self.finished:
            other.begun, other.exhausted = self.done, False
        return other
