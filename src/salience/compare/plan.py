"""Comparisons: every method with every seed, side by side, resumable after a kill at any point.

Each run keeps one file, ``state/METHOD-SEED.pt``, replaced atomically: its rows so far together
with the state that produced them. ``runs.jsonl`` is always written from those files, in the order
of methods and seeds, so an interrupted comparison ends with the same rows as an uninterrupted one.
"""

import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, final

import torch

from salience.compare.methods import make_method
from salience.compare.training import Method, Row, Run, Task, warm_up
from salience.errors import ArgumentError, SalienceError

__all__ = ["Observer", "Plan", "RunFile", "compare", "rows_on_disk"]

CHECKPOINT_SECONDS = 20.0
HARDEST = 12

Observer = Callable[[Run], dict[str, Any]]
"""Further measurements at an evaluation, as plain values; they are kept beside the row."""


@dataclass(frozen=True)
class Plan:
    """What is compared. Plain values, so that it can be written down and sent to a process.

    Exactly one of ``steps`` and ``seconds`` is the length of each run. ``make_task`` and
    ``observe`` are functions that a new process can import.
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


@final
class RunFile:
    """One run on the disk: its rows and, until it is finished, the state to go on from."""

    def __init__(self, directory: Path, method: str, seed: int) -> None:
        plain = re.sub(r"[^\w=.-]+", "_", method)
        self.path = directory / "state" / f"{plain}-{seed}.pt"
        self.rows: list[Row] = []
        self.observed: list[dict[str, Any]] = []
        self.curves: list[torch.Tensor] = []  # [probe] train losses of each evaluation
        self.hardest: list[dict[str, Any]] = []
        self.finished = False
        self._saved = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """Read what is there; the state of an unfinished run."""
        if not self.path.exists():
            return None
        saved = torch.load(self.path, weights_only=True)
        self.rows, self.observed = saved["rows"], saved["observed"]
        self.curves, self.hardest = saved["curves"], saved["hardest"]
        self.finished = saved["finished"]
        state: dict[str, Any] | None = saved["state"]
        return state

    def add(self, run: Run, plan: Plan, *, last: bool) -> None:
        """Evaluate ``run``; save it when it is the last time, or has been long unsaved."""
        self.rows.append(run.evaluate())
        self.curves.append(run.train_losses.float())
        if plan.observe is not None:
            self.observed.append(plan.observe(run))
        if last:
            self.hardest, self.curves, self.finished = _hardest(run, self.curves), [], True
        if last or time.monotonic() - self._saved >= plan.checkpoint_seconds:
            self._save(None if last else run.state_dict())

    def _save(self, state: dict[str, Any] | None) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "rows": self.rows,
            "observed": self.observed,
            "curves": self.curves,
            "hardest": self.hardest,
            "finished": self.finished,
            "state": state,
        }
        partial = self.path.with_suffix(f".{os.getpid()}.part")
        torch.save(content, partial)
        partial.replace(self.path)
        self._saved = time.monotonic()


def rows_on_disk(directory: Path, plan: Plan) -> list[Row]:
    """All rows that are safe, methods and seeds in the plan's order."""
    rows: list[Row] = []
    for method in plan.methods:
        for seed in plan.seeds:
            file = RunFile(directory, method, seed)
            file.load()
            rows += file.rows
    return rows


def compare(plan: Plan, directory: Path, jobs: int = 1) -> Iterator[Row]:
    """Run the plan, or what is left of it, and yield each row as it is measured.

    One process takes all runs along together, block by block. With ``jobs`` more than one, seeds
    are shared out among processes of one thread each; within a seed, methods still take turns.
    """
    plan.check(jobs)
    shares = [plan.seeds[job::jobs] for job in range(jobs) if plan.seeds[job::jobs]]
    if len(shares) == 1:
        yield from _take_turns(plan, plan.seeds, directory)
    else:
        yield from _side_by_side(plan, shares, directory)


def _take_turns(plan: Plan, seeds: Sequence[int], directory: Path) -> Iterator[Row]:
    before = torch.get_num_threads()
    torch.set_num_threads(plan.threads or before)
    try:
        yield from _train(plan, seeds, directory)
    finally:
        torch.set_num_threads(before)


def _train(plan: Plan, seeds: Sequence[int], directory: Path) -> Iterator[Row]:
    task = plan.make_task()
    methods = {spec: make_method(spec) for spec in plan.methods}
    files = {(s, m): RunFile(directory, m, s) for s in seeds for m in plan.methods}
    states = {key: file.load() for key, file in files.items()}
    for file in files.values():
        yield from file.rows
    todo = [key for key, file in files.items() if not file.finished]
    if not todo:
        return
    warm_up(task, {spec: methods[spec] for _, spec in todo}.values())
    runs = {key: _make_run(plan, task, methods[key[1]], key[0], states[key]) for key in todo}
    states.clear()
    for block in range(plan.evaluations + 1):
        for key in todo if block % 2 == 0 else reversed(todo):
            if len(files[key].rows) <= block:
                _advance(runs[key], plan, block)
                last = block == plan.evaluations
                files[key].add(runs[key], plan, last=last)
                yield files[key].rows[-1]


def _make_run(
    plan: Plan, task: Task, method: Method, seed: int, state: dict[str, Any] | None
) -> Run:
    run = Run(task, method, seed, steps=plan.steps, seconds=plan.seconds)
    if state is not None:
        run.load_state_dict(state)
    return run


def _advance(run: Run, plan: Plan, block: int) -> None:
    """Train up to the evaluation number ``block``; 0 is before the first step."""
    share = block / plan.evaluations
    if plan.steps is not None:
        run.advance(round(share * plan.steps) - run.step)
        return
    assert plan.seconds is not None
    while run.seconds < share * plan.seconds:
        run.advance(1)


def _hardest(run: Run, curves: list[torch.Tensor]) -> list[dict[str, Any]]:
    """The examples with the largest losses at the end, and their losses at each evaluation."""
    values, places = run.train_losses.topk(min(HARDEST, len(run.train_losses)))
    history = torch.stack(curves)[:, places]
    return [
        {"index": run.train_index(int(at)), "loss": float(value), "history": history[:, i].tolist()}
        for i, (at, value) in enumerate(zip(places, values, strict=True))
    ]


def _side_by_side(plan: Plan, shares: list[tuple[int, ...]], directory: Path) -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    queue: Queue[Any] = context.Queue()
    workers = [
        context.Process(target=_work, args=(plan, share, directory, queue, os.getpid()))
        for share in shares
    ]
    for worker in workers:
        worker.start()
    try:
        yield from _received(queue, workers)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _received(queue: "Queue[Any]", workers: list[Any]) -> Iterator[Row]:
    """Rows from the workers until all of them are done; a worker that fails ends everything."""
    running = len(workers)
    while running:
        try:
            kind, value = queue.get(timeout=1.0)
        except Exception:  # queue.Empty: look whether somebody died without a word
            dead = [w.exitcode for w in workers if w.exitcode not in (None, 0)]
            if dead:
                raise SalienceError(
                    f"a worker process ended with status {dead[0]}: run again with --resume"
                ) from None
            continue
        if kind == "row":
            yield value
        elif kind == "refused":
            raise SalienceError(value)
        else:
            running -= 1


def _work(
    plan: Plan, seeds: tuple[int, ...], directory: Path, queue: "Queue[Any]", parent: int
) -> None:
    torch.set_num_threads(1)
    try:
        for row in _train(plan, seeds, directory):
            queue.put(("row", row))
            if os.getppid() != parent:  # nobody is listening any more
                return
        queue.put(("done", None))
    except SalienceError as error:
        queue.put(("refused", str(error)))
