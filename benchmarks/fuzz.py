"""Fuzz every reader of files and states: no crash, no hang, no memory blow-up, nothing unpickled.

Inputs are changed copies of valid ones: bytes, and values inside files whose checksums are right.
An input whose outcome is new (another error, or from another line) is kept, and others are made
from it. What is refused has to be refused with an error of ours; what is taken has to be usable.

A process of its own runs each part: with a limit on its memory, and killed when one input takes
more of the processor than ``--limit``. Anything that unpickles, starts a program or opens a
connection is a failure. Targets take turns of some seconds, until all together have had
``--inputs``. Rows are appended to ``--rows``, one per turn, so that an interrupted run goes on.

    python benchmarks/fuzz.py --inputs 1e7                     # half an hour
    python benchmarks/fuzz.py --targets idx,text --seconds 60  # a minute each
    python benchmarks/fuzz.py --table runs/fuzz/rows.jsonl     # Markdown
    python benchmarks/fuzz.py --record results/fuzz            # rows and tables of both programs
"""

import argparse
import base64
import gzip
import json
import mmap
import multiprocessing
import os
import pickle
import resource
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from fuzz_targets import TARGETS, Target, scratch
from scale_report import read_rows as recorded_rows
from scale_report import write_page

from salience.compare.directory import environment
from salience.errors import SalienceError

__all__ = ["append", "fuzz", "read_rows", "record", "table"]

PART = 10**6  # inputs of one process, at most
SLICE = 5.0  # seconds of one process, at most
PATIENCE = 20.0  # limits: an input that waits for something, and does not compute, takes longer
ROOM = 1 << 30  # bytes of memory beyond what a process has when it begins
SHARED = 1 << 20  # bytes for the input under way
FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "socket.connect")
FAILURES = 20  # of one part that are written down


class ForbiddenError(BaseException):
    """Not an ``Exception``: no reader may swallow it."""


# --------------------------------------------------------------------------------- one process


def guard() -> None:
    """From now on unpickling, programs and connections are failures, and memory is limited."""

    def refuse(event: str, _: Any) -> None:
        if event in FORBIDDEN:
            raise ForbiddenError(event)

    class Refused(pickle.Unpickler):  # a class, for others inherit from it
        def __init__(self, *_: Any, **__: Any) -> None:
            raise ForbiddenError("unpickled")

    sys.addaudithook(refuse)
    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        setattr(pickle, name, Refused)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def outcome(target: Target, given: Any) -> tuple[str, Any]:
    """Taken, refused or failed, and what tells this outcome from others."""
    try:
        target.run(given)
    except SalienceError as error:
        return "refused", _where(error)
    except BaseException as error:
        return "failed", _where(error)
    return "taken", None


def _where(error: BaseException) -> Any:
    """The class and the lines that it came through, of the error and of what caused it."""
    found: list[Any] = []
    each: BaseException | None = error
    while each is not None and len(found) < 3:
        trace, lines = each.__traceback__, []
        while trace is not None:
            lines.append((trace.tb_frame.f_code.co_name, trace.tb_lineno))
            trace = trace.tb_next
        found.append((type(each).__name__, tuple(lines[-3:])))
        each = each.__cause__
    return tuple(found)


def fuzz(
    target: Target,
    seed: int,
    inputs: int,
    seconds: float = float("inf"),
    note: Callable[[int, Any], None] = lambda *_: None,
) -> dict[str, Any]:
    """At most ``inputs`` inputs that follow from ``seed``, for ``seconds`` of the processor."""
    rng, seen, counts = Random(seed), set(), {"taken": 0, "refused": 0, "failed": 0}
    failures: list[dict[str, Any]] = []
    clock, slowest, done = time.thread_time, 0.0, 0
    started = clock()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for done in range(1, inputs + 1):
        given = target.make(rng)
        note(done, given)
        begun = clock()
        what, where = outcome(target, given)
        now = clock()
        slowest = max(slowest, now - begun)
        counts[what] += 1
        if where is not None and where not in seen:
            seen.add(where)
            target.keep(given)
            if what == "failed" and len(failures) < FAILURES:
                failures.append({"error": repr(where), "input": written(given)})
        if now - started > seconds:
            break
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "inputs": done,
        **counts,
        "outcomes": len(seen),
        "seconds": round(clock() - started, 2),
        "slowest_ms": round(1e3 * slowest, 2),
        "grown_mb": round((after - before) / 1024, 1),
        "failures": failures,
    }


def written(given: Any) -> str:
    """An input as text; ``--replay`` reads it."""
    return base64.b64encode(given).decode() if isinstance(given, bytes) else json.dumps(given)


def as_input(text: str) -> Any:
    return json.loads(text) if text.startswith("[") else base64.b64decode(text)


# -------------------------------------------------------------------------------- from the outside


class Watch:
    """Memory that parent and child share: how many inputs were begun, and the last one."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, SHARED)

    def note(self, count: int, given: Any) -> None:
        raw = given if isinstance(given, bytes) else json.dumps(given).encode()
        raw = raw[: SHARED - 17]
        kind = isinstance(given, bytes)
        self._shared[: 17 + len(raw)] = struct.pack("<QQ?", count, len(raw), kind) + raw

    def count(self) -> int:
        return int(struct.unpack_from("<Q", self._shared)[0])

    def last(self) -> str:
        size, kind = struct.unpack_from("<Q?", self._shared, 8)
        raw = self._shared[17 : 17 + size]
        return written(raw) if kind else raw.decode()


def _child(name: str, seed: int, inputs: int, seconds: float, watch: Watch, pipe: Any) -> None:
    torch.set_num_threads(1)
    target = TARGETS[name]()
    for _ in range(3):  # what is imported or allocated at first use
        outcome(target, target.make(Random(0)))
    guard()
    pipe.send(fuzz(target, seed, inputs, seconds, watch.note))


def apart(name: str, seed: int, inputs: int, seconds: float, limit: float) -> dict[str, Any]:
    """``fuzz`` in a process of its own; a crash or a hang is a failure with its input."""
    watch, context = Watch(), multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    args = (name, seed, inputs, seconds, watch, sender)
    process = context.Process(target=_child, args=args)
    process.start()
    sender.close()
    count, since, hung = -1, (0.0, time.monotonic()), False
    while not receiver.poll(0.25):
        now = _processor_seconds(process.pid), time.monotonic()
        if watch.count() != count:
            count, since = watch.count(), now
        elif now[0] - since[0] > limit or now[1] - since[1] > PATIENCE * limit:
            hung = True
            process.kill()
            break
    try:
        found: dict[str, Any] | None = None if hung else receiver.recv()
    except EOFError:
        found = None
    process.join()
    if found is not None:
        return found
    why = f"an input took more than {limit:g} s" if hung else f"exit code {process.exitcode}"
    failure = {"error": why, "input": watch.last() if watch.count() else ""}
    counts = {"taken": 0, "refused": watch.count() - 1, "failed": 1, "outcomes": 0}
    return {"inputs": watch.count(), **counts, "seconds": SLICE, "failures": [failure]}


def _processor_seconds(pid: int) -> float:
    """That a process has had; not those of a machine that is busy with others."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -------------------------------------------------------------------------------------------- rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Plain or compressed; none where there is no file yet."""
    return recorded_rows(path) if path.exists() else []


def record(rows: Path, programs: Path, place: Path) -> None:
    """Keep the rows, compressed, and write their tables into the page beside them."""
    from programs import table as table_of_programs  # which imports this file

    for given in (rows, programs):
        name = f"{given.name.removesuffix('.gz')}.gz"
        text = "".join(json.dumps(row) + "\n" for row in read_rows(given))
        (place / name).write_bytes(gzip.compress(text.encode(), mtime=0))
    made = {"readers": table(read_rows(rows)), "programs": table_of_programs(read_rows(programs))}
    write_page(place / "README.md", made)


def append(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def run_all(names: list[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A slice of each target in turn, until all together have their inputs, or each its seconds."""
    made = environment(threads=1)
    stamp = {"commit": made["commit"], "versions": made["versions"]}
    while True:
        rows = read_rows(options.rows)
        due = [(name, [row for row in rows if row["target"] == name]) for name in names]
        due = [(name, own) for name, own in due if _spent(own) < options.seconds]
        if not due or sum(row["inputs"] for row in rows) >= options.inputs:
            return
        for name, own in due:
            seed = options.seed + len(own)
            seconds = min(SLICE, options.seconds - _spent(own))
            found = apart(name, seed, min(options.inputs, PART), seconds, options.limit)
            row = {"target": name, "seed": seed, **found, **stamp}
            append(options.rows, row)
            yield row


def _spent(rows: list[dict[str, Any]]) -> float:
    return sum(row["seconds"] for row in rows)


def table(rows: list[dict[str, Any]]) -> str:
    """One line per target."""
    lines = [
        "| target | inputs | taken | refused | failed | outcomes | inputs per s | slowest (ms) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in [*dict.fromkeys(row["target"] for row in rows), "all"]:
        own = [row for row in rows if name in (row["target"], "all")]
        sums = {
            key: sum(row[key] for row in own) for key in ("inputs", "taken", "refused", "failed")
        }
        pace = sums["inputs"] / max(sum(row["seconds"] for row in own), 1e-9)
        outcomes = max(row["outcomes"] for row in own)
        slowest = max(row.get("slowest_ms", 0.0) for row in own)
        cells = [name, *(f"{value:,}" for value in sums.values()), f"{outcomes}"]
        lines.append(f"| {' | '.join([*cells, f'{pace:,.0f}', f'{slowest:.1f}'])} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--targets", default=",".join(n.replace(",", ";") for n in TARGETS))
    parser.add_argument("--inputs", type=lambda text: int(float(text)), default=10**6)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="of the processor, for each target"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for one input")
    parser.add_argument("--rows", type=Path, default=Path("runs/fuzz/rows.jsonl"))
    parser.add_argument("--table", type=Path, help="print the table of these rows, and end")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "INPUT"))
    parser.add_argument("--programs", type=Path, default=Path("runs/fuzz/programs.jsonl"))
    parser.add_argument("--record", type=Path, help="keep rows and programs in this folder")
    options = parser.parse_args()
    if options.record is not None:
        record(options.rows, options.programs, options.record)
        return 0
    if options.table is not None:
        print(table(read_rows(options.table)))
        return 0
    if options.replay is not None:
        return replay(*options.replay)
    names = [name.replace(";", ",") for name in options.targets.split(",")]
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]!r}: choose from {', '.join(TARGETS)}")
    scratch()  # before there are other processes
    failed = 0
    for row in run_all(names, options):
        failed += row["failed"]
        counts = f"{row['inputs']:,} inputs, {row['taken']:,} taken, {row['failed']} failed"
        print(f"{row['target']}: {counts}, {row['seconds']:.1f} s", flush=True)
    return 1 if failed else 0


def replay(name: str, text: str) -> int:
    """One input again, with its traceback."""
    try:
        TARGETS[name]().run(as_input(text))
    except SalienceError as error:
        print(f"refused: {error}")
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
