"""Run a target and judge it: ``prepare``, the rows of each stage, then ``finish``.

A target consists of studies: runs of some methods on one task, through ``compare``, so they can be
interrupted and spread over processes. Runs are in ``OUT/runs``, the results in ``OUT/TARGET``.
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from salience.compare import directory
from salience.compare.charts import Table, cells
from salience.errors import ArgumentError
from salience.paper.analysis import Analysis, Material
from salience.paper.claims import paragraph
from salience.paper.stages import Settings, Stage
from salience.paper.targets import TARGETS, Study, Target

__all__ = ["TARGETS", "Outcome", "Settings", "Stage", "finish", "prepare"]


@dataclass(frozen=True)
class Outcome:
    """The result of a target, and the files that were written."""

    directory: Path
    found: Analysis
    paragraph: str
    files: list[Path]


def prepare(
    name: str,
    settings: Settings,
    out: Path,
    *,
    data_dir: Path | None = None,
    jobs: int = 1,
    resume: bool = False,
) -> list[Stage]:
    """Check everything, write ``config.json``, and return the stages to run one by one."""
    target = _target(name)
    settings.check()
    stages = [Stage(study, settings, out, data_dir) for study in _studies(target, settings.task)]
    for stage in stages:
        stage.plan.check(jobs)
        if len(stages) > 1:  # missing data is reported now, not after hours of the first task
            stage.plan.make_task()
    studies = [stage.config for stage in stages]
    config = {"target": name, **asdict(settings), "studies": studies, "jobs": jobs}
    directory.begin(_place(out, name, settings.task), config, resume=resume)
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


def _place(out: Path, name: str, task: str | None) -> Path:
    """The directory of a target's results; one task of several has its own."""
    return out / (name if task is None else f"{name}-{task}")


def finish(name: str, out: Path, task: str | None = None) -> Outcome:
    """Judge the finished runs; write ``result.json`` and the data behind the figures."""
    target, place = _target(name), _place(out, name, task)
    config = _read(place / "config.json")
    settings = Settings(config["scale"], config["model"], config["seeds"], config["threads"])
    stages = [Stage(study, settings, out) for study in _studies(target, task)]
    material = Material(
        {stage.study.task: stage.traces() for stage in stages},
        {stage.study.task: stage.stated for stage in stages},
    )
    found = target.analyse(material)
    begin = (
        f"{target.where} of the paper, repeated ({'; '.join(material.stated.values())}). "
        f"The paper says that {target.says}. Measured here:"
    )
    text = paragraph(begin, found.claims)
    contents = _contents(target, config, found, text)
    files = [directory.write(place / file, content) for file, content in contents.items()]
    return Outcome(place, found, text, files)


def _contents(
    target: Target, config: dict[str, Any], found: Analysis, text: str
) -> dict[str, str | Mapping[str, Any]]:
    result = {
        "target": target.name,
        "paper": target.where,
        "scale": config["scale"],
        "paragraph": text,
        "claims": [claim.plain() for claim in found.claims],
        "config": config,
    }
    contents: dict[str, Any] = {"result.json": result, "paragraph.txt": text + "\n"}
    for chart in found.charts:
        contents[f"{chart.name}.json"] = chart.plain()
        contents[f"{chart.name}.csv"] = _csv(cells(chart))
    for table in found.tables:
        contents[f"{table.name}-table.csv"] = _csv(table)
    return contents


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
