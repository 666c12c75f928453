"""save_state and load_state: exact at every step, and never with parts of two checkpoints."""

import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, other
from accelerate_parts import Parts, fresh_state, made, train  # noqa: F401
from harness import EPOCHS, STEPS, make_loader
from torch import Tensor

from salience import StateError
from salience.integrations.accelerate import prepare

pytestmark = [pytest.mark.usefixtures("fresh_state")]


def parameters(parts: Parts) -> list[Tensor]:
    return [p.detach().clone() for p in parts.model.parameters()]


def same(mine: Parts, theirs: Parts) -> bool:
    pairs = zip(parameters(mine), parameters(theirs), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def check_every(directory: Path, accumulate: int = 1, **options: Any) -> None:
    """Save after each batch; continue from each in fresh objects."""
    whole, updated = made(accumulate, **options), []

    def save() -> None:
        whole.accelerator.save_state(str(directory / f"{len(updated)}"))
        updated.append(whole.accelerator.sync_gradients)

    train(whole, after_batch=save)
    assert len(updated) == EPOCHS * STEPS
    assert whole.loader.metrics()["active"] == (options.get("score") != "uniform")
    for step, had_updated in enumerate(updated):
        rest, done = made(accumulate, **options), step + 1
        rest.accelerator.load_state(str(directory / f"{step}"))
        train(rest)
        assert [done + n for n in rest.updates] == [n for n in whole.updates if n > done]
        assert len(rest.model.seen) == EPOCHS * STEPS - done
        if had_updated:  # gradients in between are in no checkpoint of accelerate's
            assert rest.model.seen == whole.model.seen[done:]
            assert same(rest, whole)


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("score", ["history", "uniform", "auto"])
@pytest.mark.usefixtures("auto_turns_on")
def test_every_step_of_three_epochs(score: str, accumulate: int, tmp_path: Path) -> None:
    check_every(tmp_path, accumulate, score=score)


def test_every_step_with_workers(tmp_path: Path) -> None:
    check_every(tmp_path, num_workers=2)


def test_every_step_without_slots(tmp_path: Path) -> None:
    check_every(tmp_path, slots=False)


def test_accelerates_own_names_for_checkpoints(tmp_path: Path) -> None:
    config = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True)
    accelerator = Accelerator(project_config=config)
    loader = prepare(accelerator, make_loader())
    for x, _, slots in loader:
        loader.mean(x[:, 1] ** 2, slots)
        accelerator.save_state()
    loader.load_state_dict(make_loader().state_dict())
    accelerator.load_state()
    assert loader.epoch == 1


def test_two_loaders(tmp_path: Path) -> None:
    def draws(steps: int, load: bool) -> list[Any]:
        accelerator = Accelerator()
        loaders = [prepare(accelerator, make_loader(seed=seed)) for seed in (1, 2)]
        if load:
            accelerator.load_state(str(tmp_path))
        seen = []
        for batches in islice(zip(*loaders, strict=True), steps):
            for loader, (x, _, slots) in zip(loaders, batches, strict=True):
                seen.append(x[:, 0].tolist())
                loader.mean(x[:, 1] ** 2, slots)
        if not load:
            accelerator.save_state(str(tmp_path))
        return seen

    first = draws(2, load=False)
    assert first + draws(STEPS - 2, load=True) == draws(STEPS, load=False)


def test_the_loader_registered_by_itself_is_exact_too(tmp_path: Path) -> None:
    """With accelerator.prepare(loader) and no accumulation."""
    whole, rest = made(prepared=False), made(prepared=False)
    for parts in (whole, rest):
        parts.accelerator.register_for_checkpointing(parts.loader)
    done = []

    def save_once() -> None:
        done.append(1)
        if len(done) == 9:
            whole.accelerator.save_state(str(tmp_path))

    train(whole, after_batch=save_once)
    rest.accelerator.load_state(str(tmp_path))
    train(rest)
    assert rest.model.seen == whole.model.seen[9:]
    assert same(rest, whole)


# ----------------------------------------------------------------------------- interrupted saving


class Own:
    """An object of the user's own, saved after ours."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def with_scheduler(lr: float | None = None) -> Parts:
    parts = made()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(parts.optimizer.optimizer, 0.9)
    parts.accelerator.prepare(scheduler)
    parts.accelerator.register_for_checkpointing(Own())
    if lr is not None:
        for group in parts.optimizer.param_groups:
            group["lr"] = lr
    return parts


FILES = [
    "model.safetensors",
    "optimizer.bin",
    "scheduler.bin",
    "random_states_0.pkl",
    "custom_checkpoint_0.pkl",
    "custom_checkpoint_1.pkl",
]


def kill_at(monkeypatch: pytest.MonkeyPatch, name: str, half: bool) -> list[str]:
    """From now on, writing ``name`` stops in the middle, or before it begins."""
    written: list[str] = []

    def stopping(original: Callable[..., None]) -> Callable[..., None]:
        def save(what: Any, path: Path, *args: Any, **options: Any) -> None:
            if Path(path).name == name:
                if half:
                    original(what, path, *args, **options)
                    whole = Path(path).read_bytes()
                    Path(path).write_bytes(whole[: len(whole) // 2])
                raise KeyboardInterrupt
            original(what, path, *args, **options)
            written.append(Path(path).name)

        return save

    monkeypatch.setattr(torch, "save", stopping(torch.save))
    monkeypatch.setattr(other, "safe_save_file", stopping(other.safe_save_file))
    return written


def steps_then_save(parts: Parts, directory: Path, steps: int) -> None:
    class EnoughError(Exception):
        pass

    def save() -> None:
        if len(parts.model.seen) == steps:
            parts.accelerator.save_state(str(directory))
            raise EnoughError

    with pytest.raises(EnoughError):
        train(parts, after_batch=save)


@pytest.mark.parametrize("lr", [None, 0.0], ids=["trained", "same parameters"])
@pytest.mark.parametrize("half", [False, True], ids=["before", "half"])
@pytest.mark.parametrize("reused", [False, True], ids=["fresh", "reused"])
@pytest.mark.parametrize("name", FILES)
def test_a_kill_while_saving_never_mixes_two_steps(
    name: str,
    reused: bool,
    half: bool,
    lr: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if reused:
        steps_then_save(with_scheduler(lr), tmp_path, steps=4)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    written = kill_at(monkeypatch, name, half)
    with pytest.raises(KeyboardInterrupt):
        steps_then_save(with_scheduler(lr), tmp_path, steps=9)
    assert written == FILES[: FILES.index(name)]
    monkeypatch.undo()
    parts, untouched = with_scheduler(lr), with_scheduler(lr)
    if name != FILES[-1]:
        with pytest.raises(StateError, match="use an older checkpoint"):
            parts.accelerator.load_state(str(tmp_path))
        assert same(parts, untouched)
        assert parts.loader.epoch == 0
    elif reused and not half:  # model and sampler were complete
        parts.accelerator.load_state(str(tmp_path))
        train(parts)
        assert len(parts.model.seen) == EPOCHS * STEPS - 9
    else:  # accelerate's own refusal
        with pytest.raises((RuntimeError, EOFError)):
            parts.accelerator.load_state(str(tmp_path))


@pytest.mark.parametrize("moved", ["model.safetensors", "custom_checkpoint_0.pkl"])
def test_files_of_two_checkpoints_are_refused(moved: str, tmp_path: Path) -> None:
    """As when a copy of a directory was interrupted."""
    for steps in (4, 9):
        steps_then_save(made(), tmp_path / f"{steps}", steps)
    shutil.copy(tmp_path / "9" / moved, tmp_path / "4" / moved)
    parts = made()
    before = parts.loader.state_dict()["loader"]
    with pytest.raises(StateError, match="use an older checkpoint"):
        parts.accelerator.load_state(str(tmp_path / "4"))
    assert parts.loader.state_dict()["loader"] == before


def test_an_object_in_the_place_of_the_sampler_is_refused(tmp_path: Path) -> None:
    first, second = Accelerator(), Accelerator()
    first.register_for_checkpointing(Own())
    first.save_state(str(tmp_path))
    prepare(second, make_loader())
    torch.save({}, tmp_path / "custom_checkpoint_0.pkl")
    with pytest.raises(StateError, match="same order"):
        second.load_state(str(tmp_path))


def test_a_checkpoint_from_before_the_loader_was_prepared(tmp_path: Path) -> None:
    plain = made(prepared=False)
    plain.accelerator.save_state(str(tmp_path))
    with pytest.raises(StateError, match="was not prepared then"):
        made().accelerator.load_state(str(tmp_path))
