"""Whether a network memorises is told by losses after long and after short intervals."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from salience import ImportanceSampler
from salience.recency import ENOUGH, ERRORS, SETTLED, SLOPE, Recency, effect
from salience.scores import History

N, BATCH = 400, 20


def recency(n: int = N, batch: int = BATCH) -> Recency:
    return Recency(History(n, decay=0.8), n, batch)


def shuffled(passes: int, n: int = N, seed: int = 0) -> Any:
    """Batches of independent shuffled passes."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(passes):
        yield from torch.randperm(n, generator=random).split(BATCH)


def follow(one: Recency, passes: int, memory: float, *, noise: float = 0.5, seed: int = 0) -> None:
    """Losses of a network that has forgotten a share ``memory`` of each visit after every pass.

    Examples differ in difficulty and the losses fall over time, as they do in training.
    """
    random = torch.Generator().manual_seed(seed + 1)
    hard = 0.5 + torch.rand(N, generator=random)
    last = torch.zeros(N)
    for step, indices in enumerate(shuffled(passes, seed=seed)):
        gaps = (step - last[indices]) * BATCH / N
        luck = 1 + noise * (torch.rand(BATCH, generator=random) - 0.5)
        one.update(indices, hard[indices] * luck * (1 + memory * gaps) / (1 + step / 50))
        last[indices] = step


# --------------------------------------------------------------------------------- the estimate


def test_the_effect_is_the_slope_of_least_squares_within_batches() -> None:
    one, gaps, losses, groups = recency(), [], [], []
    last: dict[int, int] = {}
    random = torch.Generator().manual_seed(3)
    for step, indices in enumerate(shuffled(2)):
        seen = torch.rand(BATCH, generator=random) + 0.1
        for i, loss in zip(indices.tolist(), seen.tolist(), strict=True):
            if i in last:
                gaps.append((step - last[i]) * BATCH / N)
                losses.append(loss)
                groups.append(step)
            last[i] = step
        one.update(indices, seen)
    # With a constant for every batch, numpy solves for the slope that all batches share. Later
    # batches count for more: each step takes BATCH / (2 N) off what was there.
    x, y, batch = np.array(gaps), np.array(losses), np.array(groups)
    steps = np.unique(batch)
    w = (1 - BATCH / (2 * N)) ** (steps.max() - batch)
    design = np.column_stack([x, *(batch == step for step in steps)]) * np.sqrt(w)[:, None]
    slope = np.linalg.lstsq(design, y * np.sqrt(w), rcond=None)[0][0]
    found = one.effect()
    assert found.slope == pytest.approx(slope / np.average(y, weights=w), rel=1e-9)
    assert found.visits == pytest.approx(w.sum(), rel=1e-12)
    e = np.concatenate([y[batch == step] - y[batch == step].mean() for step in steps])
    d = np.concatenate([x[batch == step] - x[batch == step].mean() for step in steps])
    error = math.sqrt((w @ e**2) / w.sum() / (w @ d**2)) / np.average(y, weights=w)
    assert found.error == pytest.approx(error, rel=1e-9)


def test_without_visits_nothing_is_known() -> None:
    one = recency()
    assert one.effect() == (0.0, math.inf, 0.0)
    assert not one.known
    assert not one.memorises
    assert effect(1.0, 0.0, 1.0, 1.0, 5.0).error == math.inf  # all intervals alike


@pytest.mark.parametrize("seed", range(5))
def test_memory_is_found_and_its_size_is_right(seed: int) -> None:
    one = recency()
    follow(one, 6, memory=0.3, seed=seed)
    found = one.effect()
    one.judge()
    assert one.known
    assert one.memorises
    # At a mean interval of one pass the loss is 1.3 times that of no interval at all.
    assert found.slope == pytest.approx(0.3 / 1.3, abs=4 * found.error)
    assert found.error < 0.06


@pytest.mark.parametrize("seed", range(10))
def test_neither_hard_examples_nor_falling_losses_are_memory(seed: int) -> None:
    one = recency()
    follow(one, 6, memory=0.0, seed=seed)
    found = one.effect()
    assert one.known
    assert abs(found.slope) < 4 * found.error
    assert found.error < 0.06


@given(scale=st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6]), seed=st.integers(0, 5))
def test_the_unit_of_the_loss_does_not_matter(scale: float, seed: int) -> None:
    one, other = recency(), recency()
    random = torch.Generator().manual_seed(seed)
    for indices in shuffled(3, seed=seed):
        losses = torch.rand(BATCH, generator=random)
        one.update(indices, losses)
        other.update(indices, losses * scale)
    assert other.effect().slope == pytest.approx(one.effect().slope, rel=1e-4, abs=1e-6)
    assert other.effect().error == pytest.approx(one.effect().error, rel=1e-4)


def test_small_effects_and_uncertain_ones_are_none() -> None:
    one = recency()
    follow(one, 4, memory=0.3)
    found = one.effect()
    assert found.slope > max(SLOPE, ERRORS * found.error)
    one._sums[3] *= (found.slope / (0.9 * ERRORS * found.error)) ** 2  # a larger spread
    one.judge()
    assert not one.memorises
    small = recency()
    small._sums[:] = [0.9 * SLOPE, 1.0, 1e6, 1e-9, 1e6]
    assert small.effect().slope < SLOPE
    small.judge()
    assert not small.memorises


def test_the_verdict_changes_back_only_beyond_the_error() -> None:
    """A slope of 0.04, 0.029 and 0.015, with errors of 0.01: only the last one is another."""
    one, verdicts = recency(), []
    for slope, error in ((0.015, 0.01), (0.04, 0.01), (0.029, 0.01), (0.015, 0.01), (0.029, 0.01)):
        one._sums[:] = [slope * 1e3, 1e3, 1e6, error**2 * 1e3 * 1e6, 1e6]
        found = one.effect()
        assert (found.slope, found.error) == pytest.approx((slope, error))
        one.judge()
        verdicts.append(one.memorises)
    assert verdicts == [False, True, True, False, False]
    other = recency()
    other.memorises = True
    other.judge()  # nothing is known, so nothing changes
    assert other.memorises
    one.load_state_dict(other.state_dict())
    assert one.memorises


@pytest.mark.parametrize(("passes", "memorises"), [(SETTLED - 0.1, False), (SETTLED, True)])
def test_after_four_passes_a_network_that_memorises_does_so_for_good(
    passes: float, memorises: bool
) -> None:
    one = recency()
    one.memorises = True
    one._steps[:] = [7 + passes * N / BATCH, 7]
    one._sums[:] = [0.0, 1e3, 1e6, 1e-3, 1e6]  # no slope at all
    one.judge()
    assert one.memorises == memorises


def test_what_is_not_measured_is_not_judged() -> None:
    one = recency()
    follow(one, 6, memory=0.3)
    one.measure(False)
    one.judge()
    assert one.known
    assert not one.memorises


@pytest.mark.parametrize(("few", "visits"), [(0, ENOUGH), (N // 2, 0.5), (N, 1.0), (10 * N, 1.0)])
def test_it_is_known_when_there_were_enough_visits(
    few: int, visits: float, monkeypatch: Any
) -> None:
    monkeypatch.setattr("salience.recency.FEW", few)
    one, steps = recency(), 0
    for indices in shuffled(5):
        if one.known:
            break
        one.update(indices, torch.ones(BATCH))
        steps += 1
    # Of the second pass on, with each step taking BATCH / (2 N) off:
    # 2 N (1 - exp(-x / 2)) = visits N.
    expected = N / BATCH * (1 - 2 * math.log(1 - visits / 2))
    assert steps == pytest.approx(expected, abs=2)


# ----------------------------------------------------------------------------- beside the score


def test_losses_are_recorded_as_without_it() -> None:
    one, plain = recency(), History(N, decay=0.8)
    for indices in shuffled(3):
        losses = torch.rand(BATCH)
        one.update(indices, losses)
        plain.update(indices, losses)
    at = torch.arange(N)
    assert torch.equal(one.score(at, None), plain.score(at, None))


def test_while_it_does_not_measure_nothing_changes_and_then_it_begins_anew() -> None:
    one = recency()
    follow(one, 3, memory=0.3)
    before = one.effect()
    one.measure(False)
    for indices in shuffled(2, seed=9):
        one.update(indices, torch.rand(BATCH))
    assert one.effect() == before
    one.measure(True)
    assert one.effect().visits == 0
    for indices in shuffled(1, seed=8):  # intervals from before do not count
        one.update(indices, torch.rand(BATCH))
    assert one.effect().visits == 0
    for indices in shuffled(1, seed=7):
        one.update(indices, torch.rand(BATCH))
    assert one.effect().visits > 0


def test_a_state_goes_on_bitwise() -> None:
    one = recency()
    follow(one, 2, memory=0.2)
    other = recency()
    other.load_state_dict(one.state_dict())
    copy = pickle.loads(pickle.dumps(one))
    for indices in shuffled(2, seed=4):
        losses = torch.rand(BATCH)
        for each in (one, other, copy):
            each.update(indices, losses)
    assert one.effect() == other.effect() == copy.effect()
    with pytest.raises(ValueError, match=r"shape .* in place of"):
        recency(n=N + 1).load_state_dict({**one.state_dict(), "mean": torch.zeros(N + 1)})


def test_it_grows_with_the_dataset() -> None:
    one = recency()
    follow(one, 2, memory=0.2)
    before = one.effect()
    one.extend(2 * N)
    assert one.effect() == before
    new = torch.arange(N, N + BATCH)
    one.update(new, torch.ones(BATCH))
    assert one.effect() == before  # their first visit has no interval
    assert not one.score(torch.arange(2 * N), None)[: N + BATCH].isnan().any()


# ------------------------------------------------------------------------------------ in ``auto``


def modes(memory: float, passes: int = 8) -> list[str]:
    """What ``auto`` did, with losses that differ a lot and fall."""
    one = ImportanceSampler(N, BATCH, score="auto")
    hard = torch.rand(N, generator=torch.Generator().manual_seed(0)) ** 2 + 0.01
    last, found = torch.zeros(N), []
    for step in range(passes * N // BATCH):
        draw = one.draw()
        found.append(one.source.mode)
        gaps = (step - last[draw.indices]) * BATCH / N
        falls = 1.0 if step < 10 else 0.1
        losses: Tensor = falls * hard[draw.indices] * (1 + memory * gaps)
        one.update(draw, losses)
        last[draw.indices] = step
    return found


def test_auto_turns_on_for_a_network_that_does_not_memorise(monkeypatch: Any) -> None:
    monkeypatch.setattr("salience.sources.auto.EVERY", 10)
    found = modes(memory=0.0)
    assert found[-1] == "focused"
    assert set(found[: 2 * N // BATCH]) == {"off"}


def test_auto_stays_off_for_one_that_does(monkeypatch: Any) -> None:
    monkeypatch.setattr("salience.sources.auto.EVERY", 10)
    assert set(modes(memory=2.0)) == {"off"}
