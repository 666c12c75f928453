"""Save in the middle of an epoch, load into fresh objects: the rest is bitwise identical."""

import io

import torch
import torch.nn.functional as F
from torch import nn

from salience import ImportanceLoader
from salience.compare.digits import digits


def make():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return model, optimizer, ImportanceLoader(digits(train=True), 64, score="approx", seed=3)


def train(parts, file=None, save_at=None):
    """One epoch, or the rest of one. Returns what was drawn, and the weights of the network."""
    (model, optimizer, loader), drawn = parts, []
    for step, (x, y) in enumerate(loader, start=1):
        loader.mean(F.cross_entropy(model(x), y, reduction="none")).backward()
        optimizer.step()
        optimizer.zero_grad()
        drawn.append((loader.indices.tolist(), loader.weights.tolist()))
        if step == save_at:
            torch.save([part.state_dict() for part in parts], file)
    return drawn, [p.tolist() for p in model.parameters()]


saved = io.BytesIO()  # or a file
drawn, network = train(make(), saved, save_at=9)
fresh = make()
saved.seek(0)
for part, state in zip(fresh, torch.load(saved, weights_only=True), strict=True):
    part.load_state_dict(state)
assert train(fresh) == (drawn[9:], network)
print(f"identical: {len(drawn) - 9} of {len(drawn)} steps were repeated from the saved state")
