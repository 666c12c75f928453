"""Salience: importance sampling for training PyTorch models.

Swap the loader and the mean, and training sees the examples it learns most from::

    from salience import ImportanceLoader

    loader = ImportanceLoader(dataset, batch_size=128)
    for x, y in loader:
        losses = F.cross_entropy(model(x), y, reduction="none")
        loader.mean(losses).backward()
"""

from salience import checkpoint, functional
from salience.crossfit import cross_fit
from salience.draw import Draw
from salience.errors import (
    ArgumentError,
    DataError,
    LossError,
    SalienceError,
    StateError,
    UsageError,
)
from salience.focus import Closeness, Focus, Ordered
from salience.history import LossHistory
from salience.loader import ImportanceLoader
from salience.sampler import ImportanceSampler
from salience.scores import Score
from salience.smoothing import Adaptive, Constant, Smoothing

__version__ = "0.1.0"

__all__ = [
    "Adaptive",
    "ArgumentError",
    "Closeness",
    "Constant",
    "DataError",
    "Draw",
    "Focus",
    "ImportanceLoader",
    "ImportanceSampler",
    "LossError",
    "LossHistory",
    "Ordered",
    "SalienceError",
    "Score",
    "Smoothing",
    "StateError",
    "UsageError",
    "__version__",
    "checkpoint",
    "cross_fit",
    "functional",
]
