"""What several integrations need."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from salience.errors import StateError

__all__ = ["check_fingerprint", "extra", "fingerprint"]


@contextmanager
def extra(name: str, module: str | None = None) -> Iterator[None]:
    """Say how to install what is missing; ``module``: the integration, if it has another name."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"salience.integrations.{module or name} needs {error.name}: "
            f"pip install 'salience[{name}]'",
            name=error.name,
        ) from error


def fingerprint(parameters: Iterable[Tensor]) -> Tensor:
    """One int64 per parameter that changes when its values do: the sum of its bits as integers.

    Whole numbers are summed exactly, so the result does not depend on the device, on threads, or on
    how many ranks hold the parts of a parameter (FSDP2): these come here together. It stays on the
    device of the parameters until it is read.
    """
    sums = [_sum_of_bits(parameter.detach()) for parameter in parameters]
    return torch.stack([each.to(sums[0].device) for each in sums]) if sums else torch.zeros(0)


def _sum_of_bits(tensor: Any) -> Tensor:
    if not hasattr(tensor, "device_mesh"):
        bits: Tensor = _bits(tensor).sum(dtype=torch.int64)
        return bits
    from torch.distributed.tensor import DTensor, Partial  # takes long to load

    part = _bits(tensor.to_local()).sum(dtype=torch.int64)
    kinds = [Partial() if each.is_shard() else each for each in tensor.placements]
    return DTensor.from_local(part, tensor.device_mesh, kinds).full_tensor()


WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(WHOLE[tensor.element_size()])


def check_fingerprint(saved: Tensor, now: Tensor, where: str) -> None:
    """Refuse a sampler that was saved with another model than the one just loaded."""
    if not torch.equal(saved.cpu(), now.cpu()):
        raise StateError(
            f"the sampler in {where} was saved with other parameters than the model has now, as "
            f"when saving was interrupted: load the model first, or use an older checkpoint"
        )
