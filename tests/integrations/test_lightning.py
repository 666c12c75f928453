"""Lightning's loops against a plain loop: the same examples, weights and parameters."""

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from harness import (
    BATCH,
    EPOCHS,
    MUTANTS,
    STEPS,
    Examples,
    Replay,
    Trace,
    Watched,
    assert_caught,
    assert_same,
    make_loader,
    matters,
    plain_loop,
    sgd,
    watch,
)
from lightning_parts import IGNORED, Classifier, fit, make_trainer, validation
from streams import make_stream, plain_stream_loop
from torch.utils.data import DataLoader

from salience import ImportanceLoader, UsageError

pytestmark = [pytest.mark.filterwarnings(each) for each in IGNORED]

Patch = pytest.MonkeyPatch


def with_lightning(
    patch: Patch, loader: Any, module: Classifier | None = None, **options: Any
) -> Trace:
    trace = watch(patch)
    module = fit(loader, module, **options)
    return trace.finish(module)


def by_hand(patch: Patch, accumulate: int = 1, **options: Any) -> Trace:
    trace, model = watch(patch), Watched()
    # Lightning divides the loss by the number of batches per update, the remainder's too.
    plain_loop(
        make_loader(**options),
        model,
        sgd(model),
        accumulate=accumulate,
        scale=lambda *_: 1 / accumulate,
    )
    return trace.finish(model)


# ------------------------------------------------------------------------------- the same training


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("score", ["history", "uniform", "auto"])
@pytest.mark.usefixtures("auto_turns_on")
def test_training_is_that_of_a_plain_loop(
    score: str, accumulate: int, workers: int, monkeypatch: Patch
) -> None:
    options = {"score": score, "num_workers": workers}
    expected = by_hand(monkeypatch, accumulate, **options)
    if score != "uniform":
        matters(expected)
    module = Classifier()
    found = with_lightning(
        monkeypatch, make_loader(**options), module, accumulate_grad_batches=accumulate
    )
    assert_same(found, expected)
    assert module.updates == EPOCHS * -(-STEPS // accumulate)


def test_slots_are_not_needed(monkeypatch: Patch) -> None:
    found = with_lightning(monkeypatch, make_loader(slots=False))
    assert_same(found, by_hand(monkeypatch))


def test_manual_optimisation(monkeypatch: Patch) -> None:
    found = with_lightning(monkeypatch, make_loader(slots=False), Classifier(manual=True))
    assert_same(found, by_hand(monkeypatch))


def test_a_data_module(monkeypatch: Patch) -> None:
    class Data(L.LightningDataModule):
        def train_dataloader(self) -> ImportanceLoader:
            return make_loader()

    found = with_lightning(monkeypatch, Data())
    assert_same(found, by_hand(monkeypatch))


def test_a_loader_that_is_returned_again_keeps_its_history(monkeypatch: Patch) -> None:
    class Data(L.LightningDataModule):
        loader = make_loader()

        def train_dataloader(self) -> ImportanceLoader:
            return self.loader

    found = with_lightning(monkeypatch, Data(), reload_dataloaders_every_n_epochs=1)
    assert_same(found, by_hand(monkeypatch))


@pytest.mark.parametrize("interval", [2, 0.5, 1.0])
def test_evaluation_changes_nothing(interval: float, monkeypatch: Patch) -> None:
    """Sanity checks, and validation in the middle of epochs."""
    module, loader = Classifier(), make_loader()
    found = with_lightning(
        monkeypatch,
        loader,
        module,
        val=validation(),
        num_sanity_val_steps=2,
        val_check_interval=interval,
    )
    assert module.validated == 2 + EPOCHS * STEPS * {2: 3, 0.5: 2, 1.0: 1}[interval]
    assert_same(found, by_hand(monkeypatch))
    assert loader._sampler.step == EPOCHS * STEPS


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    expected = by_hand(monkeypatch, accumulate=4)
    assert_caught(
        mutant,
        lambda: with_lightning(monkeypatch, make_loader(), accumulate_grad_batches=4),
        expected,
        monkeypatch,
    )


@pytest.mark.parametrize("accumulate", [1, 4])
def test_uniform_equals_stock_lightning(accumulate: int, monkeypatch: Patch) -> None:
    ours = with_lightning(
        monkeypatch, make_loader(score="uniform"), accumulate_grad_batches=accumulate
    )
    stock = Classifier(stock=True)
    fit(
        DataLoader(Examples(), batch_sampler=Replay(ours.ids)),
        stock,
        accumulate_grad_batches=accumulate,
    )
    means = [sum(losses) / len(losses) for losses in ours.losses]
    assert len(ours.ids[STEPS - 1]) < BATCH  # a short batch, with its own mean
    assert stock.losses == pytest.approx(means, abs=1e-6)
    for mine, theirs in zip(ours.parameters, stock.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf.*")
def test_bf16_compile_a_scheduler_and_workers_together(monkeypatch: Patch) -> None:
    trace, module = watch(monkeypatch), Classifier(scheduler=True, slots=False)
    loader = make_loader(num_workers=2, slots=False)
    trainer = make_trainer(precision="bf16-mixed", max_epochs=2, accumulate_grad_batches=4)
    trainer.fit(torch.compile(module), loader)
    trace.finish(module)
    assert [len(ids) for ids in trace.ids] == [len(losses) for losses in trace.losses]
    assert len(trace.ids) == 2 * STEPS
    assert module.updates == 4
    assert module.lr_schedulers().get_last_lr() == [pytest.approx(0.1 * 0.9**4)]
    assert all(torch.isfinite(p).all() for p in module.parameters())
    matters(trace)
    torch._dynamo.reset()


# ------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_stream_with_slots_is_exact_one_batch_ahead(accumulate: int, monkeypatch: Patch) -> None:
    trace, model = watch(monkeypatch), Watched()
    plain_stream_loop(model, accumulate)
    expected = trace.finish(model)
    matters(expected)
    module = Classifier()
    found = with_lightning(
        monkeypatch, make_stream(module.model), module, accumulate_grad_batches=accumulate
    )
    assert_same(found, expected)


def test_a_stream_without_slots_is_refused_with_the_remedy() -> None:
    module = Classifier(slots=False)
    with pytest.raises(UsageError, match=r"2 batches are outstanding.*slots=True"):
        fit(make_stream(module.model, slots=False), module)
