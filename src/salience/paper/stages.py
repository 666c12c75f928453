"""The runs of a study, at the scale that the user chose."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, final

from salience.compare.directory import RunFile
from salience.compare.lock import locked
from salience.compare.plan import Plan, compare
from salience.compare.run import Row
from salience.errors import ArgumentError
from salience.paper.analysis import NAMES
from salience.paper.measures import Trace
from salience.paper.networks import check_size
from salience.paper.targets import Study
from salience.paper.tasks import make_task

__all__ = ["Settings", "Stage"]

LEAST = 4  # steps, however small the scale


@dataclass(frozen=True)
class Settings:
    """What a user may choose; ``seeds`` None is the paper's number, ``task`` None all of them."""

    scale: float = 1.0
    model: str = "paper"
    seeds: int | None = None
    threads: int | None = None
    task: str | None = None

    def check(self) -> None:
        """Refuse what cannot be run before anything is loaded."""
        if not 0 < self.scale <= 1:
            raise ArgumentError(f"scale must be above 0 and at most 1; got {self.scale}")
        check_size(self.model)
        if self.seeds is not None and self.seeds < 1:
            raise ArgumentError(f"seeds must be at least 1; got {self.seeds}")


@final
class Stage:
    """One study of a target, ready to run.

    Its directory is named after what decides its rows, so that targets with the same ``out``
    share runs (Table 1 and the curves of CIFAR-10, for example).
    """

    def __init__(
        self, study: Study, settings: Settings, out: Path, data_dir: Path | None = None
    ) -> None:
        self.study, self.settings = study, settings
        self.steps, self.evaluations = _lengths(study, settings.scale)
        self.seeds = tuple(range(settings.seeds or study.seeds))
        self.runs = dict.fromkeys(study.methods, len(self.seeds))  # seeds of each label
        length = f"{self.steps}-steps-{self.evaluations}-points"
        self.directory = out / "runs" / f"{study.name}-{settings.model}-{length}"
        at = [round(i / self.evaluations * self.steps) for i in range(self.evaluations + 1)]
        task: dict[str, Any] = {"size": settings.model, "data_dir": data_dir, "probe": study.probe}
        self.plan = Plan(
            partial(make_task, study.task, **task),
            tuple(study.methods.values()),
            self.seeds,
            steps=self.steps,
            evaluations=self.evaluations,
            threads=settings.threads,
            observe=study.observe(at),
        )

    @property
    def stated(self) -> str:
        """What is run, for a sentence."""
        return f"{NAMES[self.study.task]}: {self.described}"

    @property
    def described(self) -> str:
        """What is run on the task; a shortened schedule is always stated."""
        length = f"{self.steps:,} iterations"
        if self.steps < self.study.steps:
            length = f"{self.steps:,} of {self.study.steps:,} iterations"
        if self.settings.scale < 1:
            length += f" (scale {self.settings.scale:g})"
        seeds = "one seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return f"{length}, {self.settings.model} network, {seeds}"

    @property
    def config(self) -> dict[str, Any]:
        """For ``config.json``."""
        return {
            "task": self.study.task,
            "methods": dict(self.study.methods),
            "seeds": self.seeds,
            "steps": self.steps,
            "evaluations": self.evaluations,
            "runs": self.directory.name,
        }

    def rows(self, jobs: int = 1) -> Iterator[Row]:
        """Train what is not trained yet; rows have the labels as their methods."""
        labels = {spec: label for label, spec in self.study.methods.items()}
        with locked(self.directory):
            for row in compare(self.plan, self.directory, jobs):
                yield {**row, "method": labels[row["method"]]}

    def traces(self) -> dict[str, list[Trace]]:
        """The finished runs by label, seeds in order."""
        found: dict[str, list[Trace]] = {label: [] for label in self.study.methods}
        for (label, spec), seed in product(self.study.methods.items(), self.seeds):
            file = RunFile(self.directory, spec, seed)
            if not file.finished:
                raise ArgumentError(
                    f"the run of {spec} with seed {seed} in {self.directory} is not finished: "
                    f"run it again with --resume"
                )
            found[label].append(Trace(file.rows, file.observed))
        return found


def _lengths(study: Study, scale: float) -> tuple[int, int]:
    """Steps and evaluations at this scale."""
    evaluations = max(study.least, round(scale * study.evaluations))
    if study.scaled == "evaluations":
        return study.steps, evaluations
    steps = max(LEAST, round(scale * study.steps))
    return steps, min(evaluations, steps)
