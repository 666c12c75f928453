"""The verdict on a claim: it holds, it does not hold, a tie, or unknown."""

import math

import pytest

from salience.paper import claims
from salience.paper.claims import Verdict
from salience.paper.measures import Arrival

LOW, HIGH, MIXED = [0.7, 0.72, 0.71], [1.3, 1.32, 1.31], [0.8, 1.2, 1.05]
OPPOSITE: dict[Verdict, Verdict] = {"holds": "does not hold", "does not hold": "holds"}


def two(low: float, high: float) -> list[float]:
    """Two seeds whose 95% interval is from low to high.

    Around m the values m - d and m + d have the standard deviation d sqrt(2), and the mean of two
    an interval of 12.706 d sqrt(2) / sqrt(2) to either side.
    """
    middle, d = (low + high) / 2, (high - low) / 2 / 12.706
    return [middle - d, middle + d]


@pytest.mark.parametrize(
    ("values", "verdict", "words"),
    [
        (LOW, "holds", "holds here"),
        (HIGH, "does not hold", "does not hold here"),
        (MIXED, "tie", "a tie"),
        (two(0.5, 0.999), "holds", "holds here"),
        (two(0.5, 1.001), "tie", "a tie"),
        (two(0.999, 1.5), "tie", "a tie"),
        (two(1.001, 1.5), "does not hold", "does not hold here"),
        ([1.0, 1.0, 1.0], "tie", "a tie"),  # the bound itself
        ([0.1], "unknown", "cannot be told from one seed"),
        ([0.7, 0.72, math.nan], "unknown", "cannot be told: not every value is finite"),
        ([0.7, 0.72, math.inf], "unknown", "cannot be told: not every value is finite"),
    ],
)
def test_below_and_above(values: list[float], verdict: Verdict, words: str) -> None:
    claim = claims.below("a", "a is less", values, 1.0, "ratio")
    assert (claim.verdict, claim.words) == (verdict, words)
    assert claim.sentence.startswith(f"A is less: {words} (ratio ")
    opposite = claims.above("a", "a is more", values, 1.0, "ratio")
    assert opposite.verdict == OPPOSITE.get(verdict, verdict)


def test_a_tie_has_its_interval() -> None:
    claim = claims.below("a", "a is less", two(0.6, 1.2), 1.0, "ratio")
    assert claim.sentence == "A is less: a tie (ratio 0.9 ± 0.3)."
    numbers = claim.numbers
    assert numbers["mean"] - numbers["half_width_95"] == pytest.approx(0.6)
    assert numbers["mean"] + numbers["half_width_95"] == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        (LOW, "holds"),
        ([1.0, 1.01, 0.99], "holds"),  # the same, as far as a tenth goes
        (two(0.9, 1.099), "holds"),  # includes 1: the margin decides
        (two(0.9, 1.101), "tie"),
        (two(0.999, 1.05), "holds"),
        (two(1.001, 1.05), "does not hold"),  # a little worse, but for certain
        (two(1.001, 1.5), "does not hold"),
        (HIGH, "does not hold"),
        (MIXED, "tie"),
        ([1.0], "unknown"),
    ],
)
def test_the_same_or_better(ratios: list[float], verdict: Verdict) -> None:
    assert claims.no_worse("t", "no worse", ratios, 0.1, "error").verdict == verdict


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.0, 1.02, 0.99], "holds"),
        (two(1 / 1.1 + 0.001, 1.099), "holds"),
        (two(1 / 1.1 - 0.001, 1.099), "tie"),
        (two(1 / 1.1 + 0.001, 1.101), "tie"),
        (two(1.101, 1.2), "does not hold"),
        (two(0.8, 1 / 1.1 - 0.001), "does not hold"),
        (MIXED, "tie"),
        ([1.0], "unknown"),
    ],
)
def test_the_same(ratios: list[float], verdict: Verdict) -> None:
    assert claims.same("s", "alike", ratios, 0.1, "ratio").verdict == verdict


@pytest.mark.parametrize(
    ("ratios", "reached", "finals", "verdict"),
    [
        (LOW, 3, LOW, "holds"),
        (HIGH, 3, LOW, "does not hold"),
        (MIXED, 3, LOW, "tie"),
        (LOW, 2, LOW, "tie"),  # one seed never got there: its ratio is only a lower bound
        ([1.0, 1.0, 1.0], 0, HIGH, "does not hold"),  # never there, and clearly above
        (LOW, 2, HIGH, "does not hold"),
        ([1.0, 1.0, 1.0], 0, [1.001, 0.999, 1.002], "tie"),  # never there by a hair
    ],
)
def test_sooner(ratios: list[float], reached: int, finals: list[float], verdict: Verdict) -> None:
    arrived = [Arrival(ratio, i < reached) for i, ratio in enumerate(ratios)]
    claim = claims.sooner("s", "sooner", arrived, finals, "share", paper=0.5)
    assert claim.verdict == verdict
    assert claim.numbers["reached"] == reached
    assert ("reached by" in claim.evidence) == (reached < 3)
    assert "the paper: 0.5" in claim.evidence


@pytest.mark.parametrize(
    ("reached", "finals", "costs", "verdict"),
    [
        (2, two(0.9, 1.1), two(1.001, 1.5), "does not hold"),  # the same loss for more
        (2, two(0.9, 1.1), two(0.999, 1.5), "tie"),
        (2, two(0.9, 1.1), two(0.5, 0.9), "tie"),  # for less: still not reached
        (2, two(0.5, 0.9), two(1.1, 1.5), "tie"),  # more for a lower loss
        (2, two(1.1, 1.5), two(0.5, 0.9), "does not hold"),
        (3, two(0.9, 1.1), two(1.1, 1.5), "holds"),  # reached by all: the ratios alone decide
    ],
)
def test_the_same_loss_for_more_is_not_sooner(
    reached: int, finals: list[float], costs: list[float], verdict: Verdict
) -> None:
    arrived = [Arrival(ratio, i < reached) for i, ratio in enumerate(LOW)]
    claim = claims.sooner("s", "sooner", arrived, finals, "share", costs=costs)
    assert claim.verdict == verdict
    assert ("whole run over uniform's" in claim.evidence) == (reached < 3)
    assert claim.numbers["whole_run_ratios"] == costs


@pytest.mark.parametrize("reached", [True, False])
def test_one_seed_is_neither_sooner_nor_later(reached: bool) -> None:
    claim = claims.sooner("s", "sooner", [Arrival(0.5, reached)], [2.0], "share")
    assert claim.words == "cannot be told from one seed"


def test_correlation_is_judged_by_its_samples() -> None:
    assert claims.correlated("c", "grows", 0.3, 400).verdict == "holds"
    assert claims.correlated("c", "grows", -0.3, 400).verdict == "does not hold"
    assert claims.correlated("c", "grows", 0.05, 400).verdict == "tie"


def test_the_paragraph_counts_the_verdicts() -> None:
    judged = [claims.below(str(i), "less", v, 1.0, "x") for i, v in enumerate((LOW, HIGH, MIXED))]
    text = claims.paragraph("Begin.", judged)
    assert text.startswith("Begin. Less: holds here (x 0.71 ± 0.025).")
    assert text.endswith("In all, 1 of 3 hold here, 1 do not, 1 is a tie.")
    judged += [claims.below("a", "less", values, 1.0, "x") for values in (MIXED, [0.5])]
    text = claims.paragraph("Begin.", judged)
    assert text.endswith("In all, 1 of 5 hold here, 1 do not, 2 are ties, 1 cannot be told.")
    assert claims.paragraph("", judged[:1]).endswith("In all, 1 of 1 hold here, 0 do not.")
