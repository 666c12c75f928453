"""The paper's figures and tables: run all of them, keep the runs, and make the results from them.

Every target is one ``salience reproduce`` for each of its tasks. Targets share runs, and an
interrupted benchmark resumes. Behind the targets come the runs that ask why claims do not hold.

    python benchmarks/paper.py run --data-dir data              # many hours on two cores
    python benchmarks/paper.py run --data-dir data --tasks mnist --targets fig1a,fig1b
    python benchmarks/paper.py run --data-dir data --tasks ptb --scale 0.2
    python benchmarks/paper.py run --data-dir data --targets why
    python benchmarks/paper.py part --data-dir data --target table1 --task ptb \
        --labels "loss k=1,approx k=1" --first 0 --seeds 2 --out runs/other-core
    python benchmarks/paper.py pack         # finished runs into results/paper/runs, also meanwhile
    python benchmarks/paper.py unpack       # the reverse: run goes on with them, on any machine
    python benchmarks/paper.py tables       # results/paper from the packed runs, without data
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import why

from salience.compare import directory
from salience.compare.lock import locked
from salience.compare.plan import compare
from salience.errors import ArgumentError
from salience.paper import packed, pages
from salience.paper.reproduce import prepare
from salience.paper.stages import Settings
from salience.paper.targets import TARGETS, Target

TASKS = ("mnist", "cifar10", "ptb")
OUT, RESULTS = Path("runs/paper"), Path("results/paper")
# glibc keeps what is freed, up to blocks of 16 MB. The scores for 10,001 words are 5 MB, given back
# and asked for at each step of the language model: it took 10.9 ms, and 8.8 ms with this (one
# trial). Evaluations have blocks of 20 MB. With those kept too, small ones in between held on to
# 20 GB.
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**24), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


def commands(options: argparse.Namespace) -> list[list[str]]:
    """One ``salience reproduce`` for each target and task, with as many seeds as there are jobs.

    Then the same with more, so that the runs of the first seeds are finished, and can be packed,
    long before all are.
    """
    found = []
    for seeds in (*range(options.jobs, options.seeds, options.jobs), options.seeds):
        for target in (TARGETS[name] for name in options.targets if name in TARGETS):
            for study in target.studies:
                if study.task in options.tasks:
                    wanted = 1 if study.seeds == 1 else seeds
                    found.append(_command(target, study.task, wanted, options))
    return list({tuple(command): command for command in found}.values())


def _command(target: Target, task: str, seeds: int, options: argparse.Namespace) -> list[str]:
    command = ["reproduce", target.name]
    command += ["--task", task] if len(target.studies) > 1 else []
    command += ["--model", options.model, "--scale", f"{options.scale:g}", "--seeds", str(seeds)]
    command += ["--threads", "1", "--jobs", str(options.jobs), "--out", str(options.out)]
    command += [] if options.data_dir is None else ["--data-dir", str(options.data_dir)]
    return [*command, "--resume"]


def run(options: argparse.Namespace) -> None:
    """Train what is not trained yet."""
    for command in commands(options):
        print("salience", *command, flush=True)
        if code := salience(command):
            sys.exit(code)
    if why.NAME in options.targets:
        why.run(options, salience)


def part(options: argparse.Namespace) -> None:
    """Train some methods and seeds of one task, so that several cores can share it.

    Each with an ``--out`` of its own; ``pack`` brings the runs together.
    """
    seeds = tuple(range(options.first, options.first + options.seeds))
    settings = Settings(options.scale, options.model, seeds[-1] + 1, 1, options.task)
    (stage,) = prepare(
        options.target, settings, options.out, data_dir=options.data_dir, resume=True
    )
    methods = stage.study.methods
    labels = options.labels.split(",") if options.labels else list(methods)
    if unknown := [label for label in labels if label not in methods]:
        raise ArgumentError(f"labels must be among {', '.join(methods)}; got {unknown[0]!r}")
    plan = replace(stage.plan, methods=tuple(methods[label] for label in labels), seeds=seeds)
    with locked(stage.directory):
        for row in compare(plan, stage.directory):
            print(f"{row['method']}, seed {row['seed']}: step {row['step']:,}", flush=True)


def salience(command: list[str]) -> int:
    """Run it, and return its exit code."""
    arguments = [sys.executable, "-m", "salience", *command]
    process = subprocess.Popen(arguments, env={**KEEP, **os.environ})
    try:
        return process.wait()
    except KeyboardInterrupt:  # which it got too: it saves its runs
        process.wait()
        raise


def keep_freed_memory() -> None:
    """Start this program again with ``KEEP``, which is read when a process starts."""
    if not os.environ.keys() >= KEEP.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**KEEP, **os.environ})


def pack(options: argparse.Namespace) -> None:
    """Write the finished runs of each study to RESULTS/runs."""
    packs = {out: packed.collect(out) for out in _places(options.out)}
    others = why.pack(options.out / why.NAME, options.results / why.NAME)
    if not others and not any(packs.values()):
        raise ArgumentError(f"{options.out} has no runs of the paper: run some targets first")
    for results, (out, found) in zip(_places(options.results), packs.items(), strict=True):
        for name, new in found.items():
            path = results / "runs" / f"{name}{packed.ENDING}"
            whole = packed.merge(packed.read(path), new) if path.exists() else new
            if whole.runs:
                directory.write(path, packed.to_bytes(whole))
            print(f"{out / name}: {len(whole.runs)} finished runs")
    for name in others:
        print(f"{options.out / why.NAME / name}: finished")


def unpack(options: argparse.Namespace) -> None:
    """Write the packed runs to OUT/runs, for ``run``."""
    for out, packs in zip(_places(options.out), read(options.results), strict=True):
        for name, found in packs.items():
            new = packed.unpack(found, out)
            print(f"{out / name}: {len(found.runs)} runs, {new} of them new")
    why.unpack(options.results / why.NAME, options.out / why.NAME)


def tables(options: argparse.Namespace) -> None:
    """Make the results from the packed runs."""
    for results, packs in zip(_places(options.results), read(options.results), strict=True):
        asks_why = results.name == why.NAME  # with some of the targets only
        if asks_why and not (results / pages.PAGE).exists():
            continue
        written, missing = pages.write(results, packs)
        if asks_why:
            written, missing = [*written, *why.tables(results)], []
        for path in written:
            print(f"written: {path}")
        for reason in missing:
            print(f"not complete: {reason}")


def read(results: Path) -> list[dict[str, packed.Pack]]:
    """The packs by study, of the paper's own settings and of those that ask why."""
    found = []
    for place in _places(results):
        paths = sorted((place / "runs").glob(f"*{packed.ENDING}"))
        found.append({pack.study: pack for pack in map(packed.read, paths)})
    if not found[0]:
        raise ArgumentError(f"{results / 'runs'} has no packed runs: pack some first")
    return found


def _places(directory: Path) -> tuple[Path, Path]:
    """Of the paper's own settings, and of those that ask why."""
    return directory, directory / why.NAME


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {"targets": (*TARGETS, why.NAME), "tasks": TASKS}
    added = parser.add_subparsers(required=True, metavar="{run,part,pack,unpack,tables}")
    for action in (run, part, pack, unpack, tables):
        name, about = action.__name__, (action.__doc__ or "").partition("\n")[0]
        command = added.add_parser(name, help=about, description=action.__doc__)
        command.set_defaults(action=action)
        if name != "tables":
            command.add_argument("--out", type=Path, default=OUT)
        if name not in ("run", "part"):
            command.add_argument("--results", type=Path, default=RESULTS)
            continue
        command.add_argument("--model", default="tiny")
        command.add_argument("--scale", type=float, default=1.0, help="of the paper's schedule")
        command.add_argument("--seeds", type=int, default=3, help="how many (figure 4: one)")
        command.add_argument("--data-dir", type=Path)
        if name == "part":
            command.add_argument("--target", choices=TARGETS, required=True)
            command.add_argument("--task", choices=TASKS, required=True)
            command.add_argument("--labels", help="methods, separated by commas (all)")
            command.add_argument("--first", type=int, default=0, help="the first seed")
            continue
        command.add_argument(
            "--targets", default=",".join(known["targets"]), help="separated by commas"
        )
        command.add_argument("--tasks", default=",".join(TASKS), help="separated by commas")
        command.add_argument("--jobs", type=int, default=1, help="seeds side by side")
    options = parser.parse_args(arguments)
    for name, allowed in known.items():
        if hasattr(options, name):
            chosen = getattr(options, name).split(",")
            if unknown := sorted(set(chosen) - set(allowed)):
                parser.error(f"{name} must be among {', '.join(allowed)}; got {', '.join(unknown)}")
            setattr(options, name, chosen)
    try:
        options.action(options)
    except ArgumentError as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    if sys.argv[1:2] == ["part"]:  # run starts other processes
        keep_freed_memory()
    main()
