"""Everything Salience raises on purpose.

SalienceError
├── ArgumentError   (also a ValueError): an argument that cannot work, with its value and the remedy
├── DataError       : files of a data set that are missing, damaged or cannot be fetched
├── LossError       (also a ValueError): losses that are not one finite number >= 0 per example
├── StateError      (also a ValueError): a saved state that is missing, damaged or not this one's
└── UsageError      (also a RuntimeError): a call at the wrong moment
"""

__all__ = ["ArgumentError", "DataError", "LossError", "SalienceError", "StateError", "UsageError"]


class SalienceError(Exception):
    """Base of everything Salience raises on purpose."""


class ArgumentError(SalienceError, ValueError):
    """An argument that cannot work; the message names its value and the remedy."""


class DataError(SalienceError):
    """Files of a data set that are missing, damaged or cannot be fetched."""


class LossError(SalienceError, ValueError):
    """Losses that are not one finite, non-negative number per example."""


class StateError(SalienceError, ValueError):
    """A saved state that is missing, damaged, or of another dataset, score or release."""


class UsageError(SalienceError, RuntimeError):
    """A call at the wrong moment, such as ``mean`` before any batch."""
