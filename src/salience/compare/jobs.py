"""A plan in several processes, each with some of its seeds."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from salience.compare.plan import Plan, train
from salience.compare.run import Row
from salience.compare.user_code import debugging
from salience.errors import SalienceError

__all__ = ["train_in_processes"]


def train_in_processes(plan: Plan, shares: list[tuple[int, ...]], out: Path) -> Iterator[Row]:
    """One process of one thread for each share of the seeds; rows as they come."""
    context = multiprocessing.get_context("spawn")
    queue: Queue[Any] = context.Queue()
    workers = [
        context.Process(
            target=_work,
            args=(plan, share, out, queue, os.getpid(), multiprocessing.get_start_method()),
        )
        for share in shares
    ]
    with _deaf():
        for worker in workers:
            worker.start()
    try:
        yield from _received(queue, workers)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that are started here do not hear Ctrl-C: the one who started them ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _received(queue: "Queue[Any]", workers: list[Any]) -> Iterator[Row]:
    """Rows until all workers are done; a worker that fails ends everything."""
    running = len(workers)
    while running:
        try:
            kind, value = queue.get(timeout=1.0)
        except Empty:
            if dead := [worker.exitcode for worker in workers if worker.exitcode]:
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
    plan: Plan,
    seeds: tuple[int, ...],
    out: Path,
    queue: "Queue[Any]",
    parent: int,
    start_method: str,
) -> None:
    torch.set_num_threads(1)
    # Else the workers of a DataLoader would be spawned too: slow, and not for every dataset.
    multiprocessing.set_start_method(start_method, force=True)
    try:
        for row in train(plan, seeds, out):
            queue.put(("row", row))
            if os.getppid() != parent:  # nobody receives the rows any more
                return
        queue.put(("done", None))
    except SalienceError as error:
        if debugging():
            traceback.print_exception(error)
        queue.put(("refused", str(error)))
