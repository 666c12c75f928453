"""A score of your own: the average loss of an example, where "history" uses the last one."""

import torch

from salience import ImportanceLoader
from salience.compare.digits import digits


class Averaged:
    """s_i <- (s_i + L_i) / 2. Before the first loss it is nan: not known yet, so drawn soon."""

    by_index = True  # the index is enough, so draws cover the whole dataset
    unit = "loss"  # adaptive smoothing is half the running mean loss

    def __init__(self, n):
        self.mean = torch.full((n,), torch.nan)

    def score(self, indices, batch):  # noqa: ARG002
        return self.mean[indices]

    def update(self, indices, losses):
        self.mean[indices] = torch.stack([self.mean[indices], losses]).nanmean(0)
        return indices  # these scores have changed

    def state_dict(self):
        return {"mean": self.mean.clone()}

    def load_state_dict(self, state):
        self.mean.copy_(state["mean"])


data, model = digits(train=True), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
optimizer, score = torch.optim.Adam(model.parameters()), Averaged(len(data))
loader = ImportanceLoader(data, 64, score=score, steps_per_epoch=200)
for x, y in loader:
    optimizer.zero_grad()
    loader.mean(torch.nn.functional.cross_entropy(model(x), y, reduction="none")).backward()
    optimizer.step()
print("hardest five examples:", score.mean.nan_to_num(nan=-1.0).topk(5).indices.tolist())
