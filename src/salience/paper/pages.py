"""The results of the paper from packed runs alone: directories and the tables of their page.

No data set is read and nothing is trained. A target of several tasks gets one directory when all
its tasks are packed (Table 1 with all its cells), and until then one for each task that is.
"""

import gzip
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from salience.compare import directory
from salience.compare.report.png import chart_png
from salience.errors import ArgumentError
from salience.paper import table1
from salience.paper.analysis import NAMES, Analysis, Runs
from salience.paper.claims import Verdict
from salience.paper.packed import Pack
from salience.paper.reproduce import as_csv, judge, points, result
from salience.paper.stages import Stage
from salience.paper.targets import TARGETS, Study, Target

__all__ = ["PAGE", "SHOWN", "Result", "complete", "page", "table", "with_table", "write"]

SHOWN: dict[Verdict, str] = {
    "holds": "**holds**",
    "does not hold": "**does not hold**",
    "tie": "a tie",
    "unknown": "undecided",
}
PAGE = "README.md"
# The directories of results, in the order of the page.
ORDER = [
    name
    for target in TARGETS.values()
    for name in (target.name, *(f"{target.name}-{study.task}" for study in target.studies))
]


class Result(NamedTuple):
    """A target, or one task of it, of which all runs are packed."""

    name: str  # of the directory
    target: Target
    stages: list[Stage]
    runs: list[Runs]
    environments: list[list[dict[str, Any]]]  # of each stage


# -------------------------------------------------------------------------------- what is complete


def complete(packs: Mapping[str, Pack]) -> tuple[list[Result], list[str]]:
    """The results that can be made, and for each study that is not complete why."""
    results, missing = [], []
    for target in TARGETS.values():
        whys = [_missing(target, study, packs) for study in target.studies]
        done = [study for study, why in zip(target.studies, whys, strict=True) if not why]
        missing += [why for why in whys if why]
        if len(done) == len(target.studies):
            results.append(_gathered(target.name, target, done, packs))
        else:
            parts = [(f"{target.name}-{study.task}", study) for study in done]
            results += [_gathered(name, target, [study], packs) for name, study in parts]
    return results, missing


def _missing(target: Target, study: Study, packs: Mapping[str, Pack]) -> str:
    """Why a study of a target is not complete; empty where it is."""
    where = f"{target.name}, {study.task}"
    if study.name not in packs:
        return f"{where}: no runs"
    pack = packs[study.name]
    wanted = [(m, seed) for m in study.methods.values() for seed in range(_seeds(target, pack))]
    absent = [each for each in wanted if each not in pack.runs]
    return f"{where}: {len(absent)} of {len(wanted)} runs are missing" if absent else ""


def _seeds(target: Target, pack: Pack) -> int:
    """As many as the target was begun with, or the others that have its runs."""
    return pack.seeds.get(target.name) or max(pack.seeds.values(), default=1)


def _gathered(
    name: str, target: Target, studies: Sequence[Study], packs: Mapping[str, Pack]
) -> Result:
    found = Result(name, target, [], [], [])
    for study in studies:
        pack = packs[study.name]
        stage = pack.stage(study, Path(), _seeds(target, pack))
        kept = {m: [pack.runs[spec, s] for s in stage.seeds] for m, spec in study.methods.items()}
        found.stages.append(stage)
        found.runs.append({label: [run.trace for run in runs] for label, runs in kept.items()})
        every = [run.environment for runs in kept.values() for run in runs]
        found.environments.append([e for i, e in enumerate(every) if e not in every[:i]])
    return found


# ------------------------------------------------------------------------------------------- files


def write(results: Path, packs: Mapping[str, Pack]) -> tuple[list[Path], list[str]]:
    """Write every result that is complete, and the page; the directories, and what is missing.

    Directories of single tasks are removed once the whole target is there. What is not complete
    stays as it is.
    """
    made, missing = complete(packs)
    text = _read(results / PAGE)
    page(text, ())  # refused before anything is written
    written, tables = [], []
    for each in made:
        found, told = judge(each.target, each.stages, each.runs)
        for file, content in _files(each, found, told).items():
            directory.write(results / each.name / file, content)
        _remove_parts(results, each)
        written.append(results / each.name)
        tables.append((each, found))
    directory.write(results / PAGE, page(text, tables))
    return written, missing


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot read {path} ({error.strerror or error})") from error


def _files(each: Result, found: Analysis, told: str) -> dict[str, Any]:
    contents: dict[str, Any] = {"result.json": result(each.target, _config(each), found, told)}
    for chart in found.charts:
        contents[f"{each.name}.png"] = chart_png(chart)
        contents[f"{chart.name}.csv.gz"] = _compressed(points(chart))
    for table in found.tables:
        contents[f"{table.name}-table.csv.gz"] = _compressed(as_csv(table.columns, table.rows))
        if table.columns == table1.COLUMNS:
            contents[f"{table.name}.md"] = table1.markdown(table, told)
    return contents


def _compressed(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


def _config(each: Result) -> dict[str, Any]:
    """What was run, and where: settings that all tasks share are single values."""
    studies = [
        {**stage.config, "environments": environments}
        for stage, environments in zip(each.stages, each.environments, strict=True)
    ]
    return {
        "target": each.target.name,
        "scale": _shared({stage.study.task: stage.settings.scale for stage in each.stages}),
        "model": _shared({stage.study.task: stage.settings.model for stage in each.stages}),
        "seeds": _shared({stage.study.task: len(stage.seeds) for stage in each.stages}),
        "studies": studies,
    }


def _shared(by_task: dict[str, Any]) -> Any:
    first, *others = by_task.values()
    return first if all(other == first for other in others) else by_task


def _remove_parts(results: Path, each: Result) -> None:
    """The directories of single tasks, which the whole one replaces."""
    for name in _replaced(each) - {each.name}:
        part = results / name / "result.json"
        if part.is_file() and json.loads(part.read_bytes()).get("target") == each.target.name:
            shutil.rmtree(part.parent)


def _replaced(each: Result) -> set[str]:
    """The directories whose content this result has."""
    if each.name != each.target.name:
        return {each.name}
    return {each.name, *(f"{each.name}-{stage.study.task}" for stage in each.stages)}


# ------------------------------------------------------------------------------------------- page


def page(text: str, tables: Sequence[tuple[Result, Analysis]]) -> str:
    """The page with new rows for these results; the rows of all others stay as they are."""
    replaced = {name for each, _ in tables for name in _replaced(each)}
    targets = {each.name: [_target_row(each)] for each, _ in tables}
    claims = {each.name: _claim_rows(each, found) for each, found in tables}
    text = _with_rows(text, "targets", targets, replaced)
    return _with_rows(text, "claims", claims, replaced)


def _with_rows(text: str, mark: str, new: Mapping[str, list[str]], replaced: set[str]) -> str:
    """A table of the page with new rows, in the order of targets."""
    head, ruler, *rows = _marked(text, mark)[0].strip().splitlines()
    by_name: dict[str, list[str]] = {name: [] for name in ORDER} | dict(new)
    for row in rows:
        name = _linked(row)
        if name not in replaced:
            by_name.setdefault(name, []).append(row)
    ordered = [row for rows in by_name.values() for row in rows]
    return with_table(text, mark, "\n".join([head, ruler, *ordered]))


def with_table(text: str, mark: str, new: str) -> str:
    """The page with this table between ``<!-- MARK -->`` and ``<!-- /MARK -->``."""
    _, start, end = _marked(text, mark)
    return f"{text[:start]}\n{new}\n\n{text[end:]}"


def _marked(text: str, mark: str) -> tuple[str, int, int]:
    """What is between the marks, and where."""
    found = re.search(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", text, re.DOTALL)
    if found is None:
        raise ArgumentError(
            f"{PAGE} has no <!-- {mark} --> with <!-- /{mark} --> behind it: add these two lines "
            f"around the table"
        )
    return found[1], *found.span(1)


def _linked(row: str) -> str:
    """The directory that a row links to first."""
    found = re.search(r"\]\(([\w-]+)[/)]", row)
    if found is None:
        raise ArgumentError(f"{PAGE} has a row without a link to its directory: {row[:60]}")
    return found[1]


def _target_row(each: Result) -> str:
    where = each.target.where.removesuffix(" (appendix)")
    tasks = "" if len(each.stages) > 1 else f", {NAMES[each.stages[0].study.task]}"
    commits = [e["commit"] for environments in each.environments for e in environments]
    short = dict.fromkeys(f"`{commit[:7]}`" for commit in commits if commit)
    figure = f"[{each.name}]({each.name}/{each.name}.png)"
    figure += f", [table]({each.name}/table1.md)" if each.target.name == "table1" else ""
    cells = [f"{where}{tasks}: {each.target.shows}", _seeds_shown(each), ", ".join(short)]
    return _row([*cells, "; ".join(f"`{command}`" for command in _commands(each)), figure])


def _seeds_shown(each: Result) -> str:
    return ", ".join(dict.fromkeys(str(len(stage.seeds)) for stage in each.stages))


def _commands(each: Result) -> list[str]:
    """One for all tasks where their settings are the same."""
    options = {
        stage.study.task: f"--model {stage.settings.model} --scale {stage.settings.scale:g} "
        f"--seeds {len(stage.seeds)}"
        for stage in each.stages
    }
    name, alike = each.target.name, len(set(options.values())) == 1
    if alike and each.name == name:
        return [f"{name} {next(iter(options.values()))}"]
    return [f"{name} --task {task} {rest}" for task, rest in options.items()]


def _claim_rows(each: Result, found: Analysis) -> list[str]:
    return [
        _row([f"[{each.name}]({each.name})", claim.said, SHOWN[claim.verdict], claim.evidence])
        for claim in found.claims
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join([_row(head), f"|{'---|' * len(head)}", *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
