"""The draws of ``auto``: shuffled passes, or turns that come round as often as the scores say."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from salience import functional
from salience.distribution.draws import Drawn, Uniform, ask
from salience.distribution.smoothing import Smoothing
from salience.functional import Scheme
from salience.scores import Score

__all__ = ["Switched", "Turns"]

PARTS = 8  # of a pass: scores are asked for at the beginning of each


@final
class Turns:
    """Every example comes at even intervals, the shorter the higher its score.

    A part of a pass has n turns. Example i is owed n p_i of them: it gets the whole ones, at random
    places in the part, and the fraction is kept for later parts. So chance brings no example
    twice in a row and leaves none out, and with equal scores these are shuffled passes.

    Examples whose score is not known yet (nan) stand at what ``expected`` says.
    """

    def __init__(
        self,
        n: int,
        score: Score,
        smoothing: Smoothing,
        scheme: Scheme,
        generator: torch.Generator,
        expected: Callable[[], float],
    ) -> None:
        self._n = n
        self._score, self._smoothing = score, smoothing
        self._scheme: Scheme = scheme
        self._generator = generator
        self._expected = expected
        self._owed = torch.empty(0, dtype=torch.float64, device="cpu")
        self._hand = _nothing()

    def begin(self) -> None:
        """Forget earlier turns: what is drawn next does not depend on them."""
        self._owed = torch.rand(
            self._n, dtype=torch.float64, generator=self._generator, device="cpu"
        )
        self._hand = _nothing()

    def draw(self, n: int) -> Drawn:
        while len(self._hand[0]) < n:
            more = self._part(max(self._n // PARTS, n))
            self._hand = tuple(map(torch.cat, zip(self._hand, more, strict=True)))
        indices, p, scores = (part[:n] for part in self._hand)
        self._hand = tuple(part[n:] for part in self._hand)
        return Drawn(indices, p, self._n, scores)

    def _part(self, n: int) -> tuple[Tensor, ...]:
        """Indices, probabilities and scores of the next ``n`` turns, or a few more or less."""
        scores = ask(self._score, self._n).to(torch.float64)
        scores = torch.where(scores.isnan(), self._expected(), scores)
        q = functional.smooth(scores, self._smoothing.constant(scores.mean()))
        p = functional.probabilities(q)
        indices = self._visits(p, n)
        return indices, p[indices], scores[indices]

    def _visits(self, p: Tensor, n: int) -> Tensor:
        if self._scheme == "multinomial":
            return functional.draw(p, n, generator=self._generator, scheme=self._scheme)
        counts, self._owed = functional.turns(self._owed, p, n)
        indices = torch.repeat_interleave(counts)
        return indices[torch.randperm(len(indices), generator=self._generator, device="cpu")]

    def state_dict(self) -> dict[str, Any]:
        return {"owed": self._owed.clone(), "hand": [part.clone() for part in self._hand]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._owed = state["owed"].clone()
        self._hand = tuple(part.clone() for part in state["hand"])


def _nothing() -> tuple[Tensor, ...]:
    """No turns: indices, probabilities and scores."""
    kinds = (torch.int64, torch.float64, torch.float64)
    return tuple(torch.empty(0, dtype=kind, device="cpu") for kind in kinds)


@final
class Switched:
    """Shuffled passes while ``active`` is False, turns by score else."""

    def __init__(self, uniform: Uniform, turns: Turns) -> None:
        self.passes = uniform.passes
        self._uniform, self._turns = uniform, turns
        self.active = False

    def draw(self, n: int) -> Drawn:
        return self._turns.draw(n) if self.active else self._uniform.draw(n)

    def refresh(self, indices: Tensor) -> None:
        pass  # all scores are asked for at once, when the next part begins

    def switch(self, active: bool) -> None:
        """From one kind of draw to the other, which begins anew."""
        if active != self.active:
            (self._turns.begin if active else self.passes.end)()
        self.active = active

    def state_dict(self) -> dict[str, Any]:
        return {
            "active": self.active,
            "passes": self._uniform.state_dict(),
            "turns": self._turns.state_dict() if self.active else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.active = state["active"]
        self._uniform.load_state_dict(state["passes"])
        if self.active:  # else they begin anew when they are needed
            self._turns.load_state_dict(state["turns"])
