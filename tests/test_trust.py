"""Labels that contradict what was learned: found, discounted, named; and what is left alone."""

import copy
import logging
import math
import pickle
import random
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from parts import cross_entropy, frozen, make_dataset, needs
from ranks import on_ranks
from salience import ArgumentError, ImportanceLoader, ImportanceSampler, UsageError, functional
from salience.scores import History
from salience.smoothing import Fading
from salience.sources.auto import EVERY, SINGLE, Found
from salience.trust import DISCOUNT, FEWEST, LEAST, MOST, OFF, ON, Discounted, Trust, suspects

N, BATCH, START = 1000, 20, 2.3
ALL = torch.arange(N)


def begun(start: float = START) -> Fading:
    """Smoothing that has seen the first steps."""
    fading = Fading()
    for _ in range(fading.first):
        fading.update(start)
    return fading


def planted(share: float, n: int = N, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Losses late in training, those of some examples as large as ever; which these are."""
    generator = torch.Generator().manual_seed(seed)
    losses = 0.01 + 0.1 * torch.rand(n, generator=generator)
    wrong = torch.randperm(n, generator=generator)[: round(share * n)].sort().values
    losses[wrong] = 3 + 2 * torch.rand(len(wrong), generator=generator)
    return losses, wrong


def found(trust: Trust, losses: Tensor) -> list[int]:
    """The examples whose losses count a tenth."""
    discounted = trust.discounted(torch.arange(len(losses)), losses.double())
    return (discounted < losses).nonzero().flatten().tolist()


# ------------------------------------------------------------------------------- what is suspected


@pytest.mark.parametrize("classes", [None, ALL % 10])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_contradictions_are_found(share: float, classes: Tensor | None) -> None:
    losses, wrong = planted(share)
    trust = Trust(begun(), classes)
    assert found(trust, losses) == []
    trust.look(ALL, losses.double(), 0)
    assert trust.active
    assert found(trust, losses) == wrong.tolist()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_any_unit_of_the_loss(scale: float) -> None:
    losses, wrong = planted(0.1)
    trust = Trust(begun(scale * START))
    trust.look(ALL, scale * losses.double(), 0)
    assert found(trust, scale * losses) == wrong.tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("power", [1, 3, 6])
def test_hard_examples_are_none(power: int, seed: int) -> None:
    """Their losses are spread, however far, and however many are above the loss of the start."""
    u = torch.rand(4096, generator=torch.Generator().manual_seed(seed))
    losses = (-u.log()).double() ** power
    trust = Trust(begun(float(losses.quantile(0.9))))
    trust.look(torch.arange(4096), losses, 0)
    assert not trust.active


def test_a_rare_class_that_is_hard_as_a_whole_is_none() -> None:
    losses, _ = planted(0.0)
    rare = ALL % 20 == 0
    losses[rare] = 4 + torch.rand(int(rare.sum()))
    blind, told = Trust(begun()), Trust(begun(), rare.long())
    for trust in (blind, told):
        trust.look(ALL, losses.double(), 0)
    assert blind.active  # without classes they look like wrong labels
    assert not told.active


def test_wrong_labels_are_found_among_their_class() -> None:
    """Where those of one class have the losses that are usual in another."""
    losses, wrong = planted(0.2)
    hard = ALL % 4 == 0
    losses[hard] *= 30
    blind, told = Trust(begun()), Trust(begun(), hard.long())
    for trust in (blind, told):
        trust.look(ALL, losses.double(), 0)
    assert found(told, losses) == wrong.tolist()
    assert found(blind, losses) != wrong.tolist()


@pytest.mark.parametrize(("start", "active"), [(3.9, True), (4.1, False)])
def test_what_is_not_learned_yet_contradicts_nothing(start: float, active: bool) -> None:
    losses, wrong = planted(0.2)
    losses[wrong] = 4.0
    trust = Trust(begun(start))
    trust.look(ALL, losses.double(), 0)
    assert trust.active == active
    assert (found(trust, losses) == wrong.tolist()) == active


def test_without_a_start_nothing_is_asked_of_the_loss() -> None:
    losses, wrong = planted(0.2)
    trust = Trust(None)
    trust.look(ALL, losses.double() / 1e6, 0)
    assert found(trust, losses / 1e6) == wrong.tolist()


def test_class_means_are_drawn_towards_the_mean_by_one_example() -> None:
    classes = torch.tensor([0, 0, 0, 1, 2, 2])
    losses = torch.tensor([1.0, 2.0, 3.0, 9.0, 4.0, 5.0]).double()  # their mean is 4
    trust = Trust(None, classes)
    trust.apart(torch.arange(6), losses)
    typical = trust.state_dict()["typical"]
    assert typical.tolist() == [(6 + 4) / 4, (9 + 4) / 2, (9 + 4) / 3]
    r = trust.contrast(torch.tensor([1, 3]), torch.tensor([5.0, 6.5]))
    torch.testing.assert_close(r, torch.tensor([5 / 7.5, 0.5]).double())


def test_classes_that_no_look_has_met_count_as_the_mean_of_the_others() -> None:
    trust = Trust(None, torch.tensor([0, 1, 2, 5]))
    trust.apart(torch.tensor([0, 1]), torch.tensor([1.0, 3.0]).double())
    typical = trust.state_dict()["typical"]
    assert typical.tolist() == [1.5, 2.5]
    r = trust.contrast(torch.tensor([2, 3]), torch.tensor([2.0, 6.0]))
    assert r.tolist() == [0.5, 0.75]


def test_after_growing_all_classes_count_as_their_mean_until_the_next_look() -> None:
    trust = Trust(None, torch.tensor([0, 0, 1]))
    trust.apart(torch.arange(3), torch.tensor([1.0, 1.0, 4.0]).double())
    mean = float(trust.state_dict()["typical"].mean())
    trust.use_classes(torch.tensor([7, 0, 3, 9]))
    r = trust.contrast(torch.arange(4), torch.full((4,), mean).double())
    assert r.tolist() == pytest.approx([0.5] * 4)
    blind = Trust(None)
    blind.use_classes(torch.tensor([1]))  # none at the beginning, none now
    assert len(blind.contrast(torch.arange(2), torch.ones(2))) == 2


# ------------------------------------------------------------------------------------- when, how


@pytest.mark.parametrize(
    ("depths", "shares", "expected"),
    [
        ([ON, ON - 0.01, OFF - 0.01, OFF, OFF - 0.01], [0.2] * 5, [0, 1, 1, 0, 0]),
        ([0.0] * 5, [LEAST - 0.001, LEAST, MOST, MOST + 0.001, 0.3], [0, 1, 1, 0, 1]),
    ],
)
def test_discounts_begin_below_one_depth_and_end_above_a_larger_one(
    depths: list[float], shares: list[float], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    trust, active = Trust(None), []
    for depth, share in zip(depths, shares, strict=True):
        groups = functional.Groups(0.5, depth, share)
        monkeypatch.setattr(functional, "two_groups", lambda _, groups=groups: groups)
        trust.look(torch.arange(FEWEST), torch.ones(FEWEST).double(), 0)
        active.append(int(trust.active))
    assert active == expected


@pytest.mark.parametrize(("n", "expected"), [(2, 0), (FEWEST - 1, 0), (FEWEST, FEWEST // 2)])
def test_labels_of_few_examples_are_not_judged(n: int, expected: int) -> None:
    losses = torch.full((n,), 0.01)
    losses[: n // 2] = 5.0
    assert len(suspects(losses, None, begun(), None)) == expected
    trust = Trust(begun())
    trust.look(torch.arange(n), losses.double(), 0)
    assert trust.active == bool(expected)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5])
def test_factors_are_a_tenth_and_have_mean_1(share: float) -> None:
    losses, wrong = planted(share)
    trust = Trust(begun())
    trust.look(ALL, losses.double(), 0)
    factors = trust.factors(ALL, losses)
    assert float(factors.mean()) == pytest.approx(1, abs=1e-12)
    right = torch.ones(N, dtype=torch.bool)
    right[wrong] = False
    assert factors[right].unique().tolist() == pytest.approx([1 / (1 - share * (1 - DISCOUNT))])
    torch.testing.assert_close(factors[~right], DISCOUNT * factors[right][:1].expand(len(wrong)))


def test_a_value_at_the_limit_is_in_the_upper_group() -> None:
    """As it was counted in the share: else the factors would not have mean 1."""
    losses = torch.tensor([0.0] * 6 + [1.0, 1.0, 1.0, 7.0]).double()  # r of a 1 is 1/2, an edge
    trust = Trust(None)
    groups = functional.two_groups(losses / (losses + losses.mean()))
    trust.apart(torch.arange(10), losses)
    trust.load_state_dict({**trust.state_dict(), "active": True, "limit": 0.5, "share": 0.4})
    assert groups.share == pytest.approx(0.4)
    assert found(trust, losses) == [6, 7, 8, 9]
    assert trust.count(trust.contrast(torch.arange(10), losses)) == 4
    assert float(trust.factors(torch.arange(10), losses).mean()) == pytest.approx(1, abs=1e-12)
    assert trust.contradicts


def test_it_is_told_once_when_discounts_begin(caplog: pytest.LogCaptureFixture) -> None:
    losses, _ = planted(0.2)
    trust = Trust(begun())
    with caplog.at_level(logging.INFO, logger="salience"):
        for number in (100, 200):
            trust.look(ALL, losses.double(), number)
    (record,) = caplog.records
    assert "20 % of the labels contradict" in record.getMessage()
    assert "at draw 100" in record.getMessage()


def test_state_round_trip() -> None:
    losses, wrong = planted(0.2)
    one, two = (Trust(begun(), ALL % 7) for _ in range(2))
    one.look(ALL, losses.double(), 0)
    state = one.state_dict()
    kept = frozen(state)
    two.load_state_dict(state)
    assert found(two, losses) == wrong.tolist()
    assert frozen(two.state_dict()) == kept
    two.look(ALL, losses.double().flip(0), 1)
    assert frozen(state) == kept  # neither shares its tensors
    assert frozen(one.state_dict()) == kept
    torch.testing.assert_close(
        one.factors(ALL, losses), pickle.loads(pickle.dumps(one)).factors(ALL, losses)
    )


def test_scores_to_draw_by_are_those_of_another_with_suspects_at_a_tenth() -> None:
    losses, wrong = planted(0.2)
    inner, trust = History(N + 1), Trust(begun())
    score = Discounted(inner, trust)
    assert (score.by_index, score.unit, score.inner) == (True, "loss", inner)
    assert torch.equal(score.update(ALL, losses), ALL)
    every = torch.arange(N + 1)
    assert torch.equal(score.score(ALL, None), losses)
    trust.look(ALL, losses.double(), 0)
    expected = losses.double()
    expected[wrong] *= DISCOUNT
    discounted = score.score(every, None)
    torch.testing.assert_close(discounted[:N].double(), expected)
    assert discounted[N].isnan()  # still not known
    other = Discounted(History(N + 1), trust)
    other.load_state_dict(score.state_dict())
    assert frozen(other.score(every, None)) == frozen(discounted)


# ------------------------------------------------------------------------------ within ``auto``


def trained(steps: int = 9 * EVERY, **options: Any) -> tuple[ImportanceSampler, Tensor, Tensor]:
    """A sampler that has found the contradictions by itself."""
    sampler, (losses, wrong) = ImportanceSampler(N, BATCH, **options), planted(0.2)
    for step in range(steps):
        draw = sampler.draw()
        now = torch.full((BATCH,), START) if step < N // BATCH else losses[draw.indices]
        sampler.update(draw, now)
    sampler.catch_up()
    return sampler, losses, wrong


def force_mode(sampler: ImportanceSampler, mode: Any) -> None:
    sampler.source._turn(mode, 0, Found(9.0))
    sampler.source._on.new_epoch()


@pytest.mark.parametrize("mode", ["off", "focused"])
def test_the_expected_step_is_the_trust_weighted_mean(mode: Any) -> None:
    """Enumerated over all examples, each with the probability and weight it is drawn with."""
    sampler, _, wrong = trained(k=1.0)
    assert sampler.source.trust.active
    force_mode(sampler, mode)
    p, weights = torch.zeros(N).double(), torch.zeros(N).double()
    for number in range(1, 100 * N // BATCH):
        draw = sampler.source.draw(BATCH, 1 + number % (EVERY - 1))  # nothing is learned, no look
        assert not draw.uniform
        p[draw.indices], weights[draw.indices] = draw.probabilities, draw.weights.double()
    assert (p > 0).all()  # all were visited
    assert float(p.sum()) == pytest.approx(1)
    t = torch.ones(N).double()
    t[wrong] = DISCOUNT
    torch.testing.assert_close(weights, t / t.mean() / (N * p), rtol=1e-5, atol=0)
    values = torch.randn(N, 3).double()
    expected = (t[:, None] * values).sum(0) / t.sum()
    torch.testing.assert_close((p * weights) @ values, expected, rtol=1e-5, atol=1e-7)
    if mode == "focused":  # visits too follow discounted losses
        q = sampler.scores().double() * t
        q = functional.cap(q + sampler._smoothing.constant(q.mean()), 1 / BATCH)
        torch.testing.assert_close(p, q / q.sum(), rtol=1e-5, atol=0)


def test_the_gain_counts_suspects_a_tenth() -> None:
    sampler, _, wrong = trained()
    source = sampler.source
    scores = sampler.scores().double()
    scores[wrong] *= DISCOUNT
    q = scores + float(sampler._smoothing.constant(scores.mean()))
    v = functional.variance_reduction(functional.cap(q, math.sqrt(SINGLE / N)))
    assert source._find(0).gain == pytest.approx(float(v))


def test_examples_not_seen_yet_are_trusted() -> None:
    sampler, _, _ = trained()
    sampler.extend(N + 50)
    source = sampler.source
    source.draw(BATCH, 1)
    indices = torch.cat([torch.arange(5), torch.arange(N, N + 5)])
    draw = sampler.source._off.draw(10, 1)
    draw.indices = indices
    source._off.draw = lambda *_: draw
    force_mode(sampler, "off")
    assert source.draw(10, 1).weights[5:].tolist() == [1.0] * 5


def test_clean_labels_are_never_discounted() -> None:
    sampler = ImportanceSampler(N, BATCH)
    losses, _ = planted(0.0)
    for step in range(9 * EVERY):
        draw = sampler.draw()
        now = torch.full((BATCH,), START) if step < N // BATCH else losses[draw.indices]
        sampler.update(draw, now)
        assert not sampler.source.trust.active


def test_it_is_active_in_every_mode_and_ends_when_the_losses_come_together() -> None:
    sampler, losses, wrong = trained()
    trust = sampler.source.trust
    assert trust.active
    learned = losses.clone()
    learned[wrong] = 0.05  # memorised, or the labels were right after all
    for _ in range(40 * EVERY):
        draw = sampler.draw()
        sampler.update(draw, learned[draw.indices])
    assert not trust.active


def test_draws_wait_for_all_losses_while_it_is_active() -> None:
    sampler, _, _ = trained()
    assert not sampler.source.ready(BATCH, 1)
    sampler.source.trust.active = False
    force_mode(sampler, "off")
    assert sampler.source.ready(BATCH, 1)


class Run:
    """Losses that follow from the example and the step: nothing else can differ between runs."""

    def __init__(self, deferred: bool) -> None:
        self.losses, _ = planted(0.2)
        self.loader = ImportanceLoader(TensorDataset(ALL), BATCH, seed=3)
        self.loader.deferred = deferred or None
        self.rows: list[Any] = []
        self.trusted: list[bool] = []

    def go(self, steps: int, pause: bool = False) -> "Run":
        pauses = random.Random(1)
        while len(self.rows) < steps:
            for (indices,) in self.loader:
                late = len(self.rows) >= N // BATCH
                losses = self.losses[indices] if late else torch.full((len(indices),), START)
                self.loader.mean(losses.clone())
                row = (self.loader.indices.tolist(), self.loader.weights.tolist())
                self.rows.append(row)
                self.trusted.append(self.loader._sampler.source.trust.active)
                if pause:
                    time.sleep(pauses.uniform(0, 0.002))
                if len(self.rows) == steps:
                    break
        return self


@pytest.mark.parametrize("deferred", [False, True])
def test_pauses_states_and_pickles_change_nothing(deferred: bool) -> None:
    steps, cut = 7 * EVERY, 4 * EVERY + 13
    whole = Run(deferred).go(steps)
    assert whole.trusted[cut]
    assert not all(whole.trusted[:cut])
    assert Run(deferred).go(steps, pause=True).rows == whole.rows
    for how in ("state", "pickle"):
        run = Run(deferred).go(cut)
        if how == "state":
            state = run.loader.state_dict()
            run.loader = Run(deferred).loader
            run.loader.load_state_dict(state)
        else:
            run.loader = pickle.loads(pickle.dumps(run.loader))
            run.loader.deferred = deferred or None
        run.go(steps)
        assert run.rows == whole.rows, how
        assert run.trusted == whole.trusted


# -------------------------------------------------------------------------------------- suspects()


@pytest.mark.parametrize("score", ["auto", "history"])
def test_suspects_come_clearest_first(score: str) -> None:
    losses, wrong = planted(0.1)
    sampler = ImportanceSampler(N, BATCH, score=score)
    force_start(sampler)
    sampler.update(ALL, losses)
    found = sampler.suspects()
    assert found.dtype == torch.int64
    assert found.tolist() == losses.argsort(descending=True)[: len(wrong)].tolist()
    assert set(found.tolist()) == set(wrong.tolist())
    assert sampler.suspects(7).tolist() == found[:7].tolist()
    assert sampler.suspects(0).tolist() == []
    assert sorted(sampler.suspects(10 * N).tolist()) == ALL.tolist()


def force_start(sampler: ImportanceSampler, loss: float = START) -> None:
    for _ in range(10):
        sampler._smoothing.update(loss)


def test_within_a_class_they_come_in_the_order_of_their_losses_over_the_class_mean() -> None:
    losses = torch.tensor([0.1, 0.2, 3.0, 0.3, 6.0, 7.0, 8.0, 9.0])
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    sampler = ImportanceSampler(8, 2, score="history", labels=labels)
    sampler.update(torch.arange(8), losses)
    mean = float(losses.mean())
    typical = torch.tensor([(3.6 + mean) / 5, (30.0 + mean) / 5])[labels]
    expected = (losses / (losses + typical)).argsort(descending=True).tolist()
    assert sampler.suspects(8).tolist() == expected
    assert expected[0] == 2  # not the largest loss


def test_none_are_named_where_there_is_one_group() -> None:
    sampler = ImportanceSampler(N, BATCH)
    force_start(sampler)
    assert sampler.suspects().tolist() == sampler.suspects(3).tolist() == []  # nothing seen yet
    losses, _ = planted(0.0)
    sampler.update(ALL, 50 * losses)
    assert sampler.suspects().tolist() == []
    assert len(sampler.suspects(3)) == 3


def test_examples_that_were_not_seen_are_none() -> None:
    losses, wrong = planted(0.1)
    sampler = ImportanceSampler(N, BATCH, score="history")
    sampler.update(ALL[: N // 2], losses[: N // 2])
    assert set(sampler.suspects().tolist()) == {i for i in wrong.tolist() if i < N // 2}
    assert len(sampler.suspects(10 * N)) == N // 2


def test_what_is_suspected_is_what_the_start_says() -> None:
    """Of ``auto``, which remembers it."""
    losses, wrong = planted(0.1)
    sampler = ImportanceSampler(N, BATCH)
    force_start(sampler, 100.0)
    sampler.update(ALL, losses)
    assert sampler.suspects().tolist() == []
    assert len(sampler.suspects(3)) == 3
    losses, wrong = planted(0.2)
    losses[wrong] = 2.0
    for start, found in ((1.9, wrong.tolist()), (2.1, [])):
        assert sorted(suspects(losses, None, begun(start), None).tolist()) == found


@pytest.mark.parametrize("score", ["uniform", "approx", "loss"])
def test_scores_that_record_no_losses_say_so(score: str) -> None:
    sampler = ImportanceSampler(40, 4, score=score, **needs(score, nn.Linear(6, 3)))
    with pytest.raises(UsageError, match=f"'{score}' records no losses.*use 'auto' or 'history'"):
        sampler.suspects()


def test_streams_record_no_losses() -> None:
    pools = [(torch.randn(8, 6), torch.zeros(8, dtype=torch.int64))]
    loader = ImportanceLoader.from_loader(pools, 4, model=nn.Linear(6, 3), loss=cross_entropy)
    with pytest.raises(UsageError, match="records no losses"):
        loader.suspects()


@pytest.mark.parametrize("n", [-1, 2.5, "all"])
def test_the_number_of_suspects_is_a_whole_number(n: Any) -> None:
    with pytest.raises(ArgumentError, match=f"n must be a whole number.*{n}"):
        ImportanceLoader(make_dataset(40), 4).suspects(n)


@pytest.mark.parametrize("shard", [True, "own"])
def test_each_rank_names_those_of_its_shard(shard: Any) -> None:
    many = on_ranks(2, name_own, shard)
    _, wrong = planted(0.1)
    expected = [{i for i in wrong.tolist() if i % 2 == rank} for rank in range(2)]
    if shard == "own":
        expected = [{i // 2 for i in each} for each in expected]
    assert [set(found) for found in many] == expected


def name_own(rank: int, shard: Any) -> list[int]:
    losses, _ = planted(0.1)
    mine = ALL[rank::2]
    n = N if shard is True else N // 2
    sampler = ImportanceSampler(n, BATCH, score="history", shard=shard)
    for _ in range(60):
        draw = sampler.draw()
        seen = draw.indices if shard is True else mine[draw.indices]
        sampler.update(draw, losses[seen])
    assert not sampler.scores()[mine if shard is True else slice(None)].isnan().any()
    return sampler.suspects().tolist()


def test_the_loader_names_what_its_sampler_knows() -> None:
    losses, wrong = planted(0.2)
    loader = ImportanceLoader(TensorDataset(ALL), BATCH, score="history")
    while loader.scores().isnan().any():
        for (indices,) in loader:
            loader.mean(losses[indices])
    assert set(loader.suspects().tolist()) == set(wrong.tolist())
    assert loader.suspects(3).tolist() == losses.argsort(descending=True)[:3].tolist()
    copied = copy.deepcopy(loader)
    assert copied.suspects().tolist() == loader.suspects().tolist()
