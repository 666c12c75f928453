"""How often the examples of a slice are visited, and what they then weigh."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from salience import functional
from salience.scores import History
from salience.smoothing import Constant
from salience.sources import ByScore, EvenIntervals
from salience.sources.rules import LEAST, Sparing

scores_of = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=8, max_size=40).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


@given(scores_of, st.sampled_from([1 / 2, 1 / 5, 1e-3]))
def test_sparing_is_unbiased(scores: Tensor, most: float) -> None:
    """sum_i p_i alpha_i g_i is the mean of g, also where no example may have more than ``most``."""
    p, weights = Sparing()(scores, most)
    values = torch.randn(len(scores), 3).double()
    assert float(p.sum()) == pytest.approx(1)
    assert (p <= max(most, 1 / len(p)) + 1e-12).all()
    torch.testing.assert_close((p * weights) @ values, values.mean(0), rtol=1e-5, atol=1e-6)


def test_learned_examples_are_visited_a_quarter_as_often() -> None:
    scores = torch.tensor([0.0, 1e-9, 0.1, 0.5, 1.0, 2.0, 3.4]).double()  # their mean is 1
    p, weights = Sparing()(scores, 1.0)
    torch.testing.assert_close(p / p.max(), torch.tensor([LEAST] * 3 + [0.5, 1, 1, 1]).double())
    torch.testing.assert_close(weights.double() * p, torch.full((7,), 1 / 7).double())


@given(scores_of)
def test_the_ratio_of_visits_is_within_least_and_one(scores: Tensor) -> None:
    p, weights = Sparing()(scores, 1.0)
    assert float(p.min() / p.max()) >= LEAST - 1e-12
    assert float(weights.max()) <= 1 / LEAST + 1e-6
    assert float(weights.min()) >= LEAST - 1e-6


def test_visits_are_in_the_ratio_of_least_to_one() -> None:
    n, batch = 400, 20
    losses = torch.full((n,), 1e-3)
    losses[: n // 4] = 1.0
    score = History(n)
    score.update(torch.arange(n), losses)
    source = EvenIntervals(n, score, Sparing(), "systematic", torch.Generator().manual_seed(0))
    counts = torch.zeros(n)
    for _ in range(200):
        source.new_epoch()
        source._plan(batch)
        counts += source._queue.take(len(source._queue), 0, n).indices.bincount(minlength=n)
    assert counts[: n // 4].tolist() == [200] * (n // 4)  # in every sweep
    assert float(counts[n // 4 :].mean()) == pytest.approx(200 * LEAST, abs=1)


@given(scores_of, st.floats(0.01, 10), st.sampled_from([1.0, 0.5, 0.0, -1.0]))
def test_by_score_follows_the_equations(scores: Tensor, c: float, k: float) -> None:
    p, weights = ByScore(Constant(c), k)(scores, 1.0)
    torch.testing.assert_close(p, (scores + c) / (scores + c).sum())
    torch.testing.assert_close(weights.double(), (1 / (len(p) * p)) ** k, rtol=1e-5, atol=1e-9)
    capped, _ = ByScore(Constant(c), k)(scores, 0.2)
    torch.testing.assert_close(
        capped, functional.probabilities(functional.cap(scores + c, 0.2)), rtol=1e-9, atol=0
    )
