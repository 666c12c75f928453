"""Run a target and judge it: ``prepare`` or ``reproduce``, then ``finish``.

A target is made of studies: runs of some methods on one task, through ``compare``, so they can be
interrupted and shared out among processes. Studies lie in ``OUT/runs`` and are named after what
decides their rows; targets of the same ``OUT`` that need the same runs (the table and the curves
of CIFAR-10, say) share them. What a target comes to lies in ``OUT/TARGET``.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, final

import torch

from salience.compare.charts import Chart, Table, cells
from salience.compare.plan import Plan, RunFile, compare
from salience.compare.records import environment, finite, refused
from salience.compare.results import commit
from salience.compare.training import Row
from salience.errors import ArgumentError
from salience.paper.analyses import NAMES, Analysis, Material
from salience.paper.claims import Claim, paragraph
from salience.paper.measures import Trace
from salience.paper.networks import Size
from salience.paper.targets import TARGETS, Study, Target
from salience.paper.tasks import make_task

__all__ = ["TARGETS", "Outcome", "Settings", "Stage", "finish", "prepare", "reproduce"]

LEAST = 4  # steps, however small the scale
FREE = ("versions", "hardware", "commit", "jobs")  # may differ when runs are resumed


# --------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class Settings:
    """What a user may choose; ``seeds`` None is the paper's number, ``task`` None all of them."""

    scale: float = 1.0
    model: Size = "paper"
    seeds: int | None = None
    threads: int | None = None
    task: str | None = None

    def check(self) -> None:
        """Refuse what cannot be run before anything is loaded."""
        if not 0 < self.scale <= 1:
            raise ArgumentError(f"scale must be above 0 and at most 1; got {self.scale}")
        if self.model not in ("small", "paper"):
            raise ArgumentError(f"model must be small or paper; got {self.model!r}")
        if self.seeds is not None and self.seeds < 1:
            raise ArgumentError(f"seeds must be at least 1; got {self.seeds}")


@final
class Stage:
    """One study of a target, ready to run."""

    def __init__(
        self, study: Study, settings: Settings, out: Path, data_dir: Path | None = None
    ) -> None:
        self.study, self.settings = study, settings
        self.steps, self.evaluations = _lengths(study, settings.scale)
        self.seeds = tuple(range(settings.seeds or study.seeds))
        length = f"{self.steps}-steps-{self.evaluations}-points"
        self.directory = out / "runs" / f"{study.name}-{settings.model}-{length}"
        make = partial(
            make_task, study.task, size=settings.model, data_dir=data_dir, probe=study.probe
        )
        share = [round(i / self.evaluations * self.steps) for i in range(self.evaluations + 1)]
        self.plan = Plan(
            make,
            tuple(study.methods.values()),
            self.seeds,
            steps=self.steps,
            evaluations=self.evaluations,
            threads=settings.threads,
            observe=study.observe(share, study.task),
        )

    @property
    def runs(self) -> dict[str, int]:
        """The number of seeds of each label, as progress wants it."""
        return dict.fromkeys(self.study.methods, len(self.seeds))

    @property
    def stated(self) -> str:
        """What was run, for titles and sentences: shortened schedules are never hidden."""
        length = f"{self.steps:,} iterations"
        if self.steps < self.study.steps:
            length = f"{self.steps:,} of {self.study.steps:,} iterations"
        if self.settings.scale < 1:
            length += f" (scale {self.settings.scale:g})"
        seeds = "one seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{NAMES[self.study.task]}: {length}, {self.settings.model} network, {seeds}"

    def rows(self, jobs: int = 1) -> Iterator[Row]:
        """Train what is left to train; rows carry the labels as their methods."""
        labels = {spec: label for label, spec in self.study.methods.items()}
        for row in compare(self.plan, self.directory, jobs):
            yield {**row, "method": labels[row["method"]]}

    def traces(self) -> dict[str, list[Trace]]:
        """The finished runs by label, seeds in order."""
        return {
            label: [self._trace(spec, seed) for seed in self.seeds]
            for label, spec in self.study.methods.items()
        }

    def _trace(self, spec: str, seed: int) -> Trace:
        file = RunFile(self.directory, spec, seed)
        file.load()
        if not file.finished:
            raise ArgumentError(
                f"the run of {spec} with seed {seed} in {self.directory} is not finished: "
                f"run it again with --resume"
            )
        return Trace(file.rows, file.observed)


def _lengths(study: Study, scale: float) -> tuple[int, int]:
    """Steps and evaluations at this scale."""
    evaluations = max(study.least, round(scale * study.evaluations))
    if study.scaled == "evaluations":
        return study.steps, evaluations
    steps = max(LEAST, round(scale * study.steps))
    return steps, min(evaluations, steps)


def reproduce(
    name: str,
    *,
    out: Path,
    scale: float = 1.0,
    model: Size = "paper",
    seeds: int | None = None,
    data_dir: Path | None = None,
    jobs: int = 1,
    threads: int | None = None,
    task: str | None = None,
    resume: bool = False,
) -> Iterator[Row]:
    """Train everything that target ``name`` needs; ``finish`` then says what came of it."""
    settings = Settings(scale, model, seeds, threads, task)
    stages = prepare(name, settings, out, data_dir=data_dir, jobs=jobs, resume=resume)
    return _in_turn(stages, jobs)


def _in_turn(stages: list[Stage], jobs: int) -> Iterator[Row]:
    for stage in stages:
        yield from stage.rows(jobs)


def prepare(
    name: str,
    settings: Settings,
    out: Path,
    *,
    data_dir: Path | None = None,
    jobs: int = 1,
    resume: bool = False,
) -> list[Stage]:
    """Check everything, write ``config.json``, and give the stages to run, one after the other."""
    target = _target(name)
    settings.check()
    stages = [Stage(study, settings, out, data_dir) for study in _studies(target, settings.task)]
    for stage in stages:
        stage.plan.check()
        if len(stages) > 1:  # data that is missing shows now, not after hours of the first task
            stage.plan.make_task()
    config = _config(target, settings, stages, jobs)
    path = _directory(out, name, settings.task) / "config.json"
    if path.exists():
        _refuse_other(json.loads(path.read_text(encoding="utf-8")), config, path.parent, resume)
    _write(path, json.dumps(config, indent=2) + "\n")
    return stages


def _target(name: str) -> Target:
    if name not in TARGETS:
        raise ArgumentError(f"target must be one of {', '.join(TARGETS)}; got {name!r}")
    return TARGETS[name]


def _studies(target: Target, task: str | None) -> list[Study]:
    chosen = [study for study in target.studies if task in (None, study.task)]
    if not chosen:
        known = ", ".join(study.task for study in target.studies)
        raise ArgumentError(f"task must be one of those of {target.name}: {known}; got {task!r}")
    return chosen


def _directory(out: Path, name: str, task: str | None) -> Path:
    """Where a target's outcome lies; one task of several has a place of its own."""
    return out / (name if task is None else f"{name}-{task}")


def _config(target: Target, settings: Settings, stages: list[Stage], jobs: int) -> dict[str, Any]:
    return {
        "target": target.name,
        **settings.__dict__,
        "studies": [
            {
                "task": stage.study.task,
                "methods": dict(stage.study.methods),
                "seeds": list(stage.seeds),
                "steps": stage.steps,
                "evaluations": stage.evaluations,
                "runs": stage.directory.name,
            }
            for stage in stages
        ],
        "jobs": jobs,
        "commit": commit(),
        **environment(threads=settings.threads or torch.get_num_threads()),
    }


def _refuse_other(
    before: dict[str, Any], now: dict[str, Any], directory: Path, resume: bool
) -> None:
    if not resume:
        raise ArgumentError(
            f"{directory} already holds results: pass --resume to go on with them, or choose "
            f"another directory with --out"
        )
    for key in now:
        if key not in FREE and before.get(key) != now[key]:
            raise ArgumentError(
                f"cannot resume {directory}: it was begun with {key} {before.get(key)!r}, not "
                f"{now[key]!r}; give the same options, or choose another directory with --out"
            )


# ------------------------------------------------------------------------------------- finishing


@dataclass(frozen=True)
class Outcome:
    """What a target came to, and the files that say so."""

    target: Target
    directory: Path
    charts: list[Chart]
    claims: list[Claim]
    tables: list[Table]
    paragraph: str
    files: list[Path]


def finish(name: str, out: Path, task: str | None = None) -> Outcome:
    """Judge the finished runs; write ``result.json`` and the data behind the figures."""
    target, directory = _target(name), _directory(out, name, task)
    config = _read(directory / "config.json")
    settings = Settings(config["scale"], config["model"], config["seeds"], config["threads"])
    stages = [Stage(study, settings, out) for study in _studies(target, task)]
    tasks = [stage.study.task for stage in stages]
    material = Material(
        dict(zip(tasks, (stage.traces() for stage in stages), strict=True)),
        dict(zip(tasks, (stage.stated for stage in stages), strict=True)),
    )
    found = target.analyse(material)
    begin = (
        f"{target.where} of the paper, repeated ({'; '.join(material.stated.values())}). "
        f"The paper says that {target.says}. Measured here:"
    )
    text = paragraph(begin, found.claims)
    files = _write_all(directory, target, config, found, text)
    return Outcome(target, directory, found.charts, found.claims, found.tables, text, files)


def _write_all(
    directory: Path, target: Target, config: dict[str, Any], found: Analysis, text: str
) -> list[Path]:
    result = {
        "target": target.name,
        "paper": target.where,
        "scale": config["scale"],
        "paragraph": text,
        "claims": [claim.plain() for claim in found.claims],
    }
    contents = {"result.json": _json({**result, "config": config}), "paragraph.txt": text + "\n"}
    for chart in found.charts:
        contents[f"{chart.name}.json"] = _json(chart.plain())
        contents[f"{chart.name}.csv"] = _csv(cells(chart))
    for table in found.tables:
        contents[f"{table.name}-table.csv"] = _csv(table)
    for name, content in contents.items():
        _write(directory / name, content)
    return [directory / name for name in contents]


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(finite(content), indent=1, allow_nan=False) + "\n"


def _csv(table: Table) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.columns, *table.rows])
    return text.getvalue()


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"{path} cannot be read ({error}): run the target before it is finished"
        ) from error
    return content


def _write(path: Path, text: str) -> None:
    """All or nothing, so that a kill leaves no half file."""
    with refused(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial_file = path.with_name(f"{path.name}.part")
        partial_file.write_text(text, encoding="utf-8")
        partial_file.replace(path)
