"""Training as it goes: live bars on a terminal, a few plain lines in a log."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from salience.compare.report import numbers
from salience.compare.run import Row

__all__ = ["watch"]

LINES = 8  # in a log


def watch(rows: Iterable[Row], runs: dict[str, int], evaluations: int, to: Console) -> None:
    """Take the rows as they come and show how far each method is.

    ``runs`` has the number of runs of each method, seeds x budgets; each run is evaluated before
    its first step and ``evaluations`` times after it.
    """
    (_live if to.is_terminal else _lines)(rows, runs, evaluations, to)


def _live(rows: Iterable[Row], runs: dict[str, int], evaluations: int, to: Console) -> None:
    """One bar per method, with the step and the mean train loss of its seeds."""
    loss = TextColumn("step {task.fields[step]:<7} train loss {task.fields[loss]:<9}")
    columns = (TextColumn("{task.description:>10}"), BarColumn(), TaskProgressColumn(), loss)
    latest: dict[str, dict[int, Row]] = defaultdict(dict)
    with Progress(*columns, TimeRemainingColumn(), console=to) as progress:
        bars = {
            name: progress.add_task(name, total=(evaluations + 1) * count, step=0, loss="")
            for name, count in runs.items()
        }
        for row in rows:
            name = row["method"]
            latest[name][row["seed"]] = row
            shown = _loss(latest[name].values())
            progress.update(bars[name], advance=1, step=row["step"], loss=shown)


def _lines(rows: Iterable[Row], runs: dict[str, int], evaluations: int, to: Console) -> None:
    """A line whenever another part of all evaluations is done."""
    latest: dict[tuple[str, int], Row] = {}
    total, told = (evaluations + 1) * sum(runs.values()), 0
    for done, row in enumerate(rows, start=1):
        latest[row["method"], row["seed"]] = row
        part = done * LINES // total
        if part > told and {method for method, _ in latest} == {*runs}:
            told = part
            to.print(_line([*latest.values()], runs), highlight=False)


def _line(latest: list[Row], runs: Iterable[str]) -> str:
    losses = (f"{name} {_loss(r for r in latest if r['method'] == name):<8}" for name in runs)
    step = round(fmean(row["step"] for row in latest))
    budget = latest[0].get("budget")
    within = "" if budget is None else f"budget {budget:<4g}   "
    return f"{within}step {step:>6}   train loss: {'   '.join(losses)}".rstrip()


def _loss(rows: Iterable[Row]) -> str:
    return numbers.loss(fmean(row["train_loss"] for row in rows))
