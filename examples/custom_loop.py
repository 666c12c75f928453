"""No DataLoader: the data is in memory, and a sampler says which rows come next."""

import torch
import torch.nn.functional as F
from torch import nn

from salience import ImportanceSampler
from salience.compare.digits import digits

torch.manual_seed(0)
images, classes = digits(train=True).tensors
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

sampler = ImportanceSampler(len(images), batch_size=64, score="history", k=0.5)
for step in range(1, 401):
    indices, weights = draw = sampler.draw()
    losses = F.cross_entropy(model(images[indices]), classes[indices], reduction="none")
    (weights * losses).mean().backward()
    sampler.update(draw, losses)  # one loss per index, in the order of the draw
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        seen = sampler.metrics()
        print(
            f"step {step}: mean loss {seen['mean_loss']:.3f}, "
            f"effective sample size {seen['effective_sample_size']:.1f} of {len(indices)}"
        )
