"""Comparisons: every method with every seed, side by side, resumable after a kill at any point.

Each run has one file, ``state/METHOD-SEED.pt``: its rows so far together with the state that
produced them. ``runs.jsonl`` is written from those files in the end, in the order of methods and
seeds, so an interrupted comparison ends with the same rows as an uninterrupted one.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from salience import ImportanceLoader
from salience.compare import directory
from salience.compare.budgets import summarize_all
from salience.compare.check import Checked, check_task
from salience.compare.directory import RunFile
from salience.compare.lock import locked
from salience.compare.measures import describe
from salience.compare.methods import make_method
from salience.compare.recorded import HISTORY, Recorded, default_method
from salience.compare.run import Row, Run, warm_up
from salience.compare.task import Task
from salience.compare.user_code import user_code
from salience.errors import ArgumentError

__all__ = [
    *("Observer", "Plan", "budgets_from", "compare", "finish", "rows_on_disk", "seeds_from"),
    *("start", "train"),
]

CHECKPOINT_SECONDS = 20.0
HARDEST = 12
MOST_SEEDS = 100
LARGEST_SEED = 2**32 - 1

Observer = Callable[[Run], dict[str, Any]]
"""Further measurements at an evaluation, as plain values; they are saved beside the row."""


@dataclass(frozen=True)
class Plan:
    """What is compared. Plain values, so that it can be written down and sent to a process.

    Exactly one of ``steps`` and ``seconds`` is the length of each run. ``budgets``: train within
    these shares of it too, ascending to 1, each with the whole schedule; None: only with all of
    it. ``make_task`` and ``observe`` are functions that a new process can import.
    """

    make_task: Callable[[], Task]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int | None = None
    seconds: float | None = None
    evaluations: int = 50
    threads: int | None = None
    observe: Observer | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    budgets: tuple[float, ...] | None = None

    @property
    def shares(self) -> tuple[float, ...]:
        """The budgets, ascending; 1 alone where there are none."""
        return self.budgets or (1.0,)

    def length(self, share: float) -> dict[str, Any]:
        """The arguments of a run within this share of the whole."""
        return {
            "steps": None if self.steps is None else max(1, round(share * self.steps)),
            "seconds": None if self.seconds is None else share * self.seconds,
            "budget": None if self.budgets is None else share,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """For ``config.json``."""
        return {
            "methods": self.methods,
            "seed": self.seeds[0],
            "seeds": self.seeds,
            "steps": self.steps,
            "seconds": self.seconds,
            "budgets": self.budgets,
            "evaluations": self.evaluations,
        }

    def expected_seconds(self, checked: Checked, jobs: int = 1) -> float:
        """The time that all of it takes, by what the first look found."""
        return checked.expected_seconds(
            seeds=len(self.seeds),
            evaluations=self.evaluations,
            steps=self.steps,
            seconds=self.seconds,
            shares=self.shares,
            jobs=jobs,
        )

    def check(self, jobs: int = 1) -> None:
        """Refuse what cannot be run before anything is trained."""
        if jobs < 1:
            raise ArgumentError(f"jobs must be at least 1; got {jobs}")
        if (self.steps is None) == (self.seconds is None):
            raise ArgumentError(
                "a comparison has a number of steps or of seconds: give one of them"
            )
        for name in ("steps", "seconds", "evaluations"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ArgumentError(f"{name} must be greater than 0; got {value}")
        for spec in self.methods:
            make_method(spec)


def budgets_from(text: str) -> tuple[float, ...]:
    """``"0.25,0.5"`` as shares in ascending order; the whole, 1, is always one of them."""
    try:
        shares = {float(each) for each in text.split(",")}
    except ValueError:
        shares = {0.0}
    if not all(0 < share <= 1 for share in shares):
        raise ArgumentError(
            f"budgets must be shares above 0 and at most 1, such as 0.25,0.5,0.75,1; got {text!r}"
        )
    return tuple(sorted({*shares, 1.0}))


def seeds_from(first: int, count: int) -> tuple[int, ...]:
    """``count`` seeds from ``first`` on."""
    if not 1 <= count <= MOST_SEEDS:
        raise ArgumentError(f"seeds must be between 1 and {MOST_SEEDS}; got {count}: try --seeds 3")
    if not 0 <= first <= LARGEST_SEED - count:
        raise ArgumentError(
            f"seed must be between 0 and {LARGEST_SEED - count}; got {first}: try --seed 0"
        )
    return tuple(range(first, first + count))


# ------------------------------------------------------------------------------ a run directory


@contextmanager
def start(
    plan: Plan,
    out: Path,
    settings: Mapping[str, Any],
    *,
    jobs: int = 1,
    resume: bool = False,
    replace: bool | None = None,
    told: Callable[[Checked], None] | None = None,
) -> Iterator[Iterator[Row]]:
    """Check everything, write ``config.json``, and give the rows, which are saved as they come.

    Nothing is written before everything is checked, and nobody else writes to ``out`` meanwhile.
    ``settings`` are written into the configuration as they are. ``told`` is given what the first
    look at the task found, before training begins.
    """
    plan.check(jobs)
    wanted: dict[str, Any] = {"resume": resume, "replace": replace}
    directory.permit(out, {**settings, **plan.settings}, **wanted)  # before a task that takes long
    task = plan.make_task()
    with _threads(plan.threads):
        checked = check_task(task, map(make_method, plan.methods), seconds=plan.seconds)
    with locked(out):
        with _threads(plan.threads):
            directory.begin(out, _config(plan, task, settings, jobs), **wanted)
        directory.write_rows(out, ())
        if told is not None:
            told(checked)
        going = compare(plan, out, jobs)
        try:
            yield (directory.add_row(out, row) for row in going)
        finally:
            going.close()  # now, while nobody else may write


def _config(plan: Plan, task: Task, settings: Mapping[str, Any], jobs: int) -> dict[str, Any]:
    optimizer = task.optimizer(task.network().parameters())
    return {
        **settings,
        **plan.settings,
        "train_examples": len(task.train),  # type: ignore[arg-type]
        "batch_size": task.batch_size,
        "device": str(task.place),
        "amp": task.amp,
        "optimizer": {
            "name": type(optimizer).__name__,
            "learning_rate": float(optimizer.param_groups[0]["lr"]),
        },
        **describe(task.measures, ("test", *(("validation",) if task.validation else ()))),
        "jobs": jobs,
    }


def finish(plan: Plan, out: Path) -> None:
    """Put the rows in order, summarise them, and save the hardest examples."""
    rows, task = rows_on_disk(out, plan), plan.make_task()
    directory.write_rows(out, rows)
    primary = task.measures[0]
    found = summarize_all(rows, plan.methods[0], f"test_{primary.name}", primary.better)
    directory.write(out / "summary.json", found)
    directory.write(out / "hardest.json", _hardest_shown(out, plan, task))


def rows_on_disk(out: Path, plan: Plan) -> list[Row]:
    """All rows that are saved, budgets, methods and seeds in the plan's order."""
    return [
        row
        for share in plan.shares
        for method in plan.methods
        for seed in plan.seeds
        for row in RunFile(out, method, seed, share).rows
    ]


def _hardest_shown(out: Path, plan: Plan, task: Task) -> dict[str, Any]:
    """The hardest training examples of each method's first seed, as pictures or text."""
    seed = plan.seeds[0]
    files = {method: RunFile(out, method, seed) for method in plan.methods}
    steps = [row["step"] for row in files[plan.methods[0]].rows]
    methods = {
        method: [{**each, "seed": seed, **_shown(task, each["index"])} for each in file.hardest]
        for method, file in files.items()
    }
    return {"steps": steps, "methods": methods}


def _shown(task: Task, index: int) -> dict[str, Any]:
    shown = None if task.show is None else task.show(index)
    if isinstance(shown, Tensor):
        return {"image": (shown * 255).round().clamp(0, 255).to(torch.uint8).tolist()}
    return {} if shown is None else {"text": str(shown)}


# --------------------------------------------------------------------------------------- training


def compare(plan: Plan, out: Path, jobs: int = 1) -> Generator[Row, None, None]:
    """Run the plan, or what remains of it, and yield each row as it is measured.

    One process advances all runs together, block by block. With more ``jobs``, seeds are
    distributed over processes of one thread each; the methods of a seed stay together.
    """
    from salience.compare.jobs import train_in_processes

    plan.check(jobs)
    shares = [plan.seeds[job::jobs] for job in range(jobs) if plan.seeds[job::jobs]]
    if len(shares) > 1:
        yield from train_in_processes(plan, shares, out)
        return
    with _threads(plan.threads):
        yield from train(plan, plan.seeds, out)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """So many threads for torch, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(plan: Plan, seeds: Sequence[int], out: Path) -> Iterator[Row]:
    """All methods with these seeds, in this process, the smallest budget first."""
    make_task = cache(plan.make_task)
    for share in plan.shares:
        yield from _train_within(share, plan, make_task, seeds, out)


def _train_within(
    share: float, plan: Plan, make_task: Callable[[], Task], seeds: Sequence[int], out: Path
) -> Iterator[Row]:
    """All methods with these seeds, within this share of the whole length.

    Runs are interleaved block by block, so that a slow moment of the machine affects all alike,
    and the order is reversed after each block, so that no run always comes first.
    """
    keys = [(seed, name) for seed in seeds for name in plan.methods]
    files = {(seed, name): RunFile(out, name, seed, share) for seed, name in keys}
    for file in files.values():
        yield from file.rows
    todo = [key for key, file in files.items() if not file.finished]
    if not todo:
        return
    task = make_task()
    methods = {name: make_method(name) for _, name in todo}
    warm_up(task, methods.values(), plan.seconds)
    runs = {
        (seed, name): Run(task, methods[name], seed, **plan.length(share)) for seed, name in todo
    }
    _record_losses(runs, plan, share)
    for key, run in runs.items():
        if (state := files[key].state) is not None:
            run.load_state_dict(state)
            files[key].state = None  # it may be large
    busy = None  # in the middle of training or evaluation
    try:
        for block in range(plan.evaluations + 1):
            for key in todo if block % 2 == 0 else reversed(todo):
                if len(files[key].rows) <= block:
                    busy = key
                    with user_code(f"training with {key[1]}", always=False):
                        runs[key].advance_to(block / plan.evaluations)
                        row = _record(runs[key], files[key], plan)
                    busy = None
                    yield row
    except (KeyboardInterrupt, GeneratorExit):  # a user who stops here loses no more than one block
        for key, run in runs.items():
            if key != busy and not files[key].finished:
                files[key].save(run.state_dict())
        raise


def _record_losses(runs: Mapping[tuple[int, str], Run], plan: Plan, share: float) -> None:
    """Of each example, in the first run of the default method, for ``salience insight``."""
    if plan.observe is not None:  # which looks at the loaders themselves
        return
    run = runs.get((plan.seeds[0], default_method(plan.methods)))
    if run is not None and share == plan.shares[-1] and isinstance(run.loader, ImportanceLoader):
        run.loader = Recorded(run.loader)


def _record(run: Run, file: RunFile, plan: Plan) -> Row:
    """Evaluate; save the run at the end, and when it was not saved for a while."""
    row = run.evaluate()
    file.rows.append(row)
    file.curves.append(run.train_losses.float())
    if plan.observe is not None:
        file.observed.append(plan.observe(run))
    ended = len(file.rows) > plan.evaluations
    if not (ended or file.age() >= plan.checkpoint_seconds):
        return row
    if isinstance(run.loader, Recorded):  # first: a finished run is not trained again
        run.loader.history().save(file.path.with_name(HISTORY.name))
    if ended:
        file.hardest, file.curves, file.finished = _hardest(run, file.curves), [], True
    file.save(None if ended else run.state_dict())
    return row


def _hardest(run: Run, curves: list[Tensor]) -> list[dict[str, Any]]:
    """The examples with the largest losses at the end, and their losses at each evaluation."""
    values, places = run.train_losses.topk(min(HARDEST, len(run.train_losses)))
    history = torch.stack(curves)[:, places]
    return [
        {"index": run.train_index(int(at)), "loss": float(value), "history": history[:, i].tolist()}
        for i, (at, value) in enumerate(zip(places, values, strict=True))
    ]
