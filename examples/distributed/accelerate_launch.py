"""Accelerate on two processes: accumulate, save for all ranks, resume.

accelerate launch --multi_gpu --num_processes 2 examples/distributed/accelerate_launch.py
torchrun --standalone --nproc-per-node 2 examples/distributed/accelerate_launch.py
"""

import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn

from salience import ImportanceLoader
from salience.compare.digits import digits
from salience.integrations.accelerate import prepare


def make():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)  # leave cpu=True out on GPUs
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = ImportanceLoader(digits(train=True), 16, score="history")  # on each process
    return accelerator, model, optimizer, prepare(accelerator, loader)


def train(accelerator, model, optimizer, loader, stop=None):
    """What is left of ten epochs; the number of updates."""
    updates = 0
    for _ in range(loader.epoch, 10):
        for x, y in loader:
            with accelerator.accumulate(model):
                losses = F.cross_entropy(model(x), y, reduction="none")
                accelerator.backward(loader.mean(losses))
                optimizer.step()
                optimizer.zero_grad()
            updates += accelerator.sync_gradients
            if updates == stop:
                return updates
    return updates


stopped, resumed, whole = make(), make(), make()
accelerator = whole[0]
with tempfile.TemporaryDirectory() as directory:
    (shared,) = broadcast_object_list([directory])  # that of the main process
    train(*stopped, stop=100)
    stopped[0].save_state(shared)
    accelerator.wait_for_everyone()
    resumed[0].load_state(shared)
    accelerator.wait_for_everyone()
updates = 100 + train(*resumed)
assert updates == train(*whole)
for mine, theirs in zip(resumed[1].parameters(), whole[1].parameters(), strict=True):
    assert torch.equal(mine, theirs)
images, classes = digits(train=False).tensors
error = (whole[1](images.to(accelerator.device)).argmax(1).cpu() != classes).float().mean().item()
accelerator.print(
    f"test error {100 * error:.1f} % after {updates} updates on {accelerator.num_processes} "
    f"processes, identical when resumed"
)
accelerator.end_training()
