"""The constant that pulls draws towards uniform."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from conftest import cross_entropy
from salience import Adaptive, Constant, ImportanceSampler
from salience.distribution import RunningMean


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


def test_it_averages_the_unbiased_training_loss_not_the_scores() -> None:
    """Drawn by importance, the plain mean of a batch would be far too large."""
    losses = torch.linspace(0.1, 4.0, 50)
    sampler = ImportanceSampler(50, 10, score="history", seed=1)
    sampler.update(torch.arange(50), losses)
    means = [float(losses.mean())]
    for _ in range(20):
        record = sampler.next_record()
        now = losses[record.indices] / 2  # the model has got better than the scores say
        means.append(float((record.inverse * now).mean()))
        sampler.learn(record, now)
    assert sampler._smoothing.constant(0.0) == pytest.approx(0.5 * average(means, 0.95), rel=1e-5)
    assert sampler.metrics()["mean_loss"] == pytest.approx(average(means, 0.95), rel=1e-5)


@pytest.mark.parametrize(("score", "in_losses"), [("loss", True), ("upper_bound", False)])
def test_scores_in_another_unit_are_smoothed_by_their_own_mean(
    score: str, in_losses: bool, dataset: TensorDataset, model: nn.Module
) -> None:
    options: dict[str, Any] = {"model": model, "loss": cross_entropy}
    sampler = ImportanceSampler(len(dataset), 5, score=score, **options)
    pool = torch.arange(20)
    _, record = sampler.choose(pool, dataset[pool])
    observed: Tensor = torch.arange(5).float()
    sampler.learn(record, observed)
    values = observed if in_losses else record.scores
    expected = 0.5 * float((record.inverse * values).mean())
    assert sampler._smoothing.constant(0.0) == pytest.approx(expected)
