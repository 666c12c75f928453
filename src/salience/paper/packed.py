"""Finished runs as text, a file for each study: to keep them, move them, and judge them again.

In ``STUDY.jsonl.gz`` the first line has the settings, and every other line is one run: its rows,
and what was observed beside each of them. It is JSON throughout, so nothing that is read can run
code. The same runs give the same bytes.
"""

import gzip
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from salience.compare import directory
from salience.compare.directory import RunFile
from salience.compare.lock import locked
from salience.errors import ArgumentError
from salience.paper.measures import Trace
from salience.paper.reproduce import stages_of
from salience.paper.stages import Settings, Stage
from salience.paper.targets import TARGETS, Study

__all__ = ["ENDING", "Kept", "Pack", "collect", "from_bytes", "merge", "read", "to_bytes", "unpack"]

ENDING = ".jsonl.gz"
FORMAT = 1
MOST_SEEDS = 1000
NUMBERS = ("step", "seconds", "train_loss", "train_max_loss")  # of every row
_ALL = [study for target in TARGETS.values() for study in target.studies]
# Targets share studies: the same name and settings, with some methods each.
STUDIES = {
    name: [each for each in _ALL if each.name == name]
    for name in dict.fromkeys(s.name for s in _ALL)
}
UNKNOWN = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # numbers that JSON does not have


class Kept(NamedTuple):
    """One finished run, and where it was made: commit, versions, hardware."""

    trace: Trace
    environment: dict[str, Any]


@dataclass(frozen=True)
class Pack:
    """The finished runs of a study, by method and seed.

    ``seeds``: how many each target wants that has this study.
    """

    study: str
    model: str
    scale: float
    seeds: dict[str, int]
    runs: dict[tuple[str, int], Kept]

    def stage(self, study: Study, out: Path, seeds: int = 1) -> Stage:
        """A study of this name with the settings of these runs."""
        return Stage(study, Settings(self.scale, self.model, seeds), out)


# ------------------------------------------------------------------------------ from and to runs


def collect(out: Path) -> dict[str, Pack]:
    """The finished runs in ``out``, by study, of every target that was begun there."""
    packs: dict[str, Pack] = {}
    for path in sorted(out.glob("*/config.json")):
        config = directory.read_config(path.parent) or {}
        if config.get("target") in TARGETS:
            for stage in stages_of(config, out):
                name, found = stage.study.name, _found(stage, config)
                packs[name] = merge(packs[name], found) if name in packs else found
    return packs


def _found(stage: Stage, config: Mapping[str, Any]) -> Pack:
    environment = {key: config.get(key) for key in ("commit", "versions", "hardware")}
    if config["threads"] is not None:
        environment["hardware"] = {**config["hardware"], "threads": config["threads"]}
    runs = {}
    for method in stage.study.methods.values():
        for seed in stage.seeds:
            file = RunFile(stage.directory, method, seed)
            if file.finished:
                runs[method, seed] = Kept(Trace(file.rows, file.observed), environment)
    seeds = {config["target"]: len(stage.seeds)}
    return Pack(stage.study.name, config["model"], config["scale"], seeds, runs)


def merge(one: Pack, other: Pack) -> Pack:
    """The runs of both; a run that both have stays as ``one`` has it, with its environment."""
    if (one.model, one.scale) != (other.model, other.scale):
        raise ArgumentError(
            f"runs of {one.study} with model {one.model} and scale {one.scale:g} cannot be packed "
            f"with those of model {other.model} and scale {other.scale:g}: choose another --out "
            f"or --results"
        )
    for key in one.runs.keys() & other.runs.keys():
        if _text(one.runs[key].trace) != _text(other.runs[key].trace):
            raise ArgumentError(
                f"{one.study} has two different runs of {key[0]} with seed {key[1]}: delete "
                f"{one.study}{ENDING} to pack the new ones"
            )
    seeds = dict(one.seeds)
    for target, count in other.seeds.items():
        seeds[target] = max(count, seeds.get(target, 0))
    return replace(one, seeds=seeds, runs={**other.runs, **one.runs})


def unpack(pack: Pack, out: Path) -> int:
    """Write the runs where ``salience reproduce --out`` looks for them; how many were new there.

    Runs that are finished there already are left alone.
    """
    place, new = pack.stage(STUDIES[pack.study][0], out).directory, 0
    with locked(place):
        for (method, seed), kept in pack.runs.items():
            file = RunFile(place, method, seed)
            if not file.finished:
                file.rows, file.observed = kept.trace
                file.curves, file.hardest, file.finished = [], [], True
                file.save(None)
                new += 1
    return new


# ----------------------------------------------------------------------------- from and to bytes


def to_bytes(pack: Pack) -> bytes:
    """The content of the file, runs in the order of methods and seeds."""
    runs = [(method, seed, pack.runs[method, seed]) for method, seed in sorted(pack.runs)]
    environments: list[dict[str, Any]] = []
    for _, _, kept in runs:
        if kept.environment not in environments:
            environments.append(kept.environment)
    stage = pack.stage(STUDIES[pack.study][0], Path())
    head = {
        "format": FORMAT,
        "study": pack.study,
        "model": pack.model,
        "scale": pack.scale,
        "steps": stage.steps,
        "evaluations": stage.evaluations,
        "seeds": {name: pack.seeds[name] for name in TARGETS if name in pack.seeds},
        "environments": environments,
    }
    lines: list[dict[str, Any]] = [head]
    for method, seed, (trace, environment) in runs:
        place = environments.index(environment)
        run = {"method": method, "seed": seed, "environment": place, **trace._asdict()}
        lines.append(run)
    return gzip.compress("".join(_text(line) + "\n" for line in lines).encode(), mtime=0)


def read(path: Path) -> Pack:
    """A file of packed runs."""
    try:
        return from_bytes(path.read_bytes())
    except OSError as error:
        raise ArgumentError(f"cannot read {path} ({error.strerror or error})") from error
    except ArgumentError as error:
        raise ArgumentError(f"{path} {error}") from error


def from_bytes(content: bytes) -> Pack:
    """The inverse of ``to_bytes``; anything else is refused."""
    try:
        first, *rest = gzip.decompress(content).decode().splitlines()
        head, lines = json.loads(first), [json.loads(line) for line in rest]
        return _pack(head, lines)
    except (EOFError, OSError, zlib.error, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:80]
        raise ArgumentError(f"is damaged ({why}): get it again, or delete it") from error
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        missing = f"{type(error).__name__} {error}"[:80]
        raise ArgumentError(f"is no file of packed runs ({missing}): delete it") from error


def _pack(head: Any, lines: list[Any]) -> Pack:
    """Checked: later code trusts every name and length."""
    if head["format"] != FORMAT:
        raise ValueError(f"format {head['format']}, not {FORMAT}")
    if head["study"] not in STUDIES:
        raise ValueError(f"study {head['study']!r} is not one of {', '.join(STUDIES)}")
    Settings(head["scale"], head["model"]).check()
    seeds = head["seeds"]
    if not seeds.keys() <= TARGETS.keys() or not all(map(_is_count, seeds.values())):
        raise ValueError(f"seeds {seeds}")
    environments = [_environment(each) for each in head["environments"]]
    pack = Pack(head["study"], head["model"], head["scale"], dict(seeds), {})
    studies = STUDIES[pack.study]
    stage = pack.stage(studies[0], Path())
    methods = {method for study in studies for method in study.methods.values()}
    for line in lines:
        method, seed, environment = line["method"], line["seed"], line["environment"]
        if method not in methods or type(seed) is not int or seed < 0:
            raise ValueError(f"a run of {method!r} with seed {seed!r}")
        trace = Trace(_back(line["rows"]), _back(line["observed"]))
        if [len(part) for part in trace] != [stage.evaluations + 1] * 2:
            raise ValueError(f"{len(trace.rows)} rows, not {stage.evaluations + 1}")
        for row in trace.rows:
            if (row["method"], row["seed"]) != (method, seed):
                raise ValueError(f"rows of another run than {method} with seed {seed}")
            if not all(isinstance(cast(Any, row)[key], int | float) for key in NUMBERS):
                raise ValueError(f"{', '.join(NUMBERS)} must be numbers")
        if not all(isinstance(each, dict) for each in trace.observed):
            raise ValueError("observed is not a list of names and values")
        pack.runs[method, seed] = Kept(trace, environments[environment])
    return pack


def _is_count(n: Any) -> bool:
    return type(n) is int and 1 <= n <= MOST_SEEDS


def _environment(found: Any) -> dict[str, Any]:
    commit, versions, hardware = (found[key] for key in ("commit", "versions", "hardware"))
    if not isinstance(commit, str | None) or not all(
        isinstance(each, dict) for each in (versions, hardware)
    ):
        raise ValueError("an environment has a commit, versions and hardware")
    json.dumps(found, allow_nan=False)  # a number that is not finite is a ValueError
    return dict(found)


def _text(value: Any) -> str:
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    """The same with words for nan and infinity."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _back(value: Any) -> Any:
    """The inverse."""
    if isinstance(value, dict):
        return {key: _back(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_back(each) for each in value]
    return UNKNOWN.get(value, value) if isinstance(value, str) else value
