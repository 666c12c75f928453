"""LogImportance: what is logged, when, and by whom."""

import math
from typing import Any

import pytest
import torch
from harness import EPOCHS, STEPS, make_loader
from lightning.pytorch import Trainer
from lightning_parts import IGNORED, Classifier, Kept, fit
from torch.utils.data import DataLoader

from salience import ArgumentError, UsageError
from salience.integrations.lightning import LogImportance

pytestmark = [pytest.mark.filterwarnings(each) for each in IGNORED]


class Logging(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


def logged(callback: LogImportance, loader: Any = None, **options: Any) -> Kept:
    logger = Kept()
    fit(loader or make_loader(), Logging(), callbacks=[callback], logger=logger, **options)
    return logger


def test_metrics_are_logged_with_what_lightning_logs() -> None:
    logger = logged(LogImportance(), log_every_n_steps=2)
    steps = logger.steps("importance/mean_loss")
    assert steps == logger.steps("loss")
    assert steps == list(range(1, EPOCHS * STEPS, 2))


def test_at_its_own_interval() -> None:
    logger = logged(LogImportance(every=5), log_every_n_steps=2)
    assert logger.steps("importance/mean_loss") == [4, 9, 14]


def test_once_per_update() -> None:
    logger = logged(LogImportance(every=1), accumulate_grad_batches=4)
    assert logger.steps("importance/mean_loss") == list(range(2 * EPOCHS))


def test_values_are_those_of_the_loader() -> None:
    loader = make_loader()
    logger = logged(LogImportance(every=EPOCHS * STEPS, prefix="sampler-"), loader)
    step, row = next(each for each in logger.rows if "sampler-mean_loss" in each[1])
    expected = {f"sampler-{name}": value for name, value in loader.metrics().items()}
    assert step == EPOCHS * STEPS - 1
    clock = "sampler-scoring_fraction"
    assert {**row, clock: 0} == {**expected, clock: 0}


def test_nan_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make_loader()
    values = {"mean_loss": math.nan, "active": 1.0}
    monkeypatch.setattr(type(loader), "metrics", lambda _: values)
    logger = logged(LogImportance(every=1), loader, max_steps=1)
    assert logger.rows[0] == (0, {"importance/active": 1.0})


def test_only_rank_0_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "is_global_zero", property(lambda _: False))
    assert logged(LogImportance(every=1)).steps("importance/mean_loss") == []


def test_several_loaders_are_numbered() -> None:
    class Both(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
            means = []
            for name, loader in self.trainer.train_dataloader.items():
                x, y, slots = batch[name]
                losses = torch.nn.functional.cross_entropy(self.model(x), y, reduction="none")
                means.append(loader.mean(losses, slots))
            return means[0] + means[1]

    logger = Kept()
    loaders = {"a": make_loader(), "b": make_loader(seed=9)}
    fit(loaders, Both(), callbacks=[LogImportance(every=1)], logger=logger)
    assert logger.steps("importance/0/mean_loss") == logger.steps("importance/1/mean_loss")


def test_without_a_loader_of_ours() -> None:
    from harness import Examples

    plain = DataLoader(Examples(), batch_size=4)
    with pytest.raises(UsageError, match=r"no ImportanceLoader .*\(DataLoader\)"):
        fit(plain, Classifier(stock=True), callbacks=[LogImportance()])


def test_bad_intervals() -> None:
    with pytest.raises(ArgumentError, match="got 0"):
        LogImportance(every=0)
