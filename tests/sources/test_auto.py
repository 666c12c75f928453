"""``auto``: what it draws by, when it is on, and that seed and losses alone decide."""

import logging
import math
import random
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import TensorDataset

from parts import frozen
from salience import ArgumentError, ImportanceLoader, ImportanceSampler, functional, recency
from salience.sources import auto, even
from salience.sources.auto import DOUBT, EVERY, LEFT, OFF, ON, TIMES, WORSE, Found

N, BATCH = 400, 20


def sampler(n: int = N, batch: int = BATCH, **options: Any) -> ImportanceSampler:
    return ImportanceSampler(n, batch, score="auto", **options)


def train(one: ImportanceSampler, losses: Tensor, steps: int) -> list[bool]:
    """Steps with a loss that is known for each example; whether draws were by importance."""
    active = []
    for _ in range(steps):
        draw = one.draw()
        active.append(one.active)
        assert draw.uniform == (not active[-1])
        one.update(draw, losses[draw.indices])
    return active


def skewed(n: int = N, seed: int = 0) -> Tensor:
    """A quarter of large losses among many small ones."""
    losses = torch.full((n,), 0.001)
    losses[torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: n // 4]] = 0.3
    return losses


def on(**options: Any) -> ImportanceSampler:
    """One that has turned on by itself."""
    one = sampler(**options)
    train(one, torch.full((N,), 2.3), N // BATCH)
    train(one, skewed(), 12 * EVERY)
    assert one.active
    return one


# ------------------------------------------------------------------------------------ when it is on


@pytest.mark.parametrize(("c", "capped"), [(1.0, False), (0.3, True)])
def test_the_gain_is_that_of_the_equations(c: float, capped: bool) -> None:
    losses = torch.rand(N, generator=torch.Generator().manual_seed(3)) ** 4
    one = sampler(smoothing=c)
    one.update(torch.arange(N), losses)
    one.catch_up()
    q = losses.double() + c
    # No example adds more than 0.01, so N p_i^2 <= 0.01.
    limited = functional.cap(q, (0.01 / N) ** 0.5)
    expected = float(N * (limited**2).sum() / limited.sum() ** 2)
    assert one.source._find(0).gain == pytest.approx(expected, rel=1e-12)
    assert (limited.max() < q.max()) == capped


def test_one_example_adds_no_more_than_a_hundredth_to_the_gain() -> None:
    losses = torch.ones(N)
    losses[3] = 1e20
    one = sampler(smoothing=0.0)
    one.update(torch.arange(N), losses)
    one.catch_up()
    assert 1 < one.source._find(0).gain < 1.011


def test_the_gain_is_1_before_all_have_been_seen() -> None:
    one = sampler(smoothing=0.0)
    one.update(torch.arange(N - BATCH - 1), skewed()[: N - BATCH - 1])
    one.catch_up()
    assert one.source._find(0).gain == 1.0
    one.update(torch.tensor([N - BATCH - 1]), torch.tensor([0.3]))  # one batch may be left out
    one.catch_up()
    assert one.source._find(0).gain > 1.2


def test_the_gain_of_many_examples_is_that_of_an_even_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto, "SAMPLE", N)
    one = sampler(n=4 * N, smoothing=0.0)
    losses = torch.rand(4 * N) + 1
    one.update(torch.arange(4 * N), losses)
    one.catch_up()
    for look in range(5):
        expected = functional.variance_reduction(losses[look % 4 :: 4])
        assert one.source._find(look).gain == pytest.approx(float(expected))


@pytest.mark.parametrize("options", [{}, {"smoothing": 0.5}])
def test_it_turns_on_above_one_gain_and_off_below_a_smaller_one(
    options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gains = [ON - 0.001, ON + 0.001, OFF + 0.001, OFF - 0.001, ON - 0.001, ON + 0.001]
    expected = ["off", "focused", "focused", "off", "off", "focused"]
    assert modes(sampler(**options), gains, monkeypatch) == expected


def test_it_turns_off_when_little_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    one = sampler()
    for loss in [2.0] * 10 + [2.0 * LEFT * 0.9] * 400:
        one.source._fading.update(loss)
    assert one.source._fading.remaining < LEFT
    assert modes(one, [ON + 1] * 2, monkeypatch) == ["off"] * 2
    assert one.source.decision(0)["why"] == "almost nothing is left to learn"


@pytest.mark.parametrize(("hard", "wanted"), [(1.9, "focused"), (2.1, "off")])
def test_it_does_not_focus_on_examples_that_are_worse_than_untrained(
    hard: float, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss was 2 at the start; a group of 70 %, too many to be suspects, has ``hard``."""
    one = sampler()
    for _ in range(10):
        one.source._fading.update(2.0)
    losses = torch.full((N,), hard)
    losses[: 3 * N // 10] = 0.01
    one.update(torch.arange(N), losses)
    one.catch_up()
    assert one.source._find(0, 0).doubt == pytest.approx(hard / 2)
    assert DOUBT == 1.0
    assert modes(one, [ON + 1], monkeypatch) == [wanted]
    why = "" if wanted == "focused" else "hard examples are worse than untrained"
    assert one.source.decision(0)["why"] == why


def modes(one: ImportanceSampler, gains: list[float], monkeypatch: Any) -> list[str]:
    """After looks that find these."""
    monkeypatch.setattr(recency, "ENOUGH", 0.0)
    monkeypatch.setattr(recency, "FEW", 0)
    found = []
    for look, gain in enumerate(gains):
        told = Found(gain, one.source._find(look).doubt)
        with monkeypatch.context() as patch:
            patch.setattr(type(one.source), "_find", lambda *_, told=told: told)
            one.source.draw(BATCH, look * EVERY)
        found.append(one.source.mode)
    return found


@pytest.mark.parametrize("options", [{}, {"smoothing": 0.5}])
def test_a_validation_loss_that_has_risen_turns_it_off(
    options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sampler(**options)

    def mode_after(*losses: float) -> str:
        for loss in losses:
            one.validation(loss)
        return modes(one, [ON + 1], monkeypatch)[0]

    assert mode_after() == "focused"
    assert mode_after(2.0, 1.0, *[WORSE + 0.01] * (TIMES - 1)) == "focused"  # not often enough
    assert mode_after(WORSE + 0.01) == "off"
    assert mode_after(WORSE + 0.5) == "off"
    state = one.source.state_dict()
    assert mode_after(0.9) == "focused"
    one.source.load_state_dict(state)
    assert mode_after() == "off"
    assert mode_after(WORSE - 0.01) == "focused"  # as low as the lowest, or nearly
    assert mode_after(*[WORSE + 0.01, WORSE - 0.01] * TIMES) == "focused"  # not in a row


def test_a_validation_loss_has_to_be_a_number_and_other_scores_take_no_notice() -> None:
    with pytest.raises(ArgumentError, match="validation loss is nan"):
        sampler().validation(math.nan)
    history = ImportanceSampler(N, BATCH, score="history")
    before = frozen(history.state_dict())
    for loss in (1.0, 9.0, 9.0):
        history.validation(loss)
    assert frozen(history.state_dict()) == before
    loader = ImportanceLoader(TensorDataset(torch.arange(50)), 8)
    loader.validation(torch.tensor(1.5))
    assert loader._sampler.source.state_dict()["validation"] == [1.5, 0]


def test_it_looks_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    one = sampler().source
    looks = []
    monkeypatch.setattr(type(one), "_find", lambda _, look, __: looks.append(look) or Found())
    for number in range(3 * EVERY + 1):
        assert one.ready(BATCH, number) == (number % EVERY != 0)  # else all has to be learned
        one.draw(BATCH, number)
    assert looks == [0, 1, 2, 3]


def test_it_turns_on_when_losses_differ_and_off_when_they_no_longer_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = sampler()
    with caplog.at_level(logging.INFO, logger="salience"):
        assert not any(train(one, torch.full((N,), 2.3), N // BATCH))
        assert train(one, skewed(), 12 * EVERY)[-1]
        assert one.metrics()["active"] == 1.0
        assert not train(one, torch.full((N,), 0.01), 20 * EVERY)[-1]
    assert one.metrics()["active"] == 0.0
    (record,) = caplog.records  # told once
    assert "importance sampling turns on at draw" in record.getMessage()


def test_it_waits_until_each_was_seen_twice_whatever_the_losses() -> None:
    one = sampler(n=10 * N)
    losses, steps = skewed().repeat(10), 10 * N // BATCH  # of a pass
    train(one, torch.full((10 * N,), 2.3), 10)
    assert not any(train(one, losses, 2 * steps - 20))
    assert train(one, losses, steps)[-1]


def test_equal_losses_are_shuffled_passes_for_ever_even_when_they_fall_tenfold() -> None:
    one, uniform = sampler(), ImportanceSampler(N, BATCH, score="uniform")
    drawn = []
    for step in range(10 * N // BATCH):
        ours, theirs = one.draw(), uniform.draw()
        assert frozen(ours.state_dict()) == frozen(theirs.state_dict())
        one.update(ours, torch.full((BATCH,), 2.3 if step < 90 else 0.23))
        drawn += ours.indices.tolist()
        assert not one.active
    assert np.bincount(drawn).tolist() == [10] * N


def test_one_huge_loss_does_not_keep_it_on_and_takes_one_place_at_most() -> None:
    one = sampler()
    losses = torch.full((N,), 0.5)
    losses[7] = 1e20
    train(one, losses, 4 * N // BATCH)  # seen as huge once per pass
    losses[7] = 0.5
    counts, active = [], []
    for _ in range(20 * EVERY):
        draw = one.draw()
        active.append(one.active)
        counts.append(int((draw.indices == 7).sum()))
        assert draw.weights.isfinite().all()
        one.update(draw, losses[draw.indices])
    assert not active[-1]
    assert max(counts) <= 2
    assert sum(counts[:200]) <= 1.1 * 200


def test_a_huge_loss_that_stays_takes_about_one_place_per_batch() -> None:
    one = sampler()
    losses = torch.rand(N)
    losses[7] = 1e20
    train(one, losses, EVERY + 1)
    one.source._turn("focused", 0, Found(9.0))
    places = []
    for _ in range(EVERY - 1):
        draw = one.draw()
        places.append(int((draw.indices == 7).sum()))
        assert (draw.probabilities <= 1 / BATCH + 1e-12).all()
        one.update(draw, losses[draw.indices])
    assert sum(places) <= 1.1 * len(places)


# ------------------------------------------------------------------------- never the clock


def test_pauses_change_nothing() -> None:
    def follow(pause: bool) -> tuple[list[Any], list[bool]]:
        one, losses = sampler(seed=5), skewed()
        pauses = random.Random(1)
        rows, active = [], []
        for step in range(600):
            draw = one.draw()
            rows.append(frozen(draw.state_dict()))
            if pause:
                time.sleep(pauses.uniform(0, 0.002))
            one.update(draw, losses[draw.indices] if step > 25 else torch.full((BATCH,), 2.3))
            active.append(one.active)
        return rows, active

    rows, active = follow(pause=True)
    assert (rows, active) == follow(pause=False)
    assert sum(active) >= 50  # it turned on, so there was something to show


def test_off_again_it_goes_on_with_whole_passes() -> None:
    one = on()
    train(one, torch.full((N,), 0.01), 20 * EVERY)
    assert not one.active
    one.new_epoch()
    drawn = torch.cat([one.draw().indices for _ in range(N // BATCH)])
    assert sorted(drawn.tolist()) == list(range(N))


# ---------------------------------------------------------------------------------- what it draws


def test_hard_examples_come_more_often_once_it_is_on() -> None:
    one = on()
    for _ in range(10):  # what was planned at the first look
        one.draw()
    drawn = torch.cat([one.draw().indices for _ in range(50)])
    q = skewed() + float(one._smoothing.constant(float(skewed().mean())))
    expected = float(q[skewed() > 0.1].sum() / q.sum())
    assert expected > 0.7  # of a quarter of the examples
    assert float((skewed()[drawn] > 0.1).float().mean()) == pytest.approx(expected, abs=0.03)


def test_with_presample_it_is_the_same_switch_over_pools() -> None:
    one, twin = on(presample=3), on(presample=3)
    draw = one.draw()
    assert draw.pool == 3 * BATCH
    assert frozen(draw.state_dict()) == frozen(twin.draw().state_dict())
    fresh = sampler(presample=3)
    uniform = ImportanceSampler(N, BATCH, score="uniform").draw()
    assert frozen(fresh.draw().state_dict()) == frozen(uniform.state_dict())
    train(one, torch.full((N,), 0.01), 20 * EVERY)
    assert not one.active


def test_epochs_are_whole_passes_while_it_is_off() -> None:
    loader = ImportanceLoader(TensorDataset(torch.arange(50)), 8)
    for _ in range(3):
        seen = []
        for (x,) in loader:
            loader.mean(torch.ones(len(x), requires_grad=True))
            seen += x.tolist()
        assert sorted(seen) == list(range(50))


@given(
    losses=st.lists(st.sampled_from([0.0, 1e-30, 1e-3, 0.5, 2.3, 1e6]), min_size=40, max_size=40),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_whatever_the_losses_draws_are_valid_and_a_pass_comes_first(
    losses: list[float], seed: int
) -> None:
    one = sampler(40, 8, seed=seed)
    values, first = torch.tensor(losses), []
    for step in range(3 * EVERY):
        indices, weights = draw = one.draw()
        first += indices.tolist() if step < 5 else []
        assert weights.isfinite().all()
        assert (weights > 0).all()
        one.update(draw, values[indices])
    assert sorted(first) == list(range(40))


# -------------------------------------------------------------------------------------- its cost


class Counting:
    """Asks another score, and counts."""

    by_index, unit = True, "loss"

    def __init__(self, score: Any) -> None:
        self._score, self.asked = score, 0

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        self.asked += len(indices)
        found: Tensor = self._score.score(indices, batch)
        return found


@pytest.mark.parametrize("active", [False, True])
def test_no_step_asks_for_more_scores_than_a_slice_or_a_sample(
    active: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(even, "SLICE", 1000)
    monkeypatch.setattr(auto, "SAMPLE", 500)
    monkeypatch.setattr(auto, "EVERY", 7)
    monkeypatch.setattr(auto, "ON", 0.0 if active else 9e9)
    monkeypatch.setattr(auto, "OFF", 0.0)
    monkeypatch.setattr(recency, "ENOUGH", 0.0)
    monkeypatch.setattr(recency, "FEW", 0)
    n = 20_000
    one = sampler(n, 50)
    counting = Counting(one.score)
    one.source._score = one.source._on._score = counting
    total = 0
    for step in range(300):
        counting.asked = 0
        draw = one.draw()
        one.update(draw, torch.rand(50))
        assert counting.asked <= (3000 if step % 7 == 0 else 1000)  # a look asks four times
        total += counting.asked
        assert one.active == active
    assert total > (30_000 if active else 20_000)  # it did ask


# ------------------------------------------------------------------------------ turning on and off


def turn(one: ImportanceSampler, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The next draw, at which it turns on or off."""
    one._number = EVERY
    monkeypatch.setattr(recency, "ENOUGH", 0.0)
    monkeypatch.setattr(recency, "FEW", 0)
    gain = 9.0 if wanted else 1.0
    monkeypatch.setattr(type(one.source), "_find", lambda *_: Found(gain))
    draw = one.draw()
    assert one.active == wanted
    return draw


def test_turned_on_again_it_plans_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    one = sampler(smoothing=0.0)
    one.update(torch.arange(N), torch.full((N,), 1.0))
    turn(one, True, monkeypatch)
    assert len(one.source._on._queue) > BATCH  # planned by scores that will be old
    turn(one, False, monkeypatch)
    one.update(torch.arange(N), torch.full((N,), 6.0))
    one.catch_up()
    assert set(turn(one, True, monkeypatch).scores.tolist()) == {2.0}  # 0.8 x 1 + 0.2 x 6


def test_turned_off_it_begins_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    one = sampler()
    train(one, torch.full((N,), 1.0), 5)
    turn(one, True, monkeypatch)
    drawn = [turn(one, False, monkeypatch).indices]
    drawn += [one.draw().indices for _ in range(N // BATCH - 1)]
    assert sorted(torch.cat(drawn).tolist()) == list(range(N))


def test_epochs_do_not_disturb_it_while_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    one = sampler()
    one.update(torch.arange(N), torch.full((N,), 1.0))
    turn(one, True, monkeypatch)
    planned = len(one.source._on._queue)
    one.new_epoch()
    assert len(one.source._on._queue) == planned


# ---------------------------------------------------------------------------------------- growing


def grow(one: ImportanceSampler, n: int) -> None:
    one.catch_up()
    one._score.extend(n)
    one.source.extend(n)


def gain_with_new(one: ImportanceSampler, new: int) -> float:
    """The gain by the equations, the new ones at the mean of the others."""
    one.catch_up()
    scores = one._score.score(torch.arange(N), None).double()
    scores = torch.cat([scores, scores.mean().expand(new)])
    q = scores + one._smoothing.constant(scores.mean())
    return float(functional.variance_reduction(functional.cap(q, (0.01 / len(q)) ** 0.5)))


@pytest.mark.parametrize("new", [1, 100, 2000])
def test_new_examples_count_as_the_mean_of_the_others(new: int) -> None:
    one = on()
    grow(one, N + new)
    assert one.source._find(0).gain == pytest.approx(gain_with_new(one, new), rel=1e-9)
    twin = on()
    grow(twin, N + new)
    twin.source.load_state_dict(one.source.state_dict())
    assert twin.source._find(0).gain == one.source._find(0).gain


def test_a_few_new_examples_leave_it_on_and_many_turn_it_off() -> None:
    few, many = on(), on()
    grow(few, N + 40)
    grow(many, 100 * N)
    assert few.source._find(0).gain > ON
    assert many.source._find(0).gain < OFF


def test_examples_that_were_there_from_the_start_must_have_been_seen() -> None:
    one = sampler()
    one.update(torch.arange(N // 2), skewed()[: N // 2])
    grow(one, N + 10)
    assert one.source._find(0).gain == 1.0


@pytest.mark.parametrize("state", ["off", "on"])
def test_new_examples_are_visited_after_the_pass_or_the_sweep(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = on() if state == "on" else sampler()
    if state == "off":
        monkeypatch.setattr(auto, "ON", float("inf"))
        train(one, skewed(), 5)
    grow(one, N + 60)
    losses = torch.cat([skewed(), torch.full((60,), 0.3)])
    train(one, losses, 4 * N // BATCH)
    assert not one.score.score(torch.arange(N, N + 60), None).isnan().any()
