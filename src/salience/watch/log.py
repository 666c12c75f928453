"""A log of one's own training, for ``salience watch``: a line of JSON every few steps."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, final

import torch
from torch import Tensor

from salience.distributed import current_ranks
from salience.errors import ArgumentError, UsageError

__all__ = ["FILE", "Log"]

FILE = "log.jsonl"
VERSION = 1
TOLD = 50  # steps between two questions to the sampler, which looks at the losses every 100
SLOW = 5.0  # seconds after which a line is written, however few steps there were


class _Tells(Protocol):
    def metrics(self) -> dict[str, float]: ...
    def decision(self) -> dict[str, Any]: ...


@final
class Log:
    """Appends to ``directory/log.jsonl`` what a training loop tells it.

    ::

        with Log("runs/mine", loader, steps=10_000) as log:
            for x, y in loader:
                ...
                log.step()
            log.add(test_loss=evaluate())  # whenever it is measured

    With a ``loader``, a line has its estimate of the train loss and what its sampler does. Further
    values are numbers, or tensors with one element: ``log.step(penalty=penalty)``. A line has the
    mean of what the last ``every`` steps told. Tensors are added up where they are; only when a
    line is written does the host wait for them. On several ranks only the first one writes.

    ``steps`` is the whole length, if it is known: then there is a time left. ``first_step`` above 0
    continues the last run of the log, after a resume; else a new one begins.
    """

    def __init__(
        self,
        directory: str | Path,
        loader: _Tells | None = None,
        *,
        steps: int | None = None,
        every: int = 10,
        first_step: int = 0,
    ) -> None:
        for name, value, least in (("every", every, 1), ("first_step", first_step, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ArgumentError(f"{name} must be a whole number >= {least}; got {value!r}")
        if steps is not None and (not isinstance(steps, int) or steps < 1):
            raise ArgumentError(f"steps must be a whole number >= 1, or None; got {steps!r}")
        self._loader, self._every, self._step = loader, every, first_step
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._waiting = 0  # steps since the last line
        self._start = self._written = time.monotonic()
        self._path = Path(directory) / FILE
        self._writes = current_ranks().rank == 0
        self._closed = False
        self._told: int | None = None  # the step at which the sampler was last asked
        self._write({"log": VERSION, "start": time.time(), "steps": steps, "first": first_step})

    def step(self, **values: float | Tensor) -> None:
        """One training step, and what is known of it."""
        self._refuse_closed()
        self._step += 1
        self._waiting += 1
        for name, value in values.items():
            number = _number(name, value)
            self._sums[name] = self._sums[name] + number if name in self._sums else number
            self._counts[name] = self._counts.get(name, 0) + 1
        if self._waiting >= self._every or time.monotonic() - self._written >= SLOW:
            self._flush()

    def add(self, **values: float | Tensor) -> None:
        """What was measured after the last step, such as a test loss; it is written at once."""
        self._refuse_closed()
        self._flush()
        self._row({name: float(_number(name, value)) for name, value in values.items()})

    def close(self) -> None:
        """Write what is left, and that this was the end."""
        if self._closed:
            return
        self._flush()
        self._write({"end": True, "step": self._step, "seconds": self._seconds()})
        self._closed = True

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is None:  # else it did not end, it failed
            self.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise UsageError("this log is closed: make a new Log for another training")

    def _seconds(self) -> float:
        return round(time.monotonic() - self._start, 3)

    def _flush(self) -> None:
        """A line of the means since the last one."""
        if self._waiting:
            means = {name: float(self._sums[name]) / n for name, n in self._counts.items()}
            self._row(means, step=True)
        self._sums, self._counts, self._waiting = {}, {}, 0
        self._written = time.monotonic()

    def _row(self, values: Mapping[str, float], *, step: bool = False) -> None:
        row: dict[str, Any] = {"step": self._step, "seconds": self._seconds()}
        if self._loader is not None:
            metrics = self._loader.metrics()
            row |= self._sampler(self._loader, metrics)
            if step and "train_loss" not in values:  # of all examples, not of those drawn
                values = {"train_loss": metrics["mean_loss"], **values}
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._write({**row, "values": known})

    def _sampler(self, loader: _Tells, metrics: Mapping[str, float]) -> dict[str, Any]:
        """What the sampler does at the moment, where it may have changed since it was last told."""
        if self._told is not None and self._step - self._told < TOLD:
            return {}
        self._told = self._step
        told = loader.decision() or {"mode": "on" if metrics["active"] else "off"}
        kept = ("mode", "gain", "why")
        plain = {name: told[name] for name in kept if name in told}
        finite = {name: v for name, v in plain.items() if isinstance(v, str) or math.isfinite(v)}
        return {"sampler": {**finite, "active": bool(metrics["active"])}}

    def _write(self, row: Mapping[str, Any]) -> None:
        """At the end of the file, which is not kept open."""
        if not self._writes:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        except OSError as error:
            raise ArgumentError(
                f"cannot write to {self._path} ({error.strerror or error}): choose another "
                f"directory"
            ) from error


def _number(name: str, value: Any) -> Any:
    """A float, or a tensor without its graph, where it is."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().reshape(()).to(torch.float32, copy=True)
    shown = f"a tensor of shape {[*value.shape]}" if isinstance(value, Tensor) else repr(value)
    try:
        if isinstance(value, Tensor | str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(
            f"{name} must be a number or a tensor with one element; got {shown}"
        ) from None
