"""Real training under stress: kills, no memory, no disk, bad losses, and clocks that jump.

Two kinds of training of a small network on the digits, side by side, for ``--minutes``:

- one process that lives all the time, with every trouble of ``soak_run.py`` but kills; its memory
  and its open files have to stay the same;
- one run after another with every score, killed by SIGKILL or told to end by SIGTERM every few
  seconds, and resumed.

Each run is then replayed: a sampler with the same seed is given the losses that were logged. Every
batch that was ever handed out has to have the same examples and the same weights, bitwise; steps
that came again after a kill have to be the same again; and what is known of each example in the end
has to be the same. So there is no wrong draw, and no lost history.

Checkpoints lie on a small disk of their own (tmpfs, in a mount namespace that ends with this
program). Where the system does not allow that, files are limited in size instead: the report says.

    python benchmarks/soak.py --minutes 60 --out results/soak/60.json
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import soak_run
import torch
from scale_report import write_page
from soak_run import AHEAD, BATCH, EXAMPLES, RECORD, STEPS, WORKERS, bad_at, checksum, options

from salience import ImportanceSampler
from salience.compare.digits import digits
from salience.compare.directory import environment

__all__ = ["flat", "record", "replay", "table", "verify"]

DISK = "3m"  # size of the small disk
NAMESPACE = "SALIENCE_SOAK_DISK"  # set in the namespace
SCORES = ("auto", "history", "approx", "uniform")
RUN = 400  # steps of a run that is killed
LIVES = (1.0, 9.0)  # seconds of a life, once it trains
STALLED = 600.0  # seconds without a step: it hangs
GROWTH_MB, GROWTH_HANDLES = 16.0, 2.0  # over the whole time, by a straight line; more is a leak


# ------------------------------------------------------------------------------------ the replay


def replay(plan: dict[str, Any], losses: list[np.ndarray]) -> tuple[list[Any], ImportanceSampler]:
    """Checksums of indices and weights of each step, from the seed and the losses alone.

    With workers a batch is drawn when the one ``ahead`` places before it is handed out.
    """
    labels = digits(train=True).tensors[1]
    sampler = ImportanceSampler(EXAMPLES, BATCH, labels=_used(plan, labels), **options(plan))
    ahead, found = WORKERS * AHEAD if plan["workers"] else 0, []
    for first in range(0, len(losses), STEPS):
        draws: list[Any] = []
        for place, given in enumerate(losses[first : first + STEPS]):
            while len(draws) < min(place + ahead + 1, STEPS):
                draws.append(sampler.draw())
            draw = draws[place]
            found.append((checksum(draw.indices), checksum(draw.weights), len(draw)))
            sampler.update(draw, torch.from_numpy(given.copy()))
    return found, sampler


def _used(plan: dict[str, Any], labels: torch.Tensor) -> torch.Tensor | None:
    """As ``ImportanceLoader`` finds them."""
    return labels if plan["score"] in ("auto", "approx") else None


def verify(folder: Path) -> dict[str, Any]:
    """Compare what was logged with the replay. ``problems`` is empty if all is well."""
    plan = json.loads((folder / "plan.json").read_text())
    raw = (folder / "log").read_bytes()
    problems = [f"a torn record of {len(raw) % RECORD.itemsize} bytes"] * bool(
        len(raw) % RECORD.itemsize
    )
    rows = np.frombuffer(raw[: len(raw) - len(raw) % RECORD.itemsize], RECORD)
    steps = int(rows["step"].max()) + 1 if len(rows) else 0
    first: dict[int, np.void] = {}
    differ = 0
    for row in rows:
        other = first.setdefault(int(row["step"]), row)
        # Bytes, for nan is not equal to itself; field by field, for the lives differ.
        same = ("indices", "weights", "n", "losses")
        differ += any(other[name].tobytes() != row[name].tobytes() for name in same)
    if differ:
        problems.append(f"{differ} steps came again and were not the same")
    if sorted(first) != list(range(steps)):
        problems.append(f"{steps - len(first)} steps are missing")
        return {"steps": steps, "records": len(rows), "problems": problems}
    losses = [first[step]["losses"][: first[step]["n"]] for step in range(steps)]
    found, sampler = replay(plan, losses)
    wrong = sum(
        (int(first[i]["indices"]), int(first[i]["weights"]), int(first[i]["n"])) != found[i]
        for i in range(steps)
    )
    if wrong:
        problems.append(f"{wrong} batches are not those of the replay")
    problems += _compare_end(folder, plan, losses, sampler)
    return {
        "steps": steps,
        "records": len(rows),
        "redone": len(rows) - steps,
        "lives": int(rows["life"].max()) + 1,
        "bad_losses": sum(len({p for p, _ in bad_at(plan["seed"], i)}) for i in range(steps)),
        "problems": problems,
    }


def _compare_end(
    folder: Path, plan: dict[str, Any], losses: list[np.ndarray], sampler: ImportanceSampler
) -> list[str]:
    """What the last life knew, against the replay up to its last step."""
    reports = sorted(folder.glob("life-*.json"), key=lambda path: path.stat().st_mtime)
    if not reports:
        return ["no life has ended by itself"]
    report = json.loads(reports[-1].read_text())
    if report["step"] != len(losses):
        sampler = replay(plan, losses[: report["step"]])[1]
    problems = []
    scores = torch.load(folder / f"scores-{report['life']}.pt", weights_only=True)
    known = sampler.scores()
    if scores.numpy().tobytes() != known.numpy().tobytes():
        other = int((scores.nan_to_num(-1) != known.nan_to_num(-1)).sum())
        problems.append(
            f"what is known of {other} examples is not what the replay knows at step "
            f"{report['step']} of {len(losses)}"
        )
    if report["metrics"]["skipped_losses"] != sampler.metrics()["skipped_losses"]:
        problems.append(f"{report['metrics']['skipped_losses']:g} bad losses were counted")
    return problems


# ------------------------------------------------------------------------------- memory and files


def flat(samples: list[list[float]]) -> dict[str, Any]:
    """Growth of memory and of open files by a straight line, after the first fifth of the time."""
    kept = np.array(samples[len(samples) // 5 :])
    if len(kept) < 5:
        return {"samples": len(samples), "problems": []}
    steps, memory, handles = kept.T
    span = steps[-1] - steps[0]
    grown = [float(np.polyfit(steps, each, 1)[0] * span) for each in (memory, handles)]
    problems = []
    if grown[0] > GROWTH_MB:
        problems.append(f"memory has grown by {grown[0]:.1f} MB in {span:g} steps")
    if grown[1] > GROWTH_HANDLES:
        problems.append(f"{grown[1]:.1f} more files are open after {span:g} steps")
    return {
        "samples": len(samples),
        "memory_mb": round(float(np.median(memory)), 1),
        "memory_grown_mb": round(grown[0], 2),
        "handles": float(np.median(handles)),
        "handles_grown": round(grown[1], 2),
        "problems": problems,
    }


# ------------------------------------------------------------------------------------------- lives


def begin(folder: Path, disk: bool, **plan: Any) -> Path:
    """A folder for one run, with a disk of its own."""
    (folder / "disk").mkdir(parents=True)
    if disk:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder / "disk")]
        subprocess.run(mount, check=True)
    (folder / "plan.json").write_text(json.dumps({**plan, "own_disk": disk, "troubles": True}))
    return folder


def end(folder: Path, disk: bool) -> None:
    if disk:
        subprocess.run(["umount", str(folder / "disk")], check=False)
    shutil.rmtree(folder, ignore_errors=True)


def start(folder: Path, life: int) -> Any:
    """A process of its own, forked: it does not wait for imports."""
    process = multiprocessing.get_context("fork").Process(target=soak_run.live, args=(folder, life))
    process.start()
    return process


def logged(folder: Path) -> int:
    path = folder / "log"
    return path.stat().st_size if path.exists() else 0


def live(folder: Path, life: int, rng: Random, until: float) -> str:
    """One life, ended by us or by itself: how it ended."""
    before, process = logged(folder), start(folder, life)
    begun = since = time.monotonic()
    seen, left = before, rng.uniform(*LIVES)
    while process.is_alive():
        time.sleep(0.05)
        now = time.monotonic()
        if logged(folder) != seen:
            begun = now if seen == before else begun
            seen, since = logged(folder), now
        if now - since > STALLED:
            process.kill()
            process.join()
            return "hung"
        if seen != before and (now - begun > left or now > until):
            how = signal.SIGKILL if rng.random() < 0.7 and now < until else signal.SIGTERM
            os.kill(process.pid, how)  # not waited for yet: nobody else has this number
            process.join()
            return how.name if process.exitcode in (0, -how) else f"exit {process.exitcode}"
    return "finished" if process.exitcode == 0 else f"exit {process.exitcode}"


def run_lives(folder: Path, seed: int, until: float) -> Counter[str]:
    """Lives until the steps of the plan are done; the last one always ends by itself or SIGTERM."""
    rng, ends = Random(seed), Counter[str]()
    for life in range(1000):
        how = live(folder, life, rng, until)
        ends[how] += 1
        if how in ("finished", "hung") or how.startswith("exit"):
            break
        if how == "SIGTERM" and time.monotonic() > until:
            break
    return ends


def total_events(folder: Path) -> Counter[str]:
    path = folder / "events"
    return Counter(path.read_text().splitlines() if path.exists() else [])


# -------------------------------------------------------------------------------------------- main


def soak(minutes: float, seed: int, disk: bool) -> dict[str, Any]:
    until = time.monotonic() + 60 * minutes
    place = Path(tempfile.mkdtemp(prefix="salience-soak-"))
    common = {"steps": 10**9, "pause": 0.01}
    steady = begin(
        place / "steady",
        disk,
        score="history",
        on_bad_loss="skip",
        workers=True,
        seed=seed,
        **common,
    )
    process = start(steady, 0)
    runs, ends, events = [], Counter[str](), Counter[str]()
    while time.monotonic() < until:
        number = len(runs)
        plan = {
            "score": SCORES[number % len(SCORES)],
            "on_bad_loss": ("skip", "raise")[number // 2 % 2],
            "workers": number % 3 != 2,
            "seed": seed + number + 1,
        }
        folder = begin(place / f"run-{number}", disk, steps=RUN, pause=0.0, **plan)
        how = run_lives(folder, seed + number, until)
        found = {**plan, **verify(folder), "ends": dict(how)}
        if bad := [each for each in how if each == "hung" or each.startswith("exit")]:
            text = (folder / "errors").read_text(errors="replace")[-2000:]
            found["problems"].append(f"{bad[0]}: {text}")
        runs.append(found)
        ends.update(how)
        events.update(total_events(folder))
        end(folder, disk)
        print(json.dumps(found), flush=True)
    process.terminate()
    process.join()
    kept = verify(steady)
    report = json.loads((steady / "life-0.json").read_text()) if not process.exitcode else {}
    if process.exitcode:
        text = (steady / "errors").read_text(errors="replace")[-2000:]
        kept["problems"].append(f"exit {process.exitcode}: {text}")
    else:
        kept |= {"flat": flat(report["samples"]), "events": total_events(steady)}
        kept["problems"] += kept["flat"]["problems"]
    end(steady, disk)
    shutil.rmtree(place, ignore_errors=True)
    return {
        "minutes": minutes,
        "seed": seed,
        "disk": "a small tmpfs of its own" if disk else "files limited in size",
        **environment(threads=1),
        "runs": len(runs),
        "steps": kept["steps"] + sum(run["steps"] for run in runs),
        "redone": kept.get("redone", 0) + sum(run.get("redone", 0) for run in runs),
        "ends": dict(ends),
        "events": dict(events + Counter(kept.get("events", {}))),
        "steady": kept,
        "each": runs,
        "problems": [p for run in (*runs, kept) for p in run["problems"]],
    }


def table(report: dict[str, Any]) -> str:
    """What happened, and what came of it."""
    steady, grown = report["steady"], report["steady"].get("flat", {})
    kinds = {**report["ends"], **report["events"]}
    lines = {
        "minutes": f"{report['minutes']:g}",
        "commit": f"`{report['commit'][:7] if report['commit'] else 'unknown'}`",
        "disk": report["disk"],
        "steps": f"{report['steps']:,}, of which {report['redone']:,} came again",
        "runs that were killed and resumed": f"{report['runs']:,}",
        **{f"event: {name}": f"{count:,}" for name, count in kinds.items()},
        "bad losses": f"{sum(run.get('bad_losses', 0) for run in (*report['each'], steady)):,}",
        "memory of the long process": f"{grown.get('memory_mb', 'unknown')} MB, grown by "
        f"{grown.get('memory_grown_mb', 'unknown')} MB in {steady['steps']:,} steps",
        "its open files": f"{grown.get('handles', 'unknown')}, grown by "
        f"{grown.get('handles_grown', 'unknown')}",
        "problems": "none" if not report["problems"] else "; ".join(report["problems"]),
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in lines.items())])


def record(path: Path, place: Path) -> None:
    """Keep a report, and write its table into the page beside it."""
    shutil.copyfile(path, place / f"{json.loads(path.read_text())['minutes']:g}.json")
    write_page(place / "README.md", {"soak": table(json.loads(path.read_text()))})


def own_namespace() -> bool:
    """Whether we are in a mount namespace of our own; goes into one where the system allows it."""
    if NAMESPACE in os.environ:
        return True
    for how in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
        try:
            allowed = subprocess.run(
                [*how, "sh", "-c", "mount -t tmpfs tmpfs /mnt"], capture_output=True, check=False
            )
        except OSError:
            return False
        if allowed.returncode == 0:
            os.environ[NAMESPACE] = "1"
            os.execvp(how[0], [*how, sys.executable, *sys.argv])
    return False


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of this report, and end")
    parser.add_argument("--record", type=Path, help="with --table: keep both in this folder")
    given = parser.parse_args()
    if given.table is not None:
        print(table(json.loads(given.table.read_text())))
        if given.record is not None:
            record(given.table, given.record)
        return 0
    disk = own_namespace()
    torch.set_num_threads(1)
    report = soak(given.minutes, given.seed, disk)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(report, indent=1) + "\n")
    shown = ("minutes", "runs", "steps", "redone", "ends", "events", "disk", "problems")
    print(json.dumps({key: report[key] for key in shown}, indent=1))
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
