"""Values on their way from an accelerator to the host, without anybody waiting for them."""

from typing import Any, final

import torch
from torch import Tensor

__all__ = ["Transfer"]


@final
class Transfer:
    """Copies started now and read later. Tensors that are on the host are there at once.

    The copies are queued behind the work that makes the values. By the time the next step asks
    for them the accelerator has passed that point, so ``result`` finds them ready and the queue of
    work behind them still full.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._host = [_start_copy(tensor) for tensor in tensors]
        self._event = _event_after(tensors)

    def result(self) -> list[Tensor]:
        if self._event is not None:
            self._event.synchronize()
        return self._host


def _start_copy(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor.clone()  # the user may change it in place before it is read
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def _event_after(tensors: tuple[Tensor, ...]) -> Any:
    """An event behind the copies on the accelerator's queue; None if all are on the host."""
    devices = [tensor.device for tensor in tensors if tensor.device.type != "cpu"]
    if not devices:
        return None
    event = torch.Event(devices[0])
    event.record()
    return event
