"""What the loader did, in TensorBoard: scalars, and histograms of scores and weights.

MLflow and Weights & Biases take one line each as well: see docs/integrations/trackers.md.
"""

import tempfile

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from salience import ImportanceLoader
from salience.compare.digits import digits
from salience.integrations.trackers import log_tensorboard

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loader = ImportanceLoader(digits(train=True), batch_size=64)

with tempfile.TemporaryDirectory() as directory:  # yours: SummaryWriter("runs")
    with SummaryWriter(directory) as writer:
        step = 0
        for _ in range(20):
            for x, y in loader:
                losses = nn.functional.cross_entropy(model(x), y, reduction="none")
                loader.mean(losses).backward()
                optimizer.step()
                optimizer.zero_grad()
                log_tensorboard(writer, loader, step, every=50)
                step += 1

    written = EventAccumulator(directory).Reload()
    means = written.Scalars("importance/mean_loss")
    active = [each.step for each in written.Scalars("importance/active") if each.value]
    scores = written.Histograms("importance/scores")[-1].histogram_value

print(
    f"mean loss {means[0].value:.2f} -> {means[-1].value:.4f} in {len(means)} rows; by importance "
    f"from step {active[0] if active else 'none'}; scores {scores.min:.4f} to {scores.max:.2f}"
)
