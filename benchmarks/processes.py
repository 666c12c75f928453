"""Measure in processes of their own: one with a time limit, or several ranks with gloo."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["OverLimitError", "alone", "on_ranks"]

# Memory that was freed before would hide some of what is measured: nothing is forked.
CONTEXT = multiprocessing.get_context("spawn")


class OverLimitError(Exception):
    """The processes were ended, because they took too long."""


def alone(function: Callable[..., Any], *args: Any, limit: float) -> Any:
    """What ``function(*args)`` returns in a process of its own, within ``limit`` seconds."""
    return _results([(function, args)], limit)[0]


def on_ranks(world: int, function: Callable[..., Any], *args: Any, limit: float) -> list[Any]:
    """What ``function(rank, *args)`` returns on each of ``world`` ranks of one process group."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        calls = [(_rank, (rank, world, store, function, args)) for rank in range(world)]
        return _results(calls, limit)


def _rank(rank: int, world: int, store: Path, function: Callable[..., Any], args: Any) -> Any:
    pin(rank)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(minutes=30),
    )
    try:
        return function(rank, *args)
    finally:
        dist.destroy_process_group()


def pin(rank: int) -> None:
    """To one core, where the system can: ranks then do not move between cores."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def _results(calls: list[tuple[Callable[..., Any], Any]], limit: float) -> list[Any]:
    """In order. The first that fails ends all."""
    end = time.monotonic() + limit
    pipes = [CONTEXT.Pipe(duplex=False) for _ in calls]
    processes = [
        CONTEXT.Process(target=_run, args=(sender, *call))
        for (_, sender), call in zip(pipes, calls, strict=True)
    ]
    try:
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()  # so that the end of the process is the end of the pipe
        return _collected([pipe for pipe, _ in pipes], processes, end)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _collected(pipes: list[Connection], processes: list[Any], end: float) -> list[Any]:
    found: dict[int, Any] = {}
    while len(found) < len(pipes):
        pending = [pipe for i, pipe in enumerate(pipes) if i not in found]
        ready = wait(pending, max(end - time.monotonic(), 0))
        if not ready:
            raise OverLimitError
        for i in (pipes.index(pipe) for pipe in ready):  # type: ignore[arg-type]
            found[i] = _received(pipes[i], processes[i])
    return [found[i] for i in range(len(pipes))]


def _received(pipe: Connection, process: Any) -> Any:
    try:
        found = pipe.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"the process ended with exit code {process.exitcode}") from None
    if isinstance(found, Exception):
        raise found
    return found


def _run(pipe: Connection, function: Callable[..., Any], args: Any) -> None:
    torch.set_num_threads(1)
    try:
        pipe.send(function(*args))
    except Exception as error:
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
