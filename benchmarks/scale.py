"""Draws against the number of examples, beside what else draws; ranks; states. Up to 10^8 examples.

``draws``: one draw of G out of N and the losses that come back, without a network: Salience,
``torch.multinomial``, ``numpy.random.Generator.choice``, ``WeightedRandomSampler`` (made anew at
each step, or at each epoch), and two samplers without weights. Time per step, time to construct,
memory per example. What is done once per epoch is shared among the steps of the epoch in the mean,
and shows in the longest step.

``ranks``: the same on real ranks (gloo, one core each), with the gather of losses and without.

``state``: a checkpoint of all N examples, beside plain files of as many bytes.

Each case runs in a process of its own, on one thread. One that exceeds ``--limit`` is recorded as
such. Rows are appended to ``--rows``; cases that are there already are skipped, so an interrupted
benchmark resumes.

    python benchmarks/scale.py                                   # all, one to two hours
    python benchmarks/scale.py draws --batches 128 --methods history,auto:on --sizes 1e5,1e6
    python benchmarks/scale.py --table runs/scale/rows.jsonl     # Markdown
    python benchmarks/scale.py --table results/scale/rows.jsonl.gz --page docs/distributed-costs.md
    python benchmarks/scale.py --table results/scale/rows.jsonl.gz --figure results/scale/draws.png
"""

import argparse
import gc
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from contenders import BASELINES, OURS, contender
from costs import BATCH, DrawLoop, Seconds, check, forced, memory, progress, settle, timed
from processes import OverLimitError, alone, on_ranks
from scale_report import figure, read_rows, tables, write_page

from salience import Draw, checkpoint
from salience.compare.directory import environment
from salience.distributed import Gather

PARTS = ("draws", "ranks", "state")
SIZES = "1e5,1e6,1e7,1e8"
BATCHES = "128,1024,8192"
RANKS = (2, 8192, 10**7)  # ranks, their batch together, examples: the large batch of the tables
STATE = ("history", "auto:on")
LEAST = 3  # steps that are measured however long they take
PIECE = 2**23  # bytes of a plain file that are written at once


class Case(NamedTuple):
    """What identifies a row."""

    part: str
    method: str
    n: int
    batch: int
    ranks: int = 1

    def __str__(self) -> str:
        return f"{self.part}: {self.method}, N = {self.n:,}, G = {self.batch:,}"


# ------------------------------------------------------------------------------------------- times


def summary(times: list[Seconds]) -> dict[str, float]:
    """Of all steps: the mean by both clocks, the longest by the wall clock and by the shorter."""
    return {
        "mean_ms": 1e3 * fmean(step.wall for step in times),
        "median_ms": 1e3 * median(step.wall for step in times),
        "processor_ms": 1e3 * fmean(step.processor for step in times),
        "longest_ms": 1e3 * max(step.least for step in times),
        "longest_wall_ms": 1e3 * max(step.wall for step in times),
        "steps": len(times),
    }


def amortised(values: list[float], first: list[bool], epoch: int) -> float:
    """The mean over an epoch, of which one step is like those at ``first``, the rest like others.

    Where every step is alike (``epoch`` 1), the mean.
    """
    starts = [v for v, f in zip(values, first, strict=True) if f]
    others = [v for v, f in zip(values, first, strict=True) if not f]
    if not starts or not others:
        return fmean(values)
    return (fmean(starts) + (epoch - 1) * fmean(others)) / epoch


def over_epochs(times: list[Seconds], first: list[bool], epoch: int) -> dict[str, float]:
    """``summary``, with means over whole epochs."""
    found = summary(times)
    found["mean_ms"] = 1e3 * amortised([step.wall for step in times], first, epoch)
    found["processor_ms"] = 1e3 * amortised([step.processor for step in times], first, epoch)
    return {**found, "epoch": epoch}


# ------------------------------------------------------------------------------------------- draws


def draw_case(case: Case, steps: int, seconds: float) -> dict[str, Any]:
    """At most ``steps`` steps, for about ``seconds``; in a fresh process."""
    gc.disable()
    run_steps(case._replace(n=10 * BATCH, batch=BATCH), 10, 1)  # what torch allocates at first use
    before, started = memory(), time.perf_counter()
    loop = contender(case.method, case.n, case.batch)
    constructed = time.perf_counter() - started
    loop.prepare()
    prepared = time.perf_counter() - started
    found = run_steps(case, steps, seconds, loop)
    return {
        **found,
        "construction_seconds": constructed,
        "preparation_seconds": prepared - constructed,
        "bytes_per_example": (memory() - before) / case.n,
        "peak_bytes_per_example": (memory("VmHWM") - before) / case.n,
    }


def run_steps(case: Case, steps: int, seconds: float, loop: Any = None) -> dict[str, float]:
    loop = loop or contender(case.method, case.n, case.batch)
    times: list[Seconds] = []
    first: list[bool] = []
    end = math.inf
    with forced(case.method):
        while len(times) < steps and (len(times) < LEAST or time.perf_counter() < end):
            times.append(timed(loop.step))
            first.append(loop.first)
            # The first step may be that of a whole epoch: the others need their time too.
            end = min(end, time.perf_counter() + seconds)
    return over_epochs(times, first, loop.epoch)


# ------------------------------------------------------------------------------------------- ranks


class RankLoop:
    """Draw and update on one of several ranks."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)  # what is learned before is the same on all ranks
        self._case = case
        self._loop = DrawLoop(case.method, case.n, case.batch // case.ranks)
        self.sampler, self.step = self._loop.sampler, self._loop.step

    def prepare(self) -> None:
        """Every example is seen once; nothing is gathered for that."""
        self.sampler.connect()
        with forced("auto:off"):
            for part in torch.split(torch.arange(self._case.n), min(8192, self._case.n // 10)):
                ones = torch.ones(len(part), dtype=torch.float64)
                seen = Draw(-1, part, ones.float(), ones, ones, 1)
                self.sampler.take(seen, 3 * torch.rand(len(part)))
        settle(self._case.method, self.step, self.sampler)


def rank_case(rank: int, case: Case, steps: int) -> dict[str, Any]:
    """The same number of steps on every rank, with and without what the gather takes."""
    gc.disable()
    loop = RankLoop(case)
    loop.prepare()
    times, gathers = [], []
    with forced(case.method), gather_timed() as spent:
        for _ in range(steps):
            before = spent[0]
            times.append(timed(loop.step))
            gathers.append(spent[0] - before)
    check(case.method, loop.sampler)
    without = [step.wall - gather for step, gather in zip(times, gathers, strict=True)]
    return {
        "rank": rank,
        **summary(times),
        "gather_ms": 1e3 * fmean(gathers),
        "mean_without_gather_ms": 1e3 * fmean(without),
        "longest_without_gather_ms": 1e3 * max(without),
    }


@contextmanager
def gather_timed() -> Iterator[list[float]]:
    """The seconds spent so far on starting gathers and on waiting for them, as the only element."""
    spent = [0.0]
    originals = {name: getattr(Gather, name) for name in ("start", "wait")}

    def counted(method: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            started = time.perf_counter()
            method(*args)
            spent[0] += time.perf_counter() - started

        return call

    for name, method in originals.items():
        setattr(Gather, name, counted(method))
    try:
        yield spent
    finally:
        for name, method in originals.items():
            setattr(Gather, name, method)


# ------------------------------------------------------------------------------------------- state


def state_case(case: Case, folder: Path, rounds: int) -> dict[str, Any]:
    """Save and load, in turns with plain files of the same size: the median of some rounds."""
    gc.disable()
    loop = DrawLoop(case.method, case.n, case.batch)
    loop.prepare()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        found = [state_round(loop, Path(scratch)) for _ in range(rounds)]
    middle = {key: median(each[key] for each in found) for key in found[0]}
    return {**middle, "rounds": rounds, "bytes_per_example": middle["bytes"] / case.n}


def state_round(loop: DrawLoop, folder: Path) -> dict[str, float]:
    saved, plain = folder / "state.ckpt", folder / "plain"
    state: Any = {}
    found = {"state_dict_seconds": seconds_of(lambda: state.update(loop.sampler.state_dict()))}
    found["save_seconds"] = seconds_of(lambda: checkpoint.save(saved, state, step=1))
    found["bytes"] = size = saved.stat().st_size
    found["plain_write_seconds"] = seconds_of(lambda: write_plainly(plain, size))
    state.clear()
    for path in (saved, plain):
        forget_cached(path)
    found["load_seconds"] = seconds_of(lambda: state.update(checkpoint.load(saved).state))
    found["plain_read_seconds"] = seconds_of(lambda: read_plainly(plain))
    found["load_state_dict_seconds"] = seconds_of(lambda: loop.sampler.load_state_dict(state))
    for path in (saved, plain):
        path.unlink()
    return found


def seconds_of(action: Callable[[], Any]) -> float:
    return timed(action).wall


def write_plainly(path: Path, size: int) -> None:
    piece = os.urandom(PIECE)
    with path.open("wb", buffering=0) as file:
        for start in range(0, size, PIECE):
            file.write(piece[: size - start])
        os.fsync(file.fileno())


def read_plainly(path: Path) -> None:
    buffer = bytearray(PIECE)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def forget_cached(path: Path) -> None:
    """Ask the system to read the file from the disk again, where it can be asked."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# -------------------------------------------------------------------------------------------- rows


def cases(options: argparse.Namespace) -> Iterator[Case]:
    sizes, batches = numbers(options.sizes), numbers(options.batches)
    given = options.methods.split(";") if options.methods else None
    if "draws" in options.parts:
        for n in sizes:
            for batch in batches:
                names = given or (*OURS, *BASELINES)
                yield from (Case("draws", name, n, batch) for name in names)
        if given is None and BATCH in batches:
            yield from (Case("draws", "approx", n, BATCH) for n in sizes)  # for its memory
    if "ranks" in options.parts:
        world, batch, n = numbers(options.ranks)
        yield from (Case("ranks", name, n, batch, world) for name in given or OURS)
    if "state" in options.parts:
        yield from (Case("state", name, max(sizes), BATCH) for name in given or STATE)


def numbers(text: str) -> list[int]:
    return [int(float(number)) for number in text.split(",")]


def run(case: Case, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of a case: one, or one per rank."""
    try:
        if case.part == "ranks":
            parts = (rank_case, case, options.rank_steps)
            found = on_ranks(case.ranks, *parts, limit=options.limit)
        elif case.part == "state":
            parts = (state_case, case, options.rows.parent, options.rounds)
            found = [alone(*parts, limit=options.limit)]
        else:
            parts = (draw_case, case, options.draws, options.seconds)
            found = [alone(*parts, limit=options.limit)]
    except OverLimitError:
        return [{"status": "over the limit", "limit_seconds": options.limit}]
    except RuntimeError as error:
        return [{"status": "error", "error": str(error)}]
    return [{"status": "done", **each} for each in found]


def measure(options: argparse.Namespace) -> None:
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    known = read_rows(options.rows) if options.rows.exists() else []
    done = {tuple(row[field] for field in Case._fields) for row in known}
    about = environment(1)
    for case in cases(options):
        if case in done:
            continue
        progress(str(case))
        rows = [{**case._asdict(), **found, **about} for found in run(case, options)]
        with options.rows.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        shown = f"{rows[0]['mean_ms']:.3f} ms a step" if "mean_ms" in rows[0] else rows[0]["status"]
        print(f"{case}: {shown}", flush=True)


# ------------------------------------------------------------------------------------ command line


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rows", type=Path, default=Path("runs/scale/rows.jsonl"))
    parser.add_argument("--methods", help="separated by ';' (names have commas)")
    parser.add_argument("--sizes", default=SIZES, help="numbers of examples, N")
    parser.add_argument("--batches", default=BATCHES, help="examples in a draw, G")
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)), help="ranks, G, N")
    parser.add_argument("--draws", type=int, default=20_000, help="most steps of a case")
    parser.add_argument("--seconds", type=float, default=20, help="about so long for them")
    parser.add_argument("--rank-steps", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3, help="of saving and loading")
    parser.add_argument("--limit", type=float, default=900, help="seconds for a case")
    parser.add_argument(
        "--table", type=Path, help="print the tables of these rows; measure nothing"
    )
    parser.add_argument("--page", type=Path, help="with --table: write them into this page")
    parser.add_argument("--figure", type=Path, help="with --table: draw times against N")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"parts must be among {', '.join(PARTS)}; got {', '.join(unknown)}")
    return options


def main() -> None:
    options = arguments()
    if options.table is None:
        measure(options)
    rows = read_rows(options.table or options.rows)
    made = tables(rows)
    print("\n\n".join(made.values()))
    if options.page:
        write_page(options.page, made)
    if options.figure:
        figure(rows, options.figure)


if __name__ == "__main__":
    sys.exit(main())
