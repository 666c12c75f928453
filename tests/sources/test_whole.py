"""Draws from the whole dataset: exact probabilities, one draw split across many batches."""

from typing import Any

import pytest
import torch
from torch import Tensor

from enumerate_draws import outcomes, with_points
from parts import frozen
from salience import ImportanceSampler
from salience.scores import History
from salience.smoothing import Constant
from salience.sources import WholeDataset
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


def test_a_draw_serves_at_most_an_eighth_of_a_pass_32_batches_and_4096_points() -> None:
    for n, batch, batches in (
        *((480, 6, 10), (40, 6, 1), (100_000, 10, AHEAD)),
        *((100_000, 128, AHEAD), (100_000, 129, 31), (100_000, 1024, 4), (100_000, 5000, 1)),
    ):
        sampler = ImportanceSampler(n, batch, score="history")
        sampler.draw()
        line = sampler.source._line
        left = len(sampler.source._queue) + (0 if line is None else len(line.points))
        assert left == batch * (batches - 1)


def test_examples_meet_others_than_those_at_an_even_distance() -> None:
    sampler = ImportanceSampler(800, 10, score="history", smoothing=1.0)
    sampler.update(torch.arange(800), torch.zeros(800))
    others = [indices - indices[0] for indices, _ in (sampler.draw() for _ in range(20))]
    assert len(torch.cat(others).remainder(80).unique()) == 10  # a draw for each batch: one


def test_large_batches_meet_others_too() -> None:
    """They share a draw with few others: parts of the dataset change places instead."""
    n, batch = 40_000, 2048
    sampler = ImportanceSampler(n, batch, score="history", smoothing=1.0)
    sampler.update(torch.arange(n), torch.zeros(n))
    distances = []
    for _ in range(10):
        indices = torch.cat([sampler.draw().indices, sampler.draw().indices]).sort().values
        assert len(indices.unique()) == 2 * batch  # one draw: none comes twice
        distances.append(indices.diff())
    # Evenly spaced over one line, neighbours are 9 or 10 apart, but for the ends of its parts.
    assert (torch.stack(distances) < 9).float().mean() > 0.1


@pytest.mark.parametrize("scheme", ["systematic", "multinomial"])
def test_probabilities_of_large_batches(scheme: Any) -> None:
    n, batch = 9000, 1000
    sampler = informed(n, batch, k=1, draw=scheme)
    p = probabilities(sampler, n)
    counts = torch.zeros(n)
    for _ in range(200):
        draw = sampler.draw()
        torch.testing.assert_close(draw.probabilities, p[draw.indices])
        counts += draw.indices.bincount(minlength=n)
        if scheme == "systematic":  # a draw for one batch
            assert ((draw.indices.bincount(minlength=n) - batch * p).abs() < 1 + 1e-9).all()
    expected = 200 * batch * p
    assert ((counts - expected) ** 2 / expected).mean() < 1.1  # chi squared over its mean


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


# --------------------------------------------------------------------------------------- growing


@pytest.mark.parametrize("scheme", ["systematic", "multinomial"])
def test_after_growing_draws_are_those_of_a_new_source(scheme: Any) -> None:
    score, smoothing = History(300), Constant(0.1)
    generator = torch.Generator().manual_seed(3)
    source = WholeDataset(300, score, smoothing, 0.5, scheme, generator)
    score.update(torch.arange(200), losses_of(200))
    source.update(torch.arange(200))
    source.draw(5, 0)
    score.extend(450)
    source.extend(450)
    assert not source.ready(5, 1)  # what was drawn among fewer is not used
    state = generator.get_state()
    ours = [source.draw(5, number) for number in range(1, 40)]
    generator.set_state(state)
    new = WholeDataset(450, score, smoothing, 0.5, scheme, generator)
    for draw in ours:
        expected = new.draw(5, draw.number).state_dict()
        assert frozen(draw.state_dict()) == frozen(expected)
    drawn = torch.cat([draw.indices for draw in ours])
    scores = torch.cat([draw.scores for draw in ours])
    assert (drawn >= 300).any()
    torch.testing.assert_close(
        scores[drawn >= 200], torch.full_like(scores[drawn >= 200], float(losses_of(200).max()))
    )


def test_what_was_learned_before_growing_is_not_lost() -> None:
    score = History(20)
    source = WholeDataset(20, score, Constant(0.0), 1, "multinomial", torch.Generator())
    score.update(torch.arange(20), torch.zeros(20))
    source.update(torch.arange(20))
    score.extend(21)
    source.extend(21)
    score.update(torch.tensor([20]), torch.tensor([2.0]))
    source.update(torch.tensor([20]))
    assert source.draw(4, 0).indices.tolist() == [20] * 4
