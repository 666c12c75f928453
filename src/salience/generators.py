"""Random numbers of the host that can be copied."""

from typing import Any, final

import torch
from torch import Tensor

__all__ = ["Generator", "seeded"]


@final
class Generator(torch.Generator):
    """Pickled and copied by its state alone.

    Each copy of torch's own takes one reference to None too many (pytorch issue 188032), and after
    some 50,000 of them Python 3.11 ends with "deallocating None".
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.get_state(),)


def seeded(seed: int) -> Generator:
    """A generator on the host."""
    made = Generator(device="cpu")
    made.manual_seed(seed)
    return made


def _restored(state: Tensor) -> Generator:
    made = Generator(device="cpu")
    made.set_state(state)
    return made
