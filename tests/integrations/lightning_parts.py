"""A small LightningModule that notes what it does, and a quiet Trainer."""

import logging
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from harness import BATCH, EPOCHS, Examples, Watched, sgd
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor
from torch.utils.data import DataLoader

# Lightning's own: about workers, small data, and torch internals that it uses.
IGNORED = [
    "ignore:.*does not have many workers.*",
    "ignore:.*smaller than the logging interval.*",
    "ignore:.*LeafSpec.*is deprecated.*",
    "ignore:.*no `val_dataloader`.*",
    "ignore:.*no `validation_step`.*",
    "ignore:.*Checkpoint directory .* exists and is not empty.*",
    "ignore:The dirpath has changed.*",
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(L.LightningModule):
    """``stock`` is what users write without us."""

    def __init__(
        self,
        *,
        manual: bool = False,
        stock: bool = False,
        scheduler: bool = False,
        slots: bool = True,
    ) -> None:
        super().__init__()
        self.model = Watched()
        self.automatic_optimization = not manual
        self.stock, self.scheduler, self.slots = stock, scheduler, slots
        self.updates = self.validated = 0
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        x, y, *slots = batch
        losses = F.cross_entropy(self.model(x), y, reduction="none")
        if self.stock:
            loss = losses.mean()
            self.losses.append(loss.item())
        else:
            loss = self.trainer.train_dataloader.mean(losses, *slots)
        if not self.automatic_optimization:
            optimizer: Any = self.optimizers()
            self.manual_backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self.model(batch[0])
        self.validated += 1

    def on_before_optimizer_step(self, optimizer: Any) -> None:  # noqa: ARG002
        self.updates += 1

    def configure_optimizers(self) -> Any:
        optimizer = sgd(self)
        if not self.scheduler:
            return optimizer
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def make_trainer(**options: Any) -> L.Trainer:
    given = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "max_epochs": EPOCHS,
    }
    return L.Trainer(**{**given, **options})


def fit(
    data: Any,
    module: Classifier | None = None,
    *,
    val: Any = None,
    ckpt_path: Any = None,
    **options: Any,
) -> Classifier:
    """Train; ``data`` is a loader or a data module."""
    module = Classifier() if module is None else module
    make_trainer(**options).fit(module, data, val, ckpt_path=ckpt_path, weights_only=True)
    return module


def validation() -> DataLoader[Any]:
    return DataLoader(Examples(), batch_size=BATCH)


class Kept(Logger):
    """Keeps what it is given."""

    name = version = "kept"

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *_: Any) -> None:
        pass

    def steps(self, name: str) -> list[int | None]:
        return [step for step, row in self.rows if name in row]
