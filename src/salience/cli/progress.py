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


def watch(
    rows: Iterable[Row], runs: dict[str, int], evaluations: int, to: Console
) -> Iterator[Row]:
    """Pass the rows on and show how far each method is.

    ``runs`` has the number of seeds of each method; each run is evaluated before its first step
    and ``evaluations`` times after it.
    """
    show = _live if to.is_terminal else _lines
    return show(rows, runs, evaluations, to)


def _live(
    rows: Iterable[Row], runs: dict[str, int], evaluations: int, to: Console
) -> Iterator[Row]:
    """One bar per method, with the step and the mean train loss of its seeds."""
    latest: dict[str, dict[int, Row]] = {name: {} for name in runs}
    with _bars(to) as progress:
        bars = {
            name: progress.add_task(name, total=(evaluations + 1) * seeds, step=0, loss="")
            for name, seeds in runs.items()
        }
        for row in rows:
            seeds = latest[row["method"]]
            seeds[row["seed"]] = row
            loss = _loss(seeds.values())
            progress.update(bars[row["method"]], advance=1, step=row["step"], loss=loss)
            yield row


def _bars(to: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>10}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("step {task.fields[step]:<7} train loss {task.fields[loss]:<9}"),
        TimeRemainingColumn(),
        console=to,
    )


def _lines(
    rows: Iterable[Row], runs: dict[str, int], evaluations: int, to: Console
) -> Iterator[Row]:
    """A line whenever every run has come another part of the way."""
    count: Counter[tuple[str, int]] = Counter()
    at: dict[int, list[Row]] = {}
    told = 0
    for row in rows:
        evaluation = count[row["method"], row["seed"]]
        count[row["method"], row["seed"]] += 1
        group = at.setdefault(evaluation, [])
        group.append(row)
        part = evaluation * LINES // evaluations
        if len(group) == sum(runs.values()) and part > told:
            told = part
            to.print(_line(group, runs), highlight=False)
        yield row


def _line(group: list[Row], runs: dict[str, int]) -> str:
    losses = (f"{name} {_loss(r for r in group if r['method'] == name):<8}" for name in runs)
    step = round(fmean(row["step"] for row in group))
    return f"step {step:>6}   train loss: {'   '.join(losses)}".rstrip()


def _loss(rows: Iterable[Row]) -> str:
    return numbers.loss(fmean(row["train_loss"] for row in rows))
