"""Lightning on real digits: train, stop in the middle of an epoch, resume from the checkpoint."""

import logging
import tempfile
import warnings
from pathlib import Path

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn

from salience import ImportanceLoader
from salience.compare.digits import digits
from salience.integrations.lightning import LogImportance

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch):
        x, y = batch
        losses = F.cross_entropy(self.net(x), y, reduction="none")
        return self.trainer.train_dataloader.mean(losses)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def fit(steps, resume=None):
    """Train up to ``steps`` in all; the trainer, and its loader."""
    torch.manual_seed(0)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(
        accelerator="cpu", max_steps=steps, logger=False, callbacks=[LogImportance()],
        enable_checkpointing=False, **quiet,
    )  # fmt: skip
    loader = ImportanceLoader(digits(train=True), 64, score="history")
    trainer.fit(Classifier(), loader, ckpt_path=resume)
    return trainer, loader


with tempfile.TemporaryDirectory() as directory:
    checkpoint = Path(directory) / "stopped.ckpt"
    fit(steps=100)[0].save_checkpoint(checkpoint)
    resumed, loader = fit(steps=230, resume=checkpoint)
whole, _ = fit(steps=230)
for mine, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
    assert torch.equal(mine, theirs)
images, classes = digits(train=False).tensors
error = (whole.model.net(images).argmax(1) != classes).float().mean().item()
print(f"test error {100 * error:.1f} % after {resumed.global_step} steps, identical when resumed")
