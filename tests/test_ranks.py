"""Several ranks draw, learn and resume as one process with the batch of all of them."""

import copy
import functools
import itertools
import math
import pickle
import re
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from parts import auto_is, cross_entropy, force_auto, force_worth, frozen, make_dataset, needs
from ranks import on_ranks
from salience import ImportanceLoader, ImportanceSampler, UsageError
from salience.distributed import Ranks, checksum, rows_of
from salience.draw import Draw
from salience.scores import NEED_MODEL

N, GLOBAL = 250, 12  # the last batch of a pass has 10: neither 3 nor 4 ranks divide it
GAIN = 1.3  # v of the losses of these trainings is sometimes above, sometimes below
BY_INDEX = ["uniform", "history", "approx", "auto"]


class Case(NamedTuple):
    score: str
    draw: str = "systematic"
    presample: float | None = None
    k: float = 0.5
    workers: int = 0
    slots: bool = False
    deferred: bool = False
    drop_last: bool = False
    n: int = N
    memory: str | None = None
    focus: Any = None
    mode: str = "focused"  # of auto
    trust: bool = False
    gain: float = 0.0  # from which on pools are scored


class Result(NamedTuple):
    rows: list[Any]  # indices and weights of each step
    parameters: list[Any]
    metrics: dict[str, float]
    state: Any
    length: int
    auto: tuple[str, bool] | None  # its mode at the end, and whether it discounted suspects


class Training:
    """One rank: a model in float64, plain SGD, and as many steps as are asked for."""

    def __init__(self, case: Case, state: Any = None, wrap: Any = DistributedDataParallel) -> None:
        force_auto(case.mode, trust=case.trust, every=7)
        force_worth(case.gain)
        torch.manual_seed(0)
        self.ranks = Ranks(dist.get_rank(), dist.get_world_size()) if _many() else Ranks()
        self.case, self.model = case, nn.Linear(6, 3).double()
        self.wrapped = wrap(self.model) if self.ranks.world > 1 else self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        x, y = make_dataset(case.n).tensors
        self.loader = ImportanceLoader(
            TensorDataset(x.double(), y),
            GLOBAL // self.ranks.world,
            score=case.score,
            draw=case.draw,
            presample=case.presample,
            k=case.k,
            num_workers=case.workers,
            slots=case.slots,
            drop_last=case.drop_last,
            memory=case.memory,
            focus=copy.deepcopy(case.focus),
            seed=5,
            **needs(case.score, self.model),
        )
        self.loader.deferred = case.deferred or None
        self.rows: list[Any] = []
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.loader.load_state_dict(state["loader"])

    def go(self, steps: int, pause: float = 0.0) -> Result:
        while len(self.rows) < steps:
            for x, y, *slots in self.loader:
                time.sleep(pause)
                losses = cross_entropy(self.wrapped, (x, y))
                self.optimizer.zero_grad()
                self.loader.mean(losses, *slots).backward()
                self.optimizer.step()
                self.rows.append((self.loader.indices.tolist(), self.loader.weights.tolist()))
                if len(self.rows) == steps:
                    break
        state = {"model": self.model.state_dict(), "loader": self.loader.state_dict()}
        parameters = [p.detach().numpy() for p in self.model.parameters()]
        metrics = self.loader.metrics()
        del metrics["scoring_fraction"]
        mode = auto_is(self.loader._sampler) if self.case.score == "auto" else None
        return Result(self.rows, parameters, metrics, copy.deepcopy(state), len(self.loader), mode)


def _many() -> bool:
    return dist.is_initialized()


def train(rank: int, case: Case, steps: int, state: Any = None, slow: int = -1) -> Result:
    return Training(case, state).go(steps, pause=0.01 if rank == slow else 0.0)


def together(results: list[Result], step: int) -> tuple[list[int], list[float]]:
    """The rows of all ranks in one step; what weighs nothing is padding."""
    rows = [zip(*result.rows[step], strict=True) for result in results]
    there = [(index, weight) for index, weight in itertools.chain(*rows) if weight]
    return [index for index, _ in there], [weight for _, weight in there]


def check_same(one: Result, many: list[Result], first: int = 0) -> None:
    world = len(many)
    assert len(many[0].rows) + first == len(one.rows)
    for step in range(len(many[0].rows)):
        indices, weights = together(many, step)
        expected, alpha = one.rows[step + first]
        assert indices == expected, step
        size = len(many[0].rows[step][0])
        assert weights == pytest.approx(
            [a * size * world / len(expected) for a in alpha], rel=1e-6
        ), step
    for result in many:
        looked_at = one.metrics if not first else {"mean_loss": one.metrics["mean_loss"]}
        found = {name: result.metrics[name] for name in looked_at}
        assert found == pytest.approx(looked_at, rel=1e-6, nan_ok=True)
        assert result.length == one.length
        for mine, theirs in zip(result.parameters, one.parameters, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)


CASES = [
    *(Case(score, draw) for score in BY_INDEX for draw in ("systematic", "multinomial")),
    *(Case(score, presample=3.0) for score in BY_INDEX[1:]),
    Case("history", k=1.0),
    Case("auto", k=-0.5, mode="focused"),
    Case("auto", mode="focused", trust=True),
    Case("auto", trust=True, deferred=True),
    Case("auto", mode="off", trust=True),
    Case("uniform", drop_last=True),
    Case("auto", workers=2),
    Case("history", slots=True),
    Case("uniform", slots=True),
    Case("auto", deferred=True),
    Case("history", deferred=True, slots=True),
    Case("history", deferred=True, workers=2),
    Case("uniform", n=7),  # less than a batch, and not even one row for some
    Case("history", n=5),
]


def check_forced(case: Case, results: list[Result]) -> None:
    """What a case is about has turned on, on all ranks."""
    if case.score == "auto":
        assert {result.auto for result in results} == {(case.mode, case.trust)}


def steps_of(case: Case) -> int:
    return 50 if case.n == N else 12


def train_all(rank: int) -> dict[Case, Result]:
    return {case: train(rank, case, steps_of(case)) for case in CASES}


@functools.cache
def trained(world: int) -> list[dict[Case, Result]]:
    """All cases in one set of processes, which take longer to start than to train."""
    return on_ranks(world, train_all, timeout=300)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_draws_of_all_ranks_are_those_of_one_process(case: Case, world: int) -> None:
    one, many = train(0, case, steps_of(case)), [results[case] for results in trained(world)]
    check_same(one, many)
    if case.score == "auto" and not case.presample:
        assert one.metrics["active"] == float(case.mode != "off")
    check_forced(case, [one, *many])
    if case.n == N:  # the ranks saw different rows
        for step in range(steps_of(case)):
            mine = [{i for i, w in zip(*r.rows[step], strict=True) if w} for r in many]
            assert all(a != b for a, b in itertools.combinations(mine, 2))


def test_a_slow_rank_changes_no_draw() -> None:
    case = Case("auto", trust=True)
    many = on_ranks(2, train, case, 60, None, 1)
    check_same(train(0, case, 60), many)
    check_forced(case, many)


MOVED = [
    *(Case("auto"), Case("auto", mode="focused", trust=True)),
    *(Case("history", "multinomial"), Case("approx"), Case("uniform")),
]


def train_each(rank: int, cases: list[Case], steps: int, states: list[Any]) -> list[Result]:
    return [train(rank, case, steps, state) for case, state in zip(cases, states, strict=True)]


def test_state_moves_between_numbers_of_ranks() -> None:
    """4 -> 2 -> 3 -> 1 ranks with the same batch of all together."""
    states, done = [None] * len(MOVED), 0
    ones = [train(0, case, 90) for case in MOVED]
    for world, steps in ((4, 23), (2, 21), (3, 26), (1, 20)):
        results = on_ranks(world, train_each, MOVED, steps, states)
        for one, *rest in zip(ones, *results, strict=True):
            assert all(frozen(r.state["loader"]) == frozen(rest[0].state["loader"]) for r in rest)
            for step in range(steps):
                assert together(rest, step)[0] == one.rows[done + step][0], (world, step)
        states, done = [result.state for result in results[0]], done + steps
    for case, result in zip(MOVED, results[0], strict=True):
        check_forced(case, [result])
    for one, last in zip(ones, results[0], strict=True):
        np.testing.assert_allclose(last.parameters[0], one.parameters[0], rtol=0, atol=1e-12)


# --------------------------------------------------------------------------- scores with the model


def test_scores_that_need_the_model_choose_from_parts_of_one_pass() -> None:
    for many in zip(*on_ranks(2, chosen_by_all, 10), strict=True):
        for mine, theirs in zip(*many, strict=True):
            assert len(mine) == len(theirs) == GLOBAL
            assert not set(mine) & set(theirs)
        seen = [i for step in zip(*many, strict=True) for part in step for i in part]
        assert len(set(seen[: N // 24 * 24])) == N // 24 * 24  # one pass


def chosen_by_all(rank: int, steps: int) -> list[Any]:
    return [chosen_from(rank, Case(s, draw="multinomial"), steps) for s in sorted(NEED_MODEL)]


def chosen_from(rank: int, case: Case, steps: int) -> list[list[int]]:  # noqa: ARG001
    """The pool of each step, and that what is learned is the same on all ranks."""
    training = Training(case)
    pools, choose = [], training.loader._sampler.choose
    training.loader._sampler.choose = lambda indices, batch: (  # type: ignore[method-assign]
        pools.append(indices.tolist()) or choose(indices, batch)  # type: ignore[func-returns-value]
    )
    result = training.go(steps)
    means: list[Any] = [None, None]
    dist.all_gather_object(means, result.metrics["mean_loss"])
    assert means[0] == means[1]
    for p in training.model.parameters():
        both = [torch.empty_like(p), torch.empty_like(p)]
        dist.all_gather(both, p.detach())
        assert torch.equal(*both)
    return pools


def test_ranks_score_pools_at_the_same_steps() -> None:
    case = Case("loss", gain=GAIN)
    one, other = on_ranks(2, asked_for, case, 40)
    assert one == other
    assert set(one[0]) == {GLOBAL, 2 * GLOBAL}


def asked_for(rank: int, case: Case, steps: int) -> tuple[list[int], Any]:  # noqa: ARG001
    """The sizes of the pools of all ranks together, and by what they were decided."""
    training = Training(case)
    sampler, sizes = training.loader._sampler, []
    candidates = sampler.candidates

    def counted() -> Any:
        pool = candidates()
        sizes.append(len(pool))
        return pool

    sampler.candidates = counted  # type: ignore[method-assign]
    result = training.go(steps)
    return sizes, result.state["loader"]["source"]["worth"]


def test_scores_that_need_the_model_resume() -> None:
    cases = [Case("loss", deferred=late, gain=gain) for late in (False, True) for gain in (0, GAIN)]
    through = on_ranks(2, train_each, cases, 30, [None] * len(cases))
    for cut in (1, 6, 21):
        first = on_ranks(2, train_each, cases, cut, [None] * len(cases))
        rest = on_ranks(2, train_each, cases, 30 - cut, [r.state for r in first[0]])
        for rank, case in itertools.product(range(2), range(len(cases))):
            expected, before, after = (run[rank][case] for run in (through, first, rest))
            assert expected.rows == before.rows + after.rows
            assert (expected.parameters[0] == after.parameters[0]).all()


def test_a_resumed_run_that_weighs_before_it_draws_learns_from_all_ranks() -> None:
    """Workers have asked for the last batches of the epoch, so the state holds their draws."""
    cases = [Case(score, workers=2) for score in ("history", "auto")]
    through = on_ranks(2, train_each, cases, 30, [None] * len(cases))
    first = on_ranks(2, train_each, cases, 20, [None] * 2)  # of 21 in an epoch
    rest = on_ranks(2, train_each, cases, 10, [r.state for r in first[0]])
    for rank, case in itertools.product(range(2), range(len(cases))):
        expected, before, after = (run[rank][case] for run in (through, first, rest))
        assert expected.rows == before.rows + after.rows
        assert (expected.parameters[0] == after.parameters[0]).all()


def test_a_batch_that_was_chosen_and_not_weighed_is_chosen_again() -> None:
    many = on_ranks(2, leave_a_batch)
    assert many[0] == many[1] == "ok"


def leave_a_batch(rank: int) -> str:
    training = Training(Case("loss"))
    training.go(3)
    next(batches := iter(training.loader))
    part = training.loader.indices
    state = training.loader.state_dict()
    (pool,) = state["loader"]["pools"]
    assert state["outstanding"] == []
    assert set(part.tolist()) <= set(Ranks(rank, 2).own(pool).tolist())
    again = Training(Case("loss"))
    again.loader.load_state_dict(state)
    next(iter(again.loader))
    assert set(again.loader.indices.tolist()) <= set(Ranks(rank, 2).own(pool).tolist())
    del batches
    return "ok"


# ------------------------------------------------------------------------------------ custom loops


def test_a_sampler_of_its_own_draws_its_rows() -> None:
    one, many = sample(0, 24), on_ranks(2, sample, 24)
    for step in range(24):
        assert many[0][step][0] + many[1][step][0] == one[step][0]
        assert many[0][step][1] + many[1][step][1] == pytest.approx(one[step][1])


def sample(rank: int, steps: int) -> list[Any]:  # noqa: ARG001
    world = dist.get_world_size() if _many() else 1
    sampler = ImportanceSampler(100, 8 // world, score="history", seed=2)
    rows = []
    for step in range(steps):
        draw = sampler.draw()
        rows.append((draw.indices.tolist(), draw.weights.tolist()))
        by = draw if step % 2 else draw.indices
        sampler.update(by, (draw.indices % 7).float())
    if world > 1:
        with pytest.raises(UsageError, match=r"no draw of this rank.*update\(draw, losses\)"):
            sampler.update(torch.arange(4), torch.ones(4))
    return rows


# ------------------------------------------------------------------------------ the rows of a rank


def make_draw(n: int) -> Draw:
    p = torch.full((n,), 1 / 50, dtype=torch.float64)
    return Draw(3, torch.arange(n) + 7, torch.rand(n) + 0.5, p, p.clone(), 50)


@given(n=st.integers(1, 40), world=st.integers(1, 9))
def test_rows_add_up_to_the_mean_of_the_draw(n: int, world: int) -> None:
    """The mean over ranks of each rank's scaled mean is the mean of the whole draw."""
    draw, losses = make_draw(n), torch.rand(100, dtype=torch.float64)
    parts = [rows_of(draw, Ranks(rank, world)) for rank in range(world)]
    assert len({len(part) for part in parts}) == 1
    means = [(p.step_weights() * losses[p.indices]).mean() for p in parts]
    expected = (draw.weights * losses[draw.indices]).mean()
    assert float(sum(means)) / world == pytest.approx(float(expected), rel=1e-6)
    there = torch.cat([part.indices[part.weights > 0] for part in parts])
    assert torch.equal(there, draw.indices)


def test_a_divisor_counts_what_the_user_counts() -> None:
    """Padding weighs nothing, and the scale of a short batch is not applied twice."""
    many = on_ranks(3, divided)
    losses = torch.arange(10.0)
    assert sum(many) == pytest.approx(float(losses.sum()) / 40)


def divided(rank: int) -> float:
    data = torch.utils.data.TensorDataset(torch.arange(10.0))
    loader = ImportanceLoader(data, 4, score="uniform", slots=rank >= 0)
    x, slots = next(iter(loader))
    return float(loader.mean(x, slots, divisor=40))


# ------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("seed", r"the ranks differ in seed \(rank by rank: 0, 1\): give the same"),
        ("size", r"the ranks differ in dataset size \(rank by rank: 100, 101\)"),
        ("k", r"the ranks differ in k \(rank by rank: 0\.5, 0\.25\)"),
        ("workers", r"the ranks differ in num_workers \(rank by rank: 0, 1\)"),
        ("state", r"drew different examples at draw 3: give all of them the same seed"),
        ("skip", r"the ranks are at different draws \(rank by rank: 2, 3\)"),
        ("epoch", r"the ranks drew different examples at draw 3"),
        ("late group", r"has drawn for 1 rank and now there are 2 ranks: make the process group"),
    ],
)
def test_ranks_that_differ_are_told_so(what: str, message: str) -> None:
    for text in on_ranks(2, differ, what):
        assert re.search(message, text), text


def differ(rank: int, what: str) -> str:
    options: dict[str, Any] = {
        "seed": {"seed": rank},
        "k": {"k": 0.5 / (1 + rank)},
        "workers": {"num_workers": rank},
    }.get(what, {})
    group = dist.is_initialized
    if what == "late group":
        dist.is_initialized = lambda: False
    data = make_dataset(101 if what == "size" and rank else 100)
    score = "uniform" if what == "epoch" else "history"
    loader = ImportanceLoader(data, 4, score=score, **options)
    try:
        for _ in range(4):
            for step, (x, _) in enumerate(loader):
                dist.is_initialized = group
                if what == "skip" and rank and step == 2:
                    loader.skip()
                    continue
                loader.mean(x[:, 0].abs())
                if what == "state" and step == 2:
                    state = loader.state_dict()
                    if rank:
                        state["score"]["mean"] += torch.rand(100)
                        state["source"]["scores"] = state["score"]["mean"].double()
                    loader.load_state_dict(state)
                    break
                if what == "epoch" and step == 2 + rank:
                    break
    except UsageError as error:
        return str(error)
    return "nothing was wrong"


def test_a_bad_loss_is_reported_on_all_ranks() -> None:
    for text in on_ranks(2, bad):
        assert "at step 2 example " in text
        assert ": nan" in text


def bad(rank: int) -> str:
    loader = ImportanceLoader(make_dataset(40), 4, score="history")
    try:
        for step, (x, _) in enumerate(loader):
            losses = x[:, 0].abs()
            losses[1] = math.nan if rank and step == 1 else losses[1]
            loader.mean(losses)
    except ValueError as error:
        return str(error)
    return "nothing was wrong"


def test_bad_losses_that_are_skipped_are_counted_on_all_ranks() -> None:
    assert on_ranks(2, skipping) == [1.0, 1.0]


def skipping(rank: int) -> float:
    loader = ImportanceLoader(make_dataset(40), 4, score="history", on_bad_loss="skip")
    for step, (x, _) in enumerate(loader):
        losses = x[:, 0].abs()
        losses[1] = math.inf if rank and step == 1 else losses[1]
        assert math.isfinite(float(loader.mean(losses)))
    return loader.metrics()["skipped_losses"]


def test_copies_and_pickles_connect_anew() -> None:
    assert on_ranks(2, copied) == ["ok", "ok"]


def copied(rank: int) -> str:  # noqa: ARG001
    training = Training(Case("history"))
    training.go(5)
    for copy_of in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        other = copy_of(training.loader)
        for loader in (other, copy_of(training.loader)):
            indices = []
            for x, _ in loader:
                loader.mean(x[:, 0].abs())
                indices.append(loader.indices.tolist())
        assert indices
    return "ok"


def test_metrics_on_one_rank_alone_wait_for_nobody_for_long() -> None:
    assert on_ranks(2, looking) == ["ok", "ok"]


def looking(rank: int) -> str:
    training = Training(Case("history"))
    for x, y in training.loader:
        loss = training.loader.mean(cross_entropy(training.wrapped, (x, y)))
        if rank == 0:  # before the gradients are averaged, which the other rank takes part in
            assert training.loader.metrics()["mean_loss"] > 0
            training.loader.state_dict()
        loss.backward()
    return "ok"


@pytest.mark.parametrize("deferred", [False, True])
def test_a_state_taken_on_one_rank_alone(deferred: bool) -> None:
    case = Case("history", deferred=deferred)
    one = train(0, case, 30)
    first = on_ranks(2, save_alone, case, 11)[0]
    assert frozen(first["loader"]) == frozen(train(0, case, 11).state["loader"])
    rest = on_ranks(3, train, case, 19, first)
    check_same(one, rest, first=11)


def save_alone(rank: int, case: Case, steps: int) -> Any:
    training = Training(case)
    for number, (x, y) in enumerate(training.loader, 1):
        losses = cross_entropy(training.wrapped, (x, y))
        training.optimizer.zero_grad()
        training.loader.mean(losses).backward()
        training.optimizer.step()
        if number == steps:
            break
    if rank:
        return None
    return {"model": training.model.state_dict(), "loader": training.loader.state_dict()}


def test_streams_stay_each_ranks_own() -> None:
    assert on_ranks(2, stream) == [3, 5]


def stream(rank: int) -> int:
    model = nn.Linear(6, 3)
    pools = [(torch.randn(8, 6), torch.zeros(8, dtype=torch.int64)) for _ in range(3 + 2 * rank)]
    loader = ImportanceLoader.from_loader(pools, 4, model=model, loss=cross_entropy)
    return sum(float(loader.mean(cross_entropy(model, batch))) >= 0 for batch in loader)


def test_checksums_see_order_and_weights() -> None:
    a, b = torch.arange(6), torch.ones(6)
    assert checksum(a, b) == checksum(a.clone(), b.clone())
    assert checksum(a, b) != checksum(a.flip(0), b)
    assert checksum(a, b) != checksum(a, b * (1 + 1e-6))
    assert all(-(2**31) <= checksum(a + i) < 2**31 for i in range(50))
