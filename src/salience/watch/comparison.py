"""A comparison that runs, from its configuration and the rows so far."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, final

from salience.compare.budgets import budget_of
from salience.compare.charts import Chart
from salience.compare.measures import LOSS, Measure, read_measures
from salience.compare.methods import BASELINE
from salience.compare.report import numbers
from salience.compare.report.curves import measured, modes_now, shown_as, switching
from salience.compare.run import Row
from salience.compare.summary import by_seed, curve

__all__ = ["Comparing"]

MOST_METHODS = 60
FEW = 6  # methods that are named
NEEDED = {"method": str, "task": str, "seed": int, "step": int, "seconds": float}
OPTIONAL = {"budget": float}


@final
class Comparing:
    """The rows of a comparison as they come; what is no row is left out."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self._rows: list[Row] = []

    def add(self, row: Mapping[str, Any]) -> None:
        try:
            plain = {name: kind(row[name]) for name, kind in NEEDED.items()}
            plain |= {name: kind(row[name]) for name, kind in OPTIONAL.items() if name in row}
        except (LookupError, TypeError, ValueError, OverflowError):
            return
        if all(math.isfinite(value) for value in plain.values() if isinstance(value, float)):
            self._rows.append(cast(Row, {**row, **plain}))

    @property
    def title(self) -> str:
        task = self._rows[0]["task"] if self._rows else self.config.get("task", "")
        return f"Comparison on {task}" if task else "A comparison"

    @property
    def methods(self) -> list[str]:
        """As planned, the baseline first, as far as they have begun."""
        begun = dict.fromkeys(row["method"] for row in self._rows)
        planned = [str(each) for each in _listed(self.config, "methods")]
        names = [each for each in dict.fromkeys([BASELINE, *planned, *begun]) if each in begun]
        return names[:MOST_METHODS]

    def _current(self) -> list[Row]:
        """Where there are budgets, the rows of the one that is trained at the moment."""
        if not self._rows:
            return []
        now = budget_of(self._rows[-1])
        return [row for row in self._rows if budget_of(row) == now]

    def progress(self) -> float | None:
        """The share that is done; None where the plan is not known."""
        runs = {(row["method"], row["seed"], budget_of(row), row["step"]) for row in self._rows}
        counts: dict[tuple[str, int, float], int] = {}
        for *run, _ in runs:
            key = cast(tuple[str, int, float], tuple(run))
            counts[key] = counts.get(key, 0) + 1
        try:
            evaluations = int(self.config["evaluations"])
            planned = len(_listed(self.config, "methods")) * len(_listed(self.config, "seeds"))
            shares = [float(each) for each in _listed(self.config, "budgets")] or [1.0]
            whole = planned * sum(shares)
            done = sum(share * (n - 1) / evaluations for (*_, share), n in counts.items())
            return min(1.0, done / whole)
        except (LookupError, TypeError, ValueError, ArithmeticError):
            return None

    def lead(self) -> str:
        if not self._rows:
            return "Nothing has been measured yet."
        seeds = len({row["seed"] for row in self._current()})
        counted = f"{seeds} seeds" if seeds > 1 else "one seed"
        names = self.methods if len(self.methods) <= FEW else [f"{len(self.methods)} methods"]
        within = self._rows[-1].get("budget")
        budget = "" if within is None else f"; within {numbers.percent(within)} of the length"
        return f"{', '.join(names)}: {counted} each{budget}"

    def charts(self) -> list[Chart]:
        """The primary measure, the train loss, and what samplers do."""
        rows, methods = self._current(), self.methods
        if not rows:
            return []
        column, measure = self._primary(rows[0])
        several = len({row["seed"] for row in rows}) > 1
        title = "mean and range over seeds" if several else "one seed"
        found = [
            measured("test", rows, methods, column, measure, title),
            measured("train", rows, methods, "train_loss", LOSS, title),
        ]
        strips = switching("auto", rows, methods, self.title)
        return found if strips is None else [*found, strips]

    def _primary(self, row: Row) -> tuple[str, Measure]:
        try:
            measures, primary = read_measures(self.config, cast(Mapping[str, Any], row))
            return primary, measures[primary]
        except (LookupError, TypeError, AttributeError):
            return "test_loss", LOSS

    def table(self) -> dict[str, Any]:
        """A line per method: steps, the last values, and what its sampler does."""
        rows = self._current()
        if not rows:
            return {"columns": [], "lines": []}
        column, measure = self._primary(rows[0])
        percent = measure.unit == "%"
        lines = []
        for method in self.methods:
            runs = by_seed(rows, method)
            tested, trained = (curve(runs, each) for each in (column, "train_loss"))
            if not tested.steps:
                lines.append([method, "0", "", "", ""])
                continue
            values = [_shown(tested.mean[-1], percent), _shown(trained.mean[-1], False)]
            lines.append([method, f"{tested.steps[-1]:,.0f}", *values, modes_now(runs)])
        heads = ["Method", "Step", _upper(shown_as(column, measure)), "Train loss", "Sampler"]
        if not any(line[-1] for line in lines):
            heads, lines = heads[:-1], [line[:-1] for line in lines]
        return {"columns": heads, "lines": lines}

    def ended(self, directory: Path) -> bool:
        return bool(self._rows) and (directory / "summary.json").exists()


def _listed(config: Mapping[str, Any], name: str) -> list[Any]:
    found = config.get(name)
    return found if isinstance(found, list) else []


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shown(value: float, percent: bool) -> str:
    if not math.isfinite(value):
        return "not finite"
    return numbers.percent(value, 2) if percent else numbers.loss(value)
