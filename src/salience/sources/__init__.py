"""Where the next examples come from: one file per way of drawing."""

from salience.sources.auto import AutoSource
from salience.sources.even import EvenIntervals
from salience.sources.passes import Passes, Strata
from salience.sources.pool import Choice, Pool
from salience.sources.protocol import Source
from salience.sources.rules import ByScore
from salience.sources.shard import Shard
from salience.sources.shuffled import Shuffled
from salience.sources.whole import WholeDataset
from salience.sources.worth import Worth

__all__ = [
    "AutoSource",
    "ByScore",
    "Choice",
    "EvenIntervals",
    "Passes",
    "Pool",
    "Shard",
    "Shuffled",
    "Source",
    "Strata",
    "WholeDataset",
    "Worth",
]
