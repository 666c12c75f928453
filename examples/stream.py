"""Pick from a stream: no index and no length, only pools of candidates."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from salience import ImportanceLoader
from salience.compare.digits import digits


class NoisyDigits(IterableDataset):
    """Digits in random order, each with new noise: no image comes twice."""

    def __iter__(self):
        images, classes = digits(train=True).tensors
        for i in torch.randperm(len(images)).tolist():
            yield images[i] + 0.1 * torch.randn(1, 8, 8), classes[i]


torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

pools = DataLoader(NoisyDigits(), batch_size=128, drop_last=True)  # candidates: 2 x 64
loader = ImportanceLoader.from_loader(
    pools, 64, score="upper_bound", model=model, loss=F.cross_entropy
)
for epoch in range(10):
    for x, y in loader:
        loader.mean(F.cross_entropy(model(x), y, reduction="none")).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: mean loss {loader.metrics()['mean_loss']:.3f} over the stream")
