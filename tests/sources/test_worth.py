"""Pools are scored while that pays, decided by the losses that come back."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from parts import cross_entropy, make_dataset
from salience import ImportanceLoader, ImportanceSampler, StateError
from salience.scores import Loss
from salience.sources import Worth, worth

BATCH = 5
STEPS = 35  # until the means are settled: 1 - 0.98^35 > 1/2


def told(loss: float, square: float, times: int, one: Worth | None = None) -> Worth:
    one = one or Worth()
    for _ in range(times):
        one.update(loss, square)
    return one


def test_the_gain_is_the_mean_square_over_the_square_of_the_mean() -> None:
    one = Worth()
    assert math.isnan(one.gain)
    steps = [(1.0, 2.0), (3.0, 10.0), (0.5, 4.0)]
    for step in steps:
        one.update(*step)
    shares = [0.98**2, 0.98, 1.0]
    loss, square = (
        sum(a * x for a, x in zip(shares, each, strict=True)) / sum(shares)
        for each in zip(*steps, strict=True)
    )
    assert one.gain == pytest.approx(square / loss**2, rel=1e-12)


def test_it_scores_at_first_and_decides_after_thirty_five_steps() -> None:
    assert told(1.0, 1.0, STEPS - 1).active
    assert not told(1.0, 1.0, STEPS).active
    assert told(1.0, 3.01, 1000).active


def test_it_turns_on_above_one_gain_and_off_below_another() -> None:
    assert told(1.0, 3.0 + 1e-9, 500).active  # as long as it was on
    off = told(1.0, 3.0 - 1e-9, 500)
    assert not off.active
    assert not told(1.0, 3.5 - 1e-9, 3000, off).active
    assert told(1.0, 3.5 + 1e-6, 3000, off).active
    # Half of the variance is the pool's, the rest is divided by v, and a step costs 1.5.
    assert pytest.approx(1 / 1.5) == 1 / 2 + 1 / (2 * worth.OFF)


def test_losses_that_are_all_zero_have_no_gain() -> None:
    one = told(0.0, 0.0, 100)
    assert one.gain == 1
    assert not one.active


@pytest.mark.parametrize(
    "damage", [{"active": 2}, {"active": None}, {"loss": {}}, {"square": {"sum": -1, "mass": 1}}]
)
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    sampler = made(40)._sampler
    state = sampler.state_dict()
    state["source"]["worth"].update(damage)
    with pytest.raises(StateError, match="nothing was loaded"):
        sampler.load_state_dict(state)


# --------------------------------------------------------------------------------- in the loader


class Counted(nn.Module):
    """Counts the examples that it is shown without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scored = nn.Linear(6, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            self.scored += len(x)
        out: Tensor = self.linear(x)
        return out


def made(n: int, model: nn.Module | None = None, **options: Any) -> ImportanceLoader:
    model = Counted() if model is None else model
    options = {"score": "loss", "model": model, "loss": cross_entropy, **options}
    return ImportanceLoader(make_dataset(n), BATCH, **options)


def epoch(loader: ImportanceLoader, losses: Tensor) -> list[int]:
    """One epoch in which example i has loss ``losses[i]``; the indices."""
    seen = []
    for _ in loader:
        loader.mean(losses[loader.indices])
        seen += loader.indices.tolist()
    return seen


FLAT = torch.ones(40)
STEEP = torch.tensor([20.0] * 4 + [0.01] * 36)  # v is about 10


def test_with_even_losses_no_pool_is_scored_and_passes_are_shuffled() -> None:
    model = Counted()
    loader = made(50, model)  # 35 pools are seven passes
    seen = [index for _ in range(8) for index in epoch(loader, torch.ones(50))]
    assert model.scored == STEPS * 2 * BATCH
    assert loader.metrics()["active"] == 0
    passes = seen[STEPS * BATCH :]
    for begin in range(0, 200, 50):
        assert sorted(passes[begin : begin + 50]) == list(range(50))
    assert loader.weights.tolist() == [1.0] * BATCH
    assert model.scored == STEPS * 2 * BATCH


def test_it_goes_on_when_losses_part_and_stops_when_they_do_not() -> None:
    model = Counted()
    loader = made(40, model)
    for _ in range(6):
        epoch(loader, FLAT)
    for _ in range(40):
        epoch(loader, STEEP)
    before = model.scored
    epoch(loader, STEEP)
    assert model.scored == before + 8 * 2 * BATCH
    assert loader.metrics()["active"] == 1
    for _ in range(40):
        epoch(loader, FLAT)
    assert loader.metrics()["active"] == 0


@pytest.mark.parametrize(
    "options", [{"presample": 2}, {"score": "upper_bound"}, {"score": "gnorm"}, {"reference": FLAT}]
)
def test_other_pools_are_scored_at_every_step(options: dict[str, Any]) -> None:
    loader = made(40, **options)
    for _ in range(6):
        epoch(loader, FLAT)
    assert loader.metrics()["active"] == 1


def test_a_pool_given_to_a_sampler_is_always_chosen_from() -> None:
    model = Counted()
    sampler = ImportanceSampler(40, BATCH, score=Loss(model, cross_entropy), seed=1)
    x, y = make_dataset(40).tensors
    for _ in range(STEPS + 1):
        _, draw = sampler.choose(torch.arange(10), (x[:10], y[:10]))
        sampler.update(draw, torch.ones(len(draw)))
    assert sampler.metrics()["active"] == 0
    assert len(sampler.choose(torch.arange(10), (x[:10], y[:10]))[1]) <= BATCH
    assert len(sampler.candidates()) == BATCH  # but a pool of its own is a batch


def test_the_last_batch_of_a_small_dataset() -> None:
    loader = made(3)
    for _ in range(STEPS + 1):
        epoch(loader, FLAT)
    assert sorted(epoch(loader, FLAT)) == [0, 1, 2]
