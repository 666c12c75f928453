"""Which labels are likely wrong, which examples are hard or forgotten: from the losses alone."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from salience import ImportanceLoader
from salience.compare.digits import digits

images, classes = digits(train=True).tensors
wrong = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))[:72]
given = classes.clone()
given[wrong] = (classes[wrong] + 1) % 10  # 5 % of the labels

torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loader = ImportanceLoader(TensorDataset(images, given), 64, score="uniform", record=True)
for _ in range(20):
    for x, y in loader:
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        loader.mean(losses).backward()
        optimizer.step()
        optimizer.zero_grad()

history = loader.history()
found = set(history.select("suspects", len(wrong)).tolist())
print(f"wrong labels found: {len(found & set(wrong.tolist()))} of {len(wrong)}")
print(f"hardest: {history.select('hardest', 3).tolist()}")
print(f"learned and then forgotten: {len(history.select('forgotten'))} examples")
hard = history.classes()[0]
print(f"hardest class: {hard.label}, mean loss {hard.loss:.2f} over {hard.examples} examples")
# history.save("history.npz"), then: salience insight history.npz
