"""Ray Train on two workers: build the loader inside the train loop, and leave it as it is.

python examples/distributed/ray_train.py
"""

import tempfile
from pathlib import Path

import ray
import torch
import torch.nn.functional as F
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn

from salience import ImportanceLoader
from salience.compare.digits import digits


def train_loop():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = prepare_model(net)  # DistributedDataParallel
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = ImportanceLoader(digits(train=True), batch_size=32)  # no prepare_data_loader
    for _ in range(10):
        for x, y in loader:
            losses = F.cross_entropy(model(x), y, reduction="none")
            loader.mean(losses).backward()
            optimizer.step()
            optimizer.zero_grad()
    images, classes = digits(train=False).tensors
    error = (net(images).argmax(1) != classes).float().mean().item()
    context = train.get_context()
    found = {"error": error, "workers": context.get_world_size()}
    with tempfile.TemporaryDirectory() as directory:
        if context.get_world_rank() == 0:  # the state of any rank is that of all
            state = {"model": net.state_dict(), "loader": loader.state_dict()}
            torch.save(state, Path(directory) / "state.pt")
            train.report(found, checkpoint=train.Checkpoint.from_directory(directory))
        else:
            train.report(found)


ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
with tempfile.TemporaryDirectory() as directory:
    result = TorchTrainer(
        train_loop,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=directory),
    ).fit()
print(f"test error {100 * result.metrics['error']:.1f} % on {result.metrics['workers']} workers")
ray.shutdown()
