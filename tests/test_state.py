"""Saved at any step and resumed in another process: the same to the bit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from conftest import cross_entropy
from salience import ImportanceLoader, ImportanceSampler, StateError
from salience.presets import NAMES
from salience.scores import NEED_MODEL

EPOCHS, STEPS, BATCH = 2, 6, 6


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(36, 6, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (36,), generator=generator))


def make_loader(
    score: str, workers: int, presample: float | None, model: nn.Module
) -> ImportanceLoader:
    options: dict[str, Any] = {"num_workers": workers}
    if score in NEED_MODEL:
        options |= {"model": model, "loss": cross_entropy}
    return ImportanceLoader(
        make_data(), BATCH, score=score, presample=presample, seed=11, **options
    )


def trace(loader: ImportanceLoader) -> list[Any]:
    """What must not change: indices, weights, and the approximator's weights, to the bit."""
    row = [loader.indices.tolist(), [w.hex() for w in loader.weights.tolist()]]
    if loader._sampler.score_name == "approx":
        parameters = loader._sampler.score._model.parameters()
        row.append([float(p.detach().double().sum()).hex() for p in parameters])
    return row


def train(
    score: str,
    workers: int,
    presample: float | None,
    *,
    save_at: int | None = None,
    path: Path | None = None,
    resume: bool = False,
) -> list[Any]:
    """One row per step; with ``save_at`` it stops there, with ``resume`` it goes on from there."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = make_loader(score, workers, presample, model)
    first = 0
    if resume:
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        first = saved["epoch"]
    rows, step = [], 0
    for epoch in range(first, EPOCHS):
        for x, y in loader:
            loss = loader.mean(cross_entropy(model, (x, y)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows.append(trace(loader))
            step += 1
            if step == save_at:
                saved = {"model": model.state_dict(), "loader": loader.state_dict()}
                torch.save({**saved, "epoch": epoch}, path)
                return rows
    return rows


@pytest.mark.parametrize("presample", [None, 2.0])
@pytest.mark.parametrize("score", NAMES)
@pytest.mark.parametrize("save_at", [1, 3, STEPS, STEPS + 1, 2 * STEPS - 1])
def test_resuming_continues_exactly(
    score: str, save_at: int, presample: float | None, tmp_path: Path
) -> None:
    path = tmp_path / "state.pt"
    whole = train(score, 0, presample)
    assert len(whole) == EPOCHS * STEPS
    before = train(score, 0, presample, save_at=save_at, path=path)
    after = train(score, 0, presample, resume=True, path=path)
    assert before + after == whole


@pytest.mark.parametrize("score", ["uniform", "history", "approx", "loss"])
def test_resuming_continues_exactly_with_workers(score: str, tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    whole = train(score, 2, None)
    for save_at in (2, STEPS + 3):
        before = train(score, 2, None, save_at=save_at, path=path)
        assert before + train(score, 2, None, resume=True, path=path) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_in_a_new_process(workers: int, tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    whole = train("approx", workers, None)
    before = train("approx", workers, None, save_at=4, path=path)
    program = (
        f"import sys, json, pathlib; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
        f"import test_state; print(json.dumps(test_state.train('approx', {workers}, None, "
        f"resume=True, path=pathlib.Path({str(path)!r}))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert before + json.loads(done.stdout) == whole


def test_saving_does_not_disturb_and_later_steps_do_not_change_the_saved_state() -> None:
    dataset = make_data()
    loaders = [ImportanceLoader(dataset, BATCH, score="approx") for _ in range(2)]
    iterators = [iter(loader) for loader in loaders]
    state: dict[str, Any] = {}
    for step in range(4):
        for saving, (loader, iterator) in enumerate(zip(loaders, iterators, strict=True)):
            next(iterator)
            loader.mean(torch.arange(BATCH).float())
            if saving:
                state = loader.state_dict()
                if step == 1:
                    kept, copied = state, _bytes(state)
    assert trace(loaders[0]) == trace(loaders[1])
    assert _bytes(kept) == copied != _bytes(state)


def _bytes(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _bytes(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_bytes(value) for value in tree]
    return tree.numpy().tobytes() if isinstance(tree, Tensor) else tree


def test_a_sampler_drawing_ahead_resumes_with_the_weights_of_its_draws() -> None:
    def fresh() -> ImportanceSampler:
        return ImportanceSampler(50, 5, score="history", smoothing=0.1, seed=2)

    sampler = fresh()
    ahead = [sampler.draw() for _ in range(4)]
    for indices, _ in ahead[:2]:
        sampler.update(indices, indices.float())
    twin = fresh()
    twin.load_state_dict(sampler.state_dict())
    for one in (sampler, twin):
        for indices, _ in ahead[2:]:
            one.update(indices, indices.float())
    ours, theirs = sampler.draw(), twin.draw()
    assert ours.indices.tolist() == theirs.indices.tolist()
    assert ours.weights.tolist() == theirs.weights.tolist()
    assert sampler.metrics()["mean_loss"] == twin.metrics()["mean_loss"]


def test_loading_takes_nothing_from_the_global_generator() -> None:
    """Else the dropout of a resumed run would differ, which starts one more iteration."""
    before = torch.get_rng_state()
    for score in ("uniform", "history", "approx"):
        loader = ImportanceLoader(make_data(), BATCH, score=score)
        for _ in loader:
            loader.mean(torch.ones(BATCH))
    assert torch.equal(before, torch.get_rng_state())


def test_a_state_saved_between_epochs_begins_the_next_one() -> None:
    loader = ImportanceLoader(make_data(), BATCH, score="uniform")
    list(loader)
    twin = ImportanceLoader(make_data(), BATCH, score="uniform")
    twin.load_state_dict(loader.state_dict())
    first = [x.tolist() for x, _ in loader]
    assert [x.tolist() for x, _ in twin] == first
    assert len(first) == STEPS


def test_the_state_of_something_else_is_refused() -> None:
    state = ImportanceLoader(make_data(), BATCH, score="history").state_dict()
    smaller = TensorDataset(torch.zeros(20), torch.zeros(20))
    with pytest.raises(StateError, match=r"dataset size 36, this one has 20"):
        ImportanceLoader(smaller, BATCH, score="history").load_state_dict(state)
    with pytest.raises(StateError, match=r"score 'history', this one has 'approx'"):
        ImportanceLoader(make_data(), BATCH, score="approx").load_state_dict(state)
    with pytest.raises(StateError, match=r"kind of draw"):
        ImportanceLoader(make_data(), BATCH, score="history", presample=2).load_state_dict(state)
    with pytest.raises(StateError, match=r"kind of smoothing 'Adaptive', this one has 'Constant'"):
        ImportanceLoader(make_data(), BATCH, score="history", smoothing=1.0).load_state_dict(state)
    with pytest.raises(StateError, match=r"version None"):
        ImportanceSampler(36, BATCH).load_state_dict({})
    with pytest.raises(StateError, match=r"no 'feed'"):
        ImportanceLoader(make_data(), BATCH).load_state_dict(
            ImportanceSampler(36, BATCH).state_dict()
        )
