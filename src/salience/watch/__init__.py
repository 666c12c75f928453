"""A training as it goes: ``salience watch DIR`` shows what a ``Log`` or a comparison writes."""

from salience.watch.log import Log

__all__ = ["Log"]
