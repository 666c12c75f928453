"""Training as it goes: live bars on a terminal, a few plain lines in a log."""

from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from salience.compare.report import numbers
from salience.compare.run import Row

__all__ = ["watch"]

LINES = 8  # in a log

Latest = dict[str, dict[int, Row]]
"""The last row of each run, by method and seed."""


def watch(
    rows: Iterable[Row], runs: dict[str, int], evaluations: int, to: Console
) -> Iterator[Row]:
    """Pass the rows on and show how far each method is.

    ``runs`` has the number of seeds of each method; each run is evaluated before its first step
    and ``evaluations`` times after it.
    """
    latest: Latest = {name: {} for name in runs}
    show = _live if to.is_terminal else _lines
    for row in show(rows, latest, runs, evaluations, to):
        latest[row["method"]][row["seed"]] = row
        yield row


def _live(
    rows: Iterable[Row], latest: Latest, runs: dict[str, int], evaluations: int, to: Console
) -> Iterator[Row]:
    """One bar per method, with the step and the mean train loss of its seeds."""
    loss = TextColumn("step {task.fields[step]:<7} train loss {task.fields[loss]:<9}")
    columns = (TextColumn("{task.description:>10}"), BarColumn(), TaskProgressColumn(), loss)
    with Progress(*columns, TimeRemainingColumn(), console=to) as progress:
        bars = {
            name: progress.add_task(name, total=(evaluations + 1) * seeds, step=0, loss="")
            for name, seeds in runs.items()
        }
        for row in rows:
            yield row
            shown = _loss(latest[row["method"]].values())
            progress.update(bars[row["method"]], advance=1, step=row["step"], loss=shown)


def _lines(
    rows: Iterable[Row], latest: Latest, runs: dict[str, int], evaluations: int, to: Console
) -> Iterator[Row]:
    """A line whenever every run has completed another part of its evaluations."""
    count: Counter[tuple[str, int]] = Counter()
    told = 0
    for row in rows:
        yield row
        count[row["method"], row["seed"]] += 1
        part = (min(count.values()) - 1) * LINES // evaluations
        if len(count) == sum(runs.values()) and part > told:
            told = part
            to.print(_line(latest), highlight=False)


def _line(latest: Latest) -> str:
    losses = (f"{name} {_loss(seeds.values()):<8}" for name, seeds in latest.items())
    step = round(fmean(row["step"] for seeds in latest.values() for row in seeds.values()))
    return f"step {step:>6}   train loss: {'   '.join(losses)}".rstrip()


def _loss(rows: Iterable[Row]) -> str:
    return numbers.loss(fmean(row["train_loss"] for row in rows))
