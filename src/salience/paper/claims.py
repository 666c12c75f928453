"""What the paper says, and whether it holds here, judged from the numbers.

Each claim is about one number per seed (or a correlation of samples) and a bound. It holds when
the whole 95% interval is on the right side of the bound, it does not hold when the whole interval
is on the other side, and otherwise it cannot be told. One seed has no interval: it tells nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from salience.paper.measures import Arrival, Interval, correlation_interval, interval

__all__ = ["Claim", "above", "below", "correlated", "no_worse", "paragraph", "same", "sooner"]

Values = Sequence[float]
"""One per seed."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, the verdict (None: cannot be told), and the numbers behind it.

    ``evidence`` puts the numbers into words; ``n`` counts what they come from, in ``unit``.
    """

    name: str
    statement: str
    holds: bool | None
    evidence: str
    n: int
    unit: str = "seed"
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        if self.holds is not None:
            return "holds here" if self.holds else "does not hold here"
        if self.n == 1:
            return f"cannot be told from one {self.unit}"
        return f"cannot be told: within the noise of {self.n} {self.unit}s"

    @property
    def sentence(self) -> str:
        """Statement, verdict, numbers."""
        said = f"{self.statement[:1].upper()}{self.statement[1:]}"
        return f"{said}: {self.verdict} ({self.evidence})."


def below(
    name: str, said: str, values: Values, bound: float, what: str, paper: float | None = None
) -> Claim:
    """One value per seed, said to be below ``bound``; ``paper`` is the paper's own value."""
    holds = _judge(interval(values), "below", bound)
    return _claim(name, said, values, holds, what, paper, bound=bound)


def above(
    name: str, said: str, values: Values, bound: float, what: str, paper: float | None = None
) -> Claim:
    """One value per seed, said to be above ``bound``."""
    holds = _judge(interval(values), "above", bound)
    return _claim(name, said, values, holds, what, paper, bound=bound)


def no_worse(
    name: str, said: str, ratios: Values, margin: float, what: str, paper: float | None = None
) -> Claim:
    """Ratios to the baseline, one per seed, said to be 1 or less.

    "The same" cannot be shown, only "not worse by more than ``margin``": that is what holds means.
    It does not hold where the ratio is certainly above 1, by however little.
    """
    found = interval(ratios)
    worse = _judge(found, "above", 1.0)
    holds = False if worse else _judge(found, "below", 1 + margin) or None
    return _claim(name, said, ratios, holds, what, paper, bound=1.0, margin=margin)


def same(name: str, said: str, ratios: Values, margin: float, what: str) -> Claim:
    """Ratios said to be 1: certainly within ``margin`` either way, or certainly outside."""
    found = interval(ratios)
    inside = _judge(found, "above", 1 / (1 + margin)), _judge(found, "below", 1 + margin)
    holds = True if all(inside) else False if False in inside else None
    return _claim(name, said, ratios, holds, what, bound=1.0, margin=margin)


def sooner(
    name: str,
    said: str,
    arrivals: Sequence[Arrival],
    finals: Values,
    what: str,
    paper: float | None = None,
) -> Claim:
    """The target reached with less than the baseline needed; one arrival per seed.

    A seed that did not reach it counts with its whole run, a lower bound, which supports nothing.
    It refutes the claim where the final losses, given in ``finals`` over the baseline's, are
    certainly above the baseline's.
    """
    ratios, reached = [a.ratio for a in arrivals], sum(a.reached for a in arrivals)
    if reached == len(arrivals):
        holds, short = _judge(interval(ratios), "below", 1.0), ""
    else:
        ends = interval(finals)
        holds = False if _judge(ends, "above", 1.0) else None
        short = f"; reached by {reached} of {len(arrivals)}, final loss over uniform's "
        short += _shown(ends)
    numbers = {"bound": 1.0, "reached": reached, "final_loss_ratios": list(finals)}
    return _claim(name, said, ratios, holds, what, paper, short, **numbers)


def correlated(name: str, said: str, r: float, samples: int) -> Claim:
    """A rank correlation of so many samples, said to be positive."""
    found = correlation_interval(r, samples)
    evidence = f"rank correlation {r:.3f} over {samples:,} samples"
    numbers = {"spearman": r, "half_width_95": found.half, "samples": samples}
    holds = _judge(found, "above", 0.0)
    return Claim(name, said, holds, evidence, samples, "sample", numbers)


def paragraph(begin: str, claims: Sequence[Claim]) -> str:
    """All claims as running text, with the count of the outcomes at the end."""
    outcomes = [claim.holds for claim in claims]
    counts = (
        f"In all, {outcomes.count(True)} of {len(claims)} hold here, {outcomes.count(False)} do "
        f"not, {outcomes.count(None)} cannot be told."
    )
    return " ".join([begin, *(claim.sentence for claim in claims), counts])


def _judge(found: Interval, side: Literal["below", "above"], bound: float) -> bool | None:
    """Whether the interval is on that side of the bound: True, on the other: False, or None."""
    low, high = found.mean - found.half, found.mean + found.half
    if side == "above":
        return True if low > bound else False if high <= bound else None
    return True if high < bound else False if low >= bound else None


def _claim(
    name: str,
    said: str,
    values: Values,
    holds: bool | None,
    what: str,
    paper: float | None = None,
    short: str = "",
    **more: Any,
) -> Claim:
    found = interval(values)
    numbers = {"mean": found.mean, "half_width_95": found.half, "values": list(values), **more}
    numbers |= {} if paper is None else {"paper": paper}
    theirs = "" if paper is None else f"; the paper: {paper:.3g}"
    return Claim(
        name, said, holds, f"{what} {_shown(found)}{theirs}{short}", found.n, numbers=numbers
    )


def _shown(found: Interval) -> str:
    if not math.isfinite(found.mean):
        return "is not known"
    return f"{found.mean:.3g}" + (f" ± {found.half:.2g}" if math.isfinite(found.half) else "")
