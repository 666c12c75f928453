"""What the paper says, and whether it holds here, judged from the numbers.

Each claim is about one number per seed (or a correlation of samples) and a bound. It holds when
the whole 95% interval is on the right side of the bound, it does not hold when the whole interval
is on the other side, and it is a tie when the interval includes the bound. One seed has no
interval: nothing can be told from it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from salience.paper.measures import Arrival, Interval, correlation_interval, interval

__all__ = [
    *("Claim", "Verdict", "above", "below", "correlated", "no_worse", "paragraph", "same"),
    "sooner",
]

Values = Sequence[float]
"""One per seed."""

Verdict = Literal["holds", "does not hold", "tie", "unknown"]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, the verdict, and the numbers behind it.

    ``evidence`` puts the numbers into words; ``n`` counts what they come from, in ``unit``.
    """

    name: str
    statement: str
    verdict: Verdict
    evidence: str
    n: int
    unit: str = "seed"
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The verdict for a sentence."""
        if self.verdict == "unknown":
            few = f"cannot be told from one {self.unit}"
            return few if self.n == 1 else "cannot be told: not every value is finite"
        return "a tie" if self.verdict == "tie" else f"{self.verdict} here"

    @property
    def said(self) -> str:
        """The statement with a capital letter."""
        return f"{self.statement[:1].upper()}{self.statement[1:]}"

    @property
    def sentence(self) -> str:
        """Statement, verdict, numbers."""
        return f"{self.said}: {self.words} ({self.evidence})."


def below(
    name: str, said: str, values: Values, bound: float, what: str, paper: float | None = None
) -> Claim:
    """One value per seed, said to be below ``bound``; ``paper`` is the paper's own value."""
    verdict = _judge(interval(values), "below", bound)
    return _claim(name, said, values, verdict, what, paper, bound=bound)


def above(
    name: str, said: str, values: Values, bound: float, what: str, paper: float | None = None
) -> Claim:
    """One value per seed, said to be above ``bound``."""
    verdict = _judge(interval(values), "above", bound)
    return _claim(name, said, values, verdict, what, paper, bound=bound)


def no_worse(
    name: str, said: str, ratios: Values, margin: float, what: str, paper: float | None = None
) -> Claim:
    """Ratios to the baseline, one per seed, said to be 1 or less.

    "The same" cannot be shown, only "not worse by more than ``margin``": that is what holds means.
    It does not hold where the ratio is certainly above 1, by however little. A tie is in between:
    the interval includes 1, and reaches beyond the margin.
    """
    found = interval(ratios)
    within = _judge(found, "below", 1 + margin)
    worse = _judge(found, "above", 1.0) == "holds"
    verdict: Verdict = "does not hold" if worse else within
    return _claim(name, said, ratios, verdict, what, paper, bound=1.0, margin=margin)


def same(name: str, said: str, ratios: Values, margin: float, what: str) -> Claim:
    """Ratios said to be 1: certainly within ``margin`` either way, or certainly outside."""
    found = interval(ratios)
    sides = {_judge(found, "above", 1 / (1 + margin)), _judge(found, "below", 1 + margin)}
    order: tuple[Verdict, ...] = ("unknown", "does not hold", "tie", "holds")
    verdict = next(each for each in order if each in sides)
    return _claim(name, said, ratios, verdict, what, bound=1.0, margin=margin)


def sooner(
    name: str,
    said: str,
    arrivals: Sequence[Arrival],
    finals: Values,
    what: str,
    paper: float | None = None,
    costs: Values = (),
) -> Claim:
    """The target reached with less than the baseline needed; one arrival per seed.

    A seed that did not reach it counts with its whole run, a lower bound, which supports nothing.
    Then the final losses, given in ``finals`` over the baseline's, decide: certainly above the
    baseline's, the claim does not hold; otherwise it is a tie. Unless the losses are a tie and the
    whole runs certainly cost more than the baseline's, by ``costs``: that is not less either.
    """
    ratios, reached = [a.ratio for a in arrivals], sum(a.reached for a in arrivals)
    if reached == len(arrivals):
        verdict, short = _judge(interval(ratios), "below", 1.0), ""
    else:
        ends = interval(finals)
        verdict = _judge(ends, "below", 1.0)
        short = f"; reached by {reached} of {len(arrivals)}, final loss over uniform's "
        short += _shown(ends)
        if costs:
            whole = interval(costs)
            short += f", whole run over uniform's {_shown(whole)}"
            if verdict == "tie" and _judge(whole, "above", 1.0) == "holds":
                verdict = "does not hold"
        verdict = "tie" if verdict == "holds" else verdict
    numbers = {"bound": 1.0, "reached": reached, "final_loss_ratios": list(finals)}
    numbers |= {"whole_run_ratios": list(costs)} if costs else {}
    return _claim(name, said, ratios, verdict, what, paper, short, **numbers)


def correlated(name: str, said: str, r: float, samples: int) -> Claim:
    """A rank correlation of so many samples, said to be positive."""
    found = correlation_interval(r, samples)
    evidence = f"rank correlation {r:.3f} over {samples:,} samples"
    numbers = {"spearman": r, "half_width_95": found.half, "samples": samples}
    verdict = _judge(found, "above", 0.0)
    return Claim(name, said, verdict, evidence, samples, "sample", numbers)


def paragraph(begin: str, claims: Sequence[Claim]) -> str:
    """All claims as running text, with the count of the verdicts at the end."""
    found = [claim.verdict for claim in claims]
    held, refuted, ties, unknown = map(found.count, get_args(Verdict))
    counts = f"In all, {held} of {len(claims)} hold here, {refuted} do not"
    counts += f", {ties} {'is a tie' if ties == 1 else 'are ties'}" if ties else ""
    counts += f", {unknown} cannot be told" if unknown else ""
    return " ".join([begin, *(claim.sentence for claim in claims), f"{counts}."])


def _judge(found: Interval, side: Literal["below", "above"], bound: float) -> Verdict:
    """Whether the interval is on that side of the bound, on the other, or includes it."""
    low, high = found.mean - found.half, found.mean + found.half
    if not (math.isfinite(low) and math.isfinite(high)):
        return "unknown"
    if low <= bound <= high:
        return "tie"
    return "holds" if (low > bound) == (side == "above") else "does not hold"


def _claim(
    name: str,
    said: str,
    values: Values,
    verdict: Verdict,
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
        name, said, verdict, f"{what} {_shown(found)}{theirs}{short}", found.n, numbers=numbers
    )


def _shown(found: Interval) -> str:
    if not math.isfinite(found.mean):
        return "is not known"
    return f"{found.mean:.3g}" + (f" ± {found.half:.2g}" if math.isfinite(found.half) else "")
