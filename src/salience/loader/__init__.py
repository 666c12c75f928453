"""The sampler and the loader that users hold."""

from salience.loader.loader import ImportanceLoader
from salience.loader.sampler import Draw, ImportanceSampler

__all__ = ["Draw", "ImportanceLoader", "ImportanceSampler"]
