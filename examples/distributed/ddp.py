"""DistributedDataParallel: two processes train as one would with a batch of 64.

torchrun --standalone --nproc-per-node 2 examples/distributed/ddp.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from salience import ImportanceLoader
from salience.compare.digits import digits

dist.init_process_group("gloo")  # on GPUs "nccl", with model and batches on cuda:$LOCAL_RANK
torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

loader = ImportanceLoader(digits(train=True), batch_size=32)  # on each rank; no DistributedSampler
for epoch in range(10):
    for x, y in loader:
        losses = F.cross_entropy(model(x), y, reduction="none")
        loader.mean(losses).backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: mean loss {loader.metrics()['mean_loss']:.3f}")

if dist.get_rank() == 0:
    images, classes = digits(train=False).tensors
    wrong = (net(images).argmax(1) != classes).float().mean()
    print(f"test error on {dist.get_world_size()} ranks: {100 * wrong:.1f} %")
dist.destroy_process_group()
