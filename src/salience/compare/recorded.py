"""The losses of each example in one run of a comparison, recorded outside the measured time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from salience import ImportanceLoader, LossHistory
from salience.batches.labels import find_labels
from salience.feedback import bad_losses, per_example
from salience.record import Record, distinct

__all__ = ["HISTORY", "Recorded", "default_method"]

HISTORY = Path("state", "history.npz")  # in the directory of a comparison
DEFAULT = "auto"


def default_method(methods: tuple[str, ...]) -> str:
    """The method whose losses are recorded: ``auto``, or else the first."""
    return next((name for name in methods if name.split(":")[0] == DEFAULT), methods[0])


@final
class Recorded:
    """A loader that also keeps indices and losses, until ``history`` makes a record of them.

    That takes a few microseconds of a step. ``ImportanceLoader(record=True)`` records within the
    step, and would be measured with it.
    """

    def __init__(self, loader: ImportanceLoader) -> None:
        self._loader, self._labels = loader, find_labels(loader.dataset)
        self._record, self._step = Record(len(loader.dataset)), 0
        self._taken: list[tuple[Tensor, Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def mean(self, losses: Tensor) -> Tensor:
        self._taken.append((self._loader.indices, losses.detach()))
        return self._loader.mean(losses)

    def history(self) -> LossHistory:
        """Of the training so far."""
        self._catch_up()
        return LossHistory.of_record(self._record, self._step, self._labels)

    def _catch_up(self) -> None:
        taken, self._taken = self._taken, []
        for indices, losses in taken:
            self._step += 1
            at = indices.to("cpu")
            known = per_example(losses, len(at)).to("cpu", torch.float32)
            good = ~bad_losses(known)
            if bool(good.any()):
                self._record.begin(float(known[good].mean()))
                self._record.update(*distinct(at[good], known[good]), self._step)

    def state_dict(self) -> dict[str, Any]:
        self._catch_up()
        own = {**self._record.state_dict(), "step_now": self._step}
        return {"loader": self._loader.state_dict(), "recorded": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state["loader"])
        recorded, self._taken = state["recorded"], []
        self._step = int(recorded["step_now"])
        self._record.load_state_dict(recorded)
