"""Lightning on two processes, which it starts itself: the script of one process, with two devices.

python examples/distributed/lightning_ddp.py
"""

import logging
import warnings

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


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=10, callbacks=[LogImportance()],
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    loader = ImportanceLoader(digits(train=True), batch_size=32)  # on each process
    model = Classifier()
    trainer.fit(model, loader)
    if trainer.is_global_zero:
        images, classes = digits(train=False).tensors
        error = (model.net(images).argmax(1) != classes).float().mean().item()
        print(
            f"test error {100 * error:.1f} % after {trainer.global_step} steps on "
            f"{trainer.world_size} processes, mean loss {loader.metrics()['mean_loss']:.3f}"
        )
