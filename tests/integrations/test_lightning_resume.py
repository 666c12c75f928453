"""Checkpoints of Lightning: every one continues exactly, whenever it was saved."""

from itertools import islice
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from fsspec.implementations.local import LocalFileOpener
from harness import EPOCHS, STEPS, Watched, make_loader, sgd
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_parts import IGNORED, Classifier, fit, make_trainer, validation
from streams import make_stream

from salience import UsageError
from salience.integrations.lightning import LogImportance

pytestmark = [pytest.mark.filterwarnings(each) for each in IGNORED]


class SaveEvery(L.Callback):
    """A checkpoint each time, and how far training was."""

    def __init__(self, directory: Path, hook: str = "on_train_batch_end") -> None:
        self._directory = directory
        self.saved: list[tuple[Path, int, int]] = []
        setattr(self, hook, self._save)

    def _save(self, trainer: L.Trainer, module: Classifier, *_: Any) -> None:
        if trainer.sanity_checking:
            return
        path = self._directory / f"{len(self.saved)}.ckpt"
        trainer.save_checkpoint(path)
        self.saved.append((path, len(module.model.seen), module.updates))


def check_every(
    directory: Path,
    hook: str = "on_train_batch_end",
    *,
    loader: dict[str, Any] | None = None,
    val: bool = False,
    callback: bool = True,
    **options: Any,
) -> int:
    """Continue from each checkpoint in a fresh module, loader and trainer."""
    logs = [LogImportance()] if callback else []
    save, given = SaveEvery(directory, hook), loader or {}
    options["val"] = validation() if val else None
    data = make_loader(**given)
    whole = fit(data, callbacks=[*logs, save], **options)
    assert data.metrics()["active"] == (given.get("score") != "uniform")
    for path, batches, updates in save.saved:
        rest = fit(make_loader(**given), ckpt_path=path, callbacks=logs, **options)
        assert rest.model.seen == whole.model.seen[batches:], path.stem
        assert rest.updates == whole.updates - updates, path.stem
        for mine, theirs in zip(rest.parameters(), whole.parameters(), strict=True):
            assert torch.equal(mine, theirs), path.stem
    return len(save.saved)


@pytest.mark.parametrize("callback", [False, True])
@pytest.mark.parametrize("score", ["history", "uniform", "auto"])
@pytest.mark.usefixtures("auto_turns_on")
def test_every_step_of_three_epochs(score: str, callback: bool, tmp_path: Path) -> None:
    saved = check_every(tmp_path, loader={"score": score}, callback=callback)
    assert saved == EPOCHS * STEPS


def test_every_step_without_slots(tmp_path: Path) -> None:
    assert check_every(tmp_path, loader={"slots": False}) == EPOCHS * STEPS


@pytest.mark.parametrize("interval", [1.0, 2])
def test_every_step_with_validation(interval: float, tmp_path: Path) -> None:
    saved = check_every(tmp_path, val=True, val_check_interval=interval)
    assert saved == EPOCHS * STEPS


def test_workers(tmp_path: Path) -> None:
    assert check_every(tmp_path, loader={"num_workers": 2}) == EPOCHS * STEPS


def test_saved_while_gradients_accumulate(tmp_path: Path) -> None:
    """Lightning does not save them: the same number of batches and updates, other parameters."""
    save = SaveEvery(tmp_path)
    whole = fit(make_loader(), callbacks=[LogImportance(), save], accumulate_grad_batches=4)
    for path, batches, updates in save.saved:
        rest = fit(make_loader(), ckpt_path=path, accumulate_grad_batches=4)
        assert len(rest.model.seen) == EPOCHS * STEPS - batches
        assert rest.updates == whole.updates - updates


@pytest.mark.parametrize("val", [False, True])
def test_the_end_of_an_epoch(val: bool, tmp_path: Path) -> None:
    """Lightning does not read the state of the loader there: the callback does."""
    assert check_every(tmp_path, "on_train_epoch_end", val=val) == EPOCHS


def test_the_end_of_an_epoch_of_a_stream(tmp_path: Path) -> None:
    """One batch was fetched before the state was read."""
    save, module = SaveEvery(tmp_path, "on_train_epoch_end"), Classifier()
    fit(make_stream(module.model), module, callbacks=[LogImportance(), save])
    for path, batches, _ in save.saved:
        rest = Classifier()
        fit(make_stream(rest.model), rest, ckpt_path=path, callbacks=[LogImportance()])
        assert rest.model.seen == module.model.seen[batches:]
        for mine, theirs in zip(rest.parameters(), module.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def test_the_end_of_an_epoch_needs_the_callback(tmp_path: Path) -> None:
    """Once this fails, Lightning does it, and the page may say so."""
    with pytest.raises(AssertionError):
        check_every(tmp_path, "on_train_epoch_end", callback=False)


@pytest.mark.parametrize("interval", [1.0, 2])
def test_the_end_of_validation(interval: float, tmp_path: Path) -> None:
    saved = check_every(tmp_path, "on_validation_end", val=True, val_check_interval=interval)
    assert saved == EPOCHS * (1 if interval == 1.0 else 3)


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_train_epoch_end"])
def test_epochs_of_a_limited_length(hook: str, tmp_path: Path) -> None:
    saved = check_every(tmp_path, hook, limit_train_batches=4)
    assert saved == EPOCHS * (4 if hook == "on_train_batch_end" else 1)


@pytest.mark.parametrize("val", [False, True])
@pytest.mark.parametrize("every", [{"every_n_train_steps": 1}, {"every_n_epochs": 1}])
def test_model_checkpoint_with_accumulation(
    every: dict[str, int], val: bool, tmp_path: Path
) -> None:
    """After each update, the remainder's too; its own choice of the moment at the end of epochs."""

    def train(name: str, **options: Any) -> Classifier:
        save = ModelCheckpoint(tmp_path / name, filename="{step}", save_top_k=-1, **every)
        return fit(
            make_loader(),
            callbacks=[save, LogImportance()],
            enable_checkpointing=True,
            accumulate_grad_batches=4,
            val=validation() if val else None,
            **options,
        )

    whole = train("whole")
    paths = sorted(
        (tmp_path / "whole").iterdir(), key=lambda path: int(path.stem.removeprefix("step="))
    )
    assert len(paths) == (6 if "every_n_train_steps" in every else EPOCHS)
    for path in paths:
        step = int(path.stem.removeprefix("step="))
        batches = STEPS * (step // 2) + 4 * (step % 2)
        rest = train("rest", ckpt_path=path)
        assert rest.model.seen == whole.model.seen[batches:]
        assert rest.updates == whole.updates - step
        for mine, theirs in zip(rest.parameters(), whole.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def stopped(path: Path, after: int) -> Classifier:
    """Saved when training was over, by max_steps."""
    trainer, module = make_trainer(max_steps=after, callbacks=[LogImportance()]), Classifier()
    trainer.fit(module, make_loader())
    trainer.save_checkpoint(path)
    return module


@pytest.mark.parametrize("stop", range(1, 2 * STEPS + 1))
def test_max_steps_stops_anywhere_and_more_steps_go_on(stop: int, tmp_path: Path) -> None:
    steps = {"max_epochs": -1, "max_steps": EPOCHS * STEPS}
    whole, path = fit(make_loader(), **steps), tmp_path / "stopped.ckpt"
    first = stopped(path, stop)
    rest = fit(make_loader(), ckpt_path=path, callbacks=[LogImportance()], **steps)
    assert first.model.seen + rest.model.seen == whole.model.seen
    for mine, theirs in zip(rest.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("stop", range(1, STEPS + 1))
def test_max_steps_stops_anywhere_and_more_epochs_begin_anew(stop: int, tmp_path: Path) -> None:
    """To Lightning, the epoch in which it was stopped is over."""
    path, model, loader = tmp_path / "stopped.ckpt", Watched(), make_loader()
    optimizer = sgd(model)
    for epoch in range(EPOCHS):
        for x, y, slots in islice(loader, STEPS if epoch else stop):
            loader.mean(F.cross_entropy(model(x), y, reduction="none"), slots).backward()
            optimizer.step()
            optimizer.zero_grad()
    first = stopped(path, stop)
    rest = fit(make_loader(), ckpt_path=path, callbacks=[LogImportance()])
    assert first.model.seen + rest.model.seen == model.seen
    for mine, theirs in zip(rest.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_fast_dev_run_is_one_batch() -> None:
    module = fit(make_loader(), callbacks=[LogImportance()], fast_dev_run=True, val=validation())
    assert len(module.model.seen) == 1


def test_overfit_batches_is_refused() -> None:
    with pytest.raises(UsageError, match=r"overfit_batches=2 .*Subset"):
        fit(make_loader(), callbacks=[LogImportance()], overfit_batches=2)


def test_an_interrupted_write_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model and sampler are in one file, which is replaced as a whole."""
    path = tmp_path / "last.ckpt"
    steps = {"max_epochs": -1, "max_steps": EPOCHS * STEPS}
    whole = fit(make_loader(), **steps)
    stopped(path, after=4)

    def half(file: LocalFileOpener, data: Any) -> None:
        file.f.write(data[: len(data) // 2])
        raise KeyboardInterrupt

    later = make_trainer(max_steps=9, max_epochs=-1)
    later.fit(Classifier(), make_loader(), ckpt_path=path, weights_only=True)
    monkeypatch.setattr(LocalFileOpener, "write", half)
    with pytest.raises(KeyboardInterrupt):
        later.save_checkpoint(path)
    monkeypatch.undo()
    rest = fit(make_loader(), ckpt_path=path, **steps)
    assert rest.model.seen == whole.model.seen[4:]
