"""One level down: draws, updates, and states that fit or are refused."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from parts import cross_entropy, frozen, make_dataset, needs
from salience import ImportanceLoader, ImportanceSampler, StateError, UsageError
from salience.presets import NAMES
from salience.scores import NEED_MODEL

BY_INDEX = [name for name in NAMES if name not in NEED_MODEL]
N, BATCH = 36, 6


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_draws_are_not_what_the_seed_gives_elsewhere(seed: int) -> None:
    sampler = ImportanceSampler(1000, 100, score="uniform", seed=seed)
    users = torch.randperm(1000, generator=torch.Generator().manual_seed(seed))[:100]
    # By chance 10 of 100 are the same; 30 are more than seven deviations away.
    assert len({*sampler.draw().indices.tolist()} & {*users.tolist()}) < 30


def test_another_seed_is_another_draw() -> None:
    draws = [ImportanceSampler(1000, 50, seed=seed).draw().indices for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_draws_are_numbered_and_looked_up_by_their_number() -> None:
    sampler = ImportanceSampler(20, 4, score="history")
    first, second = sampler.draw(), sampler.draw()
    assert (first.number, second.number) == (0, 1)
    sampler.update(second, torch.ones(4))
    with pytest.raises(UsageError, match="draw 1 does not wait for losses"):
        sampler.update(second, torch.ones(4))
    sampler.update(first, torch.ones(4))
    assert sampler.step == 2


def test_a_batch_of_one_drawn_ahead_loses_no_draws() -> None:
    """Draws were found by their indices: of equal ones, all but the first were lost."""
    sampler = ImportanceSampler(3, 1, score="history", k=1, smoothing=0.5, draw="multinomial")
    losses = torch.tensor([0.0, 0.5, 4.0])
    sampler.update(torch.arange(3), losses)
    ahead, total, steps = [sampler.draw() for _ in range(4)], [], 400
    for step in range(steps):
        draw = ahead.pop(0)
        total.append(float(draw.weights[0] * losses[draw.indices[0]]))
        sampler.update(draw if step % 2 else draw.indices, losses[draw.indices])
        ahead.append(sampler.draw())
    assert sampler.step == steps + 1
    assert len(sampler.outstanding) == 4
    decays = 0.95 ** torch.arange(steps - 1, -1, -1).double()
    mean = sum(w * x for w, x in zip(decays.tolist(), total, strict=True)) / float(decays.sum())
    assert sampler.metrics()["mean_loss"] == pytest.approx(mean, rel=1e-4)


def test_draws_that_never_come_back_are_forgotten() -> None:
    sampler = ImportanceSampler(10, 1, score="uniform")
    for _ in range(4200):
        sampler.draw()
    assert len(sampler.outstanding) == 4096


def test_other_indices_are_a_uniform_sample() -> None:
    sampler = ImportanceSampler(10, 2, score="history")
    sampler.update(torch.tensor([1, 2, 3]), torch.tensor([1.0, 2.0, 6.0]))
    assert sampler.metrics()["mean_loss"] == pytest.approx(3.0)


def test_what_is_shown() -> None:
    shown = "ImportanceSampler(20 examples, batch_size=4, score='history', k=1)"
    assert repr(ImportanceSampler(20, 4, score="history", k=1)) == shown


# ------------------------------------------------------------------------------ states that fit


def trained(steps: int = 3, **options: Any) -> ImportanceLoader:
    options = {"score": "history", **options}
    loader = ImportanceLoader(make_dataset(N), BATCH, **options)
    for step, _ in enumerate(loader):
        loader.mean(torch.rand(BATCH))
        if step + 1 == steps:
            break
    return loader


DIFFERENT = [
    ({"batch_size": 5}, "batch_size 6, this one has 5"),
    ({"k": 1}, r"k 0\.5, this one has 1\.0"),
    ({"draw": "multinomial"}, "draw 'systematic', this one has 'multinomial'"),
    ({"presample": 2}, "presample None, this one has 2"),
    ({"smoothing": 0.3}, r"smoothing 'Adaptive.*', this one has 'Constant\(0\.3\)'"),
    ({"score": "approx"}, "score 'history', this one has 'approx'"),
    ({"dataset": make_dataset(20)}, "dataset size 36, this one has 20"),
]


@pytest.mark.parametrize(("options", "message"), DIFFERENT)
def test_the_state_of_something_else_is_refused_and_changes_nothing(
    options: dict[str, Any], message: str
) -> None:
    state = trained().state_dict()
    other = ImportanceLoader(
        **{"dataset": make_dataset(N), "batch_size": BATCH, "score": "history", **options}
    )
    next(iter(other))
    other.mean(torch.ones(len(other.indices)))
    before, metrics = frozen(other.state_dict()), other.metrics()
    with pytest.raises(StateError, match=message):
        other.load_state_dict(state)
    assert frozen(other.state_dict()) == before
    assert other.metrics() == metrics


def test_constants_of_smoothing_are_compared() -> None:
    state = trained(smoothing=0.3).state_dict()
    with pytest.raises(StateError, match=r"Constant\(0\.3\).*Constant\(0\.4\)"):
        trained(smoothing=0.4).load_state_dict(state)
    trained(smoothing=0.3).load_state_dict(state)


def test_what_is_no_state() -> None:
    loader = trained()
    for wrong in ({}, None, [], {"version": 1}):
        with pytest.raises(StateError, match="version"):
            loader.load_state_dict(wrong)
    with pytest.raises(StateError, match="state of an ImportanceSampler"):
        ImportanceLoader(make_dataset(N), BATCH, score="history").load_state_dict(
            ImportanceSampler(N, BATCH, score="history").state_dict()
        )


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every tensor and every key."""
    if isinstance(tree, dict):
        inner = [leaf for key in tree for leaf in leaves(tree[key], (*path, key))]
        return [*((*path, key) for key in tree), *inner]
    if isinstance(tree, list | tuple):
        return [leaf for i, part in enumerate(tree) for leaf in leaves(part, (*path, i))]
    return [path] if isinstance(tree, Tensor) else []


def lists(tree: Any) -> Any:
    """With lists for tuples, so that parts can be replaced."""
    if isinstance(tree, dict):
        return {key: lists(value) for key, value in tree.items()}
    return [lists(value) for value in tree] if isinstance(tree, list | tuple) else tree


def damaged(state: Any, path: tuple[Any, ...], how: str) -> Any:
    """A copy without the key, or with the tensor cut short; None where that cannot be."""
    state = lists(copy.deepcopy(state))
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    value = inner[path[-1]]
    if how == "missing" and isinstance(inner, dict):
        del inner[path[-1]]
        return state
    if how == "truncated" and isinstance(value, Tensor) and len(value.shape) and len(value) > 1:
        inner[path[-1]] = value[: len(value) // 2]
        return state
    return None


@pytest.mark.usefixtures("auto_turns_on")
@pytest.mark.parametrize("how", ["missing", "truncated"])
@pytest.mark.parametrize("score", ["uniform", "history", "approx", "auto"])
@pytest.mark.parametrize("deferred", [None, True])
def test_a_damaged_state_changes_nothing(score: str, how: str, deferred: bool | None) -> None:
    loader = trained(4, score=score)
    loader.deferred = deferred
    next(iter(loader))
    loader.mean(torch.ones(BATCH))
    state = loader.state_dict()
    other = trained(2, score=score)
    before, metrics = frozen(other.state_dict()), other.metrics()
    tried = 0
    for path in dict.fromkeys(leaves(state)):
        if path[0] == "settings" or "optimizer" in path[:-1]:  # torch's own affair
            continue
        wrong = damaged(state, path, how)
        any_length = how == "truncated" and path[:2] == ("source", "changed")
        if wrong is None or any_length:
            continue
        tried += 1
        with pytest.raises(StateError):
            other.load_state_dict(wrong)
        assert frozen(other.state_dict()) == before, path
        assert other.metrics() == pytest.approx(metrics, nan_ok=True), path
    assert tried >= 1
    other.load_state_dict(state)
    loaded = other.state_dict()
    for part in (loaded, state):
        part["source"].pop("initial", None)  # of no use once all scores are known
    assert frozen(loaded) == frozen(state)


def test_saved_draws_are_small() -> None:
    """They were views of a whole pass: 16 MB for a few batches of two million examples."""
    for workers in (0, 1):
        loader = ImportanceLoader(
            TensorDataset(torch.zeros(300_000)), 8, score="uniform", num_workers=workers
        )
        batches = iter(loader)
        next(batches)
        loader.mean(torch.ones(8))
        next(batches)
        file = io.BytesIO()
        torch.save(loader.state_dict(), file)
        assert len(file.getvalue()) < 25_000


# ------------------------------------------------------------------------- the user's settings


@pytest.mark.usefixtures("auto_turns_on")
@pytest.mark.parametrize("score", BY_INDEX)
@pytest.mark.parametrize("presample", [None, 2])
def test_the_default_device_is_the_users_business(score: str, presample: int | None) -> None:
    """Host-side parts stay on the host whatever device new tensors are put on by default."""
    labels = torch.arange(30) % 10
    torch.set_default_device("meta")
    try:
        sampler = ImportanceSampler(30, 4, score=score, presample=presample, labels=labels)
        for _ in range(12):
            draw = sampler.draw()
            assert {part.device.type for part in draw} == {"cpu"}
            sampler.update(draw, torch.ones(len(draw), device="cpu"))
        assert math.isfinite(sampler.metrics()["mean_loss"])
        twin = ImportanceSampler(30, 4, score=score, presample=presample, labels=labels)
        twin.load_state_dict(sampler.state_dict())
        assert torch.equal(twin.draw().indices, sampler.draw().indices)
    finally:
        torch.set_default_device("cpu")


@pytest.mark.usefixtures("auto_turns_on")
@pytest.mark.parametrize("slots", [False, True])
def test_a_loader_with_a_default_device(slots: bool) -> None:
    data = make_dataset(30)
    torch.set_default_device("meta")
    try:
        loader = ImportanceLoader(data, 4, slots=slots)
        for _ in range(2):
            for _x, y, *given in loader:
                assert loader.mean(torch.ones(len(y), device="cpu"), *given).device.type == "cpu"
    finally:
        torch.set_default_device("cpu")


@pytest.mark.usefixtures("auto_turns_on")
@pytest.mark.parametrize("score", NAMES)
def test_deterministic_algorithms(score: str) -> None:
    model, data = nn.Linear(6, 3), make_dataset(30)
    torch.use_deterministic_algorithms(True)
    try:
        for deferred in (None, True):
            loader = ImportanceLoader(data, 4, score=score, slots=True, **needs(score, model))
            loader.deferred = deferred
            for x, y, slots in loader:
                loader.mean(cross_entropy(model, (x, y)), slots).backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_making_a_sampler_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    for score in BY_INDEX:
        sampler = ImportanceSampler(10, 2, score=score)
        sampler.update(sampler.draw(), torch.ones(2))
    assert torch.equal(before, torch.get_rng_state())


# ---------------------------------------------------------------------------- what can be looked at


@pytest.mark.parametrize("deferred", [None, True])
def test_scores_are_those_that_were_learned(deferred: bool | None) -> None:
    loader = ImportanceLoader(TensorDataset(torch.arange(N)), BATCH, score="history")
    loader.deferred = deferred
    assert loader.scores().isnan().all()
    for (x,), _ in zip(loader, range(3), strict=False):
        loader.mean(x + 0.5)
    seen = [2, 3][deferred is None] * BATCH  # the last one is on its way
    known = ~loader.scores().isnan()
    assert 0 < int(known.sum()) <= seen
    assert torch.equal(loader.scores()[known], torch.arange(N)[known] + 0.5)
    some = torch.tensor([7, 7, 0])
    assert torch.equal(loader.scores(some).nan_to_num(-1), loader.scores()[some].nan_to_num(-1))
    loader.scores().zero_()
    assert bool((loader.scores()[known] > 0).all())  # it was a copy


@pytest.mark.parametrize("score", BY_INDEX)
def test_looking_changes_nothing(score: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts as well: as many as do not divide the number of examples."""
    monkeypatch.setattr("salience.sampler.CHUNK", 7)
    states = []
    for look in (False, True):
        sampler = ImportanceSampler(N, BATCH, score=score)
        for step in range(20):
            draw = sampler.draw()
            sampler.update(draw, draw.indices * 0.1 + step)
            if look:
                assert sampler.scores().shape == (N,)
                assert len(sampler.recent()["losses"]) == BATCH * (step + 1)
        states.append(frozen(sampler.state_dict()))
        expected = sampler.score.score(torch.arange(N), None)
        assert torch.allclose(sampler.scores(), expected, equal_nan=True)
    assert states[0] == states[1]


@pytest.mark.parametrize("deferred", [None, True])
@pytest.mark.parametrize("score", NAMES)
def test_recent_rows_are_those_of_the_draws(score: str, deferred: bool | None) -> None:
    net = nn.Linear(6, 3)
    loader = ImportanceLoader(make_dataset(N), BATCH, score=score, k=1, **needs(score, net))
    loader.deferred = deferred
    assert [*loader.recent()] == ["indices", "weights", "scores", "losses"]
    assert {len(rows) for rows in loader.recent().values()} == {0}
    batches = []
    for batch in loader:
        losses = cross_entropy(net, batch).detach()
        batches.append((loader.indices, loader.weights, loader._feedback.last.scores, losses))
        loader.mean(losses)
    columns = [torch.cat(column) for column in zip(*batches, strict=True)]
    for found, expected in zip(loader.recent().values(), columns, strict=True):
        torch.testing.assert_close(found, expected.to(found.dtype), rtol=0, atol=0)
    loader.recent()["weights"].zero_()
    assert float(loader.recent()["weights"].min()) > 0


def test_scores_that_need_the_model_are_not_known_by_index() -> None:
    net = nn.Linear(6, 3)
    loader = ImportanceLoader(make_dataset(N), BATCH, score="loss", model=net, loss=cross_entropy)
    with pytest.raises(UsageError, match=r"'loss' needs the examples.*recent\(\)\['scores'\]"):
        loader.scores()
    with pytest.raises(ValueError, match="index 36 is out of range"):
        ImportanceSampler(N, BATCH).scores(torch.tensor([36]))
