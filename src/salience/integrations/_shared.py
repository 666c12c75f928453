"""What several integrations need."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

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

    Whole numbers are summed exactly, so the result does not depend on the device or on threads.
    It stays on the device of the parameters until it is read.
    """
    sums = [_bits(parameter.detach()).sum(dtype=torch.int64) for parameter in parameters]
    return torch.stack([each.to(sums[0].device) for each in sums]) if sums else torch.zeros(0)


WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(WHOLE[tensor.element_size()])


def check_fingerprint(saved: Tensor, parameters: Iterable[Tensor], where: str) -> None:
    """Refuse a sampler that was saved with another model than the one just loaded."""
    if not torch.equal(saved.cpu(), fingerprint(parameters).cpu()):
        raise StateError(
            f"the sampler in {where} was saved with other parameters than the model has now, as "
            f"when saving was interrupted: load the model first, or use an older checkpoint"
        )
