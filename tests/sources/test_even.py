"""Visits at even intervals: credit, cap, slices, and who is asked for scores."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from enumerate_draws import expected_visits_step
from salience import functional
from salience.scores import History
from salience.smoothing import Constant
from salience.sources import ByScore, EvenIntervals, even
from salience.sources.even import SWEEPS

N, BATCH = 400, 20


def make(
    losses: Tensor, c: float = 0.0, k: float = 1.0, scheme: Any = "systematic", seed: int = 0
) -> EvenIntervals:
    """Knows these losses; nan is unknown."""
    score = History(len(losses))
    known = (~losses.isnan()).nonzero().flatten()
    score.update(known, losses[known])
    generator = torch.Generator().manual_seed(seed)
    return EvenIntervals(len(losses), score, ByScore(Constant(c), k), scheme, generator)


def drawn(source: EvenIntervals, batches: int, batch: int = BATCH) -> Tensor:
    return torch.cat([source.draw(batch, number).indices for number in range(batches)])


def uneven(n: int = N) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(4)) ** 3


# ---------------------------------------------------------------------------------------- visits


@given(
    q=st.lists(st.floats(0.01, 50), min_size=2, max_size=30),
    sizes=st.lists(st.floats(0.5, 40), min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
def test_visits_stay_within_one_of_what_was_earned(
    q: list[float], sizes: list[float], seed: int
) -> None:
    p = functional.probabilities(torch.tensor(q, dtype=torch.float64))
    credit = torch.rand(len(q), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    visits = torch.zeros(len(q), dtype=torch.int64)
    for i, n in enumerate(sizes):
        counts, credit = functional.even_visits(credit, p, n)
        visits += counts
        assert ((credit >= 0) & (credit < 1)).all()
        assert ((visits - sum(sizes[: i + 1]) * p).abs() < 1 + 1e-9).all()


def test_visits_by_hand() -> None:
    credit, p = torch.tensor([0.0, 0.5, 0.9]).double(), torch.tensor([0.5, 0.25, 0.25]).double()
    counts, credit = functional.even_visits(credit, p, 5)
    assert counts.tolist() == [2, 1, 2]
    torch.testing.assert_close(credit, torch.tensor([0.5, 0.75, 0.15]).double())


def test_a_negative_credit_is_earned_back_first() -> None:
    credit, p = torch.tensor([-0.4, -0.4, -0.4]).double(), torch.tensor([0.1, 0.15, 0.75]).double()
    counts, credit = functional.even_visits(credit, p, 2)
    assert counts.tolist() == [0, 0, 1]
    torch.testing.assert_close(credit, torch.tensor([-0.2, -0.1, 0.1]).double())


def sweep(source: EvenIntervals) -> Tensor:
    """Plan a sweep, or a slice of it: how often each example is visited in it."""
    source.new_epoch()
    source._plan(BATCH)
    planned = source._queue.take(len(source._queue), 0, source._n).indices
    return planned.bincount(minlength=source._n)


def earned_by(q: Tensor) -> Tensor:
    """In a sweep: one visit for the likeliest, or more if the others got too few."""
    p = functional.probabilities(functional.cap(q.double(), 1 / BATCH))
    return p / p.max() if len(q) * p.max() < SWEEPS else p * len(q) / SWEEPS


@pytest.mark.parametrize("slice_size", [65536, 100])
@pytest.mark.parametrize("losses", [uneven() + 0.05, uneven() ** 2 + 1e-3], ids=["few", "many"])
def test_the_long_run_rate_is_what_was_earned(
    losses: Tensor, slice_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the credit, only the jitter is between visits and what was earned: none on average."""
    monkeypatch.setattr(even, "SLICE", slice_size)
    source = make(losses)
    slices: list[Tensor] = []
    take = source._next_slice
    source._next_slice = lambda: slices.append(take()) or slices[-1]
    source._fresh, first = 0, torch.rand(N)
    source._credit[:] = first.numpy()
    earned, visits = torch.zeros(N).double(), torch.zeros(N)
    for _ in range(400):
        visits += sweep(source)
        earned[slices[-1]] += earned_by(losses[slices[-1]])
    assert {len(part) for part in slices} == {min(slice_size, N)}
    jitter = visits - earned + torch.from_numpy(source._credit).double() - first
    # A sum of V numbers, each within 1 of another: Hoeffding's bound, exceeded once in 10^9.
    assert (jitter.abs() <= (visits / 2 * math.log(2 * N * 1e9)).sqrt() + 1e-3).all()
    assert abs(jitter.sum()) <= (visits.sum() / 2 * math.log(2e9)).sqrt() + 1e-3 * N
    assert jitter.abs().max() > 0.1


def test_with_equal_scores_visits_are_passes() -> None:
    source = make(torch.full((N,), 0.5))
    passes = drawn(source, 4 * N // BATCH).view(4, N)
    assert passes.sort(1).values.tolist() == [list(range(N))] * 4
    assert not torch.equal(passes[0], passes[1])


def test_intervals_are_within_a_half_and_one_and_a_half_of_the_mean() -> None:
    source = make(uneven(), c=0.05)
    earned = earned_by(uneven() + 0.05)
    assert earned.max() == 1
    counts = torch.stack([sweep(source) for _ in range(300)])
    assert counts.max() == 1
    for e, visits in zip(earned.tolist(), counts.T, strict=True):
        intervals = visits.nonzero().flatten().diff()
        assert (intervals >= 0.5 * (1 - e) / e).all()
        assert (intervals <= (1.5 - 0.5 * e) / e + 1).all()


def test_examples_whose_scores_fall_together_do_not_come_in_waves() -> None:
    """Three quarters come in one sweep of four, until their next visit; then in one of forty."""
    n = 4000
    losses = torch.full((n,), 0.25)
    losses[3 * n // 4 :] = 1.0
    source = make(losses)
    low = []
    for _ in range(400):
        visited = sweep(source)[: 3 * n // 4].nonzero().flatten()
        source._score.update(visited, torch.full((len(visited),), 0.025))
        low.append(len(visited))
    # A visit left a credit in [0, 1/4), with jitter up to 3/8 more or less: so the next visits are
    # spread over an interval, and the most that fall into one sweep are 1 / (1 - 1/4) of the mean.
    mean = 3 * n / 4 / 40
    slack = 5 * math.sqrt(mean)
    first, later = low[20:60], low[200:]
    assert max(first) <= mean / (1 - 0.25) + slack
    assert max(later) <= mean + slack
    assert min(later) >= mean - slack


@pytest.mark.parametrize("c", [0.0, 0.3])
@pytest.mark.parametrize("largest", [1.0, 80.0])
def test_with_k_1_the_expected_step_is_the_mean(c: float, largest: float) -> None:
    """Enumerated over credits, also where the cap holds some examples back."""
    n, batch = 30, 5
    losses = torch.rand(n) + 0.05
    losses[:3] = largest
    source = make(losses, c=c, k=1)
    values = torch.randn(n, 3).double()
    p = functional.probabilities(functional.cap(losses.double() + c, 1 / batch))
    actual = expected_visits_step(source, p, batch, values)
    torch.testing.assert_close(actual, values.mean(0), rtol=1e-5, atol=1e-6)


def test_first_credits_are_drawn_at_random() -> None:
    """From equal credits all examples of the same score would come in the same sweep."""
    losses = torch.full((N,), 0.25)
    losses[0] = 1.0
    source = make(losses)
    visits = sweep(source)
    assert visits[0] == 1
    assert abs(int(visits.sum()) - N / 4) <= math.sqrt(N / 2 * math.log(2e6))  # Hoeffding
    assert source._fresh == 0


# -------------------------------------------------------------------------------- probabilities


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([0.0, 1e-6, 0.1, 1.0, 50.0, 1e20]), min_size=40, max_size=40),
    st.sampled_from([1, 4, 10, 40]),
    st.sampled_from([0.0, 0.5]),
)
def test_no_example_has_more_than_a_place_in_a_batch_on_average(
    losses: list[float], batch: int, c: float
) -> None:
    source = make(torch.tensor(losses), c=c)
    for number in range(6):
        draw = source.draw(batch, number)
        assert (draw.probabilities <= 1 / batch + 1e-12).all()
        assert (draw.probabilities > 0).all()
        assert draw.weights.isfinite().all()


def test_probabilities_weights_and_scores() -> None:
    losses = uneven()
    source = make(losses, c=0.1, k=0.4)
    p = functional.probabilities((losses + 0.1).double())
    draw = source.draw(BATCH, 3)
    at = draw.indices
    torch.testing.assert_close(draw.probabilities, p[at], rtol=1e-6, atol=0)
    torch.testing.assert_close(draw.weights, (1 / (N * p[at])).float() ** 0.4)
    torch.testing.assert_close(draw.scores.float(), losses[at])
    assert (draw.number, draw.pool) == (3, N)


def test_unknown_examples_get_the_mean_of_the_others() -> None:
    losses = torch.full((N,), torch.nan)
    losses[:100] = torch.tensor([0.5, 1.5]).repeat(50)
    source = make(losses)
    for number in range(20):
        draw = source.draw(BATCH, number)
        expected = losses[draw.indices].nan_to_num(nan=1.0).double()
        assert draw.scores.tolist() == expected.tolist()
        torch.testing.assert_close(draw.probabilities, expected / N)


def test_with_nothing_known_all_are_alike() -> None:
    source = make(torch.full((N,), torch.nan))
    assert source.draw(BATCH, 0).weights.tolist() == [1.0] * BATCH


# ---------------------------------------------------------------------------------------- slices


def test_slices_cover_the_dataset_exactly_once_per_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(even, "SLICE", 90)
    asked: list[Tensor] = []
    source = make(uneven())
    score = source._score.score
    source._score.score = lambda indices, batch: (asked.append(indices), score(indices, batch))[1]
    for number in range(200):
        source.draw(BATCH, number)
    assert {len(part) for part in asked} == {80}  # five of equal size
    sweeps = torch.cat(asked)[: len(asked) // 5 * N].view(-1, N)
    assert len(sweeps) > 10
    for sweep in sweeps:
        assert sorted(sweep.tolist()) == list(range(N))
    assert not torch.equal(sweeps[0], sweeps[1])


def test_weights_of_slices_are_those_of_their_own_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(even, "SLICE", 90)
    source = make(uneven(), c=0.1, k=1)
    for number in range(50):
        draw = source.draw(BATCH, number)
        # 1 / (N p) is the weight: p is that of one draw in N, whatever the slice.
        torch.testing.assert_close(draw.weights.double(), draw.inverse(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("scheme", ["systematic", "multinomial"])
def test_batches_are_whole_whatever_the_size_of_the_dataset(
    scheme: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for slice_size in (65536, 16):
        monkeypatch.setattr(even, "SLICE", slice_size)
        for n, batch in ((1, 1), (7, 7), (9, 8), (100, 3)):
            source = make(torch.rand(n) + 0.1, scheme=scheme)
            for number in range(50):
                indices, weights = source.draw(batch, number)
                assert len(indices) == len(weights) == batch


# ---------------------------------------------------------------------------------------- changes


def test_visits_follow_new_scores_from_the_next_slice_on() -> None:
    source = make(torch.full((N,), 0.5))
    source.draw(BATCH, 0)
    losses = torch.zeros(N)
    losses[:BATCH] = 1.0
    source._score.update(torch.arange(N), losses)
    planned = len(source._queue) // BATCH
    drawn(source, planned + 1)
    assert (drawn(source, 10) < BATCH).all()


def test_a_new_epoch_forgets_what_was_planned() -> None:
    source = make(uneven())
    source.draw(BATCH, 0)
    credit = source._credit.copy()
    source.new_epoch()
    assert len(source._queue) == 0
    np.testing.assert_array_equal(credit, source._credit)


# ---------------------------------------------------------------------------------------- growing


def grown(source: EvenIntervals, n: int) -> EvenIntervals:
    source._score.extend(n)
    source.extend(n)
    return source


def test_the_sweep_under_way_ends_without_the_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(even, "SLICE", 90)
    source = make(uneven())
    first = [source._next_slice() for _ in range(2)]
    grown(source, 2 * N)
    first += [source._next_slice() for _ in range(3)]
    assert sorted(torch.cat(first).tolist()) == list(range(N))
    assert {len(part) for part in first} == {80}
    then = [source._next_slice() for _ in range(9)]
    assert sorted(torch.cat(then).tolist()) == list(range(2 * N))
    assert {len(part) for part in then} == {89, 88}


def test_a_dataset_of_one_slice_grows_at_once() -> None:
    source = grown(make(uneven()), N + 50)
    assert source._next_slice().tolist() == list(range(N + 50))


def test_what_is_queued_keeps_its_weights_and_the_probability_of_one_draw_in_all() -> None:
    source = make(uneven(), c=0.1, k=1)
    before = source.draw(BATCH, 0)
    grown(source, 4 * N)
    assert source.ready(BATCH, 1)
    after = source.draw(BATCH, 1)
    assert (before.pool, after.pool) == (N, 4 * N)
    for draw in (before, after):
        torch.testing.assert_close(draw.weights.double(), draw.inverse(), rtol=1e-6, atol=0)


def test_new_examples_begin_with_random_credit() -> None:
    source = make(torch.full((N,), 0.5))
    source._plan(BATCH)
    old = source._credit.copy()
    grown(source, 2 * N)
    np.testing.assert_array_equal(source._credit[:N], old)
    new = source._credit[N:]
    assert 0.4 < new.mean() < 0.6
    assert new.std() > 0.2
    assert source._fresh == 0


def test_before_the_first_sweep_all_credits_are_still_to_be_drawn() -> None:
    source = grown(make(torch.full((N,), 0.5)), 2 * N)
    assert source.state_dict()["credit"] is None
    source._plan(BATCH)
    assert source._fresh == 0
    assert source._credit[N:].std() > 0.2


def test_after_growing_equal_scores_are_passes_over_all() -> None:
    source = make(torch.full((N,), 0.5))
    source._plan(BATCH)
    grown(source, 2 * N).new_epoch()
    passes = drawn(source, 3 * 2 * N // BATCH).view(3, 2 * N)
    assert passes.sort(1).values.tolist() == [list(range(2 * N))] * 3
