"""Several ranks on this machine: each a process of its own, with gloo between them.

Functions that run on ranks are named by module, for they run in other processes.
"""

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Children are forked from a process that has imported torch and done nothing else: quick, and
# without the threads of this one.
CONTEXT = multiprocessing.get_context("forkserver")
# What DDP and FSDP2 load when they are first used takes seconds in each of them.
CONTEXT.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint", "salience"]
)


def on_ranks(world: int, function: Callable[..., Any], *args: Any, timeout: float = 120) -> list:
    """What ``function(rank, *args)`` returns on each of ``world`` ranks, in order."""
    with tempfile.TemporaryDirectory() as folder:
        results = CONTEXT.Queue()
        start = (world, Path(folder) / "store", results, function, pickle.dumps(args))
        processes = [CONTEXT.Process(target=_run, args=(rank, *start)) for rank in range(world)]
        for process in processes:
            process.start()
        try:
            found = dict(results.get(timeout=timeout) for _ in range(world))
        finally:
            for process in processes:
                process.join(10)
                process.kill()
    failed = [text for text in found.values() if isinstance(text, Failure)]
    if failed:
        raise AssertionError("\n".join(failed))
    return [pickle.loads(found[rank]) for rank in range(world)]


class Failure(str):
    """The traceback of a rank that failed."""


def _run(
    rank: int, world: int, store: Path, results: Any, function: Callable[..., Any], args: bytes
) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=60),
        )
        # By value: the queue would hand over open files for tensors, which end with this process.
        results.put((rank, pickle.dumps(function(rank, *pickle.loads(args)))))
        dist.destroy_process_group()
    except BaseException:
        results.put((rank, Failure(f"rank {rank}: {traceback.format_exc()}")))
