"""What was compared and what came out, in plain words that follow from the numbers."""

import math
from typing import Any, NamedTuple

from salience.compare.report import numbers
from salience.compare.report.reading import Comparison
from salience.compare.report.series import looks
from salience.compare.report.verdict import has_target, no_target, verdicts
from salience.compare.summary import MethodSummary, Spread, Summary, tested_by

__all__ = [
    "Fact",
    "best",
    "compared",
    "facts",
    "outcome",
    "sentences",
    "setting",
    "summary_cells",
    "summary_columns",
    "title",
    "under_table",
]

MOST_NAMES = 4
OPEN = "open"  # a ratio of a comparison that is not finished


class Fact(NamedTuple):
    """One number in large print, and what it is."""

    value: str
    label: str


def title(found: Comparison) -> str:
    """The user's own title, or who was compared on what."""
    given = found.config.get("title")
    if isinstance(given, str) and given.strip():
        return given.strip()
    base, *others = looks(found.summary["methods"], found.summary["baseline"])
    who = f"{len(others)} methods" if len(others) > MOST_NAMES else _listed(others)
    against = f"{who} against {base}" if others else base
    return f"Importance sampling on {found.summary['task']}: {against}"


def compared(found: Comparison) -> str:
    """Who, how often and for how long."""
    summary = found.summary
    n = _baseline(summary)["n"]
    seeds = f"{n} seeds each" if n > 1 else "one seed each"
    names = _listed([*looks(summary["methods"], summary["baseline"])])
    return f"Trained on {summary['task']} with {names}: {seeds}, {_length(found)}."


def _listed(names: list[str]) -> str:
    *most, last = names or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _length(found: Comparison) -> str:
    seconds = found.config.get("seconds")
    if isinstance(seconds, int | float):
        return f"{seconds:g} seconds of training"
    planned, last = found.config.get("steps"), _baseline(found.summary)["final"]["step"]
    return f"{last if found.finished or not isinstance(planned, int) else planned:,} steps"


def _baseline(summary: Summary) -> MethodSummary:
    return summary["methods"][summary["baseline"]]


def outcome(found: Comparison) -> str:
    """What came out, in one or two sentences."""
    summary = found.summary
    base, target = summary["baseline"], summary["target_train_loss"]
    if not found.finished:
        return unfinished(found)
    if len(summary["methods"]) == 1:
        return f"Only {base} was trained, so there is nothing to compare it with."
    if not math.isfinite(target):
        return f"{base} did not end at a finite train loss, so there is no target to reach."
    return " ".join(filter(None, [_winner(summary), _caution(summary)]))


def unfinished(found: Comparison) -> str:
    """How far a comparison has come that has no summary yet."""
    runs: dict[tuple[str, int], int] = {}
    for row in found.rows:
        key = row["method"], row["seed"]
        runs[key] = max(runs.get(key, 0), row["step"])
    planned = len(found.config.get("methods") or []) * len(found.config.get("seeds") or [])
    begun = f"{len(runs)} of {planned} runs" if planned >= len(runs) else f"{len(runs)} runs"
    return (
        f"This comparison is unfinished: {begun} have begun, the furthest is at step "
        f"{max(runs.values()):,}. The numbers are the state so far; there is no verdict yet."
    )


def _winner(summary: Summary) -> str:
    """The fastest method, by the time to the target."""
    base = summary["baseline"]
    goal = f"the train loss at which {base} ended ({numbers.loss(summary['target_train_loss'])})"
    if not has_target(summary):
        return f"There is no time to compare: {no_target(summary)}."
    name = best(summary)
    if name is None:
        return _nobody(summary, goal)
    time = summary["methods"][name]["time_to_target_ratio"]
    assert time is not None
    share = numbers.percent(time)
    if share == "100%":
        return f"{name} reached {goal} in the same training time as {base}."
    if time < 1:
        first = f"The fastest was {name}: it" if len(summary["methods"]) > 2 else name
        return f"{first} reached {goal} in {share} of the training time of {base}."
    first = f"the best, {name}," if len(summary["methods"]) > 2 else name
    return f"Nothing was faster than {base}: to reach {goal}, {first} took {share} of its time."


def _nobody(summary: Summary, goal: str) -> str:
    """No method reached the target: who came closest."""
    ends = {
        name: method["final"]["train_loss"]["mean"]
        for name, method in summary["methods"].items()
        if name != summary["baseline"] and math.isfinite(method["final"]["train_loss"]["mean"])
    }
    if not ends:
        return f"No method reached {goal}, or ended at a finite one."
    closest = min(ends, key=lambda name: ends[name])
    end = numbers.loss(ends[closest])
    if len(summary["methods"]) == 2:
        return f"{closest} did not reach {goal}: it ended at {end}."
    return f"No method reached {goal}: the closest, {closest}, ended at {end}."


def best(summary: Summary) -> str | None:
    """The method other than the baseline that reached the target first; None if none did."""
    times = {
        name: method["time_to_target_ratio"]
        for name, method in summary["methods"].items()
        if name != summary["baseline"] and method["time_to_target_ratio"] is not None
    }
    return min(times, key=lambda name: times[name] or 0.0, default=None)


def _caution(summary: Summary) -> str:
    """How far the seeds agree."""
    name = best(summary)
    if _baseline(summary)["n"] < 2:
        return "This is one seed: another may turn out differently."
    if name is None:
        return ""
    alone = summary["methods"][name]["seeds_to_target"]
    ratios = sorted(value for value in alone if value is not None)
    if len(ratios) < len(alone):
        return f"Alone, {len(ratios)} of its {len(alone)} seeds got there."
    if not ratios:
        return ""
    low, high = f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"
    return f"Seed by seed it took {low if low == high else f'{low} to {high}'} times the steps."


def facts(found: Comparison) -> list[Fact]:
    """The numbers of the best method in large print; none without a method to speak of."""
    summary = found.summary
    name = best(summary)
    if name is None or not found.finished:
        return []
    method, base = summary["methods"][name], summary["baseline"]
    measure = tested_by(method["final"])
    theirs = numbers.measured(measure, _baseline(summary)["final"][measure]["mean"])
    return [
        Fact(numbers.ratio(method["time_to_target_ratio"]), f"the training time of {base}"),
        Fact(numbers.ratio(method["steps_to_target_ratio"]), f"the steps of {base}"),
        Fact(_known(method["step_cost_ratio"]), f"the cost of a step of {base}"),
        Fact(
            numbers.measured(measure, method["final"][measure]["mean"]),
            f"{measure.replace('_', ' ')} at the end, against {theirs}",
        ),
    ]


def _known(ratio: float | None) -> str:
    return "not measured" if ratio is None else numbers.ratio(ratio)


def sentences(found: Comparison) -> list[str]:
    """The verdict on each method; none before the end."""
    finished = found.finished and math.isfinite(found.summary["target_train_loss"])
    return verdicts(found.summary) if finished else []


def summary_columns(found: Comparison) -> list[str]:
    """The head of the table, the name of the method first."""
    measure = tested_by(_baseline(found.summary)["final"])
    end = "Train loss at the end" if found.finished else "Train loss so far"
    ends = ["Method", end, "Worst train loss"]
    ratios = ["Steps to target", "Seeds alone", "Time to target", "Cost of a step", "Seeds"]
    return [*ends, measure.replace("_", " ").capitalize(), *ratios]


def summary_cells(found: Comparison) -> list[list[str]]:
    """One line per method, the baseline first: mean ± standard deviation, ratios, seeds."""
    methods = found.summary["methods"]
    names = looks(methods, found.summary["baseline"])
    return [[name, *_line(methods[name], found.finished)] for name in names]


def _line(method: MethodSummary, finished: bool) -> list[str]:
    final = method["final"]
    measure = tested_by(final)
    error = measure == "test_error"
    return [
        _spread(final["train_loss"]),
        _spread(final.get("train_max_loss")),
        _spread(final[measure], 100 if error else 1, "%" if error else ""),
        numbers.ratio(method["steps_to_target_ratio"]) if finished else OPEN,
        _seeds(method["seeds_to_target"]) if finished else OPEN,
        numbers.ratio(method["time_to_target_ratio"]) if finished else OPEN,
        _known(method["step_cost_ratio"]),
        str(method["n"]),
    ]


def _spread(value: Spread | None, scale: float = 1, unit: str = "") -> str:
    if value is None:
        return "not measured"
    return numbers.spread(value, scale) + unit if math.isfinite(value["mean"]) else "not finite"


def _seeds(ratios: list[float | None]) -> str:
    """The range over seeds; how many got there, when not all did."""
    reached = sorted(value for value in ratios if value is not None)
    if not reached:
        return "none" if ratios else "not measured"
    low, high = numbers.ratio(reached[0]), numbers.ratio(reached[-1])
    text = low if low == high else f"{low} to {high}"
    return text if len(reached) == len(ratios) else f"{text} ({len(reached)} of {len(ratios)})"


def under_table(found: Comparison) -> str:
    """What the numbers of the table are."""
    summary = found.summary
    base, several = summary["baseline"], _baseline(summary)["n"] > 1
    spread = "Mean ± standard deviation over seeds. " if several else "One seed, no spread. "
    if not found.finished:
        return f"{spread}Ratios to the target stay open until the comparison is finished."
    target = numbers.loss(summary["target_train_loss"])
    return f"{spread}Target: train loss {target}, where {base} ended. Ratios are over {base}."


def setting(config: dict[str, Any]) -> list[str]:
    """Where it ran and with what, in a few words each; nothing that is not known."""
    hardware, versions = (config.get(key) or {} for key in ("hardware", "versions"))
    if not isinstance(hardware, dict) or not isinstance(versions, dict):
        return []
    parts = [str(hardware["cpu"])] if hardware.get("cpu") else []
    parts += [f"{hardware['threads']} threads"] if hardware.get("threads", 1) != 1 else []
    parts += [f"{name} {versions[name]}" for name in ("salience", "torch") if versions.get(name)]
    commit = config.get("commit")
    return [*parts, f"commit {str(commit)[:12]}"] if commit else parts
