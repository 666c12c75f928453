"""Training as it goes: live bars on a terminal, a few plain lines in a log."""

from collections.abc import Iterable, Iterator
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from salience.experiments.training import Row
from salience.reports import numbers

__all__ = ["watch"]

LINES = 8  # in a log


def watch(rows: Iterable[Row], runs: dict[str, int], steps: int, to: Console) -> Iterator[Row]:
    """Pass the rows on and show how far each method is; ``runs`` has its number of seeds."""
    show = _live if to.is_terminal else _lines
    return show(rows, runs, steps, to)


def _live(rows: Iterable[Row], runs: dict[str, int], steps: int, to: Console) -> Iterator[Row]:
    """One bar per method, with the mean train loss of its seeds."""
    latest: dict[str, dict[int, Row]] = {name: {} for name in runs}
    with _bars(to) as progress:
        bars = {
            name: progress.add_task(name, total=steps * seeds, loss="")
            for name, seeds in runs.items()
        }
        for row in rows:
            seeds = latest[row["method"]]
            seeds[row["seed"]] = row
            done = sum(each["step"] for each in seeds.values())
            progress.update(bars[row["method"]], completed=done, loss=_loss(seeds.values()))
            yield row


def _bars(to: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps   train loss {task.fields[loss]:<9}"),
        TimeRemainingColumn(),
        console=to,
    )


def _lines(rows: Iterable[Row], runs: dict[str, int], steps: int, to: Console) -> Iterator[Row]:
    """A line whenever every run has come another part of the way."""
    at: dict[int, list[Row]] = {}
    told = 0
    for row in rows:
        group = at.setdefault(row["step"], [])
        group.append(row)
        part = row["step"] * LINES // steps
        if len(group) == sum(runs.values()) and part > told:
            told = part
            to.print(_line(row["step"], group, runs), highlight=False)
        yield row


def _line(step: int, group: list[Row], runs: dict[str, int]) -> str:
    losses = (f"{name} {_loss(r for r in group if r['method'] == name):<8}" for name in runs)
    return f"step {step:>6}   train loss: {'   '.join(losses)}".rstrip()


def _loss(rows: Iterable[Row]) -> str:
    return numbers.loss(fmean(row["train_loss"] for row in rows))
