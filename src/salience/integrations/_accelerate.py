"""What Accelerate and the Trainer that is built on it need for several processes."""

from collections.abc import Iterable
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor

from salience.errors import UsageError
from salience.integrations._shared import fingerprint

__all__ = ["fingerprint_of", "refuse_shared_batches"]


def fingerprint_of(accelerator: Accelerator, models: Iterable[Any]) -> Tensor:
    """Of the parameters of ``models``, whatever part of them this process holds."""
    found = fingerprint(p for model in models for p in model.parameters())
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        # FSDP1 has plain tensors for its parts, and fingerprints of parts add up.
        total: Tensor = accelerator.reduce(found, "sum")
        return total
    return found


def refuse_shared_batches(accelerator: Accelerator) -> None:
    """Where several ranks work on the same examples, rows of their own would be wrong."""
    config = accelerator.parallelism_config
    for name in ("tp", "cp", "sp"):
        if config is not None and (size := getattr(config, f"{name}_size")) > 1:
            raise UsageError(
                f"{name}_size={size} gives several ranks the same examples, and this loader gives "
                f"each rank its own: use data parallelism (DDP, FSDP) alone"
            )
