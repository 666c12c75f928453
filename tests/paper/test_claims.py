"""The verdict on a claim: holds, does not hold, or cannot be told."""

import math

import pytest

from salience.paper import claims
from salience.paper.measures import Arrival

LOW, HIGH, MIXED = [0.7, 0.72, 0.71], [1.3, 1.32, 1.31], [0.8, 1.2, 1.05]


@pytest.mark.parametrize(
    ("values", "holds", "words"),
    [
        (LOW, True, "holds here"),
        (HIGH, False, "does not hold here"),
        (MIXED, None, "cannot be told: within the noise of 3 seeds"),
        ([0.1], None, "cannot be told from one seed"),
        ([0.7, 0.72, math.nan], None, "cannot be told: within the noise of 3 seeds"),
    ],
)
def test_below_and_above(values: list[float], holds: bool | None, words: str) -> None:
    claim = claims.below("a", "a is less", values, 1.0, "ratio")
    assert (claim.holds, claim.verdict) == (holds, words)
    assert claim.sentence.startswith(f"A is less: {words} (ratio ")
    opposite = claims.above("a", "a is more", values, 1.0, "ratio")
    assert opposite.holds is (None if holds is None else not holds)


@pytest.mark.parametrize(
    ("ratios", "holds"),
    [
        (LOW, True),
        ([1.0, 1.01, 0.99], True),  # the same, as far as a tenth goes
        ([1.02, 1.021, 1.019], False),  # a little worse, but for certain
        (HIGH, False),
        (MIXED, None),
        ([1.0], None),
    ],
)
def test_the_same_or_better(ratios: list[float], holds: bool | None) -> None:
    assert claims.no_worse("t", "no worse", ratios, 0.1, "error").holds is holds


@pytest.mark.parametrize(
    ("ratios", "holds"),
    [([1.0, 1.02, 0.99], True), (LOW, False), (HIGH, False), (MIXED, None), ([1.0], None)],
)
def test_the_same(ratios: list[float], holds: bool | None) -> None:
    assert claims.same("s", "alike", ratios, 0.1, "ratio").holds is holds


@pytest.mark.parametrize(
    ("ratios", "reached", "finals", "holds"),
    [
        (LOW, 3, LOW, True),
        (HIGH, 3, LOW, False),
        (MIXED, 3, LOW, None),
        (LOW, 2, LOW, None),  # one seed never got there: its ratio is only a lower bound
        ([1.0, 1.0, 1.0], 0, HIGH, False),  # never there, and clearly above
        ([1.0, 1.0, 1.0], 0, [1.001, 0.999, 1.002], None),  # never there by a hair
    ],
)
def test_sooner(ratios: list[float], reached: int, finals: list[float], holds: bool | None) -> None:
    arrived = [Arrival(ratio, i < reached) for i, ratio in enumerate(ratios)]
    claim = claims.sooner("s", "sooner", arrived, finals, "share", paper=0.5)
    assert claim.holds is holds
    assert claim.numbers["reached"] == reached
    assert ("reached by" in claim.evidence) == (reached < 3)
    assert "the paper: 0.5" in claim.evidence


def test_correlation_is_judged_by_its_samples() -> None:
    assert claims.correlated("c", "grows", 0.3, 400).holds is True
    assert claims.correlated("c", "grows", -0.3, 400).holds is False
    unsure = claims.correlated("c", "grows", 0.05, 400)
    assert unsure.verdict == "cannot be told: within the noise of 400 samples"


def test_the_paragraph_counts_the_outcomes() -> None:
    judged = [claims.below(str(i), "less", v, 1.0, "x") for i, v in enumerate((LOW, HIGH, MIXED))]
    text = claims.paragraph("Begin.", judged)
    assert text.startswith("Begin. Less: holds here (x 0.71 ± 0.025).")
    assert text.endswith("In all, 1 of 3 hold here, 1 do not, 1 cannot be told.")
