"""What accelerate's examples have at the top of a script, and their loop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from harness import EPOCHS, Watched, make_loader, sgd

from salience.integrations.accelerate import prepare


@pytest.fixture
def fresh_state() -> Iterator[None]:
    """Accelerate keeps one state per process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@dataclass
class Parts:
    accelerator: Accelerator
    model: Any
    optimizer: Any
    loader: Any
    updates: list[int] = field(default_factory=list)  # after which batches


def made(
    accumulate: int = 1,
    *,
    prepared: bool = True,
    make: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Parts:
    GradientState._reset_state()
    accelerator = Accelerator(gradient_accumulation_steps=accumulate)
    model = Watched()
    model, optimizer = accelerator.prepare(model, sgd(model))
    loader = make_loader(**options) if make is None else make(model)
    ready = prepare(accelerator, loader) if prepared else accelerator.prepare(loader)
    return Parts(accelerator, model, optimizer, ready)


def train(parts: Parts, after_batch: Callable[[], Any] = lambda: None) -> None:
    """What is left of three epochs."""
    accelerator, loader, optimizer = parts.accelerator, parts.loader, parts.optimizer
    for _ in range(loader.epoch, EPOCHS):
        for x, y, *slots in loader:
            with accelerator.accumulate(parts.model):
                losses = F.cross_entropy(parts.model(x), y, reduction="none")
                accelerator.backward(loader.mean(losses, *slots))
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                parts.updates.append(len(parts.model.seen))
            after_batch()
