"""From scores to draws: smoothing, the sum tree, and the places examples are drawn from."""

from salience.distribution.draws import (
    Drawn,
    Pool,
    Source,
    Uniform,
    WholeDataset,
    draw_from_pool,
)
from salience.distribution.passes import ShuffledPasses
from salience.distribution.smoothing import (
    Adaptive,
    Constant,
    Fading,
    RunningMean,
    Smoothing,
    make_smoothing,
)
from salience.distribution.tree import SumTree
from salience.distribution.turns import Switched, Turns

__all__ = [
    "Adaptive",
    "Constant",
    "Drawn",
    "Fading",
    "Pool",
    "RunningMean",
    "ShuffledPasses",
    "Smoothing",
    "Source",
    "SumTree",
    "Switched",
    "Turns",
    "Uniform",
    "WholeDataset",
    "draw_from_pool",
    "make_smoothing",
]
