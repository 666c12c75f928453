"""Accelerate: a prepared loader that tells the end of an epoch and is part of checkpoints.

::

    model, optimizer = accelerator.prepare(model, optimizer)
    loader = prepare(accelerator, ImportanceLoader(dataset, 128))
    for x, y in loader:
        with accelerator.accumulate(model):
            losses = F.cross_entropy(model(x), y, reduction="none")
            accelerator.backward(loader.mean(losses))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state("checkpoint")
"""

import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from torch import Tensor
from torch.utils.data import DataLoader

from salience.errors import ArgumentError, StateError, UsageError
from salience.integrations._shared import check_fingerprint, extra
from salience.loader import ImportanceLoader

with extra("accelerate"):
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState
    from accelerate.utils import send_to_device

    from salience.integrations._accelerate import fingerprint_of, refuse_shared_batches

__all__ = ["PreparedLoader", "prepare"]

# Whoever asks for these builds a DataLoader of its own from the parts of this one.
PARTS = {"sampler", "batch_sampler", "worker_init_fn", "multiprocessing_context", "timeout"}


def prepare(accelerator: Accelerator, loader: ImportanceLoader) -> "PreparedLoader":
    """Prepare ``loader`` for the loop of ``accelerator``, and register it for checkpoints.

    Batches come on the accelerator's device. ``accumulate`` makes an update at the end of each
    epoch. ``save_state`` and ``load_state`` include the sampler. Everything else is the loader's
    own: ``mean``, ``metrics``, ``epoch``, ... With several processes, each trains on its rows of
    one batch, and the main process writes the sampler for all of them.
    """
    _refuse_others(loader)
    refuse_shared_batches(accelerator)
    if any(isinstance(each, _Saved) and each.loader is loader for each in _registered(accelerator)):
        raise UsageError("this loader was prepared before: go on with what prepare() returned then")
    if loader._steps is None and not loader._slots:
        raise ArgumentError(
            "a loader from pools has no length, so its end is seen by fetching one batch ahead: "
            "pass slots=True to from_loader and mean(losses, slots)"
        )
    _Saved(accelerator, loader).register()
    return PreparedLoader(accelerator, loader)


@final
class PreparedLoader(DataLoaderStateMixin):
    """An ImportanceLoader as ``prepare`` returns it; the original is ``loader``."""

    def __init__(self, accelerator: Accelerator, loader: ImportanceLoader) -> None:
        self.loader = loader
        self._device = accelerator.device if accelerator.device_placement else None

    @property
    def gradient_state(self) -> GradientState:
        return GradientState()  # shared by all

    def __iter__(self) -> Iterator[Any]:
        self.reset()
        self.remainder = 0  # a short batch of all ranks is not filled up
        self.gradient_state._add_dataloader(self)
        try:
            for batch, last in self._with_end():
                self.end_of_dataloader = last
                self.remainder = self._without_padding() if last else 0
                yield batch
        finally:  # also when the loop is left early
            self.end()

    def _with_end(self) -> Iterator[tuple[Any, bool]]:
        """Batches on the device, and whether each is the last one."""
        batches = iter(self.loader)
        if self.loader._steps is not None:
            for batch in batches:
                yield self._moved(batch), self.loader._at_last_batch
            return
        nothing = object()
        batch = next(batches, nothing)
        while batch is not nothing:
            now, batch = self._moved(batch), next(batches, nothing)
            yield now, batch is nothing

    def _without_padding(self) -> int:
        """How many of the rows of all ranks count, for ``gather_for_metrics``; 0: all of them."""
        draw, world = self.loader._last(), self.loader._sampler.ranks.world
        return 0 if draw.scale == 1 else round(len(draw) * world / draw.scale)

    def _moved(self, batch: Any) -> Any:
        if self._device is None:
            return batch
        return send_to_device(batch, self._device, non_blocking=True)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name in PARTS:
            raise UsageError(
                f"{name} was asked for, as skip_first_batches does to build another DataLoader, "
                f"which would draw without this one: leave that out, load_state() continues in "
                f"the middle of an epoch"
            )
        if name.startswith("_") or name == "loader":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.loader, name)


# ------------------------------------------------------------------------------------ checkpoints


@final
class _Saved:
    """The sampler in a checkpoint, together with what identifies the models it was saved with.

    ``save_state`` writes one file after the other, the models first and this one last. So the old
    file is removed before anything is written: a checkpoint with this file is complete. All
    processes come here, and those that write files of their own (random states, parts of the
    model) have done so before this one is written.
    """

    def __init__(self, accelerator: Accelerator, loader: ImportanceLoader) -> None:
        # Weakly: in a reference cycle, a loader with workers would take long to be collected.
        self._accelerator, self.loader = weakref.proxy(accelerator), loader

    def register(self) -> None:
        self._accelerator.register_for_checkpointing(self)
        self._accelerator.register_save_state_pre_hook(self._before_saving)
        self._accelerator.register_load_state_pre_hook(self._before_loading)

    def state_dict(self) -> dict[str, Any]:
        state = {"loader": self.loader.state_dict(), "models": self._fingerprint()}
        self._accelerator.wait_for_everyone()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "models" not in state:
            raise StateError(
                "this checkpoint holds another object in the place of the sampler: register "
                "objects in the same order as when it was saved"
            )
        check_fingerprint(state["models"], self._fingerprint(), "this checkpoint")
        self.loader.load_state_dict(state["loader"])

    def _fingerprint(self) -> Tensor:
        return fingerprint_of(self._accelerator, self._accelerator._models)

    def _file(self, directory: str) -> Path:
        number = [each is self for each in _registered(self._accelerator)].index(True)
        return Path(directory) / f"custom_checkpoint_{number}.pkl"

    def _before_saving(self, _models: Any, _weights: Any, directory: str) -> None:
        accelerator = self._accelerator
        on_each_node = accelerator.project_configuration.save_on_each_node
        if accelerator.is_local_main_process if on_each_node else accelerator.is_main_process:
            self._file(directory).unlink(missing_ok=True)
        accelerator.wait_for_everyone()

    def _before_loading(self, _models: Any, directory: str) -> None:
        if not zipfile.is_zipfile(file := self._file(directory)):
            raise StateError(
                f"{file} is missing or incomplete: saving was interrupted, or the loader was not "
                f"prepared then; use an older checkpoint"
            )


def _registered(accelerator: Accelerator) -> list[Any]:
    found: list[Any] = accelerator._custom_objects
    return found


# --------------------------------------------------------------------------------------- refusals


def _refuse_others(loader: Any) -> None:
    if isinstance(loader, PreparedLoader):
        raise UsageError("this loader is prepared already: use it as it is")
    if isinstance(loader, DataLoader):
        raise ArgumentError(
            "a DataLoader may be split by accelerate, and its batches separated from their draws: "
            "pass the ImportanceLoader itself, and others to accelerator.prepare()"
        )
    if not isinstance(loader, ImportanceLoader):
        raise ArgumentError(f"loader must be an ImportanceLoader; got {type(loader).__name__}")
