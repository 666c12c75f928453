"""Passes that leave out half of what is learned."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from salience import functional
from salience.scores import History
from salience.sources import Passes, Thinned, thinned

N = 60


def source(losses: Tensor, seed: int = 0) -> Thinned:
    score = History(len(losses))
    score.update(torch.arange(len(losses)), losses)
    generator = torch.Generator().manual_seed(seed)
    return Thinned(Passes(len(losses), generator), score, generator)


def everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coin lets all stay."""
    monkeypatch.setattr(torch, "rand", lambda n, **_: torch.zeros(n))


@pytest.mark.parametrize("slices", [1, 4])
def test_the_expected_step_is_the_mean_gradient(
    slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over both outcomes of every coin: sum_i c_i w_i g_i / sum_i c_i, slice by slice."""
    monkeypatch.setattr(thinned, "SLICE", N // slices)
    losses = torch.rand(N, generator=torch.Generator().manual_seed(1)) ** 3
    everybody(monkeypatch)
    gradients = torch.randn(N, 3, generator=torch.Generator().manual_seed(2)).double()
    one = source(losses)
    for number in range(slices):
        draw = one.draw(N // slices, number)
        own = losses[draw.indices].double()
        chances = torch.where(own < own.mean(), 0.5, 1.0).double()
        found = (chances * draw.weights.double()) @ gradients[draw.indices] / chances.sum()
        expected = gradients[draw.indices].mean(0)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
        # p as one draw in N: a slice has its share of all.
        torch.testing.assert_close(draw.probabilities, chances / chances.sum() / slices)
        torch.testing.assert_close(draw.inverse().float(), draw.weights)
        assert 0 < (chances == 0.5).sum() < len(chances)


def test_the_coin_decides_for_those_below_the_mean_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = torch.tensor([1.0, 1.0, 1.0, 1.0, 4.0, 5.0])
    coins = torch.tensor([0.49, 0.5, 0.51, 0.0, 0.99, 0.5])
    order: list[int] = []

    def rand(n: int, **_: Any) -> Tensor:
        return coins[order]

    one = source(losses)
    order[:] = Passes(6, torch.Generator().manual_seed(0)).take(6).tolist()
    monkeypatch.setattr(torch, "rand", rand)
    draw = one.draw(4, 0)
    assert sorted(draw.indices.tolist()) == [0, 3, 4, 5]
    # sum c = 4 x 1/2 + 2 = 4, M = 6: 1 / (M p) is 4/3 for c = 1/2 and 2/3 for 1.
    weights = dict(zip(draw.indices.tolist(), draw.weights.tolist(), strict=True))
    assert weights == pytest.approx({0: 4 / 3, 3: 4 / 3, 4: 2 / 3, 5: 2 / 3})
    assert [draw.indices.tolist().index(i) for i in order if i in weights] == [0, 1, 2, 3]


@given(seed=st.integers(0, 1000), batch=st.integers(1, 25), size=st.integers(3, 80))
@settings(deadline=None, max_examples=40)
def test_in_each_pass_the_hard_come_once_and_others_at_most_once(
    seed: int, batch: int, size: int
) -> None:
    """Whatever is planned ahead: visits of each example are counted until all is handed out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thinned, "SLICE", size)
        losses = torch.rand(N, generator=torch.Generator().manual_seed(seed))
        losses[: N // 3] += 100  # above the mean of any slice that has others too
        one = source(losses, seed)
        visits = torch.zeros(N)
        for number in range(12):
            visits += torch.bincount(one.draw(batch, number).indices, minlength=N)
        while len(one._queue) or one._passes.under_way:
            if len(one._queue):
                visits += torch.bincount(one.draw(1, 0).indices, minlength=N)
            else:
                one._plan()
        passes = visits[: N // 3].max()
        if size >= N:
            assert set(visits[: N // 3].tolist()) == {float(passes)}
        assert visits.max() <= passes


def test_half_of_the_easier_ones_stay() -> None:
    losses = torch.tensor([0.1] * 900 + [3.0] * 100)
    one, visits = source(losses), torch.zeros(1000)
    for number in range(550):  # a pass has about 550 visits
        visits += torch.bincount(one.draw(100, number).indices, minlength=1000)
    passes = float(visits[900:].mean())
    assert 95 < passes < 105
    share = float(visits[:900].mean()) / passes
    # 900 coins in each of 100 passes: a standard error of 0.0017.
    assert share == pytest.approx(0.5, abs=0.008)


def test_equal_scores_are_shuffled_passes() -> None:
    one = source(torch.full((N,), 0.25))
    drawn = [one.draw(10, number) for number in range(6)]
    assert sorted(torch.cat([draw.indices for draw in drawn]).tolist()) == list(range(N))
    assert all(draw.weights.tolist() == [1.0] * 10 for draw in drawn)


def test_unknown_ones_count_as_the_mean() -> None:
    """They surely stay: nothing says that they are learned."""
    losses = torch.tensor([0.1] * 30 + [float("nan")] * 10 + [2.0] * 20)
    score = History(N)
    known = (~losses.isnan()).nonzero().flatten()
    score.update(known, losses[known])
    generator = torch.Generator().manual_seed(0)
    one = Thinned(Passes(N, generator), score, generator)
    one._plan()
    drawn = one.draw(len(one._queue), 0)
    assert {*range(30, N)} <= {*drawn.indices.tolist()}
    mean = (30 * 0.1 + 20 * 2.0) / 50
    unknown = (drawn.indices >= 30) & (drawn.indices < 40)
    torch.testing.assert_close(drawn.scores[unknown], torch.full((10,), mean).double())


def test_slices_are_of_equal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinned, "SLICE", 50)
    everybody(monkeypatch)
    one, sizes = source(torch.rand(N)), []
    for _ in range(4):
        one._plan()
        sizes.append(len(one._queue))
        one._queue.clear()
    assert sizes == [30, 30, 30, 30]


def test_a_new_epoch_begins_a_pass_and_forgets_what_was_planned() -> None:
    one = source(torch.full((N,), 1.0))
    one.draw(7, 0)
    one.new_epoch()
    drawn = [one.draw(10, number).indices for number in range(6)]
    assert sorted(torch.cat(drawn).tolist()) == list(range(N))


def test_a_larger_dataset_keeps_what_is_queued_unbiased() -> None:
    one = source(torch.full((N,), 1.0))
    one.draw(10, 0)
    one._score.extend(2 * N)
    one.extend(2 * N)
    drawn = [one.draw(10, number) for number in range(5 + 12)]
    for draw in drawn:
        torch.testing.assert_close(draw.inverse().float(), draw.weights)
    later = torch.cat([draw.indices for draw in drawn[5:]])
    assert sorted(later.tolist()) == list(range(2 * N))


def test_thin_by_hand() -> None:
    assert functional.thin(torch.tensor([1.0, 2.0, 3.0, 6.0])).tolist() == [0.5, 0.5, 1.0, 1.0]
    assert functional.thin(torch.tensor([2.0, 4.0]), share=0.25).tolist() == [0.25, 1.0]
    assert functional.thin(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]
    assert functional.thin(torch.tensor([3e38, 3e38, 1e38])).tolist() == [1.0, 1.0, 0.5]
