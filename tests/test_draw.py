"""The record of a draw."""

import pytest
import torch

from salience import Draw, ImportanceSampler
from salience.draw import share


def make(counts: torch.Tensor | None = None, *, uniform: bool = False) -> Draw:
    p = torch.tensor([0.1, 0.4, 0.2]).double()
    indices, scores = torch.tensor([5, 2, 7]), torch.tensor([1.0, 4.0, 2.0])
    return Draw(3, indices, torch.tensor([2.0, 0.5, 1.0]), p, scores, 10, counts, uniform)


def test_it_unpacks_as_indices_and_weights() -> None:
    indices, weights = draw = make()
    assert indices is draw.indices
    assert weights is draw.weights
    assert len(draw) == 3


def test_the_inverse_is_1_over_m_p() -> None:
    torch.testing.assert_close(make().inverse(), torch.tensor([1.0, 0.25, 0.5]).double())


def test_rows_that_stand_for_several_draws_count_as_many_times() -> None:
    counts = torch.tensor([1.0, 4.0, 1.0])
    assert share(counts).tolist() == [0.5, 2.0, 0.5]
    values = torch.tensor([3.0, 1.0, 2.0])
    by_draw = (3.0 * 1 + 4 * 1.0 * 0.25 + 2.0 * 0.5) / 6
    assert make(counts).unbiased_mean(values) == pytest.approx(by_draw)


def test_the_unbiased_mean() -> None:
    values = torch.tensor([3.0, 1.0, 2.0])
    assert make().unbiased_mean(values) == pytest.approx((3.0 + 0.25 + 1.0) / 3)
    assert make(uniform=True).unbiased_mean(values) == pytest.approx(2.0)


def test_its_state_shares_nothing() -> None:
    draw = make(torch.ones(3))
    state = draw.state_dict()
    draw.weights.zero_()
    again = Draw(**state)
    assert again.weights.tolist() == [2.0, 0.5, 1.0]
    assert (again.number, again.pool, again.uniform) == (3, 10, False)
    assert again.counts is not None
    assert make().state_dict()["counts"] is None


@pytest.mark.parametrize("score", ["uniform", "history", "auto"])
def test_a_draw_is_the_users_to_change(score: str) -> None:
    """Weights were views of an internal buffer: halving them changed later batches."""
    one, twin = (ImportanceSampler(20, 4, score=score) for _ in range(2))
    for _ in range(6):
        draw, other = one.draw(), twin.draw()
        assert draw.weights.tolist() == other.weights.tolist()
        assert draw.indices.tolist() == other.indices.tolist()
        losses = draw.indices.float()
        for part in (draw.weights, draw.probabilities, draw.scores):
            part.mul_(0.5)
        draw.indices.zero_()
        one.update(draw, losses)  # looked up by its number
        twin.update(other, losses)
    assert one.metrics() == pytest.approx(twin.metrics(), nan_ok=True)
