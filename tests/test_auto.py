"""``auto``: what it draws by, when it is on, and that it says so."""

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from salience import ImportanceLoader, ImportanceSampler, functional
from salience.distribution import Fading
from salience.distribution.turns import PARTS
from salience.loader.switch import EVERY, OFF, ON, Switch
from salience.scores import History

N, BATCH = 400, 20


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of no length have no cost to measure: count it as none."""
    monkeypatch.setattr(Switch, "_cost", lambda _: 1.0)


def train(sampler: ImportanceSampler, losses: torch.Tensor, steps: int) -> list[bool]:
    """Steps with a loss that is known for each example; whether draws were by importance."""
    active = []
    for _ in range(steps):
        indices, _ = sampler.draw()
        active.append(sampler.active)
        sampler.update(indices, losses[indices])
    return active


def skewed(generator: int = 0) -> torch.Tensor:
    """A few large losses among many small ones, with a mean of a hundredth of the first ones."""
    losses = torch.full((N,), 0.001)
    losses[torch.randperm(N, generator=torch.Generator().manual_seed(generator))[:20]] = 0.3
    return losses


# ------------------------------------------------------------------------------- what it draws by


def test_the_score_is_a_running_mean_of_the_losses() -> None:
    score = History(4, kept=0.75)
    assert score.score(torch.arange(4), None).isnan().all()
    score.update(torch.tensor([0, 2]), torch.tensor([1.0, 4.0]))
    score.update(torch.tensor([2, 3]), torch.tensor([0.0, 2.0]))
    found = score.score(torch.arange(4), None)
    assert found[[0, 2, 3]].tolist() == [1.0, 3.0, 2.0]
    assert math.isnan(found[1])


def test_unknown_examples_stand_at_the_mean_loss() -> None:
    sampler = ImportanceSampler(N, BATCH, score="auto", smoothing=0.0, k=1)
    sampler.update(torch.arange(100), torch.full((100,), 0.5))
    sampler._switch.active = True
    sampler.source.switch(True)
    mean = sampler._mean_loss.value
    indices, weights = sampler.draw()
    p = torch.where(indices < 100, 0.5, mean) / (100 * 0.5 + 300 * mean)
    torch.testing.assert_close(weights, (1 / (N * p)).float())


def on(losses: torch.Tensor, batch: int, **options: Any) -> ImportanceSampler:
    """A sampler that knows these losses and takes turns by them."""
    sampler = ImportanceSampler(len(losses), batch, score="auto", **options)
    sampler.update(torch.arange(len(losses)), losses)
    sampler._switch.active = True
    sampler.source.switch(True)
    return sampler


@given(
    q=st.lists(st.floats(0.01, 50), min_size=2, max_size=30),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_turns_stay_within_one_of_what_is_owed(q: list[float], sizes: list[int], seed: int) -> None:
    p = functional.probabilities(torch.tensor(q, dtype=torch.float64))
    owed = torch.rand(len(q), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    came = torch.zeros(len(q), dtype=torch.int64)
    for i, n in enumerate(sizes):
        counts, owed = functional.turns(owed, p, n)
        came += counts
        assert ((owed >= 0) & (owed < 1)).all()
        assert ((came - sum(sizes[: i + 1]) * p).abs() < 1 + 1e-9).all()


def test_turns_by_hand() -> None:
    owed, p = torch.tensor([0.0, 0.5, 0.9]).double(), torch.tensor([0.5, 0.25, 0.25]).double()
    counts, owed = functional.turns(owed, p, 5)
    assert counts.tolist() == [2, 1, 2]
    torch.testing.assert_close(owed, torch.tensor([0.5, 0.75, 0.15]).double())


def test_with_equal_losses_turns_are_passes() -> None:
    sampler = on(torch.full((N,), 0.5), BATCH)
    passes = [torch.cat([sampler.draw().indices for _ in range(N // BATCH)]) for _ in range(4)]
    # A part of a pass may be a few turns longer or shorter than another.
    counts = torch.cat(passes).bincount(minlength=N)
    assert counts.min() >= 3
    assert counts.max() <= 5
    assert not torch.equal(passes[0], passes[1])


def test_each_example_comes_at_even_intervals() -> None:
    losses = torch.rand(N, generator=torch.Generator().manual_seed(4)) ** 3
    sampler = on(losses, BATCH, smoothing=0.05)
    p = functional.probabilities((losses + 0.05).double())
    batches = [sampler.draw().indices for _ in range(40 * N // BATCH)]
    for some in (40, 200, 800):  # an even share so far, whenever one looks
        counts = torch.cat(batches[:some]).bincount(minlength=N)
        slack = 1 + (N / PARTS + 30) * p  # a part is dealt in any order, and its length varies
        assert ((counts - some * BATCH * p).abs() <= slack).all()


def test_turns_follow_new_losses_from_the_next_part_on() -> None:
    sampler = on(torch.full((N,), 0.5), BATCH, smoothing=0.0)
    sampler.draw()
    losses = torch.zeros(N)
    losses[7] = 1.0
    for _ in range(60):  # until the running mean of the others is next to nothing
        sampler.score.update(torch.arange(N), losses)
    drawn = torch.cat([sampler.draw().indices for _ in range(2 * N // BATCH)])
    assert set(drawn[-N:].tolist()) == {7}


@pytest.mark.parametrize("scheme", ["systematic", "multinomial"])
def test_batches_are_whole_whatever_the_size_of_the_dataset(scheme: Any) -> None:
    for n, batch in ((1, 1), (7, 7), (9, 8), (100, 3)):
        sampler = on(torch.rand(n) + 0.1, batch, draw=scheme)
        for _ in range(50):
            indices, weights = sampler.draw()
            assert len(indices) == len(weights) == batch


# --------------------------------------------------------------------------------- how far it goes


def test_smoothing_fades_with_what_is_left_of_the_loss() -> None:
    smoothing = Fading(least=0.2, half=0.5, first=2, decay=0.0)
    assert smoothing.constant(3.0) == pytest.approx(3 * (0.2 + 2**3))
    for mean in (4.0, 2.0, 1.5):  # began at 3, half of it is left
        smoothing.update(mean)
    assert smoothing.left == pytest.approx(0.5)
    assert smoothing.constant(3.0) == pytest.approx(1.5 * 1.2)  # of the loss, not of the score
    again = Fading(least=0.2, half=0.5, first=2, decay=0.0)
    again.load_state_dict(smoothing.state_dict())
    assert again.constant(3.0) == smoothing.constant(3.0)


def test_more_loss_than_at_the_start_counts_as_all_of_it() -> None:
    smoothing = Fading(least=0.2, half=0.5, first=1)
    for mean in (1e-300, 1e6):
        smoothing.update(mean)
    assert smoothing.left == 1.0
    assert smoothing.constant(1.0) / smoothing._mean.value == pytest.approx(0.2 + 8)


def test_a_loss_of_zero_from_the_start() -> None:
    smoothing = Fading()
    smoothing.update(0.0)
    assert smoothing.left == 1.0
    assert smoothing.constant(0.0) == 0.0


# ------------------------------------------------------------------------------------ when it is on


def test_the_gain_is_the_variance_reduction_of_the_smoothed_scores() -> None:
    losses = torch.rand(1000, generator=torch.Generator().manual_seed(0)) ** 4
    switch = Switch(1000, 10)
    switch.learn(1000, float(losses.mean()), float(losses.square().mean()))
    expected = functional.variance_reduction(losses + 0.3)
    assert switch.gain(0.3) == pytest.approx(float(expected), rel=1e-5)


def test_a_cost_below_a_twentieth_of_a_step_is_none() -> None:
    switch = Switch(1, 1)
    for share, cost in ((0.04, 1.0), (0.06, 1.06)):
        switch._extra, switch._quickest = share, 1.0
        assert switch._cost() == pytest.approx(cost)
        assert switch._quickest == math.inf  # the next look measures anew


@pytest.mark.parametrize("cost", [0.0, 1.0])
def test_it_pays_while_the_gain_is_above_the_cost(cost: float) -> None:
    switch = Switch(1, 1)
    switch._quickest, switch._extra = 1.0, cost
    switch._steps = EVERY

    def look(gain: float, active: bool) -> bool:
        switch.active = active
        switch._quickest = 1.0 + (cost if active else 0.0)
        switch._mean.load_state_dict({"sum": 1.0, "mass": 1.0})
        switch._square.load_state_dict({"sum": gain, "mass": 1.0})
        switch.changes(0.0)
        return switch.active

    ratio = 1 + cost
    assert not look(ratio * ON * 0.99, active=False)
    assert look(ratio * ON * 1.01, active=False)
    assert look(ratio * OFF * 1.01, active=True)
    assert not look(ratio * OFF * 0.99, active=True)


def test_equal_losses_are_shuffled_passes_for_ever() -> None:
    sampler = ImportanceSampler(N, BATCH, score="auto")
    drawn = []
    for _ in range(10 * N // BATCH):
        indices, weights = sampler.draw()
        assert weights.tolist() == [1.0] * BATCH
        sampler.update(indices, torch.full((BATCH,), 2.3))
        drawn += indices.tolist()
    assert sampler.metrics()["active"] == 0.0
    assert np.bincount(drawn).tolist() == [10] * N


@pytest.mark.usefixtures("free")
def test_it_goes_on_when_losses_differ_and_off_when_they_no_longer_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sampler = ImportanceSampler(N, BATCH, score="auto")
    with caplog.at_level(logging.INFO, logger="salience"):
        assert not any(train(sampler, torch.full((N,), 2.3), N // BATCH))
        assert train(sampler, skewed(), 12 * EVERY)[-1]
        assert sampler.metrics()["active"] == 1.0
        assert not train(sampler, torch.full((N,), 0.01), 20 * EVERY)[-1]
    assert sampler.metrics()["active"] == 0.0
    (record,) = caplog.records
    assert "importance sampling is on from step" in record.getMessage()


@pytest.mark.usefixtures("free")
def test_it_waits_for_a_whole_pass_whatever_the_losses() -> None:
    sampler = ImportanceSampler(10 * N, BATCH, score="auto")
    losses = skewed().repeat(10)
    train(sampler, torch.full((10 * N,), 2.3), 10)
    rest = 10 * N // BATCH - 11
    assert not any(train(sampler, losses, rest))
    assert train(sampler, losses, EVERY + 1)[-1]


@pytest.mark.usefixtures("free")
def test_hard_examples_come_more_often_once_it_is_on() -> None:
    sampler = ImportanceSampler(N, BATCH, score="auto")
    losses = skewed()
    train(sampler, torch.full((N,), 2.3), N // BATCH)
    train(sampler, losses, 12 * EVERY)
    drawn = torch.cat([sampler.draw().indices for _ in range(50)])
    assert float((losses[drawn] > 0.1).float().mean()) > 0.3  # 0.05 of the examples


@pytest.mark.usefixtures("free")
def test_it_resumes_exactly_on_both_sides_of_the_switch() -> None:
    losses = skewed()
    sampler = ImportanceSampler(N, BATCH, score="auto", seed=3)
    train(sampler, torch.full((N,), 2.3), N // BATCH)
    for steps in (7, 60, 150):
        train(sampler, losses, steps)
        twin = ImportanceSampler(N, BATCH, score="auto", seed=9)
        twin.load_state_dict(sampler.state_dict())
        for _ in range(80):
            ours, theirs = sampler.draw(), twin.draw()
            assert torch.equal(ours.indices, theirs.indices)
            assert torch.equal(ours.weights, theirs.weights)
            for each, drawn in ((sampler, ours), (twin, theirs)):
                each.update(drawn.indices, losses[drawn.indices])
    assert sampler.metrics()["active"] == 1.0


def test_epochs_are_whole_passes_while_it_is_off() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(50))
    loader = ImportanceLoader(dataset, 8)
    for _ in range(3):
        seen = []
        for (x,) in loader:
            loader.mean(torch.ones(len(x), requires_grad=True))
            seen += x.tolist()
        assert sorted(seen) == list(range(50))


@pytest.mark.usefixtures("free")
@given(
    losses=st.lists(st.sampled_from([0.0, 1e-30, 1e-3, 0.5, 2.3, 1e6]), min_size=40, max_size=40),
    seed=st.integers(0, 99),
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_the_losses_draws_are_valid_and_a_pass_comes_first(
    losses: list[float], seed: int
) -> None:
    sampler = ImportanceSampler(40, 8, score="auto", seed=seed)
    values, first = torch.tensor(losses), []
    for step in range(3 * EVERY):
        indices, weights = sampler.draw()
        first += indices.tolist() if step < 5 else []
        assert weights.isfinite().all()
        assert (weights > 0).all()
        sampler.update(indices, values[indices])
    assert sorted(first) == list(range(40))


def test_its_log_and_metrics_agree(caplog: pytest.LogCaptureFixture) -> None:
    sampler = ImportanceSampler(N, BATCH, score="auto")
    with caplog.at_level(logging.INFO, logger="salience"):
        train(sampler, torch.full((N,), 2.3), 3 * N // BATCH)
    assert sampler.metrics()["active"] == 0.0
    assert not caplog.records  # never on, so nothing to tell


def test_pools_are_drawn_from_without_a_switch() -> None:
    sampler = ImportanceSampler(N, BATCH, score="auto", presample=3)
    indices, _ = sampler.draw()
    assert sampler.metrics()["active"] == 1.0
    assert len(indices) <= BATCH
