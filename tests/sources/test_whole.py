"""Draws from the whole dataset: exact probabilities, one draw split across many batches."""

from typing import Any

import pytest
import torch
from torch import Tensor

from enumerate_draws import outcomes, with_points
from salience import ImportanceSampler
from salience.sources.whole import AHEAD


def informed(n: int, batch: int, **options: Any) -> ImportanceSampler:
    """A sampler that knows a loss of each example."""
    sampler = ImportanceSampler(n, batch, score="history", **options)
    sampler.update(torch.arange(n), losses_of(n))
    return sampler


def losses_of(n: int) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(1)) ** 3


def probabilities(sampler: ImportanceSampler, n: int) -> Tensor:
    losses = losses_of(n).double()
    q = losses + float(sampler._smoothing.constant(losses.mean()))
    return q / q.sum()


@pytest.mark.parametrize("scheme", ["systematic", "multinomial"])
def test_probabilities_scores_and_weights(scheme: Any) -> None:
    sampler = informed(50, 5, k=0.3, draw=scheme, smoothing=0.1)
    p = probabilities(sampler, 50)
    for _ in range(20):
        draw = sampler.draw()
        torch.testing.assert_close(draw.probabilities, p[draw.indices])
        torch.testing.assert_close(draw.weights, (1 / (50 * p[draw.indices])).float() ** 0.3)
        torch.testing.assert_close(draw.scores.float(), losses_of(50)[draw.indices])
        assert draw.pool == 50


def test_batches_split_from_one_draw_keep_the_expected_step() -> None:
    n, batch, batches = 96, 4, 3
    sampler = informed(n, batch, k=1)
    values = torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    p = probabilities(sampler, n)
    total = torch.zeros(2, dtype=torch.float64)
    for chance, points in outcomes(p, batch * batches, "systematic"):
        sampler.source._queue.clear()
        draws = with_points(points, lambda: [sampler.draw() for _ in range(batches)])
        assert not len(sampler.source._queue)
        for draw in draws:
            total += chance / batches * (draw.weights.double() @ values[draw.indices]) / batch
    torch.testing.assert_close(total, values.mean(0), rtol=1e-6, atol=1e-9)


def test_over_the_batches_of_one_draw_an_example_comes_as_often_as_it_should() -> None:
    n, batch, batches = 480, 6, 10
    sampler = informed(n, batch)
    p = probabilities(sampler, n)
    counts = torch.cat([sampler.draw().indices for _ in range(batches)]).bincount(minlength=n)
    assert ((counts - batch * batches * p).abs() < 1 + 1e-9).all()


def test_a_draw_serves_at_most_an_eighth_of_a_pass_and_32_batches() -> None:
    for n, batch, batches in ((480, 6, 10), (40, 6, 1), (100_000, 10, AHEAD)):
        sampler = ImportanceSampler(n, batch, score="history")
        sampler.draw()
        assert len(sampler.source._queue) == batch * (batches - 1)


def test_examples_meet_others_than_those_at_an_even_distance() -> None:
    sampler = ImportanceSampler(800, 10, score="history", smoothing=1.0)
    sampler.update(torch.arange(800), torch.zeros(800))
    others = [indices - indices[0] for indices, _ in (sampler.draw() for _ in range(20))]
    assert len(torch.cat(others).remainder(80).unique()) == 10  # a draw for each batch: one


def test_multinomial_draws_follow_the_newest_scores() -> None:
    sampler = informed(800, 10, draw="multinomial", smoothing=0.0)
    sampler.draw()
    losses = torch.zeros(800)
    losses[7] = 1.0
    sampler.update(torch.arange(800), losses)
    assert sampler.draw().indices.tolist() == [7] * 10


def test_unseen_examples_get_the_largest_score_seen_so_far() -> None:
    sampler = ImportanceSampler(10, 2, score="history", smoothing=0.0, k=1)
    sampler.update(torch.tensor([0, 1, 2]), torch.tensor([1.0, 4.0, 0.5]))
    sampler.update(torch.tensor([1]), torch.tensor([2.0]))
    # seven unseen at 4, and 1, 2, .5: the maximum is a running one
    total = 7 * 4 + 3.5
    for _ in range(30):
        draw = sampler.draw()
        scores = [{0: 1.0, 1: 2.0, 2: 0.5}.get(i, 4.0) for i in draw.indices.tolist()]
        expected = torch.tensor([total / (10 * s) for s in scores]).double()
        torch.testing.assert_close(draw.inverse(), expected)
        assert draw.scores.tolist() == pytest.approx(scores)


def test_unseen_examples_are_visited_first() -> None:
    n, batch = 1000, 50
    sampler = ImportanceSampler(n, batch, score="history", smoothing=0.0)
    seen: set[int] = set()
    for step in range(24):
        draw = sampler.draw()
        seen |= set(draw.indices.tolist())
        sampler.update(draw, torch.full((batch,), 5.0 if step == 0 else 0.01))
    assert len(seen) > 0.99 * n  # uniform draws would have seen 70 %


def test_with_all_scores_and_the_smoothing_zero_all_are_alike() -> None:
    sampler = ImportanceSampler(40, 4, score="history", smoothing=0.0)
    sampler.update(torch.arange(40), torch.zeros(40))
    draws = [sampler.draw() for _ in range(10)]
    assert all(draw.weights.tolist() == [1.0] * 4 for draw in draws)
    assert len(torch.cat([draw.indices for draw in draws]).unique()) > 30


class Rising:
    """Scores of seen examples grow with every update of any of them, as those of a model may."""

    by_index, unit = True, "loss"

    def __init__(self) -> None:
        self.seen, self.updates = torch.full((10,), torch.nan), 0

    def score(self, indices: Tensor, batch: Any) -> Tensor:  # noqa: ARG002
        return self.seen[indices] * 2**self.updates

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        self.seen[indices], self.updates = losses, self.updates + 1
        return indices

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen.clone(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.updates = state["seen"].clone(), state["updates"]


def test_a_resume_leaves_the_initial_score_as_it_was() -> None:
    """The tree may hold more than the running maximum, which is looked at earlier."""
    first, second = (ImportanceSampler(10, 2, score=Rising(), smoothing=0.0) for _ in range(2))
    for index, loss in ((0, 1.0), (1, 0.1), (2, 0.1)):
        first.update(torch.tensor([index]), torch.tensor([loss]))
    first.draw()
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.draw().probabilities, first.draw().probabilities)
