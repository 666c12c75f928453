"""Ranks that draw from examples of their own step, on average, as one process would.

Processes take longer to start than to train, so there is one set of them for each number of ranks,
and what it found is looked at in many tests.
"""

import copy
import functools
import itertools
import math
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from enumerate_draws import with_points
from parts import cross_entropy, frozen, make_dataset
from ranks import on_ranks
from salience import (
    ArgumentError,
    ImportanceLoader,
    ImportanceSampler,
    SalienceError,
    StateError,
    UsageError,
    checkpoint,
    functional,
)
from salience.distributed import Ranks
from salience.draw import Draw
from salience.feedback import Arrived, Means
from salience.scores import History
from salience.shards import ids_of, owners_of, sizes_of, state_of_shard
from salience.smoothing import Adaptive, Constant
from salience.sources import WholeDataset
from salience.sources.shard import Shard

KS = [1.0, 0.5, 0.0, -0.5]
SIZES = [3, 11, 7]  # of three unequal shards


# ------------------------------------------------------------------------------- the equation alone


def random_q(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([0.2, 1.0, 6.0]).double()
    return [
        scale[r] * torch.rand(n, generator=generator).double() ** 3 + 1e-3
        for r, n in enumerate(SIZES)
    ]


def gradients(n: int) -> Tensor:
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(1)).double() + 1


def step_of_one(q: Tensor, k: float) -> Tensor:
    """sum_i p_i (1 / (N p_i))^k g_i."""
    p = q / q.sum()
    return (p * (1 / (len(q) * p)) ** k) @ gradients(len(q))


def step_of_shards(qs: list[Tensor], alpha: Callable[[int], Tensor]) -> Tensor:
    """The mean over the ranks r of sum_i (q_i / Q_r) alpha_i g_i."""
    parts = gradients(sum(map(len, qs))).split([len(q) for q in qs])
    steps = [(q / q.sum() * alpha(r)) @ parts[r] for r, q in enumerate(qs)]
    return torch.stack(steps).mean(0)


def difference(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("seed", range(6))
def test_the_mean_of_the_ranks_steps_is_expected_to_be_that_of_one_process(
    seed: int, k: float
) -> None:
    qs = random_q(seed)
    q, total = torch.cat(qs), float(torch.cat(qs).sum())

    def right(r: int) -> Tensor:
        own = float(qs[r].sum())
        return functional.shard_weights(qs[r], k, n=len(q), total=total, own=own, world=len(qs))

    def near_miss(r: int) -> Tensor:
        """(1 / (N P_i))^k, with P_i the probability that a draw of some rank is i."""
        return (1 / (len(q) * qs[r] / (len(qs) * qs[r].sum()))) ** k

    expected = step_of_one(q, k)
    assert difference(step_of_shards(qs, right), expected) < 1e-12
    missed = difference(step_of_shards(qs, near_miss), expected)
    if k == 1:
        assert missed < 1e-12  # unbiasedness alone would not have told them apart
    if k == 0.5:
        assert missed > 0.1


def variance(q: Tensor, alpha: Tensor, g: Tensor) -> float:
    """Of one draw from q, summed over the components of its step."""
    p, steps = q / q.sum(), alpha[:, None] * g
    return float(p @ (steps - p @ steps).square().sum(1))


@pytest.mark.parametrize("seed", range(4))
def test_unequal_masses_add_variance_by_their_spread(seed: int) -> None:
    """1 + cv^2 of the Q_r, at k = 1 and with gradients as large as the scores: docs/sharding.md."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.rand(12, generator=generator).double() + 0.1
    g = torch.randn(12, 3, generator=generator).double()
    g -= g.mean(0)  # the mean step is 0 on each rank, so that all of it is variance
    scales = torch.tensor([0.4, 0.8, 1.0, 1.8]).double()
    qs, gs = [c * q for c in scales], [c * g for c in scales]
    n, world, total = 48, len(qs), float(torch.cat(qs).sum())
    every = torch.cat(qs)
    one = variance(every, functional.weights(every / total, 1.0), torch.cat(gs)) / world
    many = 0.0
    for own_q, own_g in zip(qs, gs, strict=True):
        own = float(own_q.sum())
        alpha = functional.shard_weights(own_q, 1.0, n=n, total=total, own=own, world=world)
        many += variance(own_q, alpha, own_g) / world**2
    spread = float(scales.var(correction=0) / scales.mean() ** 2)
    assert many / one == pytest.approx(1 + spread, rel=1e-9)


# --------------------------------------------------------------------------------- the real source


class Sources:
    """A ``WholeDataset`` for each of several ranks in one process, and one over all examples."""

    def __init__(self, k: float, smoothing: Any, losses: Tensor, sizes: list[int]) -> None:
        """``losses``: nan where nothing was seen yet."""
        self.losses, self.sizes = losses, sizes
        self.n, self.starts = sum(sizes), [sum(sizes[:r]) for r in range(len(sizes))]
        self.smoothings = [copy.deepcopy(smoothing) for _ in sizes]
        self.one = self._source(k, copy.deepcopy(smoothing), losses, None)
        shards = [Shard(n, r, len(sizes)) for r, n in enumerate(sizes)]
        self.ranks = [
            self._source(k, self.smoothings[r], losses[start : start + sizes[r]], shards[r])
            for r, start in enumerate(self.starts)
        ]
        meeting, said = threading.Barrier(len(sizes)), [[0.0]] * len(sizes)

        def gather(rank: int, numbers: list[float]) -> list[list[float]]:
            said[rank] = numbers
            meeting.wait(10)
            found = list(said)
            meeting.wait(10)
            return found

        for r, shard in enumerate(shards):
            shard.connect(sizes, functools.partial(gather, r))

    def _source(
        self, k: float, smoothing: Any, losses: Tensor, shard: Shard | None
    ) -> WholeDataset:
        score, n = History(len(losses)), len(losses)
        parts = (score, smoothing, k, "multinomial", torch.Generator())
        source = WholeDataset(n, *parts, shard)
        seen = (~losses.isnan()).nonzero().flatten()
        for some in seen.split(4):
            source.update(score.update(some, losses[some]))
        return source

    def draw_each_once(self, source: WholeDataset, p: Tensor) -> Draw:
        """With points in the middle of each example's piece of the line."""
        ends = p.cumsum(0)
        return with_points(ends - p / 2, lambda: source.draw(len(p), 0))

    def draws(self, ps: list[Tensor]) -> list[Draw]:
        """Of all ranks at once, for they ask each other."""
        found: dict[int, Draw] = {}
        # Each thread would patch the same name; here every one has points of its own.
        ends = {len(p): p.cumsum(0) - p / 2 for p in ps}
        assert len(ends) == len(ps)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(functional, "points", lambda n, **_: ends[n])

            def run(rank: int) -> None:
                found[rank] = self.ranks[rank].draw(self.sizes[rank], 0)

            threads = [threading.Thread(target=run, args=(r,)) for r in range(len(ps))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
        return [found[r] for r in range(len(ps))]


def seen_losses(unseen: str) -> Tensor:
    losses = torch.rand(sum(SIZES), generator=torch.Generator().manual_seed(2)) ** 2 * 3
    losses[SIZES[0] : SIZES[0] + SIZES[1]] *= 4  # the largest is on rank 1
    gone = {"some": slice(1, None, 3), "on one rank": slice(15, None), "all": slice(None)}
    if unseen != "none":
        losses[gone[unseen]] = math.nan
    return losses


def adaptive() -> Adaptive:
    smoothing = Adaptive()
    smoothing.update(0.7)
    return smoothing


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("unseen", ["some", "on one rank", "none", "all"])
@pytest.mark.parametrize("smoothing", [adaptive(), Adaptive(), Constant(0.3)], ids=repr)
def test_the_source_follows_the_equation(smoothing: Any, unseen: str, k: float) -> None:
    losses = seen_losses(unseen)
    sources = Sources(k, smoothing, losses, SIZES)
    known = losses.double()[~losses.isnan()]
    scores = losses.double().nan_to_num(nan=float(known.max()) if len(known) else 1.0)
    q = scores + float(smoothing.constant(scores.mean()))
    qs, total = list(q.split(SIZES)), float(q.sum())
    draws = sources.draws([own / own.sum() for own in qs])
    for own, draw in zip(qs, draws, strict=True):
        assert draw.indices.tolist() == list(range(len(own)))
        torch.testing.assert_close(draw.probabilities, own / own.sum(), rtol=1e-12, atol=0)
        alpha = (total / (len(q) * own)) ** k * len(qs) * own.sum() / total
        torch.testing.assert_close(draw.weights, alpha.float(), rtol=1e-6, atol=0)
        assert draw.pool == len(own)
    torch.testing.assert_close(torch.cat([d.scores for d in draws]), scores, rtol=1e-9, atol=1e-12)
    one = sources.draw_each_once(sources.one, q / total)
    expected = (one.probabilities * one.weights) @ gradients(len(q))
    weights = [draw.weights.double() for draw in draws]
    assert difference(step_of_shards(qs, lambda r: weights[r]), expected) < 1e-6
    # What the ranks make of the losses of these draws is their mean over all examples.
    assert mean_of(draws, losses.nan_to_num(nan=2.0)) == pytest.approx(
        float(losses.nan_to_num(nan=2.0).mean()), rel=1e-6
    )


def mean_of(draws: list[Draw], losses: Tensor) -> float:
    """The expected mean over the ranks of W N_r / N times the unbiased mean of a draw of one."""
    total = 0.0
    for rank, (draw, own) in enumerate(zip(draws, losses.split(SIZES), strict=True)):
        shard = Shard(SIZES[rank], rank, len(SIZES))
        shard.sizes = SIZES
        rows = [draw.map(lambda x, i=i: x[i : i + 1]) for i in range(len(draw))]
        means = torch.tensor([row.unbiased_mean(own[row.indices]) for row in rows]).double()
        total += shard.share * float(draw.probabilities @ means) / len(SIZES)
    return total


def test_a_shard_whose_scores_are_all_zero_weighs_nothing() -> None:
    losses = seen_losses("none")
    losses[: SIZES[0]] = 0.0
    sources = Sources(0.5, Constant(0.0), losses, SIZES)
    uniform = torch.full((SIZES[0],), 1 / SIZES[0]).double()
    qs = list(losses.double().split(SIZES))
    draws = sources.draws([uniform, *(q / q.sum() for q in qs[1:])])
    assert draws[0].weights.tolist() == [0.0] * SIZES[0]
    torch.testing.assert_close(draws[0].probabilities, uniform)
    assert draws[0].scores.tolist() == [0.0] * SIZES[0]
    one = step_of_one(torch.cat(qs)[SIZES[0] :], 0.0)  # only to see that nothing else is nan
    assert bool(one.isfinite().all())
    assert all(bool(draw.weights.isfinite().all()) for draw in draws)


def test_with_all_scores_and_the_smoothing_zero_all_weigh_the_same() -> None:
    sources = Sources(0.5, Constant(0.0), torch.zeros(sum(SIZES)), SIZES)
    draws = sources.draws([torch.full((n,), 1 / n).double() for n in SIZES])
    for n, draw in zip(SIZES, draws, strict=True):
        torch.testing.assert_close(draw.weights, torch.full((n,), 3 * n / sum(SIZES)))


def test_the_score_of_unseen_examples_follows_ranks_that_have_seen_all_of_theirs() -> None:
    """Else it would be the largest loss of the time when they still had unseen ones."""
    losses = seen_losses("on one rank")
    sources = Sources(0.5, Constant(0.3), losses, SIZES)
    uniform = [torch.full((n,), 1 / n).double() for n in SIZES]
    sources.draws(uniform)
    high = torch.tensor([50.0])
    sources.ranks[0].update(sources.ranks[0]._score.update(torch.tensor([1]), high))
    draws = sources.draws(uniform)
    assert float(draws[2].scores.max()) == 50.0


# -------------------------------------------------------------------------------- states, by hand


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5), st.sampled_from([True, "own"]), st.data()
)
def test_every_example_has_one_owner(sizes: list[int], sharding: Any, data: Any) -> None:
    sizes = sizes_of(sum(sizes), len(sizes)) if sharding is True else sizes
    seen: list[int] = []
    for rank, size in enumerate(sizes):
        ids = ids_of(np.arange(size), sizes, sharding, rank)
        owner, place = owners_of(ids, sizes, sharding)
        assert owner.tolist() == [rank] * size
        assert place.tolist() == list(range(size))
        seen += ids.tolist()
    assert sorted(seen) == list(range(sum(sizes)))
    world = data.draw(st.integers(1, sum(sizes)))
    assert sum(sizes_of(sum(sizes), world)) == sum(sizes)


def test_late_losses_reach_the_ranks_that_now_have_the_examples() -> None:
    """Two shards of 3 and 2 become shards of 1 and 4; the means of the step stay as they were."""

    def part(rank: int, indices: list[int], losses: list[float]) -> dict[str, Any]:
        size, b = 3 - rank, len(indices)
        p = torch.full((b,), 0.5 / size).double()
        draw = Draw(7, torch.tensor(indices), torch.ones(b), p, p.clone(), size)
        late = Arrived(draw, torch.tensor(losses), Means(1.25, 1.25))
        score = {"mean": torch.arange(size) + 10.0 * rank}
        loader = {"late": [late.state()], "done": 3}
        return {"examples": size, "score": score, "skipped": 1, "loader": loader}

    parts = [part(0, [0, 2], [5.0, 6.0]), part(1, [1, 1], [7.0, 8.0])]
    found = [state_of_shard(parts, Ranks(r, 2), [1, 4], "own") for r in range(2)]
    assert [state["score"]["mean"].tolist() for state in found] == [[0], [1, 2, 10, 11]]
    assert [state["skipped"] for state in found] == [2, 0]
    late = [[Arrived.from_state(*each) for each in state["loader"]["late"]] for state in found]
    assert [[a.draw.indices.tolist() for a in each] for each in late] == [[[0]], [[1, 3, 3]]]
    assert [a.losses.tolist() for (a,) in late] == [[5.0], [6.0, 7.0, 8.0]]
    for (arrived,) in late:
        assert arrived.means == Means(1.25, 1.25)
        assert arrived.number == 7
        torch.testing.assert_close(
            arrived.draw.inverse(), torch.full_like(arrived.losses, 2.0).double()
        )


# ---------------------------------------------------------------------------------- on real ranks

N, GLOBAL, STEPS, RATE = 61, 12, 14, 0.5
OWN = {1: [61], 2: [25, 36], 3: [30, 11, 20], 4: [10, 20, 16, 15]}  # contiguous, unequal
PER_EPOCH = -(-N // GLOBAL)


class Case(NamedTuple):
    score: str
    shard: Any
    draw: str = "systematic"
    k: float = 0.5
    workers: int = 0
    slots: bool = False
    deferred: bool = False


CASES = [
    *(Case(s, shard) for s in ("uniform", "history", "approx") for shard in (True, "own")),
    Case("history", True, "multinomial", k=1.0),
    Case("history", "own", "multinomial", k=-0.5, slots=True),
    Case("history", "own", deferred=True),
    Case("history", True, "multinomial", deferred=True, slots=True),
    Case("approx", "own", deferred=True),
    Case("history", True, workers=1),
]
MOVED = [
    *(Case(s, shard) for s in ("uniform", "history", "approx") for shard in (True, "own")),
    *(Case("history", shard, deferred=True) for shard in (True, "own")),
]
CUTS = {Case("history", True, workers=1): [4]}


class Row(NamedTuple):
    ids: list[int]  # among the examples of all ranks
    weights: list[float]
    losses: list[float]
    parameters: list[Any]  # before the step


class Training:
    """One rank: a model in float64, plain SGD, and as many steps as are asked for."""

    def __init__(self, case: Case, state: Any = None) -> None:
        torch.manual_seed(0)
        many = dist.is_initialized()
        self.ranks = Ranks(dist.get_rank(), dist.get_world_size()) if many else Ranks()
        self.case, self.model = case, nn.Linear(6, 3).double()
        self.wrapped = DistributedDataParallel(self.model) if many else self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        x, y = make_dataset(N).tensors
        sizes = OWN[self.ranks.world]
        self.first = sum(sizes[: self.ranks.rank]) if case.shard == "own" else 0
        size = sizes[self.ranks.rank] if case.shard == "own" else N
        here = slice(self.first, self.first + size)
        self.loader = ImportanceLoader(
            TensorDataset(x[here].double(), y[here]),
            GLOBAL // self.ranks.world,
            score=case.score,
            draw=case.draw,
            k=case.k,
            num_workers=case.workers,
            slots=case.slots,
            shard=case.shard,
            seed=5,
        )
        self.loader.deferred = case.deferred or None
        self.rows: list[Row] = []
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.loader.load_state_dict(state["loader"])

    def go(self, steps: int) -> list[Row]:
        while len(self.rows) < steps:
            for x, y, *slots in self.loader:
                losses = cross_entropy(self.wrapped, (x, y))
                before = [p.detach().clone().numpy() for p in self.model.parameters()]
                self.optimizer.zero_grad()
                self.loader.mean(losses, *slots).backward()
                self.optimizer.step()
                self.rows.append(
                    Row(
                        (self.loader.indices + self.first).tolist(),
                        self.loader.weights.tolist(),
                        losses.tolist(),
                        before,
                    )
                )
                if len(self.rows) == steps:
                    break
        return self.rows

    def state(self) -> Any:
        states = {"model": self.model.state_dict(), "loader": self.loader.state_dict()}
        return copy.deepcopy(states)

    def learned(self) -> Any:
        """The score of each of this rank's examples, by its number among all."""
        if self.case.score == "approx":
            record = self.loader._sampler.score._record
            values = torch.cat([record.losses, record.counts[:, None].float()], 1)
            at = ids_of(np.arange(len(values)), self._sizes(), self.case.shard, self.ranks.rank)
            return dict(zip(at.tolist(), values.tolist(), strict=True))
        scores = self.loader.scores()
        known = range(len(scores))
        if self.case.shard is True and self.ranks.world > 1:
            known = range(self.ranks.rank, N, self.ranks.world)
            others = [i for i in range(N) if i not in known]
            assert bool(scores[others].isnan().all())
        return {i + self.first: float(scores[i]) for i in known}

    def _sizes(self) -> list[int]:
        return OWN[self.ranks.world] if self.case.shard == "own" else sizes_of(N, self.ranks.world)


class Found(NamedTuple):
    rows: list[Row]
    metrics: dict[str, float]
    smoothing: Any
    recent: list[int]
    length: int
    epoch: int
    resumed: dict[int, list[Row]]  # by the steps before the state was taken


class Moved(NamedTuple):
    state: Any  # the same on all ranks
    before: Any  # what was learned when it was loaded; late losses included
    learned: Any  # at the end of this leg
    rows: list[Row]
    mean_loss: list[float]  # when it was loaded, and at the end
    late: int  # losses that had not been learned in the state that was loaded


class Results(NamedTuple):
    found: dict[Case, Found]
    moved: dict[Case, Moved]
    said: dict[str, Any]


def all_of(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def train(case: Case) -> Found:
    run = Training(case)
    rows = run.go(STEPS)
    metrics, recent = run.loader.metrics(), run.loader.recent()["indices"] + run.first
    smoothing = run.loader._sampler._smoothing.state_dict()
    resumed = {}
    for cut in CUTS.get(case, [0, 1, PER_EPOCH - 1, PER_EPOCH, PER_EPOCH + 3]):
        first = Training(case)
        first.go(cut)
        state = saved(first.state(), through_a_file=cut % 2 == 1)
        resumed[cut] = first.rows + Training(case, state).go(STEPS - cut)
    return Found(
        rows, metrics, smoothing, recent.tolist(), len(run.loader), run.loader.epoch, resumed
    )


def saved(state: Any, *, through_a_file: bool) -> Any:
    if not through_a_file:
        return state
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "state.ckpt", state, step=1)
        return checkpoint.load(Path(folder) / "state.ckpt").state


def move(case: Case, state: Any, steps: int) -> Moved:
    run = Training(case, state)
    late = len(run.loader._feedback._late)
    run.loader._feedback.flush()
    mean_loss = [run.loader.metrics()["mean_loss"]]
    before = run.learned()
    rows = run.go(steps)
    end = run.state()
    run.loader._feedback.flush()
    mean_loss.append(run.loader.metrics()["mean_loss"])
    return Moved(end, before, run.learned(), rows, mean_loss, late)


def everything(rank: int, states: dict[Case, Any], cases: list[Case]) -> Results:
    found = {case: train(case) for case in cases}
    moved = {case: move(case, states.get(case), 9) for case in MOVED}
    said = {name: check(rank) for name, check in CHECKS.items()} if cases else {}
    return Results(found, moved, said)


def results(world: int) -> list[Results]:
    """4 -> 2 -> 3 ranks, each set with the states of the one before."""
    found = run_once(world)
    if isinstance(found, BaseException):
        raise found
    return found


@functools.cache
def run_once(world: int) -> list[Results] | BaseException:
    """A failure is kept as well: it would take as long again."""
    try:
        return _results(world)
    except (Exception, AssertionError) as error:
        return error


def _results(world: int) -> list[Results]:
    before = {2: 4, 3: 2}.get(world)
    states: dict[Case, Any] = {}
    if before is not None:
        states = {case: moved.state for case, moved in results(before)[0].moved.items()}
    return on_ranks(world, everything, states, CASES if before else [])


@functools.cache
def gradient(parameters: bytes, ids: tuple[int, ...]) -> Any:
    """[len(ids), parameters]: of the loss of each example."""
    model = nn.Linear(6, 3).double()
    for own, given_one in zip(model.parameters(), pickle.loads(parameters), strict=True):
        own.data = torch.from_numpy(given_one)
    x, y = make_dataset(N).tensors
    grads = []
    for i in ids:
        model.zero_grad()
        cross_entropy(model, (x[i : i + 1].double(), y[i : i + 1])).sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return torch.stack(grads)


WORLDS = pytest.mark.parametrize("world", [2, 3])
ALL = pytest.mark.parametrize("case", CASES, ids=str)


@WORLDS
@ALL
def test_ranks_draw_from_their_own_examples(case: Case, world: int) -> None:
    for rank, found in enumerate(results(world)):
        first = sum(OWN[world][:rank])
        own = range(first, first + OWN[world][rank])
        mine = set(own if case.shard == "own" else range(rank, N, world))
        rows = found.found[case].rows
        drawn = {i for row in rows for i in row.ids}
        assert drawn <= mine
        assert len(drawn) > len(mine) / 2
        assert all(len(row.ids) == GLOBAL // world for row in rows)
        recent = found.found[case].recent
        learned = rows[:-1] if case.deferred else rows
        assert recent == [i for row in learned for i in row.ids]


@WORLDS
@ALL
def test_parameters_follow_the_mean_of_the_ranks_weighted_means(case: Case, world: int) -> None:
    many = [found.found[case].rows for found in results(world)]
    for step, next_one in itertools.pairwise(range(STEPS)):
        rows = [rows[step] for rows in many]
        theta = [np.concatenate([p.ravel() for p in row.parameters]) for row in rows]
        assert all((each == theta[0]).all() for each in theta)
        ids = tuple(i for row in rows for i in row.ids)
        alpha = torch.tensor([w for row in rows for w in row.weights]).double()
        grads = gradient(pickle.dumps(rows[0].parameters), ids)
        expected = theta[0] - RATE * (alpha @ grads / GLOBAL).numpy()
        after = np.concatenate([p.ravel() for p in many[0][next_one].parameters])
        np.testing.assert_allclose(after, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@WORLDS
@ALL
def test_what_all_ranks_have_in_common(case: Case, world: int) -> None:
    many = [found.found[case] for found in results(world)]
    assert all(one.metrics["mean_loss"] == many[0].metrics["mean_loss"] > 0 for one in many)
    assert all(one.smoothing == many[0].smoothing for one in many)
    assert {one.length for one in many} == {PER_EPOCH}
    assert {one.epoch for one in many} == {STEPS // PER_EPOCH}
    for one in many:
        assert one.metrics["active"] == float(case.score != "uniform")
        assert 0 < one.metrics["unique_fraction"] <= 1
        assert 0 < one.metrics["effective_sample_size"] <= GLOBAL // world


@WORLDS
@pytest.mark.parametrize("shard", [True, "own"])
def test_uniform_visits_every_example_of_a_shard_once_per_pass(shard: Any, world: int) -> None:
    sizes = OWN[world] if shard == "own" else sizes_of(N, world)
    for rank, found in enumerate(results(world)):
        rows = found.found[Case("uniform", shard)].rows
        ids = [i for row in rows for i in row.ids]
        size = sizes[rank]
        for start in range(0, len(ids) - size, size):
            assert len(set(ids[start : start + size])) == size
        share = world * size / N
        assert [w for row in rows for w in row.weights] == pytest.approx([share] * len(ids))


@WORLDS
@ALL
def test_a_state_resumes_exactly_on_as_many_ranks(case: Case, world: int) -> None:
    for found in results(world):
        for cut, rows in found.found[case].resumed.items():
            expected = found.found[case].rows
            assert [row[:2] for row in rows] == [row[:2] for row in expected], cut
            # DDP adds up the gradients in another order at its first step.
            for row, same in zip(rows, expected, strict=True):
                assert row.losses == pytest.approx(same.losses, rel=1e-9), cut


def merged(parts: list[dict[int, Any]]) -> list[Any]:
    found: dict[int, Any] = {}
    for part in parts:
        assert not found.keys() & part.keys()
        found |= part
    assert sorted(found) == list(range(N))
    return [found[i] for i in range(N)]


@pytest.mark.parametrize("case", MOVED, ids=str)
def test_every_examples_history_moves_to_other_numbers_of_ranks(case: Case) -> None:
    """4 -> 2 -> 3 -> 1 ranks, example by example."""
    legs = [[found.moved[case] for found in results(world)] for world in (4, 2, 3)]
    legs.append([move(case, legs[-1][0].state, 9)])
    for leg in legs:
        states = [frozen(one.state["loader"]) for one in leg]
        assert all(state == states[0] for state in states)  # one state, the same on all ranks
        assert len({tuple(one.mean_loss) for one in leg if one.mean_loss[0] > 0}) <= 1
    for before, after in itertools.pairwise(legs):
        if case.score != "uniform":
            expected = merged([one.learned for one in before])
            np.testing.assert_array_equal(merged([one.before for one in after]), expected)
        assert after[0].mean_loss[0] == before[0].mean_loss[1]
        assert [one.late for one in after] == [int(case.deferred)] * len(after)
    rows = [[row.ids for row in one.rows] for leg in legs for one in leg]
    assert len({str(each) for each in rows}) == len(rows)  # random numbers of their own


def test_one_process_becomes_two_ranks_and_remembers() -> None:
    """Late losses too, which one process leaves without means."""
    for case in ONE_FIRST:
        one = from_one(case)
        many = [found.said["one first"][case] for found in results(2)]
        np.testing.assert_array_equal(merged([m.before for m in many]), merged([one.learned]))
        assert many[0].mean_loss[0] == many[1].mean_loss[0] == pytest.approx(one.mean_loss[1])


ONE_FIRST = [
    Case("history", True),
    Case("history", "own", deferred=True),
    Case("approx", True, deferred=True),
]


def from_one(case: Case) -> Moved:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "is_initialized", lambda: False)
        return move(case, None, 9)


# --------------------------------------------------------------- checks that run in the same ranks


def check_formula(rank: int) -> str:
    """A loop of one's own, with multinomial draws: every draw by the newest scores of all ranks."""
    world, k = dist.get_world_size(), 0.5
    for shard in (True, "own"):
        sizes = OWN[world] if shard == "own" else sizes_of(N, world)
        n = sizes[rank] if shard == "own" else N
        sampler = ImportanceSampler(
            n, 4, score="history", k=k, draw="multinomial", shard=shard, seed=3
        )
        largest = 1.0
        for step in range(12):
            own = sampler.scores()
            own = own[rank::world] if shard is True else own
            scores = torch.cat([torch.tensor(part) for part in all_of(own.tolist())]).double()
            if not bool(scores.isnan().all()):
                seen = float(scores.nan_to_num(nan=0.0).max())
                largest = max(largest, seen) if step > 1 else seen
            scores = scores.nan_to_num(nan=largest)
            q = scores + float(sampler._smoothing.constant(float(scores.mean())))
            draw = sampler.draw()
            mine, total = list(q.split(sizes))[rank], float(q.sum())
            at = draw.indices // world if shard is True else draw.indices
            torch.testing.assert_close(draw.probabilities, mine[at] / mine.sum())
            alpha = (total / (len(q) * mine[at])) ** k * world * mine.sum() / total
            torch.testing.assert_close(draw.weights, alpha.float())
            if step == 0:
                # Uniform so far: each rank's estimate is exact, so that of all is.
                losses = torch.full((4,), rank + 1.0)
                expected = sum(size * (r + 1) for r, size in enumerate(sizes)) / N
            else:
                losses = (at % 5).float() + rank / 2
            sampler.update(draw, losses)
            if step == 0:
                assert sampler.metrics()["mean_loss"] == pytest.approx(expected)
    return "ok"


def refused(error: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def history(n: int, batch: int = 4, **options: Any) -> ImportanceLoader:
    return ImportanceLoader(make_dataset(n), batch, **{"score": "history", **options})


def epoch(loader: ImportanceLoader, of: Callable[[int, Tensor], Tensor] | None = None) -> None:
    for step, (x, *_) in enumerate(loader):
        loader.mean(x[:, 0].abs() if of is None else of(step, x[:, 0].abs()))


def check_states(rank: int) -> list[str]:
    world = dist.get_world_size()
    replicated, sharded, own = history(40), history(40, shard=True), history(40, shard="own")
    for loader in (replicated, sharded, own):
        epoch(loader)
    states = [loader.state_dict() for loader in (replicated, sharded, own)]
    said = [
        refused(StateError, lambda: history(40, shard=True).load_state_dict(states[0])),
        refused(StateError, lambda: history(40).load_state_dict(states[1])),
        refused(StateError, lambda: history(40 * world, shard=True).load_state_dict(states[2])),
        refused(StateError, lambda: history(41, shard=True).load_state_dict(states[1])),
        refused(StateError, lambda: history(40 + rank, shard="own").load_state_dict(states[2])),
        refused(
            StateError,
            lambda: history(40, shard=True).load_state_dict(
                {**states[1], "parts": [{"examples": 1}]}
            ),
        ),
    ]
    # As many ranks with other parts of the same examples: cut anew.
    swapped = [[25, 40 * world - 25], [7, 60, 40 * world - 67]][world - 2]
    loader = history(swapped[rank], shard="own")
    loader.load_state_dict(states[2])
    before = torch.cat([part["score"]["mean"] for part in states[2]["parts"]])
    torch.testing.assert_close(
        loader.scores(), before.split(swapped)[rank], rtol=0, atol=0, equal_nan=True
    )
    epoch(loader)
    return said


def check_bad_losses(rank: int) -> list[str]:
    def bad(step: int, losses: Tensor) -> Tensor:
        if step == 2 and rank == 1:
            losses[1:] = math.nan
        return losses

    def all_bad(step: int, losses: Tensor) -> Tensor:
        return losses * (math.nan if step == 1 and rank == 1 else 1)

    said = []
    for deferred in (None, True):
        loader = history(40, shard=True)
        loader.deferred = deferred
        said.append(refused(SalienceError, lambda: epoch(loader, bad)))  # noqa: B023
        loader = history(40, shard=True, on_bad_loss="skip")
        loader.deferred = deferred
        epoch(loader, all_bad)
        epoch(loader)
        values = all_of([loader.metrics()["mean_loss"], loader._sampler._smoothing.state_dict()])
        assert all(value == values[0] for value in values)
        assert loader.metrics()["skipped_losses"] == (4.0 if rank == 1 else 0.0)
    return said


def check_small_shards(rank: int) -> str:
    """Of 5 and of 1,000 examples, batches of 10: the ranks ask each other at the same draws."""
    for score in ("history", "uniform"):
        loader = history(5 if rank == 0 else 1000, 10, shard="own", score=score)
        for _ in range(2):
            epoch(loader)
        assert loader.metrics()["mean_loss"] > 0
        assert loader._sampler.step == 2 * len(loader)
    return "ok"


def check_copies(rank: int) -> str:  # noqa: ARG001
    """They go on where it was, with connections of their own."""
    loader = history(80, shard=True)
    batches = iter(loader)
    for _ in range(3):
        x, _ = next(batches)
        loader.mean(x[:, 0].abs())
    rows = []
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        epoch(other)
        rows.append(other.scores().nan_to_num().tolist())
    for x, _ in batches:
        loader.mean(x[:, 0].abs())
    assert rows == [loader.scores().nan_to_num().tolist()] * 2
    return "ok"


def check_classes(rank: int) -> str:
    """Rank 0 has the classes 3 and 9, the others 9 and 12: numbered alike, and cut for others."""
    classes = torch.tensor([3, 9] if rank == 0 else [9, 12])[torch.arange(20) % 2]
    loader = ImportanceLoader(
        make_dataset(20), 4, score="approx", shard="own", labels=classes, seed=2
    )
    epoch(loader)
    labels = loader._sampler.score._labels
    assert sorted(set(labels.tolist())) == ([0, 1] if rank == 0 else [1, 2])
    state = loader.state_dict()
    shapes = [part["score"]["model"]["embedding.weight"].shape[0] for part in state["parts"]]
    assert set(shapes) == {3}
    return "ok"


class Mine(History):  # type: ignore[misc]
    """A score of the user's own."""


def check_own_score(rank: int) -> str:
    n = 20 + rank
    loader = history(n, shard="own", score=Mine(n))
    epoch(loader)
    state = loader.state_dict()
    again = history(n, shard="own", score=Mine(n))
    again.load_state_dict(state)
    assert torch.equal(again.scores().nan_to_num(), loader.scores().nan_to_num())
    world = dist.get_world_size()
    m = n + 1 if rank == 0 else n - 1 if rank == 1 else n
    assert world > 1
    return refused(
        StateError, lambda: history(m, shard="own", score=Mine(m)).load_state_dict(state)
    )


def check_sizes(rank: int) -> list[Any]:
    said: list[Any] = [
        refused(ArgumentError, lambda: history(1, shard=True)),
        refused(UsageError, lambda: epoch(history(40 + rank, shard=True))),
        refused(UsageError, history(40, shard=True).extend),
    ]
    if rank == 0:  # nobody is asked
        said.append(len(history(40, shard=True)))
    return said


def check_one_first(rank: int) -> dict[Case, Moved]:  # noqa: ARG001
    if dist.get_world_size() != 2:
        return {}
    found = {}
    for case in ONE_FIRST:
        one = from_one(case)
        found[case] = move(case, one.state, 3)
    return found


CHECKS: dict[str, Callable[[int], Any]] = {
    "formula": check_formula,
    "states": check_states,
    "bad losses": check_bad_losses,
    "small shards": check_small_shards,
    "copies": check_copies,
    "classes": check_classes,
    "own score": check_own_score,
    "sizes": check_sizes,
    "one first": check_one_first,
}


def said(world: int, name: str) -> Iterator[Any]:
    for found in results(world):
        yield found.said[name]


@WORLDS
@pytest.mark.parametrize("name", ["formula", "small shards", "copies", "classes"])
def test_on_ranks(name: str, world: int) -> None:
    assert list(said(world, name)) == ["ok"] * world


@WORLDS
def test_states_that_do_not_fit_are_refused(world: int) -> None:
    for texts in said(world, "states"):
        assert "state was saved with shard False, this one has True" in texts[0]
        assert "state was saved with shard True, this one has False" in texts[1]
        assert "state was saved with shard 'own', this one has True" in texts[2]
        assert "state was saved with dataset size 40, this one has 41" in texts[3]
        more = 40 * world + sum(range(world))
        assert f"saved with dataset size {40 * world}, this one has {more}" in texts[4]
        assert "the state is damaged" in texts[5]


@WORLDS
def test_a_bad_loss_is_an_error_on_all_ranks(world: int) -> None:
    for rank, texts in enumerate(said(world, "bad losses")):
        for text in texts:
            if rank == 1:
                assert "at step 3 example" in text
                example = int(text.split("example ")[1].split(":")[0])
                assert example % world == 1  # its place in the dataset
            else:
                assert "at draw 2 rank 1 had others: its own error names the examples" in text


@WORLDS
def test_what_a_score_of_ones_own_has_learned_is_not_cut(world: int) -> None:
    for text in said(world, "own score"):
        assert (
            f"score of your own (Mine) has learned cannot be cut.*{world} ranks".split(".*")[0]
            in text
        )
        assert f"resume on {world} ranks" in text


@WORLDS
def test_sizes_that_cannot_be(world: int) -> None:
    for texts in said(world, "sizes"):
        assert f"1 examples cannot be cut into shards for {world} ranks" in texts[0]
        assert "the ranks differ in dataset size (rank by rank: 40, 41" in texts[1]
        assert "shards of several ranks cannot grow" in texts[2]
    assert next(said(world, "sizes"))[3] == -(-40 // (4 * world))


# --------------------------------------------------------------------------- arguments, one process


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": "x"}, r"shard must be False, True .* or 'own' .*; got 'x'"),
        ({"shard": 1}, r"shard must be False, True .*; got 1"),
        ({"shard": None}, r"shard must be False, True .*; got None"),
        ({"shard": True}, r"shard=True does not go with score 'auto', the default: use score="),
        ({"shard": "own", "score": "auto"}, r"shard='own' does not go with score 'auto'"),
        ({"shard": True, "score": "loss"}, r"shard=True does not go with score 'loss': use score="),
        (
            {"shard": True, "score": "history", "presample": 3},
            r"shard=True does not go with presample=3: use score='history', 'approx' or 'uniform' "
            r"without presample",
        ),
        ({"shard": True, "score": Mine(40)}, r"a score of your own \(Mine\).*shard='own'"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ImportanceLoader(make_dataset(40), 4, **options)


@pytest.mark.parametrize("shard", [True, "own"])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("score", ["uniform", "history", "approx"])
def test_without_other_ranks_shards_change_nothing(score: str, drop_last: bool, shard: Any) -> None:
    runs = []
    for sharding in (False, shard):
        loader = history(43, shard=sharding, score=score, drop_last=drop_last)
        rows = []
        for stop in (100, 3, 100):  # also where an epoch is left
            for step, (x, *_) in enumerate(loader):
                rows.append((loader.indices.tolist(), loader.weights.tolist()))
                loader.mean(x[:, 0].abs())
                if step == stop:
                    break
        state = frozen(loader.state_dict())
        assert state["settings"].pop("shard") is sharding
        loader.extend()  # and it can grow
        runs.append((rows, state, len(loader)))
    assert runs[0] == runs[1]
