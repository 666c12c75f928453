"""``auto``: what it draws by, when it is on, and that it says so."""

import logging
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from salience import ImportanceLoader, ImportanceSampler, functional
from salience.distribution import Fading
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
