"""The paper's Algorithm 1 for scores known by index."""

import pytest
import torch

from enumerate_draws import with_points
from salience.scores import History
from salience.smoothing import Constant
from salience.sources import Choice, Passes, Pool


def make(k: float = 0.5) -> tuple[Pool, History]:
    score, generator = History(12), torch.Generator().manual_seed(0)
    choice = Choice(Constant(0.25), k, "multinomial", generator)
    return Pool(6, 3, Passes(12, generator), score, choice), score


def test_pools_are_pieces_of_shuffled_passes() -> None:
    pool, _ = make()
    candidates = torch.cat([pool.candidates() for _ in range(4)])
    assert torch.bincount(candidates).tolist() == [2] * 12
    assert len(candidates[:12].unique()) == 12


def test_unknown_scores_count_as_the_largest_seen_so_far() -> None:
    pool, score = make(k=1)
    score.update(torch.arange(4), torch.tensor([0.0, 1.0, 3.0, 2.0]))
    pool.candidates = lambda: torch.arange(6)
    q = torch.tensor([0.25, 1.25, 3.25, 2.25, 3.25, 3.25]).double()
    p = q / q.sum()
    draw = with_points(p.cumsum(0) - p / 2, lambda: pool.draw(6, 0))
    assert draw.indices.tolist() == [0, 1, 2, 3, 4, 5]
    torch.testing.assert_close(draw.probabilities, p)
    torch.testing.assert_close(draw.weights, (1 / (6 * p)).float())
    assert draw.scores.tolist() == [0.0, 1.0, 3.0, 2.0, 3.0, 3.0]
    assert draw.pool == 6
    pool.candidates = lambda: torch.arange(6, 12)  # the maximum is a running one
    assert set(pool.draw(6, 1).scores.tolist()) == {3.0}


@pytest.mark.parametrize("k", [1.0, 0.5])
def test_weights_of_merged_rows(k: float) -> None:
    pool, score = make(k)
    score.update(torch.arange(12), torch.arange(12).float())
    pool.candidates = lambda: torch.arange(6)
    q = torch.arange(6) + 0.25
    p = (q / q.sum()).double()
    middle = (p.cumsum(0) - p / 2)[[5, 5, 2, 5]]
    draw = with_points(middle, lambda: pool.draw(4, 0))
    assert draw.indices.tolist() == [2, 5]
    # The mean over two rows is that over four draws.
    alpha = (1 / (6 * p[[2, 5]])) ** k
    torch.testing.assert_close(draw.weights, (alpha * torch.tensor([1, 3]) / 2).float())


def test_it_is_active_and_has_nothing_to_learn() -> None:
    pool, _ = make()
    assert pool.active
    pool.update(torch.arange(3))
    pool.new_epoch()
