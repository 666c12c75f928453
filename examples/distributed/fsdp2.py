"""FSDP2: each of two processes holds half of the parameters, and all hold the same sampler.

torchrun --standalone --nproc-per-node 2 examples/distributed/fsdp2.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from salience import ImportanceLoader
from salience.compare.digits import digits

mesh = init_device_mesh("cpu", (2,))  # makes the process group; on GPUs "cuda"
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
for layer in (model[1], model[3], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

loader = ImportanceLoader(digits(train=True), batch_size=32)  # on each rank
for _ in range(10):
    for x, y in loader:
        losses = F.cross_entropy(model(x), y, reduction="none")
        loader.mean(losses).backward()
        optimizer.step()
        optimizer.zero_grad()

images, classes = digits(train=False).tensors
wrong = (model(images).argmax(1) != classes).float().mean()  # all ranks take part in a forward
if dist.get_rank() == 0:
    held = model[1].weight.to_local().shape[0]
    print(f"test error: {100 * wrong:.1f} %, rank 0 holds {held} of 64 rows of the first layer")
dist.destroy_process_group()
