"""Visits at even intervals: the higher the score of an example, the shorter they are."""

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from salience import functional, saved
from salience.draw import Draw
from salience.functional import Scheme
from salience.scores import Score
from salience.sources.passes import Passes
from salience.sources.queue import Queue
from salience.sources.rules import Rule
from salience.sources.scoring import known_scores, mean_of_known

__all__ = ["EvenIntervals"]

SLICE = 32768  # examples whose visits are planned at a time
SWEEPS = 4  # of the dataset per N visits, at most
CREDIT = 4.0  # visits: more than anybody can have left, with any jitter


@final
class EvenIntervals:
    """Every example comes at even intervals, as often as its score and ``rule`` say.

    The dataset is swept in random order, a slice at a time. The most likely examples of a slice are
    visited once per sweep, or more often if M examples would get less than M / 4 visits. Example i
    earns p_i of the visits as credit; the whole part becomes visits, at random places among those
    of the slice, and the fraction stays for the next sweep, with some jitter. So chance hardly
    brings an example twice in a row and leaves none out, and with equal scores these are shuffled
    passes.

    On average no example has more than one place in a batch: p_i <= 1 / batch size. Examples whose
    score is not known yet (nan) get the mean of the others.
    """

    active = True

    def __init__(
        self,
        n: int,
        score: Score,
        rule: Rule,
        scheme: Scheme,
        generator: torch.Generator,
    ) -> None:
        self._n, self._score = n, score
        self.rule = rule  # of the slices that are planned from now on
        self._scheme: Scheme = scheme
        self._generator = generator
        self._passes = Passes(n, generator)
        # Written once, so that the memory is there before it is first needed.
        self._credit = np.full(n, 0.0, dtype=np.float32)
        self._fresh = n  # examples that no sweep has reached: their credit is still to be drawn
        self._queue = Queue()

    def extend(self, n: int, classes: Tensor | None = None) -> None:  # noqa: ARG002
        """Grow to ``n`` examples; the sweep under way ends without the new ones."""
        new = np.zeros(n - self._n, dtype=np.float32)
        if self._fresh == self._n:
            self._fresh = n
        else:
            torch.rand(len(new), generator=self._generator, out=torch.from_numpy(new))
        self._credit = np.concatenate([self._credit, new])
        self._passes.extend(n)
        self._queue.rescale(self._n / n)
        self._n = n

    def ready(self, n: int, number: int) -> bool:  # noqa: ARG002
        return len(self._queue) >= n

    def draw(self, n: int, number: int) -> Draw:
        while len(self._queue) < n:
            self._plan(n)
        return self._queue.take(n, number, self._n)

    def _plan(self, batch: int) -> None:
        """Queue the visits of the next slice."""
        examples = self._next_slice()
        scores, unknown = known_scores(self._score, examples)
        if unknown.any():
            scores.masked_fill_(unknown, mean_of_known(scores, unknown))
        p, weights = self.rule(scores, most=1 / batch)
        at = self._visits(examples, p, self._number_of_visits(p, batch))
        parts = (examples, weights, p, scores)
        indices, weights, chances, drawn_by = (part.index_select(0, at) for part in parts)
        # As one draw in N: slices that differ in size can stand in one batch.
        self._queue.put(indices, weights, chances * (len(p) / self._n), drawn_by)

    def _number_of_visits(self, p: Tensor, batch: int) -> float:
        """One for the most likely example, within bounds: enough for a batch from each sweep."""
        least = max(1 / SWEEPS, batch / self._n)
        return len(p) * min(max(1 / float(len(p) * p.max()), least), 1.0)

    def _next_slice(self) -> Tensor:
        passes = self._passes
        size = passes.size if passes.under_way else self._n
        slices = -(-size // SLICE)
        if slices == 1:  # everybody, in any order
            return torch.arange(self._n, device="cpu")
        return passes.take(-(-size // slices), whole=False)  # of equal size

    def _visits(self, examples: Tensor, p: Tensor, n: float) -> Tensor:
        """Positions in the slice, about ``n`` of them, in random order."""
        if self._scheme == "multinomial":
            count = max(round(n), 1)
            return functional.draw(p, count, generator=self._generator, scheme=self._scheme)
        counts, credit = functional.even_visits(self._credit_of(examples), p, n)
        credit += self._jitter(counts, n * p)
        # Numbers that need no conversion are written in half of the time.
        self._credit[examples.numpy()] = credit.numpy().astype(np.float32)
        at = _repeated(counts.numpy())
        order = torch.randperm(len(at), generator=self._generator, device="cpu")
        return torch.from_numpy(at).index_select(0, order)

    def _jitter(self, counts: Tensor, earned: Tensor) -> Tensor:
        """Credit to add or take after a visit: none on average, and none for one in each sweep.

        Examples whose scores fell together would otherwise come together again and again.
        """
        noise = torch.rand(len(counts), generator=self._generator, device="cpu") - 0.5
        return torch.where(counts > 0, noise * (1 - earned).clamp(min=0), 0.0)

    def _credit_of(self, examples: Tensor) -> Tensor:
        """What they have left from the last sweep; at random before the first."""
        if self._fresh <= 0:
            return torch.from_numpy(self._credit).index_select(0, examples)
        self._fresh -= len(examples)
        return torch.rand(len(examples), generator=self._generator, device="cpu")

    def update(self, indices: Tensor) -> None:
        pass  # scores are asked for when their slice is planned

    def new_epoch(self) -> None:
        """Forget visits that were planned by scores of long ago."""
        self._queue.clear()

    def refresh(self) -> None:
        self._queue.clear()

    def state_dict(self) -> dict[str, Any]:
        untouched = self._fresh == self._n
        return {
            "passes": self._passes.state_dict(),
            "credit": None if untouched else torch.from_numpy(self._credit.copy()),
            "fresh": self._fresh,
            "queue": self._queue.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._passes.load_state_dict(state["passes"])
        if state["credit"] is not None:
            self._credit[:] = saved.floats(state["credit"], self._n, -CREDIT, CREDIT).numpy()
        self._fresh = saved.whole(state["fresh"], -self._n, self._n)
        self._queue.load_state_dict(state["queue"], self._n)


def _repeated(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each position as often as it counts, in order."""
    at = np.flatnonzero(counts > 0)
    often = counts[at]
    # Few come twice, or none: np.repeat over all positions takes six times as long.
    return np.repeat(at, often) if often.max(initial=0) > 1 else at
