"""Rows and traces written by hand."""

from typing import Any

from salience.paper.measures import Trace


def row(step: int, train_loss: float, seconds: float = 0.0, seed: int = 0, **more: Any) -> Any:
    return {"step": step, "train_loss": train_loss, "seconds": seconds, "seed": seed, **more}


def trace(rows: list[Any]) -> Trace:
    """A run without observations."""
    return Trace(rows, [{} for _ in rows])
