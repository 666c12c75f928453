"""Scores: how important each candidate is. One card per score is in ``docs/scores``."""

from collections.abc import Callable

from salience.scores.approx import Approx
from salience.scores.excess import Excess
from salience.scores.gnorm import GradientNorm
from salience.scores.history import History
from salience.scores.loss import Loss
from salience.scores.protocol import Score, Unit
from salience.scores.proxy import Proxy
from salience.scores.uniform import Uniform
from salience.scores.upper_bound import UpperBound

__all__ = [
    "NEED_MODEL",
    "Approx",
    "Excess",
    "GradientNorm",
    "History",
    "Loss",
    "Proxy",
    "Score",
    "Uniform",
    "Unit",
    "UpperBound",
]

NEED_MODEL: dict[str, Callable[..., Score]] = {
    "loss": Loss,
    "upper_bound": UpperBound,
    "gnorm": GradientNorm,
}
