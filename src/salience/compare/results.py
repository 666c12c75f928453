"""The run directory of a comparison: its configuration, rows, summary and hardest examples."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from salience.compare.plan import Plan, RunFile, rows_on_disk
from salience.compare.records import environment, finite, refused
from salience.compare.summary import Summary, summarize
from salience.compare.training import Row, Task
from salience.errors import ArgumentError

__all__ = ["Results", "commit"]

# What may differ between a comparison and its resumption.
FREE = ("command", "versions", "hardware", "commit", "jobs")


@final
class Results:
    """Writes ``config.json`` at once, ``runs.jsonl`` as rows come, the rest at the end."""

    def __init__(
        self, directory: Path, plan: Plan, settings: Mapping[str, Any], *, jobs: int, resume: bool
    ) -> None:
        plan.check()
        self.directory, self._plan = directory, plan
        self._config = _config(plan, settings, jobs)
        before = _read(directory / "config.json")
        if before is not None and not resume:
            raise ArgumentError(
                f"{directory} already holds a comparison: pass --resume to go on with it, "
                f"or choose another directory with --out"
            )
        if before is not None:
            _refuse_other(before, self._config, directory)
        with refused(directory):
            directory.mkdir(parents=True, exist_ok=True)
        self._write("config.json", self._config)
        (directory / "runs.jsonl").write_text("", encoding="utf-8")

    @property
    def files(self) -> list[Path]:
        """What this class writes."""
        names = ("summary.json", "runs.jsonl", "hardest.json", "config.json")
        return [self.directory / name for name in names]

    def row(self, row: Row) -> None:
        """Append one evaluation, for those who look on."""
        with refused(self.directory), (self.directory / "runs.jsonl").open("a") as file:
            file.write(_line(row))

    def finish(self) -> Summary:
        """Put the rows in order, sum them up, and show the hardest examples."""
        rows = rows_on_disk(self.directory, self._plan)
        self._replace("runs.jsonl", "".join(map(_line, rows)))
        summary = summarize(rows)
        self._write("summary.json", summary)
        self._write("hardest.json", _hardest(self.directory, self._plan))
        self._write("observed.json", {"observed": _observed(self.directory, self._plan)})
        return summary

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        self._replace(name, json.dumps(finite(content), indent=2, allow_nan=False) + "\n")

    def _replace(self, name: str, text: str) -> None:
        """All or nothing, so that a kill leaves no half file."""
        with refused(self.directory):
            partial = self.directory / f"{name}.part"
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.directory / name)


def commit() -> str | None:
    """The commit of this copy of Salience, where it is a checkout; "+" marks later changes."""
    try:
        found = _git("rev-parse", "HEAD")
        return found + ("+" if _git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    package = Path(__file__).parents[1]
    ask = ["git", "-C", str(package), *arguments]
    answer = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True)
    return answer.stdout.strip()


def _config(plan: Plan, settings: Mapping[str, Any], jobs: int) -> dict[str, Any]:
    return {
        **settings,
        "methods": list(plan.methods),
        "seeds": list(plan.seeds),
        "steps": plan.steps,
        "seconds": plan.seconds,
        "evaluations": plan.evaluations,
        "jobs": jobs,
        "commit": commit(),
        **environment(threads=plan.threads or torch.get_num_threads()),
    }


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArgumentError(f"{path} is damaged ({error}): choose another --out") from error
    return content


def _refuse_other(before: dict[str, Any], now: dict[str, Any], directory: Path) -> None:
    for key in now:
        if key not in FREE and before.get(key) != now[key]:
            raise ArgumentError(
                f"cannot resume {directory}: it was begun with {key} {before.get(key)!r}, not "
                f"{now[key]!r}; give the same options, or choose another directory with --out"
            )


def _hardest(directory: Path, plan: Plan) -> dict[str, Any]:
    """The hardest training examples of each method's first seed, as pictures or text."""
    task = plan.make_task()
    methods: dict[str, Any] = {}
    steps: list[int] = []
    for method in plan.methods:
        file = RunFile(directory, method, plan.seeds[0])
        file.load()
        steps = steps or [row["step"] for row in file.rows]
        methods[method] = [
            {**each, "seed": plan.seeds[0], **_shown(task, each["index"])} for each in file.hardest
        ]
    return {"steps": steps, "methods": methods}


def _shown(task: Task, index: int) -> dict[str, Any]:
    shown = None if task.show is None else task.show(index)
    if isinstance(shown, Tensor):
        return {"image": (shown * 255).round().clamp(0, 255).to(torch.uint8).tolist()}
    return {} if shown is None else {"text": str(shown)}


def _observed(directory: Path, plan: Plan) -> list[dict[str, Any]]:
    """What ``Plan.observe`` measured, each with the run and the step it belongs to."""
    found = []
    for method in plan.methods:
        for seed in plan.seeds:
            file = RunFile(directory, method, seed)
            file.load()
            for row, values in zip(file.rows, file.observed, strict=False):
                found.append({"method": method, "seed": seed, "step": row["step"], **values})
    return found


def _line(row: Row) -> str:
    return json.dumps(finite(row), allow_nan=False) + "\n"
