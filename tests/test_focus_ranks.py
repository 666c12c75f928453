"""Factors on several ranks: each orders its own rows, and all learn the losses of all."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import TensorDataset

from parts import frozen, make_dataset
from ranks import on_ranks
from salience import ArgumentError, Draw, ImportanceLoader, ImportanceSampler, functional
from test_ranks import Case, N, check_same, steps_of, train, train_each


class ByVisits:
    """Factors that follow from what was learned of each example, whatever it is in a batch with."""

    def __init__(self) -> None:
        self.mean = torch.full((N,), 0.5, dtype=torch.float64)

    def __repr__(self) -> str:
        return "ByVisits()"

    def factors(self, losses: Tensor, indices: Tensor | None) -> Tensor:
        assert indices is not None
        return self.mean[indices] + torch.exp(-losses)

    def update(self, draw: Draw, losses: Tensor) -> None:
        self.mean[draw.indices] = 0.5 * self.mean[draw.indices] + 0.5 * torch.exp(-losses.double())

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"].clone()


ALIKE = [
    Case(score, focus=ByVisits(), slots=slots, deferred=deferred)
    for score in ("uniform", "auto")
    for slots, deferred in itertools.product([False, True], [False, True])
] + [Case("history", focus=ByVisits(), presample=3.0), Case("uniform", focus=ByVisits(), workers=2)]


def test_ranks_learn_and_weigh_as_one_process() -> None:
    """Where factors do not depend on the batch, the steps of all ranks are those of one."""
    steps = steps_of(ALIKE[0])
    for world in (2, 3):
        results = on_ranks(world, train_each, ALIKE, steps, [None] * len(ALIKE))
        for case, *many in zip(ALIKE, *results, strict=True):
            one = train(0, case, steps)
            check_same(one, many)
            for each in many:  # of examples drawn twice, the order of two sums may differ
                theirs, mine = (r.state["loader"]["focus"]["mean"] for r in (one, each))
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-7)


BUILT_IN = [
    Case(score, focus=focus, deferred=deferred, slots=slots)
    for focus in ("ordered", "closeness")
    for score, deferred, slots in (
        ("auto", False, False),
        ("history", True, True),
        ("uniform", True, False),
        ("loss", False, False),
        ("loss", True, False),
        ("loss", False, True),
    )
]
CUTS = (1, 9, 21)  # 21: the end of an epoch


def train_soon(rank: int, cases: list[Case], steps: int, states: list[Any]) -> list[Any]:
    functional.STAGES = ((0.1, 3), (0.02, 2))  # a process of its own
    return train_each(rank, cases, steps, states)


def check_resume(cases: list[Case], cut: int, through: list[Any]) -> None:
    """On rank 1, from the state of rank 0."""
    first = on_ranks(2, train_soon, cases, cut, [None] * len(cases))
    rest = on_ranks(2, train_soon, cases, 30 - cut, [r.state for r in first[0]])
    for case, before, after, expected in zip(cases, first[1], rest[1], through[1], strict=True):
        assert expected.rows == before.rows + after.rows, (case, cut)
        for mine, theirs in zip(after.parameters, expected.parameters, strict=True):
            assert (mine == theirs).all(), (case, cut)


def test_the_end_of_an_epoch_with_workers_is_exact_after_a_resume() -> None:
    """Workers have asked for its last batches long before: no draw collects the last losses."""
    cases = [Case("history", focus="closeness", workers=2)]
    check_resume(cases, 20, on_ranks(2, train_soon, cases, 30, [None]))


def test_built_in_factors_are_exact_after_a_resume() -> None:
    """Parameters bitwise; and running numbers are the same on all ranks, also with pools."""
    fresh = [None] * len(BUILT_IN)
    through = on_ranks(2, train_soon, BUILT_IN, 30, fresh)
    for cut in CUTS:
        check_resume(BUILT_IN, cut, through)
    for case, *ranks in zip(BUILT_IN, *through, strict=True):
        states = [frozen(result.state["loader"]["focus"]) for result in ranks]
        assert states[0] == states[1], case
    plain = on_ranks(2, train_each, [c._replace(focus=None) for c in BUILT_IN], 30, fresh)
    for case, mine, theirs in zip(BUILT_IN, through[0], plain[0], strict=True):
        assert (mine.parameters[0] != theirs.parameters[0]).any(), case  # it had an effect


def test_a_pool_on_several_ranks_teaches_all_of_them() -> None:
    """Every rank learns every loss, weighed so that each rank counts alike."""
    for found in on_ranks(2, learned_from_pools):
        assert found == "ok"


class Noted(ByVisits):
    def update(self, draw: Draw, losses: Tensor) -> None:
        self.last = (draw, losses)


def learned_from_pools(rank: int) -> str:
    from test_ranks import Training

    focus, training = Noted(), Training(Case("loss"))
    training.loader._sampler._parts = training.loader._sampler._parts._replace(focus=focus)
    training.loader._sampler._learning.use(training.loader._sampler._parts, None)
    for step, (x, _) in enumerate(training.loader):
        losses = torch.rand(len(x), dtype=torch.float64)
        draw = training.loader.last_draw
        training.loader.mean(losses)
        training.loader._sampler.collect()
        rows: list[Any] = [None, None]
        own = draw.unbiased_mean(losses.float())
        dist.all_gather_object(rows, (draw.indices.tolist(), losses.float().tolist(), own))
        seen, values = focus.last
        assert seen.indices.tolist() == rows[0][0] + rows[1][0]
        assert values.tolist() == rows[0][1] + rows[1][1]
        assert seen.unbiased_mean(values) == pytest.approx((rows[0][2] + rows[1][2]) / 2)
        if step == 4:
            break
    assert rank in (0, 1)
    return "ok"


# --------------------------------------------------------------------------------------- shards


def sharded(rank: int, focus: str, steps: int, state: Any = None) -> Any:  # noqa: ARG001
    """Steps by losses that are known of each example, and what was learned of them."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    x, y = make_dataset(31).tensors
    loader = ImportanceLoader(
        TensorDataset(x, y), 12 // world, score="history", shard=True, focus=focus, seed=3
    )
    if state is not None:
        loader.load_state_dict(state)
    means, done = [], 0
    while done < steps:
        for _ in loader:
            losses = (loader.indices % 5) / 2.0
            means.append(float(loader.mean(losses)))
            done += 1
            if done == steps:
                break
    return means, loader.state_dict()


def test_shards_keep_the_running_means_of_their_own_examples() -> None:
    """Losses never change here, so every mean is that of the loss, whoever has the example."""
    state, expected = None, np.exp(-(np.arange(31) % 5) / 2.0)
    for world, steps in ((2, 30), (3, 5), (2, 5)):
        many = on_ranks(world, sharded, "closeness", steps, state)
        state = many[0][1]
        sizes = [len(range(rank, 31, world)) for rank in range(world)]
        for rank, part in enumerate(state["parts"]):
            mean = part["focus"]["mean"].numpy()
            assert len(mean) == sizes[rank]
            seen = ~np.isnan(mean)
            assert seen.mean() > 0.9
            np.testing.assert_allclose(mean[seen], expected[rank::world][seen], rtol=1e-6)


def test_shards_resume_exactly() -> None:
    for focus in ("ordered", "closeness"):
        through = on_ranks(2, sharded, focus, 20)
        first = on_ranks(2, sharded, focus, 8)
        rest = on_ranks(2, sharded, focus, 12, first[0][1])
        for rank in range(2):
            assert through[rank][0] == first[rank][0] + rest[rank][0]


def test_an_object_of_ones_own_knows_no_shards() -> None:
    with pytest.raises(ArgumentError, match=r"focus of your own \(ByVisits\).*shard='own'"):
        ImportanceSampler(N, 8, score="history", shard=True, focus=ByVisits())
