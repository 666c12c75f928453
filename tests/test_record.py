"""The record of losses against a plain dictionary, over programs of all kinds."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from parts import cross_entropy, force_auto, frozen, make_dataset, needs
from ranks import on_ranks
from salience import ArgumentError, ImportanceLoader, ImportanceSampler, StateError, UsageError
from salience.history import LossHistory
from salience.presets import NAMES
from salience.record import FIRST, POINTS, Record, course

N = 12


class Plain:
    """Keeps every loss of every example in a dictionary."""

    def __init__(self) -> None:
        self.losses: dict[int, list[float]] = {}
        self.steps: dict[int, int] = {}
        self.lost: dict[int, int] = {}
        self.known: dict[int, bool] = {}
        self.means: list[float] = []
        self.step = 0

    def update(self, indices: list[int], losses: list[float], mean: float | None = None) -> None:
        """Repeated indices count once, with the mean of their losses."""
        self.step += 1
        once: dict[int, list[float]] = {}
        for i, loss in zip(indices, losses, strict=True):
            once.setdefault(i, []).append(loss)
        self.means.append(float(np.mean(losses)) if mean is None else mean)
        for i, several in once.items():
            self._visit(i, float(np.float32(np.sum(several, dtype=np.float32) / len(several))))

    def _visit(self, i: int, loss: float) -> None:
        self.losses.setdefault(i, []).append(loss)
        self.steps[i] = self.step
        start = self.start
        if len(self.means) >= FIRST:
            if self.known.get(i) and loss > start:
                self.lost[i] = self.lost.get(i, 0) + 1
                self.known[i] = False
            if loss < start / 2:
                self.known[i] = True

    @property
    def start(self) -> float:
        return float(np.mean(self.means[:FIRST])) if self.means else 0.0

    def running(self, i: int) -> list[float]:
        found: list[np.float32] = []
        for loss in map(np.float32, self.losses.get(i, [])):
            before = found[-1] if found else loss
            found.append(before + (1 - np.float32(0.8)) * (loss - before) if found else loss)
        return [float(each) for each in found]

    def curve(self, i: int) -> list[float]:
        """Every second, fourth, ... loss, so that 18 are enough, and the last."""
        losses, every = self.losses.get(i, []), 1
        while len(losses[::every]) > POINTS:
            every *= 2
        kept = [float(np.float16(loss)) for loss in losses[::every]]
        return kept if (len(losses) - 1) % every == 0 else [*kept, losses[-1]]


def agrees(found: LossHistory, plain: Plain, n: int = N) -> None:
    assert len(found) == n
    assert found.step == plain.step
    for place, i in enumerate(found.index.tolist()):
        losses, means = plain.losses.get(i, []), plain.running(i)
        assert found.visits[place] == len(losses)
        assert found.last_visit[place] == plain.steps.get(i, 0)
        assert found.forgotten[place] == plain.lost.get(i, 0)
        expected = [means[-1], losses[0], losses[-1], min(means)] if losses else [np.nan] * 4
        columns = (found.loss, found.first_loss, found.last_loss, found.lowest_loss)
        assert [column[place] for column in columns] == pytest.approx(expected, nan_ok=True)
        assert found.curve(place) == (pytest.approx(plain.curve(i)) if losses else [])


# ------------------------------------------------------------------------------ against the oracle

steps = st.lists(
    st.lists(
        st.tuples(st.integers(0, N - 1), st.floats(0, 8, width=32)), min_size=1, max_size=2 * N
    ),
    max_size=60,
)


@given(steps)
def test_a_record_is_what_a_dictionary_would_have(program: list[Any]) -> None:
    """With repeated indices, and after a state in the middle."""
    sampler, plain = ImportanceSampler(N, 4, score="uniform", record=True), Plain()
    for number, step in enumerate(program):
        indices, losses = ([*column] for column in zip(*step, strict=True))
        sampler.update(torch.tensor(indices), torch.tensor(losses))
        plain.update(indices, losses)
        if number == len(program) // 2:
            state = sampler.state_dict()
            sampler = ImportanceSampler(N, 4, score="uniform", record=True)
            sampler.load_state_dict(state)
    agrees(sampler.history(), plain)


@pytest.mark.parametrize("seed", range(4))
def test_long_programs_forget(seed: int) -> None:
    random = np.random.default_rng(seed)
    sampler, plain = ImportanceSampler(N, 4, score="uniform", record=True), Plain()
    for _ in range(200):
        indices = random.integers(0, N, random.integers(1, 9))
        losses = random.exponential(1, len(indices)).astype(np.float32)
        sampler.update(torch.from_numpy(indices), torch.from_numpy(losses))
        plain.update(indices.tolist(), losses.tolist())
    agrees(sampler.history(), plain)
    assert min(plain.lost.values()) > 3


@settings(max_examples=20)
@given(st.lists(st.floats(0, 8, width=32), min_size=1, max_size=300))
def test_the_course_of_a_long_training_has_few_points(losses: list[float]) -> None:
    one, plain = Record(1), Plain()
    for step, loss in enumerate(losses, start=1):
        one.begin(loss)
        one.update(torch.tensor([0]), torch.tensor([loss]), step)
        plain.update([0], [loss])
    found = one.columns()
    curve = course(found["course"][0], int(found["visits"][0]), float(found["last"][0]))
    assert len(curve) <= POINTS + 1
    assert curve == pytest.approx(plain.curve(0))


def train(loader: ImportanceLoader, plain: Plain | None, epochs: int) -> None:
    """Losses that only the example and the step decide."""
    for _ in range(epochs):
        for batch in loader:
            losses = loss_of(batch[0], loader.epoch)
            draw = loader.last_draw
            loader.mean(losses.requires_grad_()).backward()
            if plain is not None:
                plain.update(
                    draw.indices.tolist(), losses.tolist(), draw.unbiased_mean(losses.detach())
                )


def loss_of(x: Tensor, epoch: int) -> Tensor:
    return (x[:, 0].abs() * 3 + x[:, 1].abs() / (epoch + 1)).detach()


@pytest.mark.parametrize(("score", "workers"), [*((name, 0) for name in NAMES), ("history", 2)])
def test_every_score_is_recorded(score: str, workers: int) -> None:
    dataset, model, plain = make_dataset(40), nn.Linear(6, 3), Plain()
    loader = ImportanceLoader(
        dataset, 8, score=score, record=True, num_workers=workers, **needs(score, model)
    )
    train(loader, plain, 3)
    agrees(loader.history(), plain, 40)
    assert loader.history().label.tolist() == dataset.tensors[1].tolist()


@pytest.mark.parametrize("mode", ["off", "focused"])
def test_a_record_changes_no_draw(mode: str) -> None:
    drawn = []
    for record in (False, True):
        force_auto(mode)
        sampler = ImportanceSampler(40, 8, record=record)
        for step in range(60):
            draw = sampler.draw()
            sampler.update(draw, 1 / (1 + draw.indices.float() + step))
        drawn.append(frozen([sampler.draw().indices, sampler.draw().weights, sampler.scores()]))
    assert drawn[0] == drawn[1]


def test_resuming_in_the_middle_of_an_epoch_changes_nothing() -> None:
    dataset = make_dataset(40)
    make = partial(ImportanceLoader, dataset, 8, score="history", record=True)
    whole, resumed = make(), make()
    train(whole, None, 3)
    train(resumed, None, 1)
    batches = iter(resumed)
    for _ in range(2):
        resumed.mean(loss_of(next(batches)[0], resumed.epoch))
    state = resumed.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    train(resumed, None, 2)
    assert frozen(whole.state_dict()["record"]) == frozen(resumed.state_dict()["record"])


def test_losses_that_are_skipped_are_no_visit() -> None:
    sampler = ImportanceSampler(4, 2, score="uniform", record=True, on_bad_loss="skip")
    sampler.update(torch.tensor([0, 1]), torch.tensor([1.0, float("nan")]))
    sampler.update(torch.tensor([2, 3]), torch.tensor([float("nan"), float("inf")]))
    sampler.update(torch.tensor([2, 3]), torch.tensor([1.0, 2.0]))
    found = sampler.history()
    assert found.visits.tolist() == [1, 0, 1, 1]
    assert found.last_visit.tolist() == [1, 0, 3, 3]
    assert found.step == 3


def test_growing_keeps_what_is_known() -> None:
    x, y = torch.randn(30, 6), torch.arange(30) % 3
    dataset = TensorDataset(x[:20], y[:20])
    loader, plain = ImportanceLoader(dataset, 5, score="uniform", record=True), Plain()
    train(loader, plain, 2)
    dataset.tensors = (x, y)
    loader.extend()
    assert loader.history().visits.tolist() == [2] * 20 + [0] * 10
    train(loader, plain, 1)
    agrees(loader.history(), plain, 30)
    assert loader.history().label.tolist() == y.tolist()


def test_a_class_that_is_new_is_no_matter_to_scores_that_do_not_use_classes() -> None:
    sampler = ImportanceSampler(4, 2, score="uniform", labels=[0, 1, 2, 3], record=True)
    sampler.extend(6, [0, 1, 2, 3, 40, 50])
    assert sampler.history().label.tolist() == [0, 1, 2, 3, 40, 50]


def test_large_losses_and_many_forgettings_stay_within_their_bytes() -> None:
    one = Record(1)
    for _ in range(FIRST):
        one.begin(1.0)
    one._rows["forgotten"] = 2**16 - 1
    for step, loss in enumerate((0.1, 1e6, 0.1, 1e6), start=1):
        one.update(torch.tensor([0]), torch.tensor([loss]), step)
    found = one.columns()
    assert found["forgotten"].tolist() == [2**16 - 1]
    assert found["course"][0, 1] == np.finfo(np.float16).max
    assert found["last"].tolist() == [1e6]
    assert one._rows.itemsize == 64
    assert one._rows.ctypes.data % 64 == 0


# ---------------------------------------------------------------------------------------- ranks


def on_a_rank(_: int, score: str, shard: Any = False) -> Any:
    torch.manual_seed(0)
    dataset, model = make_dataset(40), nn.Linear(6, 3)
    loader = ImportanceLoader(
        dataset, 4, score=score, shard=shard, record=True, **needs(score, model)
    )
    train(loader, None, 2)
    found = loader.history()
    return {**found.columns(), "course": found.course, "start": np.array(found.start)}


@pytest.mark.parametrize("score", ["auto", "uniform", "loss"])
def test_all_ranks_record_the_losses_of_all(score: str) -> None:
    first, second = on_ranks(2, on_a_rank, score)
    for name in first:
        assert np.array_equal(first[name], second[name], equal_nan=True), name
    assert first["visits"].sum() == 2 * 40 if score != "loss" else first["visits"].sum() > 40
    if score == "uniform":
        torch.manual_seed(0)
        alone = ImportanceLoader(make_dataset(40), 8, score=score, record=True)
        train(alone, None, 2)
        for name, column in alone.history().columns().items():
            assert np.allclose(first[name], column, equal_nan=True), name


def test_a_shard_records_its_own_examples() -> None:
    first, second = on_ranks(2, on_a_rank, "history", True)
    assert first["index"].tolist() == list(range(0, 40, 2))
    assert second["index"].tolist() == list(range(1, 40, 2))
    labels = make_dataset(40).tensors[1]
    for found in (first, second):
        assert found["label"].tolist() == labels[found["index"]].tolist()
        assert found["visits"].sum() == 40


def shard_state(_: int) -> Any:
    loader = ImportanceLoader(make_dataset(40), 4, score="history", shard=True, record=True)
    train(loader, None, 2)
    return loader.state_dict(), loader.history().columns()


def test_the_record_of_shards_moves_to_one_process() -> None:
    (state, first), (_, second) = on_ranks(2, shard_state)
    alone = ImportanceLoader(make_dataset(40), 8, score="history", shard=True, record=True)
    alone.load_state_dict(state)
    found = alone.history().columns()
    for name in set(found) - {"suspect"}:
        together = np.stack([first[name], second[name]], axis=1).reshape(-1)
        assert np.array_equal(found[name], together, equal_nan=True), name


# ------------------------------------------------------------------------------------- bad input


def test_a_stream_has_no_record() -> None:
    model = nn.Linear(6, 3)
    with pytest.raises(ArgumentError, match=r"record=True needs examples with an index.*stream"):
        ImportanceSampler(None, 2, score="loss", model=model, loss=cross_entropy, record=True)
    pools = [(torch.randn(8, 6), torch.zeros(8, dtype=torch.long))]
    loader = ImportanceLoader.from_loader(pools, 4, model=model, loss=cross_entropy)
    with pytest.raises(UsageError, match="'loss' records no losses of examples: a stream has no"):
        loader.history()


@pytest.mark.parametrize("given", [1, "yes", None])
def test_record_is_true_or_false(given: Any) -> None:
    with pytest.raises(ArgumentError, match="record must be True or False; got"):
        ImportanceSampler(4, 2, record=given)


def test_without_a_record_the_error_says_how_to_get_one() -> None:
    sampler = ImportanceSampler(4, 2, score="uniform")
    with pytest.raises(UsageError, match=r"'uniform' records no losses.*record=True"):
        sampler.history()


def test_a_state_without_a_record_is_refused_and_the_other_way_round() -> None:
    plain, recorded = ImportanceSampler(4, 2), ImportanceSampler(4, 2, record=True)
    with pytest.raises(StateError, match="saved with record None, this one has True"):
        recorded.load_state_dict(plain.state_dict())
    with pytest.raises(StateError, match="saved with record True, this one has None"):
        plain.load_state_dict(recorded.state_dict())


def test_a_damaged_record_changes_nothing() -> None:
    sampler = ImportanceSampler(4, 2, score="uniform", record=True)
    sampler.update(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))
    before, state = frozen(sampler.state_dict()), sampler.state_dict()
    state["record"] = {**state["record"], "course": state["record"]["course"][:2]}
    with pytest.raises(StateError, match=r"course of shape \[2, 18\] for 4 examples"):
        sampler.load_state_dict(state)
    assert frozen(sampler.state_dict()) == before
