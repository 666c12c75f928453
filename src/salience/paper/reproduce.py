"""Run a target and judge it: ``prepare``, the rows of each stage, then ``finish``.

A target consists of studies: runs of some methods on one task, through ``compare``, so they can be
interrupted and spread over processes. Runs are in ``OUT/runs``, the results in ``OUT/TARGET``.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from salience.compare import directory
from salience.compare.charts import Chart
from salience.compare.report.interactive import chart_html
from salience.compare.report.png import chart_png
from salience.errors import ArgumentError
from salience.paper import table1
from salience.paper.analysis import Analysis, Material, Runs
from salience.paper.claims import paragraph
from salience.paper.stages import Settings, Stage
from salience.paper.targets import TARGETS, Study, Target

__all__ = ["Outcome", "as_csv", "finish", "judge", "points", "prepare", "result", "stages_of"]


POINT = ["panel", "line", "x", "y", "low", "high"]  # a row of the CSV file beside a figure


class Outcome(NamedTuple):
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


def stages_of(config: Mapping[str, Any], out: Path) -> list[Stage]:
    """The stages that a ``config.json`` of a target describes; no data set is read."""
    settings = Settings(config["scale"], config["model"], config["seeds"], config["threads"])
    studies = _studies(_target(config["target"]), config["task"])
    return [Stage(study, settings, out) for study in studies]


def finish(name: str, out: Path, task: str | None = None) -> Outcome:
    """Judge the finished runs; write ``result.json``, the figures, and the data behind them."""
    target, place = _target(name), _place(out, name, task)
    config = directory.read_config(place)
    if config is None:
        raise ArgumentError(f"{place} has no config.json: run the target before it is finished")
    stages = stages_of(config, out)
    found, text = judge(target, stages, [stage.traces() for stage in stages])
    contents = {
        **_figures(found, text),
        "result.json": result(target, config, found, text),
        "paragraph.txt": text + "\n",
    }
    files = [directory.write(place / file, content) for file, content in contents.items()]
    return Outcome(place, found, text, files)


def judge(target: Target, stages: Sequence[Stage], runs: Sequence[Runs]) -> tuple[Analysis, str]:
    """What the runs of each stage come to, and all claims as a paragraph."""
    described = {stage.study.task: stage.described for stage in stages}
    material = Material(dict(zip(described, runs, strict=True)), described)
    found = target.analyse(material)
    begin = (
        f"{target.where} of the paper, repeated ({material.stated}). "
        f"The paper says that {target.says}. Measured here:"
    )
    return found, paragraph(begin, found.claims)


def _figures(found: Analysis, text: str) -> dict[str, Any]:
    """A PNG, an interactive page and the numbers of each chart, and the tables."""
    contents: dict[str, Any] = {}
    for chart in found.charts:
        contents[f"{chart.name}.png"] = chart_png(chart)
        contents[f"{chart.name}.html"] = chart_html(chart, text)
        contents[f"{chart.name}.json"] = asdict(chart)
        contents[f"{chart.name}.csv"] = points(chart)
    for table in found.tables:
        contents[f"{table.name}-table.csv"] = as_csv(table.columns, table.rows)
        if table.columns == table1.COLUMNS:
            contents[f"{table.name}.md"] = table1.markdown(table, text)
    return contents


def result(target: Target, config: Mapping[str, Any], found: Analysis, text: str) -> dict[str, Any]:
    """The content of ``result.json``."""
    return {
        "target": target.name,
        "paper": target.where,
        "scale": config["scale"],
        "paragraph": text,
        "claims": [{**asdict(claim), "words": claim.words} for claim in found.claims],
        "config": config,
    }


def points(chart: Chart) -> str:
    """Every point of a chart as CSV."""
    rows = [
        [panel.title, line.label, *point]
        for panel in chart.panels
        for line in panel.lines
        for point in zip_longest(line.x, line.y, line.low or (), line.high or ())
    ]
    return as_csv(POINT, rows)


def as_csv(columns: list[str], rows: list[list[Any]]) -> str:
    """A head and rows."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()
