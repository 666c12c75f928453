"""How often the examples of a slice are visited, and what they then weigh."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from salience import functional
from salience.smoothing import Constant
from salience.sources import ByScore

scores_of = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=8, max_size=40).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


@given(scores_of, st.floats(0.01, 10), st.sampled_from([1.0, 0.5, 0.0, -1.0]))
def test_by_score_follows_the_equations(scores: Tensor, c: float, k: float) -> None:
    p, weights = ByScore(Constant(c), k)(scores, 1.0)
    torch.testing.assert_close(p, (scores + c) / (scores + c).sum())
    torch.testing.assert_close(weights.double(), (1 / (len(p) * p)) ** k, rtol=1e-5, atol=1e-9)
    capped, _ = ByScore(Constant(c), k)(scores, 0.2)
    torch.testing.assert_close(
        capped, functional.probabilities(functional.cap(scores + c, 0.2)), rtol=1e-9, atol=0
    )
