"""Training runs that compare methods, and what they measured: rows, summaries and files."""

from salience.compare.training import Method, Row, Run, Task

__all__ = ["Method", "Row", "Run", "Task"]
