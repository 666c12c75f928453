"""Datasets that grow while they are trained on."""

import copy
import re
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from parts import auto_is, cross_entropy, force_auto, frozen, make_dataset, needs
from ranks import on_ranks
from salience import ArgumentError, ImportanceLoader, ImportanceSampler, StateError, UsageError
from salience.scores import History

BEFORE, AFTER, BATCH = 40, 60, 8


class Growing(Dataset[Any]):
    """The first rows of a larger dataset."""

    def __init__(self, n: int = BEFORE) -> None:
        self._x, self._y = make_dataset(200).tensors
        self.n = n

    @property
    def targets(self) -> Tensor:
        return self._y[: self.n]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        assert i < self.n
        return self._x[i], self._y[i]


class Case(NamedTuple):
    score: str
    presample: float | None = None
    mode: str = "off"  # of auto
    trust: bool = False
    deferred: bool = False
    classes: int = 0  # given; more than a batch has: passes are stratified


CASES = [
    Case("uniform"),
    Case("history"),
    Case("history", deferred=True),
    Case("history", presample=3),
    Case("approx"),
    Case("auto"),
    Case("auto", classes=20),
    Case("auto", mode="focused"),
    Case("auto", mode="focused", deferred=True),
    Case("auto", mode="focused", trust=True),
    Case("auto", mode="focused", trust=True, deferred=True),
    Case("auto", trust=True, classes=20),
    Case("auto", presample=3, mode="focused"),
    Case("loss"),
    Case("upper_bound", deferred=True),
]
PASSES = [Case("uniform"), Case("auto"), Case("auto", classes=20)]
ALL = pytest.mark.parametrize("case", CASES, ids=str)


class Training:
    def __init__(self, case: Case, n: int = BEFORE, state: Any = None) -> None:
        torch.manual_seed(0)
        force_auto(case.mode, trust=case.trust)
        self.case, self.model, self.data = case, nn.Linear(6, 3), Growing(n)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        world = dist.get_world_size() if dist.is_initialized() else 1
        self.loader = ImportanceLoader(
            self.data,
            BATCH // world,
            score=case.score,
            presample=case.presample,
            labels=self.labels(),
            seed=4,
            **needs(case.score, self.model),
        )
        self.loader.deferred = case.deferred or None
        self.rows: list[Any] = []
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.loader.load_state_dict(state["loader"])

    def labels(self) -> Any:
        return torch.arange(self.data.n) % self.case.classes if self.case.classes else None

    def grow(self, n: int = AFTER) -> None:
        self.data.n = n
        self.loader.extend(self.labels())

    def epoch(self, steps: int = 10**6) -> int:
        """The rest of it, or some steps; how many there were."""
        count = 0
        for batch in self.loader:
            self.step(batch)
            count += 1
            if count == steps:
                break
        return count

    def step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        self.loader.mean(cross_entropy(self.model, batch)).backward()
        self.optimizer.step()
        self.rows.append((self.loader.indices.tolist(), self.loader.weights.tolist()))

    def check_forced(self) -> None:
        if self.case.score == "auto":
            assert auto_is(self.loader._sampler) == (self.case.mode, self.case.trust)

    def state(self) -> Any:
        states = {"model": self.model.state_dict(), "loader": self.loader.state_dict()}
        return copy.deepcopy(states)


def seen(rows: list[Any]) -> list[int]:
    return [i for indices, _ in rows for i in indices]


# ------------------------------------------------------------------------------------- what comes


@ALL
def test_an_epoch_under_way_keeps_its_steps(case: Case) -> None:
    run = Training(case)
    for step, batch in enumerate(run.loader):
        run.step(batch)
        if step == 1:
            run.grow()
            assert len(run.loader) == len(run.loader.as_dataloader()) == 8
    assert len(run.rows) == 5
    assert run.epoch() == run.epoch() == 8
    assert run.loader.epoch == 3
    assert any(i >= BEFORE for i in seen(run.rows))
    assert max(seen(run.rows)) < AFTER
    on = case.mode != "off" or case.score not in ("uniform", "auto")
    assert run.loader.metrics()["active"] == float(on)
    run.check_forced()


@pytest.mark.parametrize("case", PASSES, ids=str)
@pytest.mark.parametrize("moment", ["before", "within", "after", "left"])
def test_passes_hold_every_example_once(case: Case, moment: str) -> None:
    run = Training(case)
    if moment == "before":
        run.grow()
    if moment == "left":
        assert run.epoch(2) == 2
        run.grow()
        run.rows.clear()
    for step, batch in enumerate(run.loader):
        run.step(batch)
        if moment == "within" and step == 2:
            run.grow()
    old = moment in ("within", "after")
    assert sorted(seen(run.rows)) == list(range(BEFORE if old else AFTER))
    if moment == "after":
        run.grow()
    for _ in range(2):
        run.rows.clear()
        assert run.epoch() == 8
        assert sorted(seen(run.rows)) == list(range(AFTER))


def test_history_draws_new_examples_first() -> None:
    sampler = ImportanceSampler(BEFORE, BATCH, score="history", smoothing=0.0)
    losses = torch.zeros(BEFORE)
    losses[7] = 1.0
    sampler.update(torch.arange(BEFORE), losses)
    sampler.extend(AFTER)
    new: set[int] = set()
    for _ in range(12):
        draw = sampler.draw()
        assert set(draw.indices.tolist()) <= {7, *range(BEFORE, AFTER)}
        new |= {i for i in draw.indices.tolist() if i >= BEFORE}
        sampler.update(draw, (draw.indices == 7).float())
    assert new == set(range(BEFORE, AFTER))


@pytest.mark.parametrize("case", [c for c in CASES if c.mode != "off" or c.presample], ids=str)
def test_every_new_example_is_visited(case: Case) -> None:
    run = Training(case)
    run.epoch()
    run.grow()
    for _ in range(12):
        run.epoch()
    assert set(range(BEFORE, AFTER)) <= set(seen(run.rows))


def test_pools_grow_with_a_dataset_that_was_smaller() -> None:
    for score in ("history", "loss"):
        run = Training(Case(score, presample=3), n=10)
        run.epoch()
        assert len(run.loader._sampler.source.candidates()) == 10
        run.grow()
        assert len(run.loader._sampler.source.candidates()) == 3 * BATCH


def test_batches_grow_with_a_dataset_that_was_smaller_than_one() -> None:
    run = Training(Case("history"), n=5)
    run.epoch()
    assert [len(indices) for indices, _ in run.rows] == [5]
    run.grow()
    run.epoch()
    assert [len(indices) for indices, _ in run.rows] == [5, *[BATCH] * 8]


# ------------------------------------------------------------------------------------------ states


@ALL
@pytest.mark.parametrize("moment", ["begin", "within", "end"])
def test_a_state_after_growing_resumes_exactly(case: Case, moment: str) -> None:
    """Also in the epoch that was under way, and in the next one."""
    run, states = Training(case), []
    if moment == "begin":
        run.grow()
    for step, batch in enumerate(run.loader):
        run.step(batch)
        if moment == "within" and step == 1:
            run.grow()
        if moment != "end" and step in (1, 3):
            states.append((len(run.rows), run.state()))
    if moment == "end":
        run.grow()
    states.append((len(run.rows), run.state()))
    run.epoch(2)
    states.append((len(run.rows), run.state()))
    for done, state in states:
        through, resumed = Training(case, AFTER, state), Training(case, AFTER, state)
        through.epoch()
        through.epoch()
        through.check_forced()
        # To be sure that it goes on as the run itself did, and not only as another resumed one.
        resumed.epoch(2)
        assert resumed.rows == through.rows[: len(resumed.rows)]
        if done < len(run.rows):
            assert run.rows[done:] == through.rows[: len(run.rows) - done]


@ALL
def test_a_state_of_another_size_is_refused(case: Case) -> None:
    run = Training(case)
    run.epoch(2)
    before = run.state()
    run.grow()
    after, kept = run.state(), frozen(run.loader.state_dict())
    with pytest.raises(StateError, match="saved with dataset size 40, this one has 60"):
        run.loader.load_state_dict(before["loader"])
    assert frozen(run.loader.state_dict()) == kept
    with pytest.raises(StateError, match="saved with dataset size 60, this one has 40"):
        Training(case, BEFORE, after)


@ALL
def test_growing_by_nothing_changes_nothing(case: Case) -> None:
    runs = [Training(case), Training(case)]
    for run in runs:
        run.epoch(3)
    runs[0].grow(BEFORE)
    for run in runs:
        run.epoch()
    assert runs[0].rows == runs[1].rows
    assert frozen(runs[0].loader.state_dict()) == frozen(runs[1].loader.state_dict())


@pytest.mark.parametrize("score", ["uniform", "history", "approx", "auto"])
def test_a_sampler_that_grew_resumes_exactly(score: str) -> None:
    def steps(sampler: ImportanceSampler, count: int) -> list[Any]:
        rows = []
        for _ in range(count):
            draw = sampler.draw()
            rows.append(frozen(draw.state_dict()))
            sampler.update(draw, (draw.indices % 7).float() + 0.1)
        return rows

    def make(n: int) -> ImportanceSampler:
        return ImportanceSampler(n, 4, score=score, labels=torch.arange(n) % 3, seed=2)

    sampler = make(400)
    ahead = sampler.draw()
    steps(sampler, 7)
    sampler.extend(500, torch.arange(500) % 3)
    sampler.update(ahead, torch.ones(4))  # drawn before, learned after
    assert len(sampler.scores()) == 500
    twin = make(500)
    twin.load_state_dict(sampler.state_dict())
    assert steps(sampler, 60) == steps(twin, 60)


# ----------------------------------------------------------------------------------------- workers


@pytest.mark.parametrize("persistent", [False, True])
def test_with_workers_between_epochs(persistent: bool) -> None:
    """Persistent ones hold the dataset as it was: new ones are started."""
    data = Growing()
    loader = ImportanceLoader(
        data, BATCH, score="uniform", num_workers=1, persistent_workers=persistent
    )
    for step, (x, _) in enumerate(loader):
        loader.mean(x[:, 0].abs())
        if step == 1:
            data.n = AFTER
            with pytest.raises(UsageError, match=r"workers hold the dataset .* between epochs"):
                loader.extend()
            data.n = BEFORE
    data.n = AFTER
    loader.extend()
    indices: list[int] = []
    for x, _ in loader:
        loader.mean(x[:, 0].abs())
        indices += loader.indices.tolist()
    assert sorted(indices) == list(range(AFTER))


def test_with_workers_after_an_epoch_was_left() -> None:
    data = Growing()
    loader = ImportanceLoader(data, BATCH, score="history", num_workers=1)
    for x, _ in loader:
        loader.mean(x[:, 0].abs())
        break
    data.n = AFTER
    loader.extend()
    assert len(loader) == 8


def test_a_tensor_dataset_may_be_given_longer_tensors() -> None:
    data, larger = make_dataset(BEFORE), make_dataset(200)
    loader = ImportanceLoader(data, BATCH, score="uniform")
    data.tensors = tuple(
        torch.cat([a, b[BEFORE:AFTER]]) for a, b in zip(data.tensors, larger.tensors, strict=True)
    )
    loader.extend()
    for x, y in loader:
        assert torch.equal(x, data.tensors[0][loader.indices])
        assert torch.equal(y, data.tensors[1][loader.indices])
        loader.mean(x[:, 0].abs())


# ------------------------------------------------------------------------------------- what is not


class NoRoom:
    """A score of the user's own that cannot grow."""

    by_index, unit = True, "loss"

    def __init__(self, n: int) -> None:
        self._inner = History(n)
        self.score, self.update = self._inner.score, self._inner.update
        self.state_dict, self.load_state_dict = (
            self._inner.state_dict,
            self._inner.load_state_dict,
        )


class Room(NoRoom):
    def extend(self, n: int) -> None:
        self._inner.extend(n)


def test_a_score_of_ones_own_has_to_make_room() -> None:
    loader = ImportanceLoader(data := Growing(), BATCH, score=NoRoom(BEFORE))
    data.n = AFTER
    with pytest.raises(UsageError, match=r"score NoRoom cannot grow: give it a method extend\(n\)"):
        loader.extend()
    assert len(loader) == 5
    data.n = BEFORE
    loader = ImportanceLoader(data, BATCH, score=Room(BEFORE))
    data.n = AFTER
    loader.extend()
    for x, _ in loader:
        loader.mean(x[:, 0].abs())
    assert len(loader.scores()) == AFTER


def test_shrinking_is_refused() -> None:
    run = Training(Case("history"))
    with pytest.raises(ArgumentError, match="has shrunk from 40 to 30 examples"):
        run.grow(30)
    with pytest.raises(ArgumentError, match="the dataset size must be a whole number"):
        ImportanceSampler(10, 2).extend(12.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("score", ["approx", "auto"])
def test_labels_go_on_as_they_were(score: str) -> None:
    sampler = ImportanceSampler(30, 2, score=score, labels=torch.arange(30) % 3)
    with pytest.raises(ArgumentError, match="labels must be given for all 40 examples"):
        sampler.extend(40)
    with pytest.raises(ArgumentError, match="no new classes"):
        sampler.extend(40, torch.arange(40) % 4)
    with pytest.raises(ArgumentError, match="those of before"):
        sampler.extend(40, (torch.arange(40) + 1) % 3)
    with pytest.raises(ArgumentError, match="got 39 for 40 examples"):
        sampler.extend(40, torch.arange(39) % 3)
    assert sampler.n == 30
    sampler.extend(40, torch.arange(40) % 3)
    assert sampler.n == 40


def test_new_classes_are_fine_where_nobody_looks_at_them() -> None:
    """``auto`` stratifies by class only where a batch has fewer places than there are classes."""
    sampler = ImportanceSampler(30, 4, labels=torch.arange(30) % 2)
    sampler.extend(40, torch.arange(40) % 2 - 5 * (torch.arange(40) > 35))
    with pytest.raises(ArgumentError, match="no new classes"):
        sampler.extend(50, torch.arange(50) % 5)


def test_streams_have_no_size() -> None:
    model = nn.Linear(6, 3)
    pools = [(torch.randn(8, 6), torch.zeros(8, dtype=torch.int64))]
    loader = ImportanceLoader.from_loader(pools, 4, model=model, loss=cross_entropy)
    with pytest.raises(UsageError, match="a stream has no size"):
        loader.extend()
    with pytest.raises(UsageError, match="a stream has no size"):
        loader._sampler.extend(10)


# -------------------------------------------------------------------------------------- many ranks

ON_RANKS = [c for c in CASES if c.score not in ("loss", "upper_bound")]


def on_a_rank(rank: int) -> Any:
    rows = {case: grown(case) for case in ON_RANKS}
    return rows, [alone(rank, score) for score in ("history", "uniform", "auto")]


def grown(case: Case) -> list[Any]:
    """Grows in the middle of the second epoch, and after the third."""
    run = Training(case)
    run.optimizer.param_groups[0]["lr"] = 0.0  # so that ranks need not average their gradients
    run.epoch()
    for step, batch in enumerate(run.loader):
        run.step(batch)
        if step == 1:
            run.grow(50)
    run.epoch()
    run.grow()
    run.epoch()
    return run.rows


def alone(rank: int, score: str) -> str:
    run = Training(Case(score))
    try:
        for _ in range(3):
            for step, batch in enumerate(run.loader):
                run.step(batch)
                if rank and step == 1 and len(run.rows) == 2:
                    run.grow()
        run.loader.metrics()
    except UsageError as error:
        return str(error)
    return "nothing was wrong"


def test_ranks_that_grow_at_the_same_step_draw_as_one() -> None:
    many = on_ranks(2, on_a_rank)
    for case in ON_RANKS:
        one = grown(case)
        both = list(zip(many[0][0][case], many[1][0][case], strict=True))
        assert len(both) == len(one)
        for (expected, _), (mine, theirs) in zip(one, both, strict=True):
            assert [*mine[0], *theirs[0]][: len(expected)] == expected, case
    for _, texts in many:
        for text in texts:
            assert re.search(
                r"datasets of different sizes at draw \d+ \(rank by rank: 40, 60\): call "
                r"extend\(\) on all of them",
                text,
            ), text
