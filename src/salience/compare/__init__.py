"""Does it pay: training runs that compare methods, and the report of what they measured."""

from salience.compare.measures import Measure
from salience.compare.methods import Method
from salience.compare.run import Row, Run
from salience.compare.task import Task

__all__ = ["Measure", "Method", "Row", "Run", "Task"]
