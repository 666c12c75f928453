"""Kill a rank, or all of them and start again: the run continues, bitwise identical.

TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 \
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/distributed/elastic.py
"""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from salience import ImportanceLoader, checkpoint
from salience.compare.digits import digits

EPOCHS, FILE = 10, sys.argv[1] if len(sys.argv) > 1 else "elastic.ckpt"

dist.init_process_group("gloo")  # nccl on GPUs; losses travel over gloo all the same
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = ImportanceLoader(digits(train=True), batch_size=32)  # on each rank: 64 together
parts = {"model": model, "optimizer": optimizer, "loader": loader}
step = 0
if checkpoint.exists(FILE):  # every rank loads what rank 0 saved
    found = checkpoint.load(FILE)
    step = found.step
    for name, part in parts.items():
        part.load_state_dict(found.state[name])
ddp = DistributedDataParallel(model)
print(f"rank {dist.get_rank()} begins at step {step}", flush=True)

while loader.epoch < EPOCHS:
    for x, y in loader:  # after a resume, the rest of the epoch
        loader.mean(F.cross_entropy(ddp(x), y, reduction="none")).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 50 == 0 and dist.get_rank() == 0:
            states = {name: part.state_dict() for name, part in parts.items()}
            checkpoint.save(FILE, states, step=step)
print(f"rank {dist.get_rank()}: mean loss {loader.metrics()['mean_loss']:.3f}", flush=True)
dist.destroy_process_group()
