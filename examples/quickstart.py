"""The two changed lines, on the digits that ship with the package."""

import torch
import torch.nn.functional as F
from torch import nn

from salience import ImportanceLoader
from salience.compare.digits import digits

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

loader = ImportanceLoader(digits(train=True), batch_size=64)  # was DataLoader(..., shuffle=True)
for epoch in range(10):
    for x, y in loader:
        losses = F.cross_entropy(model(x), y, reduction="none")
        loader.mean(losses).backward()  # was losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    seen = loader.metrics()
    print(f"epoch {epoch}: mean loss {seen['mean_loss']:.3f}, tracking {seen['tracking']:.2f}")

images, classes = digits(train=False).tensors
with torch.no_grad():
    wrong = (model(images).argmax(1) != classes).float().mean()
print(f"test error: {100 * wrong:.1f} %")
