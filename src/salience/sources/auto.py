"""``auto``: shuffled passes until importance pays, then visits by importance."""

import logging
import math
from typing import Any, Literal, NamedTuple, final, get_args

import torch
from torch import Tensor

from salience import functional, saved
from salience.draw import Draw
from salience.recency import Recency
from salience.scores import Score
from salience.smoothing import Fading, Smoothing
from salience.sources.protocol import Source
from salience.sources.scoring import known_scores, mean_of_known
from salience.trust import Trust

__all__ = ["AutoSource", "Found", "Mode", "Reason"]

Mode = Literal["off", "focused"]
Reason = Literal[
    "too few passes to decide",
    "the network memorises",
    "losses are too even",
    "hard examples are worse than untrained",
    "almost nothing is left to learn",
    "the validation loss has risen",
]

EVERY = 100  # draws between two looks at the scores
ON, OFF = 1.1, 1.03  # gain: turns on above, off below; apart, so that it does not flutter
DOUBT = 1.0  # hard examples that are worse than untrained: hard may mean wrong
LEFT = 0.01  # of the loss at the start: with less there is next to nothing to gain
WORSE, TIMES = 1.02, 2  # validation losses this far above the lowest, so often in a row: memorising
SAMPLE = 4096  # examples whose scores are looked at
SINGLE = 0.01  # the most that one example can add to the gain

logger = logging.getLogger("salience")


class Found(NamedTuple):
    """What the scores of a sample show; nothing before all examples have been seen."""

    gain: float = 1.0  # v, by how many times fewer examples draws by score need
    doubt: float = 0.0  # mean loss of the harder of two groups, over that at the start


@final
class AutoSource:
    """Draws from ``off`` or, while that pays, from ``on``.

    ==========  =======================  ==========================================================
    mode        examples                 when
    ==========  =======================  ==========================================================
    off         shuffled passes          at first, and whenever a reason below is missing
    focused     by score, as ``on`` is   v exceeds 1.1, until it is below 1.03; hard examples are no
                                         worse than untrained; more than 1 % of the loss at the
                                         start is left; the network does not memorise
    ==========  =======================  ==========================================================

    v = M sum q^2 / (sum q)^2 is how many times fewer examples draws by q need for the same
    variance, where q stands for gradient norms. It is computed from the scores, every few steps
    and once a pass is done: seed and losses decide, never the clock.

    A validation loss that the user tells and that has risen turns it off, until it is back: the
    network memorises, and visits by importance would only help it.

    With ``recency``, it turns on only once a network is known not to memorise what it visits.

    With ``trust``, examples whose labels contradict what was learned weigh and count a tenth, in
    both modes. Without ``fading`` (pools, or smoothing of the user's own) v alone decides.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        score: Score,
        smoothing: Smoothing,
        off: Source,
        on: Source,
        fading: Fading | None = None,
        trust: Trust | None = None,
        recency: Recency | None = None,
    ) -> None:
        self._n, self._batch_size = n, batch_size
        self._first = n  # how many there were before any extension
        self._score, self._smoothing = score, smoothing
        self._off, self._on = off, on
        self._fading, self._trust, self._recency = fading, trust, recency
        self.mode: Mode = "off"
        self._told = False
        self._turned: dict[str, Any] | None = None  # when it first turned on, and by which numbers
        self._lowest, self._worse = math.inf, 0  # validation loss, and how often it was above since

    @property
    def active(self) -> bool:
        return self.mode != "off"

    @property
    def trust(self) -> Trust | None:
        return self._trust

    def extend(self, n: int, classes: Tensor | None = None) -> None:
        """Grow to ``n`` examples: while off from the next pass on, while on from the next sweep.

        ``classes`` [n] of all examples, where the passes are stratified.
        """
        self._off.extend(n, classes)
        self._on.extend(n)
        if self._trust is not None:
            self._trust.use_classes(classes)
        self._n = n

    def _current(self) -> Source:
        return self._on if self.active else self._off

    @property
    def _discounts(self) -> bool:
        return self._trust is not None and self._trust.active

    def ready(self, n: int, number: int) -> bool:
        if number % EVERY == 0 or self._discounts:  # which depends on the losses of the last step
            return False
        return self._current().ready(n, number)

    def draw(self, n: int, number: int) -> Draw:
        if number % EVERY == 0:
            self._look(number)
        draw = self._current().draw(n, number)
        if not self._discounts:
            return draw
        assert self._trust is not None
        losses, unknown = known_scores(self._score, draw.indices)
        factors = self._trust.factors(draw.indices, losses).masked_fill_(unknown, 1.0)
        draw.weights, draw.uniform = (draw.weights * factors).to(torch.float32), False
        return draw

    def update(self, indices: Tensor) -> None:
        self._on.update(indices)

    def new_epoch(self) -> None:
        if not self.active:
            self._off.new_epoch()

    # -------------------------------------------------------------------------------- the decision

    def validation(self, loss: float) -> None:
        """The loss on examples that are not trained on, measured now."""
        self._worse = self._worse + 1 if loss > WORSE * self._lowest else 0
        self._lowest = min(self._lowest, loss)

    def _look(self, number: int) -> None:
        found = self._find(number // EVERY, number)
        if self._recency is not None:
            self._recency.judge()
        self._turn(self._wanted(found), number, found)

    def _find(self, look: int, number: int | None = None) -> Found:
        """What the sample of a ``look`` shows; with ``number`` of the draw, trust looks too."""
        sampled = self._sampled(look)
        if sampled is None:
            return Found()
        if self._trust is None:
            return self.found(sampled[1])
        if number is not None:
            self._trust.look(*sampled, number)
        return self.found(self._trust.discounted(*sampled))

    def _wanted(self, found: Found) -> Mode:
        pays = found.gain > (OFF if self.active else ON)
        return "focused" if pays and not self._objection(found) else "off"

    def _objection(self, found: Found) -> Reason | None:
        """Why not to focus, whatever the gain."""
        if self._worse >= TIMES:
            return "the validation loss has risen"
        if self._fading is not None and self._fading.remaining <= LEFT:
            return "almost nothing is left to learn"
        if self._recency is not None and not self.active:  # nothing is measured while it is on
            if not self._recency.known:
                return "too few passes to decide"
            if self._recency.memorises:
                return "the network memorises"
        return "hard examples are worse than untrained" if found.doubt > DOUBT else None

    def decision(self, number: int) -> dict[str, Any]:
        """What it has decided, and what it goes by now, at the draw of this ``number``.

        ``why`` it is off; ``turned_on``: when it first was on, and the numbers of then.
        """
        found = self._find(number // EVERY)
        return {
            "mode": self.mode,
            **found._asdict(),
            "why": "" if self.active else self._why_off(found),
            "turned_on": None if self._turned is None else dict(self._turned),
        }

    def _why_off(self, found: Found) -> Reason:
        if objection := self._objection(found):
            return objection
        return "too few passes to decide" if found == Found() else "losses are too even"

    def _turn(self, wanted: Mode, number: int, found: Found) -> None:
        if wanted == self.mode:
            return
        self.mode = wanted
        self._current().new_epoch()
        if self._turned is None:
            self._turned = {"draw": number, "mode": wanted, **found._asdict()}
        if self._recency is not None:
            self._recency.measure(wanted == "off")
        # Only the first time for everybody to see; later changes are for those who look closer.
        level = logging.DEBUG if self._told else logging.INFO
        turns = "on" if self.active else "off"
        text = "importance sampling turns %s at draw %d: gain %.2f"
        logger.log(level, text, turns, number, found.gain)
        self._told = True

    def _sampled(self, look: int) -> tuple[Tensor, Tensor] | None:
        """Some examples, evenly spaced, others at each ``look``, and what was recorded of them.

        None before all have been seen, but for those that came by ``extend``: they count as the
        mean of the others, so that a few of them change little and many turn importance sampling
        off, until a pass has seen them.
        """
        stride = max(self._n // SAMPLE, 1)
        sample = torch.arange(look % stride, self._n, stride, device="cpu")
        scores, unknown = known_scores(self._score, sample)
        missing = int((unknown & (sample < self._first)).sum())
        if missing > self._batch_size:  # a pass may leave out its last, short batch
            return None
        return sample, scores.masked_fill_(unknown, mean_of_known(scores, unknown))

    def found(self, scores: Tensor) -> Found:
        """What these scores show."""
        return Found(self._gain(scores), self._doubt())

    def _doubt(self) -> float:
        """How the harder of two groups of losses compares with an untrained model."""
        trust, fading = self._trust, self._fading
        if trust is None or fading is None or trust.active or not fading.start > 0:
            return 0.0
        return trust.upper / fading.start

    def _gain(self, scores: Tensor) -> float:
        """v; no example adds more than ``SINGLE``: a gain that rests on a few is none."""
        q = functional.smooth(scores, self._smoothing.constant(scores.mean()))
        # Its share p of the sum adds M p^2.
        most = math.sqrt(SINGLE / len(q))
        return float(functional.variance_reduction(functional.cap(q, most)))

    # -------------------------------------------------------------------------------------- state

    def refresh(self) -> None:
        self._on.refresh()

    def state_dict(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "told": self._told,
            "turned": self._turned,
            "first": self._first,
            "validation": [self._lowest, self._worse],
            "trust": None if self._trust is None else self._trust.state_dict(),
            "off": self._off.state_dict(),
            "on": self._on.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["mode"] not in get_args(Mode):
            raise ValueError(f"mode {state['mode']!r}")
        self.mode, self._told = state["mode"], bool(state["told"])
        self._first = saved.whole(state["first"], 1, self._n)
        self._turned = _turned(state["turned"])
        lowest, worse = state["validation"]
        self._lowest, self._worse = saved.number(lowest), saved.whole(worse)
        if self._trust is not None:
            self._trust.load_state_dict(state["trust"])
        self._off.load_state_dict(state["off"])
        self._on.load_state_dict(state["on"])


def _turned(raw: Any) -> dict[str, Any] | None:
    """When it first turned on, from a state."""
    if raw is None:
        return None
    if raw["mode"] not in get_args(Mode):
        raise ValueError(f"mode {raw['mode']!r}")
    found = {name: saved.number(raw[name]) for name in Found._fields}
    return {"draw": saved.whole(raw["draw"]), "mode": raw["mode"], **found}
