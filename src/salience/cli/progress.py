"""Training as it goes: live bars on a terminal, a few plain lines in a log."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from statistics import fmean
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from salience.compare.report import numbers
from salience.compare.run import Row

__all__ = ["say", "watch"]

LINES = 8  # in a log
NAME = 24  # characters of a name beside its bar; longer ones take several lines
ABOUT = 44  # characters beside a bar
AT_ONCE = 0.002  # seconds: rows that come faster were read and not measured
ALL = "all runs"


def watch(rows: Iterable[Row], runs: Mapping[str, int], evaluations: int, to: Console) -> None:
    """Take the rows as they come and show how far each method is.

    ``runs`` has the number of runs of each method, seeds x budgets; each run is evaluated before
    its first step and ``evaluations`` times after it.
    """
    counted = _Counted(runs, evaluations)
    (_live if to.is_terminal else _lines)(counted, rows, to)


def say(to: Console, line: str) -> None:
    """A line as it is."""
    # soft_wrap: a path cut in two cannot be clicked or copied
    to.print(line, highlight=False, markup=False, soft_wrap=True)


@final
class _Counted:
    """What has come so far: evaluations, finished runs, and what each run measured last."""

    def __init__(self, runs: Mapping[str, int], evaluations: int) -> None:
        self.runs, self.each = runs, evaluations + 1
        self.total, self.done = self.each * sum(runs.values()), 0
        self._rows: dict[tuple[str, int, float], int] = defaultdict(int)
        self._latest: dict[str, dict[int, Row]] = {name: {} for name in runs}
        self._began = self._since = self._last = time.monotonic()
        self._read = 0

    def add(self, row: Row) -> None:
        now = time.monotonic()
        self.done += 1
        self._rows[row["method"], row["seed"], row.get("budget", 1.0)] += 1
        self._latest[row["method"]][row["seed"]] = row
        if now - self._last < AT_ONCE:  # after a resumption: they say nothing about time
            self._since, self._read = now, self.done
        self._last = now

    def all(self) -> str:
        """ "5 of 12 runs done, 31% in 40 s, 90 s left"."""
        finished = sum(count >= self.each for count in self._rows.values())
        now = time.monotonic()
        share, passed = numbers.percent(self.done / self.total), numbers.duration(now - self._began)
        text = f"{finished} of {sum(self.runs.values())} runs done, {share} in {passed}"
        measured = self.done - self._read
        if not measured or self.done == self.total:
            return text
        left = (self.total - self.done) * (self._last - self._since) / measured
        return f"{text}, {numbers.duration(max(left - (now - self._last), 0.0))} left"

    def method(self, name: str) -> str:
        """ "step 1,200  train loss 0.0123"."""
        if not self._latest[name]:
            return ""
        return f"step {self.step([name]):<7,} train loss {self.loss(name)}"

    def loss(self, name: str) -> str:
        """The mean train loss of the seeds."""
        return numbers.loss(fmean(row["train_loss"] for row in self._latest[name].values()))

    def step(self, names: Iterable[str]) -> int:
        return round(fmean(r["step"] for name in names for r in self._latest[name].values()))

    def budget(self) -> str:
        """The budget of the runs, where there are several."""
        row = next(iter(next(iter(self._latest.values())).values()))
        return f"budget {row['budget']:g}: " if "budget" in row else ""

    @property
    def begun(self) -> bool:
        """Whether each method has been measured."""
        return all(self._latest.values())


# ---------------------------------------------------------------------------------- on a terminal


class _About(ProgressColumn):
    """Text that is asked for each time it is shown, as time goes on between rows."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["about"]())


def _live(counted: _Counted, rows: Iterable[Row], to: Console) -> None:
    """A bar for all runs, and one per method with its step and the mean train loss of its seeds."""
    width = max(map(len, (*counted.runs, ALL)))
    names = Column(overflow="fold", width=min(width, NAME))
    bar = max(6, min(40, to.width - min(width, NAME) - ABOUT - 4))
    columns = (
        TextColumn("{task.description}", markup=False, table_column=names),
        BarColumn(bar),
        _About(table_column=Column(overflow="fold")),
    )
    with Progress(*columns, console=to) as progress:
        whole = progress.add_task(ALL, total=counted.total, about=counted.all)
        bars = {
            name: progress.add_task(
                name, total=counted.each * count, about=partial(counted.method, name)
            )
            for name, count in counted.runs.items()
        }
        for row in rows:
            counted.add(row)
            progress.advance(whole)
            progress.advance(bars[row["method"]])


# --------------------------------------------------------------------------------------- in a log


def _lines(counted: _Counted, rows: Iterable[Row], to: Console) -> None:
    """A line whenever another part of all evaluations is done."""
    told = 0
    for row in rows:
        counted.add(row)
        part = counted.done * LINES // counted.total
        if part > told and counted.begun:
            told = part
            losses = ", ".join(f"{name} {counted.loss(name)}" for name in counted.runs)
            step = f"{counted.budget()}step {counted.step(counted.runs):,}"
            say(to, f"{counted.all()}; {step}, train loss: {losses}")
