"""Checkpoints: resume at every step, and never with the sampler of another step."""

import inspect
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import EPOCHS, STEPS, Trace, assert_same, matters, watch
from transformers import Trainer, TrainerState, ViTConfig, ViTForImageClassification
from transformers_parts import (
    Classifier,
    Dicts,
    Sentences,
    StockTrainer,
    Texts,
    gpt2,
    gpt2_classifier,
    llama,
    pad,
    stock,
    trained,
    trainer,
)

from salience.errors import StateError

FILE = "importance.pt"
HISTORY, UNIFORM, AUTO = {"score": "history"}, {"score": "uniform"}, {"score": "auto"}
SAVING = {"save_strategy": "steps", "save_steps": 1}


def after(trace: Trace, batches: int) -> Trace:
    """What came after so many batches."""
    return Trace(trace.ids[batches:], trace.weights[batches:], [], trace.parameters)


def resume_everywhere(
    make: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    where: Path,
    accumulate: int,
) -> None:
    """From each checkpoint of a whole run: the same rest of it."""
    trace, whole = watch(monkeypatch), make()
    trained(whole, trace)
    updates = -(-STEPS // accumulate)
    assert whole.state.global_step == EPOCHS * updates
    if whole.loader._sampler.score_name != "uniform":
        matters(trace)
    for step in range(1, EPOCHS * updates + 1):
        again, rest = make(), watch(monkeypatch)
        again.train(resume_from_checkpoint=str(where / f"checkpoint-{step}"))
        done = step // updates * STEPS + step % updates * accumulate
        assert_same(rest.finish(again.model), after(trace, done))
        assert again.state.global_step == EPOCHS * updates
        assert again.loader.epoch == whole.loader.epoch or step == EPOCHS * updates


@pytest.mark.usefixtures("auto_turns_on")
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("importance", [HISTORY, UNIFORM, AUTO])
def test_resume_at_every_step(
    importance: dict[str, Any], accumulate: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make() -> Any:
        options = {"gradient_accumulation_steps": accumulate, **SAVING}
        return trainer(Classifier(), tmp_path, importance=importance, **options)

    resume_everywhere(make, monkeypatch, tmp_path, accumulate)


@pytest.mark.parametrize("normalise", ["tokens", "sequences"])
def test_resume_of_a_language_model_with_dropout(
    normalise: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make() -> Any:
        model = gpt2()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.2
        options = {"gradient_accumulation_steps": 4, "lr_scheduler_type": "cosine", **SAVING}
        return trainer(model, tmp_path, Texts(), normalise=normalise, **options)

    resume_everywhere(make, monkeypatch, tmp_path, 4)


def test_resume_with_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def make() -> Any:
        options = {"gradient_accumulation_steps": 4, "dataloader_num_workers": 2, **SAVING}
        return trainer(Classifier(), tmp_path, **options)

    resume_everywhere(make, monkeypatch, tmp_path, 4)


def test_resume_of_a_score_that_needs_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make() -> Any:
        options = {"gradient_accumulation_steps": 4, **SAVING}
        importance = {"score": "loss"}
        return trainer(gpt2_classifier(), tmp_path, Sentences(), importance=importance, **options)

    resume_everywhere(make, monkeypatch, tmp_path, 4)


def test_the_last_checkpoint_is_found(tmp_path: Path) -> None:
    made = trainer(Classifier(), tmp_path, max_steps=8, **SAVING)
    made.train()
    again = trainer(Classifier(), tmp_path, **SAVING)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == EPOCHS * STEPS
    assert len(again.model.seen) == EPOCHS * STEPS - 8


# ------------------------------------------------------------------- never of different steps


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Checkpoints of eight steps, the last in the middle of the second epoch."""
    trainer(Classifier(), tmp_path, max_steps=8, **SAVING).train()
    return tmp_path


def resumed(where: Path, step: int, **options: Any) -> Any:
    made = trainer(Classifier(), where, **{**SAVING, **options})
    made.train(resume_from_checkpoint=str(where / f"checkpoint-{step}"))
    return made


def test_a_checkpoint_without_the_sampler_is_refused(saved: Path) -> None:
    (saved / "checkpoint-8" / FILE).unlink()
    with pytest.raises(StateError, match=r"checkpoint-8 has no importance\.pt"):
        resumed(saved, 8)


def test_a_checkpoint_of_the_stock_trainer_is_refused(tmp_path: Path) -> None:
    order = [[0, 1, 2, 3]] * EPOCHS * STEPS
    twin = stock(gpt2(), tmp_path, Texts(), order, max_steps=2, **SAVING)
    assert isinstance(twin, StockTrainer)
    twin.train()
    with pytest.raises(StateError, match="without resume_from_checkpoint"):
        trainer(gpt2(), tmp_path, Texts()).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )


def test_a_checkpoint_of_the_model_only_is_refused(tmp_path: Path) -> None:
    trainer(Classifier(), tmp_path, max_steps=2, save_only_model=True, **SAVING).train()
    with pytest.raises(StateError, match="save_only_model=False"):
        resumed(tmp_path, 2)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02}."])
def test_a_damaged_sampler_is_refused(saved: Path, content: bytes) -> None:
    (saved / "checkpoint-8" / FILE).write_bytes(content)
    with pytest.raises(StateError, match=r"importance\.pt is damaged .*: resume from another"):
        resumed(saved, 8)


def test_the_sampler_of_another_step_is_refused(saved: Path) -> None:
    shutil.copy(saved / "checkpoint-7" / FILE, saved / "checkpoint-8" / FILE)
    with pytest.raises(StateError, match="was saved at step 7 and the rest of the checkpoint at 8"):
        resumed(saved, 8)


def test_the_model_of_another_step_is_refused(saved: Path) -> None:
    shutil.copy(saved / "checkpoint-7/model.safetensors", saved / "checkpoint-8/model.safetensors")
    with pytest.raises(StateError, match="saved with other parameters than the model has now"):
        resumed(saved, 8)


def test_a_model_that_trainer_does_not_restore_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ViT is saved under other names than its parameters have, and Trainer looks for the latter."""

    def make(model: Any) -> Any:
        return trainer(model, tmp_path, Pixels(), **SAVING)

    trace, where = watch(monkeypatch), tmp_path / "checkpoint-8"
    trained(make(vit()), trace)
    with pytest.raises(StateError, match=r"make it with from_pretrained\('.*checkpoint-8'\)"):
        make(vit()).train(str(where))
    rest, again = watch(monkeypatch), make(ViTForImageClassification.from_pretrained(where))
    again.train(str(where))
    assert_same(rest.finish(again.model), after(Trace([], trace.weights, [], trace.parameters), 8))


class Pixels(Dicts):
    def __getitem__(self, i: int) -> dict[str, Any]:
        x = torch.full((1, 4, 4), i / 10)
        return {"pixel_values": x, "labels": i % 3}


def vit() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "image_size": 4, "patch_size": 2, "num_channels": 1}
    return ViTForImageClassification(ViTConfig(num_labels=3, **sizes))


@pytest.mark.parametrize("killed", ["before", "while", "after"])
def test_a_kill_while_saving_leaves_nothing_to_resume_from(
    killed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before, while and after the sampler's file is written; trainer_state.json comes last."""
    kill_at(5, killed, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trainer(Classifier(), tmp_path, **SAVING).train()
    monkeypatch.undo()
    assert (tmp_path / "checkpoint-5/model.safetensors").exists()
    assert (tmp_path / "checkpoint-5" / FILE).exists() == (killed == "after")
    with pytest.raises(FileNotFoundError, match=r"trainer_state\.json"):
        resumed(tmp_path, 5)
    assert resumed(tmp_path, 4).state.global_step == EPOCHS * STEPS


@pytest.mark.parametrize("killed", ["before", "while"])
def test_a_kill_while_an_old_checkpoint_is_overwritten(
    killed: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is new, and sampler and trainer_state.json are the old run's, of the same step."""
    kill_at(5, killed, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trainer(Classifier(), saved, data_seed=9, **SAVING).train()
    monkeypatch.undo()
    with pytest.raises(StateError, match="saved with other parameters"):
        resumed(saved, 5)


def kill_at(step: int, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the process, in place of: random numbers, the sampler's file, trainer_state.json."""
    target, name, part = {
        "before": (Trainer, "_save_rng_state", f"checkpoint-{step}"),
        "while": (os, "replace", f"checkpoint-{step}/{FILE}"),
        "after": (TrainerState, "save_to_json", f"checkpoint-{step}/trainer_state.json"),
    }[when]
    original = getattr(target, name)

    def fatal(*args: Any) -> Any:
        if any(str(arg).endswith(part) for arg in args):
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(target, name, fatal)


def test_another_accumulation_is_refused(saved: Path) -> None:
    with pytest.raises(StateError, match=r"after 2 batches of an epoch, and Trainer would skip 0"):
        resumed(saved, 8, gradient_accumulation_steps=3)


def test_ignore_data_skip_is_refused_in_mid_epoch(saved: Path) -> None:
    with pytest.raises(StateError, match="ignore_data_skip=False"):
        resumed(saved, 8, ignore_data_skip=True)
    assert resumed(saved, 6, ignore_data_skip=True).state.global_step == EPOCHS * STEPS


def test_another_batch_size_is_refused(saved: Path) -> None:
    with pytest.raises(StateError):
        resumed(saved, 6, per_device_train_batch_size=2, gradient_accumulation_steps=2)


# -------------------------------------------------------------------- what we rely on, in private


def test_the_private_methods_that_we_override_are_there() -> None:
    for name, parameters in {
        "_save_rng_state": ["self", "output_dir"],
        "_load_optimizer_and_scheduler": ["self", "checkpoint"],
    }.items():
        assert list(inspect.signature(getattr(Trainer, name)).parameters) == parameters


def test_trainer_calls_them_when_we_need_it(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    """The file is written after the model and before trainer_state.json, and read after both."""
    order, where = list[str](), saved / "other/checkpoint-1"
    made = trainer(Classifier(), saved / "other", max_steps=1, **SAVING)
    saving = ["save_model", "_save_rng_state"]
    loading = ["_load_from_checkpoint", "_init_training_state", "_load_optimizer_and_scheduler"]
    for name in (*saving, *loading):
        note(made, name, order, monkeypatch)
    made.train()
    assert order == ["_init_training_state", *saving]
    times = [(where / name).stat().st_mtime_ns for name in (FILE, "trainer_state.json")]
    assert times == sorted(times)
    order.clear()
    made.train(resume_from_checkpoint=str(where))
    assert order[:3] == loading


def note(made: Any, name: str, order: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(made, name)

    def noted(*args: Any, **options: Any) -> Any:
        order.append(name)
        return original(*args, **options)

    monkeypatch.setattr(made, name, noted)


def test_tokens_are_counted_as_trainer_counts_them(tmp_path: Path) -> None:
    """We read ``_loss_shifts_labels``, and Trainer's own count must be the same."""
    texts = Texts()
    for make in (gpt2, llama):
        made = trainer(make(), tmp_path, texts)
        batches = [pad([texts[i] for i in part]) for part in ([0, 1, 7], [2, 3])]
        mine = sum(int(made._count_tokens(batch).sum()) for batch in batches)
        assert mine == int(Trainer.get_batch_samples(made, iter(batches), 2, "cpu")[1])
