"""What identifies the parameters of a checkpoint does not depend on how ranks hold them."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ranks import on_ranks
from salience.errors import StateError
from salience.integrations._shared import check_fingerprint, fingerprint


def net() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1))  # neither 2 nor 3 divide all


def on_a_rank(rank: int, world: int) -> list[Tensor]:
    """Of DDP, of FSDP2, and of FSDP2 when rank 0 has changed one number."""
    sharded = net()
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
    found = [fingerprint(each.parameters()) for each in (DistributedDataParallel(net()), sharded)]
    if rank == 0:
        sharded[2].bias.to_local().data.add_(1e-6)
    return [*found, fingerprint(sharded.parameters())]


@pytest.mark.parametrize("world", [2, 3])
def test_parts_of_parameters_count_as_the_whole(world: int) -> None:
    expected = fingerprint(net().parameters())
    for ddp, fsdp2, changed in on_ranks(world, on_a_rank, world):
        check_fingerprint(expected, ddp, "here")
        check_fingerprint(expected, fsdp2, "here")
        assert torch.equal(changed[:3], expected[:3])
        with pytest.raises(StateError, match="other parameters"):
            check_fingerprint(expected, changed, "here")
