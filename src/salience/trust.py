"""Which labels contradict what the model has learned, told from recorded losses alone."""

import logging
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import Tensor

from salience import functional, saved
from salience.scores import Score, Unit

__all__ = ["Begun", "Discounted", "Judged", "Trust", "judge", "suspects"]

ON, OFF = 0.2, 0.4  # depth of the gap: discounts begin below, end above
LEAST, MOST = 0.02, 0.6  # of the examples, that can be suspects
FEWEST = 100  # examples; of fewer, a histogram has two groups by chance
DISCOUNT = 0.1  # the weight of a suspect: not 0, so that a mistake stays harmless

logger = logging.getLogger("salience")


class Begun(Protocol):
    """Remembers how a training began."""

    @property
    def start(self) -> float:
        """The mean loss of the first steps."""
        ...


@final
class Trust:
    """t_i = 1, or a tenth for suspects, divided by the mean: a factor of the weights.

    A wrong label keeps its loss while the losses of the others fall, so losses come apart into two
    groups with hardly anything between them. Hard examples do not: their losses are spread. The
    suspects are the upper group of r_i = L_i / (L_i + m), where L is the recorded loss and m the
    mean loss of the example's class, so that a class that is hard or rare as a whole is no suspect.
    Their mean loss has to be above that of a model that had learned nothing, which ``smoothing``
    remembers (None: whatever it is): what is merely not learned yet contradicts nothing.
    """

    def __init__(self, smoothing: Begun | None, classes: Tensor | None = None) -> None:
        self._smoothing, self._classes = smoothing, classes  # [N]
        self.active = False
        self._limit = self._share = 0.0
        self.upper = 0.0  # the mean loss of the upper group, apart or not
        self._typical = torch.ones(1, dtype=torch.float64, device="cpu")  # of each class

    def use_classes(self, classes: Tensor | None) -> None:
        """Of all examples, after the dataset has grown."""
        if self._classes is not None:
            self._classes = classes
            self._typical = self._typical.mean().reshape(1)  # classes may be numbered anew

    def look(self, examples: Tensor, losses: Tensor, number: int) -> None:
        """Decide anew, from the recorded ``losses`` of some ``examples``, at draw ``number``."""
        before, self.active = self.active, self.apart(examples, losses)
        if self.active and not before:
            logger.info(
                "%.0f %% of the labels contradict what the model has learned, at draw %d: they "
                "weigh a tenth from now on; suspects() names them",
                100 * self._share,
                number,
            )

    def apart(self, examples: Tensor, losses: Tensor) -> bool:
        """Whether recorded ``losses`` come apart, and from now on where."""
        self._typical = self._class_means(examples, losses)
        r = self.contrast(examples, losses)
        self._limit, depth, self._share = functional.two_groups(r)
        above = losses[r >= self._limit]
        self.upper = float(above.mean()) if len(above) else 0.0
        if len(losses) < FEWEST or not LEAST <= self._share <= MOST:
            return False
        if depth >= (OFF if self.active else ON):
            return False
        return self.contradicts

    @property
    def contradicts(self) -> bool:
        """Whether the upper group is worse than a model that had learned nothing."""
        return self._smoothing is None or self.upper > self._smoothing.start

    def _class_means(self, examples: Tensor, losses: Tensor) -> Tensor:
        """[classes]; of a class with few examples drawn towards the mean of all, by one example."""
        mean = losses.mean()
        if self._classes is None:
            return mean.reshape(1)
        own = self._classes.index_select(0, examples)
        sums = torch.bincount(own, losses) + mean
        return sums / (torch.bincount(own) + 1)

    def contrast(self, examples: Tensor, losses: Tensor) -> Tensor:
        """r of ``examples`` with these recorded ``losses``: float64, on the host."""
        typical = self._typical
        if self._classes is not None:
            own = self._classes.index_select(0, examples)
            # Classes that the last look did not meet count as the mean of those that it did.
            known = torch.cat([typical, typical.mean().reshape(1)])
            typical = known[own.clamp(max=len(typical))]
        return functional.contrast(losses.double(), typical)

    def count(self, r: Tensor) -> int:
        """How many of these are suspects."""
        return int((r >= self._limit).sum())

    def factors(self, examples: Tensor, losses: Tensor) -> Tensor:
        """t of ``examples`` with these recorded ``losses``; their mean over the dataset is 1."""
        return self._belief(examples, losses) / (1 - self._share * (1 - DISCOUNT))

    def discounted(self, examples: Tensor, losses: Tensor) -> Tensor:
        """Recorded ``losses`` to draw by: those of suspects count a tenth."""
        return losses * self._belief(examples, losses) if self.active else losses

    def _belief(self, examples: Tensor, losses: Tensor) -> Tensor:
        suspected = self.contrast(examples, losses) >= self._limit
        return 1 - (1 - DISCOUNT) * suspected.double()

    def state_dict(self) -> dict[str, Any]:
        return {
            "active": self.active,
            "limit": self._limit,
            "share": self._share,
            "upper": self.upper,
            "typical": self._typical.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.active = bool(state["active"])
        self._limit, self._share = saved.number(state["limit"]), saved.number(state["share"], 0, 1)
        self.upper = saved.at_least_zero(state["upper"])
        typical = saved.floats(state["typical"], least=0)
        if not len(typical):
            raise ValueError("no typical losses")
        self._typical = typical.double().clone()


@final
class Discounted:
    """A score to draw by, with suspects at a tenth of theirs."""

    def __init__(self, score: Score, trust: Trust) -> None:
        self.inner, self._trust = score, trust
        self.by_index = score.by_index
        self.unit: Unit = score.unit

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        losses = self.inner.score(indices, batch)
        return self._trust.discounted(indices, losses) if self._trust.active else losses

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        return self.inner.update(indices, losses)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


class Judged(NamedTuple):
    """How far the loss of each example contradicts those of the others."""

    r: Tensor  # [N] float64; nan where nothing was recorded
    apart: int  # how many stand apart from all others

    def order(self, n: int | None) -> Tensor:
        """Positions of the ``n`` highest r, or with None of those that stand apart."""
        known = (~self.r.isnan()).nonzero().flatten()
        first = self.apart if n is None else n
        return known[self.r[known].argsort(descending=True, stable=True)[:first]]


def judge(losses: Tensor, begun: Begun | None, classes: Tensor | None) -> Judged:
    """``losses`` [N] are recorded ones, nan where there is none."""
    r = torch.full((len(losses),), float("nan"), dtype=torch.float64, device="cpu")
    examples = (~losses.isnan()).nonzero().flatten()
    if not len(examples):
        return Judged(r, 0)
    known, trust = losses[examples].double(), Trust(begun, classes)
    found = trust.apart(examples, known)
    r[examples] = trust.contrast(examples, known)
    return Judged(r, trust.count(r[examples]) if found else 0)


def suspects(losses: Tensor, n: int | None, begun: Begun | None, classes: Tensor | None) -> Tensor:
    """Positions of examples whose labels contradict the others, the clearest first.

    The ``n`` highest r, or with None the upper of two groups, if there are two.
    """
    return judge(losses, begun, classes).order(n)
