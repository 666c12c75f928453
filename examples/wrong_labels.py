"""A fifth of the labels are wrong: test error with and without focus, mean of three seeds."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from salience import ImportanceLoader
from salience.compare.digits import digits

images, classes = digits(train=True).tensors
test_images, test_classes = digits(train=False).tensors
chance = torch.Generator().manual_seed(0)
wrong = torch.rand(len(classes), generator=chance) < 0.2
others = (classes + torch.randint(1, 10, classes.shape, generator=chance)) % 10
data = TensorDataset(images, torch.where(wrong, others, classes))


def test_error(focus, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = ImportanceLoader(data, 64, score="uniform", focus=focus, seed=seed)
    for _ in range(40):
        for x, y in loader:
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
            loader.mean(losses).backward()
            optimizer.step()
    return 100 * (model(test_images).argmax(1) != test_classes).float().mean()


for focus in (None, "closeness"):
    errors = [test_error(focus, seed) for seed in range(3)]
    print(f"focus={focus}: test error {sum(errors) / 3:.1f} %")
