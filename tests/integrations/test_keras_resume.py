"""Keras on torch: the sampler is in the file of the weights, so that both are of the same step."""

import keras_parts  # isort: skip (chooses the backend)

import json
from pathlib import Path
from typing import Any

import keras
import pytest
import torch
from harness import EPOCHS, STEPS, Examples, Trace, assert_same, make_loader, matters, watch
from keras_parts import finish, fit, make_model, watched

from salience import StateError
from salience.integrations.keras import importance

ALL = EPOCHS * STEPS
pytestmark = [  # keras' own, when it saves its variables
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
]


class KillError(Exception):
    """Stands for SIGKILL."""


class Kill(keras.callbacks.Callback):
    """After ``step`` batches, before or after the others' callbacks of this batch."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise KillError


class Saves(keras.callbacks.Callback):
    """One file per batch, as ModelCheckpoint(save_freq=1) writes them."""

    def __init__(self, directory: Path, ending: str) -> None:
        super().__init__()
        self.directory, self.ending, self.step = directory, ending, 0

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.step += 1
        self.path(self.step).parent.mkdir(exist_ok=True)
        if self.ending == ".keras":
            self.model.save(self.path(self.step))
        else:
            self.model.save_weights(self.path(self.step))

    def path(self, step: int) -> Path:
        return self.directory / f"{step}{self.ending}"


def make(accumulate: int | None = None) -> Any:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.9)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9, gradient_accumulation_steps=accumulate)
    return make_model(optimizer=optimizer, metrics=["accuracy"])


def whole(monkeypatch: pytest.MonkeyPatch, accumulate: int | None = None, **options: Any) -> Any:
    model = make(accumulate)
    trace = fit(monkeypatch, model=model, **options)
    matters(trace)
    return trace, batches_of(model)


def batches_of(model: Any) -> int:
    """As the optimizer counts; its updates are one in ``gradient_accumulation_steps`` of them."""
    return int(model.optimizer._iterations.value)


def rest_of(trace: Trace, done: int) -> Trace:
    return Trace(trace.ids[done:], trace.weights[done:], [], trace.parameters)


@pytest.mark.parametrize("accumulate", [None, 4])
def test_backup_and_restore_at_every_step(
    accumulate: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, updates = whole(monkeypatch, accumulate)
    for step in range(1, ALL + 1):
        for attempt in range(2):
            model = make(accumulate)
            backup = keras.callbacks.BackupAndRestore(tmp_path / str(step), save_freq=1)
            callbacks = [backup] if attempt else [backup, Kill(step)]
            if not attempt:
                with pytest.raises(KillError):
                    fit(monkeypatch, model=model, callbacks=callbacks)
                assert len(watched(model)) == step
            else:
                trace = fit(monkeypatch, model=model, callbacks=callbacks)
                assert_same(trace, rest_of(expected, step))
                assert batches_of(model) == updates


def test_backup_once_per_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, updates = whole(monkeypatch)
    for step in (3, STEPS, STEPS + 1, 2 * STEPS, ALL - 1):
        path = tmp_path / str(step)
        backup = keras.callbacks.BackupAndRestore(path)
        with pytest.raises(KillError):
            fit(monkeypatch, model=make(), callbacks=[backup, Kill(step)])
        model = make()
        trace = fit(monkeypatch, model=model, callbacks=[keras.callbacks.BackupAndRestore(path)])
        saved = (step - 1) // STEPS * STEPS  # killed before the end of this epoch
        assert_same(trace, rest_of(expected, saved))
        assert batches_of(model) == updates


@pytest.mark.parametrize("metadata", ["missing", "of the epoch before"])
def test_a_kill_between_the_two_files_of_backup_and_restore(
    metadata: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights come first; the number of the epoch is written after them."""
    expected, updates = whole(monkeypatch)
    step = STEPS + 1
    backup = keras.callbacks.BackupAndRestore(tmp_path, save_freq=1)
    with pytest.raises(KillError):
        fit(monkeypatch, model=make(), callbacks=[backup, Kill(step)])
    file = tmp_path / "training_metadata.json"
    assert json.loads(file.read_text())["epoch"] == 1
    if metadata == "missing":
        file.unlink()
    else:
        file.write_text(json.dumps({"epoch": 0, "batch": STEPS - 1}))
    model = make()
    backup = keras.callbacks.BackupAndRestore(tmp_path, save_freq=1)
    assert_same(fit(monkeypatch, model=model, callbacks=[backup]), rest_of(expected, step))
    assert batches_of(model) == updates


@pytest.mark.parametrize("ending", [".weights.h5", ".keras"])
def test_resume_from_every_file(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = Saves(tmp_path, ending)
    expected, updates = whole(monkeypatch, callbacks=[saves], loader=make_loader(num_workers=0))
    for step in range(1, ALL + 1):
        loader, model = make_loader(), make()
        importance(model, loader)
        model.load_weights(saves.path(step))
        assert loader.epoch == step // STEPS
        trace = watch(monkeypatch)
        history = model.fit(loader, epochs=EPOCHS, initial_epoch=loader.epoch, verbose=0)
        assert len(history.epoch) == EPOCHS - step // STEPS
        assert_same(finish(trace, model), rest_of(expected, step))
        assert batches_of(model) == updates


@pytest.mark.parametrize("ending", [".weights.h5", ".keras"])
@pytest.mark.parametrize("step", [4, STEPS])
def test_with_model_checkpoint(
    step: int, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, updates = whole(monkeypatch)
    path = tmp_path / f"latest{ending}"
    checkpoint = keras.callbacks.ModelCheckpoint(
        path, save_freq=1, save_weights_only=ending == ".weights.h5"
    )
    with pytest.raises(KillError):
        fit(monkeypatch, model=make(), callbacks=[checkpoint, Kill(step)])
    loader, model = make_loader(), make()
    importance(model, loader)
    model.load_weights(path)
    trace = watch(monkeypatch)
    model.fit(loader, epochs=EPOCHS, initial_epoch=loader.epoch, verbose=0)
    assert_same(finish(trace, model), rest_of(expected, step))
    assert batches_of(model) == updates


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_in_the_second_fit(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras counts epochs from 0 again, the loader does not."""

    def first() -> Any:
        model, loader = make(), make_loader(num_workers=workers)
        fit(monkeypatch, model=model, loader=loader, epochs=1)
        return model, loader

    model, loader = first()
    expected = fit(monkeypatch, model=model, loader=loader, epochs=2)
    model, loader = first()
    backup = keras.callbacks.BackupAndRestore(tmp_path, save_freq=1)
    with pytest.raises(KillError):
        fit(monkeypatch, model=model, loader=loader, epochs=2, callbacks=[backup, Kill(8)])
    assert loader.epoch == 2
    model = make()
    backup = keras.callbacks.BackupAndRestore(tmp_path, save_freq=1)
    loader = make_loader(num_workers=workers)
    trace = fit(monkeypatch, model=model, loader=loader, epochs=2, callbacks=[backup])
    assert trace.ids == expected.ids[STEPS + 8 :]
    assert_same(rest_of(trace, 0), Trace(trace.ids, expected.weights[8:], [], expected.parameters))


@pytest.mark.usefixtures("auto_turns_on")
def test_auto_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saves = Saves(tmp_path, ".weights.h5")
    expected, _ = whole(monkeypatch, callbacks=[saves], loader=make_loader(score="auto"))
    for step in (2, 7, STEPS, ALL - 1):
        loader, model = make_loader(score="auto"), make()
        importance(model, loader)
        model.load_weights(saves.path(step))
        trace = watch(monkeypatch)
        model.fit(loader, epochs=EPOCHS, initial_epoch=loader.epoch, verbose=0)
        assert_same(finish(trace, model), rest_of(expected, step))


# ------------------------------------------------------------------- files with and without


def built() -> Any:
    model = make()
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("ending", [".weights.h5", ".keras"])
def test_files_load_into_models_without_importance(ending: str, tmp_path: Path) -> None:
    loader, model, path = make_loader(), make(), tmp_path / f"model{ending}"
    importance(model, loader)
    model.fit(loader, verbose=0)
    model.save(path) if ending == ".keras" else model.save_weights(path)
    other = built()
    other.load_weights(path)
    for mine, theirs in zip(other.variables, model.variables, strict=True):
        assert torch.equal(mine.value, theirs.value)
    if ending == ".keras":
        custom = {"Watch": keras_parts.Watch}
        loaded = keras.models.load_model(path, custom_objects=custom)
        x = Examples().x
        assert torch.equal(loaded(x), model(x))
        importance(loaded, make_loader())  # and it can be trained on from here
        loaded.fit(loaded.importance_sampler._training.loader, verbose=0)


def test_files_without_a_sampler_leave_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "pretrained.weights.h5"
    built().save_weights(path)
    loader, model = make_loader(), make()
    importance(model, loader)
    model.fit(loader, verbose=0)
    before = str(loader.state_dict())
    model.load_weights(path)
    assert str(loader.state_dict()) == before


def test_a_sampler_of_another_dataset_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.weights.h5"
    loader, model = make_loader(Examples(30)), make()
    importance(model, loader)
    model.fit(loader, verbose=0)
    model.save_weights(path)
    other = make()
    importance(other, make_loader())
    with pytest.raises(ValueError, match="load them before importance"):
        other.load_weights(path)
    plain = built()
    plain.load_weights(path)
    importance(plain, make_loader())
    with pytest.raises(StateError):
        plain.importance_sampler._training.load_state_dict(
            model.importance_sampler._training.state_dict()
        )
