"""The constant that pulls draws towards uniform."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from parts import cross_entropy, frozen
from salience import Adaptive, Constant, ImportanceSampler
from salience.smoothing import Fading, RunningMean, make_smoothing


def average(values: list[float], decay: float) -> float:
    """The exponential moving average as a weighted mean: the newest value weighs most."""
    weights = [decay ** (len(values) - 1 - i) for i in range(len(values))]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def test_a_running_mean_is_the_weighted_mean_of_all_values() -> None:
    mean, seen = RunningMean(decay=0.9), []
    assert math.isnan(mean.value)
    for value in (3.0, 1.0, 4.0, 1.0, 5.0):
        seen.append(value)
        mean.update(value)
        assert mean.value == pytest.approx(average(seen, 0.9))


def test_adaptive_is_half_the_running_mean_and_half_the_pool_before_it() -> None:
    smoothing = Adaptive()
    assert smoothing.constant(3.0) == 1.5
    smoothing.update(8.0)
    smoothing.update(4.0)
    assert smoothing.constant(3.0) == pytest.approx(0.5 * average([8.0, 4.0], 0.95))
    assert Adaptive(share=0.2).constant(10.0) == 2.0
    assert Constant(0.7).constant(3.0) == 0.7


@pytest.mark.parametrize("smoothing", [Adaptive(), Fading()])
def test_the_mean_loss_is_never_taken_below_half_the_mean_score(smoothing: Any) -> None:
    smoothing.update(1.0)
    share = smoothing.constant(0.0)
    assert smoothing.constant(2.0) == pytest.approx(share)
    assert smoothing.constant(6.0) == pytest.approx(3 * share)
    on_device = smoothing.constant(torch.tensor(6.0))
    assert float(on_device) == pytest.approx(3 * share)
    assert float(smoothing.constant(torch.tensor(1.0))) == pytest.approx(share)


def test_fading_follows_the_remaining_fraction_of_the_loss() -> None:
    smoothing = Fading(least=0.2, most=0.6, scale=0.75, first=2, decay=0.0)
    assert smoothing.constant(3.0) == pytest.approx(3 * 0.6)
    for mean in (4.0, 2.0, 2.4):  # began at 3, 0.8 of it remain
        smoothing.update(mean)
    assert smoothing.constant(2.0) == pytest.approx(2.4 * 0.6)  # of the loss, not of the score
    smoothing.update(1.125)  # 0.375, half of the scale
    assert smoothing.remaining == pytest.approx(0.375)
    assert smoothing.constant(2.0) == pytest.approx(1.125 * (0.2 + 0.4 / 2**3))
    again = Fading(least=0.2, most=0.6, scale=0.75, first=2, decay=0.0)
    again.load_state_dict(smoothing.state_dict())
    assert again.constant(3.0) == smoothing.constant(3.0)
    again.update(1.0)
    assert again.remaining == pytest.approx(1 / 3)  # the start is over and does not move


def test_more_loss_than_at_the_start_counts_as_all_of_it() -> None:
    smoothing = Fading(least=0.2, scale=0.5, first=1)
    for mean in (1e-300, 1e6):
        smoothing.update(mean)
    assert smoothing.remaining == 1.0
    assert smoothing.constant(1.0) / smoothing._mean.value == pytest.approx(smoothing.most)


def test_a_loss_of_zero_from_the_start() -> None:
    smoothing = Fading()
    smoothing.update(0.0)
    assert smoothing.remaining == 1.0
    assert smoothing.constant(0.0) == 0.0


# ------------------------------------------------------------------------------- what it averages


def test_it_averages_the_unbiased_training_loss_not_the_scores() -> None:
    """Drawn by importance, the plain mean of a batch would be far too large."""
    losses = torch.linspace(0.1, 4.0, 50)
    sampler = ImportanceSampler(50, 10, score="history", seed=1)
    sampler.update(torch.arange(50), losses)
    means = [float(losses.mean())]
    for _ in range(20):
        draw = sampler.draw()
        now = losses[draw.indices] / 2  # the model has got better than the scores say
        means.append(float((now / (50 * draw.probabilities)).mean()))
        sampler.update(draw, now)
    sampler.catch_up()
    assert sampler._smoothing.constant(0.0) == pytest.approx(0.5 * average(means, 0.95), rel=1e-5)
    assert sampler.metrics()["mean_loss"] == pytest.approx(average(means, 0.95), rel=1e-5)


@pytest.mark.parametrize(("score", "in_losses"), [("loss", True), ("upper_bound", False)])
def test_scores_in_another_unit_are_smoothed_by_their_own_mean(
    score: str, in_losses: bool, dataset: TensorDataset, model: nn.Module
) -> None:
    options: dict[str, Any] = {"model": model, "loss": cross_entropy}
    sampler = ImportanceSampler(len(dataset), 5, score=score, **options)
    pool = torch.arange(20)
    _, draw = sampler.choose(pool, dataset[pool])
    observed: Tensor = torch.arange(len(draw)).float()
    sampler.learn(draw, observed)
    sampler.catch_up()
    values = observed if in_losses else draw.scores
    expected = 0.5 * float((draw.inverse() * values).mean())
    assert sampler._smoothing.constant(0.0) == pytest.approx(expected)


# ------------------------------------------------------------------------------ weights are bounded

LOSSES = st.lists(st.sampled_from([0.0, 1e-20, 1e-3, 0.7, 3.0, 1e4, 1e19]), min_size=5, max_size=25)


def largest_weight(sampler: ImportanceSampler, means: list[float]) -> float:
    """Of draws between which the loss jumps about as it likes."""
    n, largest = sampler.n, 0.0
    for i, mean in enumerate(means):
        draw = sampler.draw()
        largest = max(largest, float(draw.weights.max()))
        spread = torch.rand(len(draw), generator=torch.Generator().manual_seed(i)) ** 4
        sampler.update(draw, mean * spread)
        sampler.update(torch.arange(i % n, n), mean * torch.rand(n - i % n))
    return largest


@pytest.mark.parametrize("presample", [None, 3])
@settings(max_examples=40)
@given(means=LOSSES)
def test_adaptive_weights_at_k_1_are_at_most_5(presample: Any, means: list[float]) -> None:
    sampler = ImportanceSampler(
        60, 6, score="history", k=1, presample=presample, draw="multinomial"
    )
    counts = 6 if presample else 1  # merged rows have their weights added
    assert largest_weight(sampler, means) <= 5 * counts + 1e-4


@settings(max_examples=40)
@given(means=LOSSES)
def test_the_weights_of_auto_at_k_1_are_at_most_11(means: list[float]) -> None:
    sampler = ImportanceSampler(60, 6, score="auto", k=1)
    sampler.source.mode = "focused"
    sampler._number = 1
    assert largest_weight(sampler, means) <= 11 + 1e-4


def test_weights_reach_the_bound_when_old_scores_are_far_above_the_loss() -> None:
    """Without the floor of the mean they would be in the thousands."""
    sampler = ImportanceSampler(1000, 50, score="history", k=1, draw="multinomial")
    losses = torch.cat([torch.zeros(500), torch.full((500,), 100.0)])
    sampler.update(torch.arange(1000), losses)
    for _ in range(200):  # the mean loss falls; the scores of all but a few stay
        sampler.update(torch.arange(50), torch.zeros(50))
    assert 4.5 < float(sampler.draw().weights.max()) <= 5 + 1e-4


# ----------------------------------------------------------------------------- what users write


def test_what_users_write() -> None:
    assert isinstance(make_smoothing("adaptive"), Adaptive)
    assert make_smoothing(0.5).constant(9.0) == 0.5
    own = Adaptive(0.25)
    assert make_smoothing(own) is own


@pytest.mark.parametrize("make", [Adaptive, Fading])
def test_states(make: Any) -> None:
    one, twin = make(), make()
    for value in range(13):
        one.update(float(value))
    twin.load_state_dict(one.state_dict())
    for value in (3.0, 1.0):
        one.update(value)
        twin.update(value)
        assert frozen(one.state_dict()) == frozen(twin.state_dict())
        assert one.constant(0.5) == twin.constant(0.5)


@pytest.mark.parametrize(
    ("smoothing", "shown"),
    [
        (Constant(0.5), "Constant(0.5)"),
        (Adaptive(), "Adaptive(share=0.5, decay=0.95)"),
        (Fading(), "Fading(least=0.2, most=0.5, scale=0.35, first=10, decay=0.95)"),
    ],
)
def test_settings_are_shown(smoothing: Any, shown: str) -> None:
    """States are compared by them."""
    assert repr(smoothing) == shown


def test_a_mean_of_less_than_one_value_is_refused() -> None:
    """Its quotient overflows, and weights would be nan."""
    mean = RunningMean()
    mean.update(2.0)
    state = mean.state_dict()
    fresh = RunningMean()
    with pytest.raises(ValueError, match="not between"):
        fresh.load_state_dict({**state, "mass": 1e-308})
    assert math.isnan(fresh.value)
    fresh.load_state_dict(state)
    assert fresh.value == mean.value
    fresh.load_state_dict(RunningMean().state_dict())  # no value at all
    assert math.isnan(fresh.value)
