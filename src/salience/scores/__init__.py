"""Scores: how important each candidate is. One card per score is in ``docs/scores``."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from salience.errors import ArgumentError
from salience.scores.approx import EVERY, Approx
from salience.scores.gnorm import GradientNorm
from salience.scores.history import KEPT, History
from salience.scores.loss import Loss
from salience.scores.protocol import Score, Unit
from salience.scores.uniform import Uniform
from salience.scores.upper_bound import UpperBound

__all__ = [
    "NAMES",
    "NEED_MODEL",
    "Approx",
    "GradientNorm",
    "History",
    "Loss",
    "Score",
    "Uniform",
    "Unit",
    "UpperBound",
    "make_score",
]

NEED_MODEL: dict[str, Callable[..., Score]] = {
    "loss": Loss,
    "upper_bound": UpperBound,
    "gnorm": GradientNorm,
}
NAMES = ("auto", "uniform", "history", "approx", *NEED_MODEL)


def make_score(
    score: str | Score,
    *,
    n: int,
    labels: Tensor | None = None,
    model: nn.Module | None = None,
    loss: Any = None,
    seed: int = 0,
    pools: bool = False,
) -> tuple[str, Score]:
    """What the user wrote as ``score=``, as its name and an object.

    ``pools``: draws are from pools, where ``approx`` is the paper's and trains at every step.
    """
    if not isinstance(score, str):
        if not isinstance(score, Score):
            raise ArgumentError(
                f"score must be one of {', '.join(NAMES)} or an object with by_index, unit, score, "
                f"update, state_dict and load_state_dict; got {score!r}"
            )
        return type(score).__name__, score
    if score == "auto":
        return score, History(n, KEPT)
    if score == "history":
        return score, History(n)
    if score == "uniform":
        return score, Uniform()
    if score == "approx":
        return score, Approx(n, labels, seed=seed, every=1 if pools else EVERY)
    if score in NEED_MODEL:
        return score, NEED_MODEL[score](model, loss)
    raise ArgumentError(f"score must be one of {', '.join(NAMES)} or an object; got {score!r}")
