"""What was compared and what came out, in plain sentences that follow from the numbers."""

import math
from typing import Any

from salience.compare.reading import Comparison
from salience.compare.report import numbers
from salience.compare.summary import Final, MethodSummary, Summary, tested_by

__all__ = ["best", "compared", "facts", "outcome", "sentences", "setting", "title"]

MOST_NAMES = 4


def title(found: Comparison) -> str:
    """Who was compared on what."""
    base, *others = found.summary["methods"]
    who = f"{len(others)} methods" if len(others) > MOST_NAMES else _listed(others)
    against = f"{who} against {base}" if others else base
    return f"Importance sampling on {found.summary['task']}: {against}"


def compared(found: Comparison) -> str:
    """Who, how often and for how long."""
    base, config = _baseline(found.summary), found.config
    seeds = f"{base['n']} seeds each" if base["n"] > 1 else "one seed each"
    names = _listed([*found.summary["methods"]])
    length = f"{config.get('steps') or base['final']['step']:,} steps"
    if config.get("seconds"):
        length = f"{config['seconds']:g} seconds of training"
    return f"Trained on {found.summary['task']} with {names}: {seeds}, {length}."


def _listed(names: list[str]) -> str:
    *most, last = names or [""]
    return f"{', '.join(most)} and {last}" if most else last


def setting(config: dict[str, Any]) -> list[str]:
    """Where it ran and with what, in a few words each; nothing that is not known."""
    hardware, versions = config.get("hardware") or {}, config.get("versions") or {}
    parts = [str(hardware["cpu"])] if hardware.get("cpu") else []
    parts += [f"{hardware['threads']} threads"] if hardware.get("threads", 1) != 1 else []
    parts += [f"{name} {versions[name]}" for name in ("salience", "torch") if versions.get(name)]
    commit = config.get("commit")
    return [*parts, f"commit {str(commit)[:12]}"] if commit else parts


def _baseline(summary: Summary) -> MethodSummary:
    return summary["methods"][summary["baseline"]]


# ----------------------------------------------------------------------------------- the outcome


def outcome(found: Comparison) -> str:
    """What came out, in one or two sentences."""
    summary = found.summary
    base = summary["baseline"]
    if not found.finished:
        return _unfinished(found)
    if len(summary["methods"]) == 1:
        return f"Only {base} was trained, so there is nothing to compare it with."
    if not math.isfinite(summary["target_train_loss"]):
        return f"{base} did not end at a finite train loss, so there is no target to reach."
    return " ".join(filter(None, [_winner(summary), _caution(summary)]))


def _unfinished(found: Comparison) -> str:
    """How far a comparison has come that has no summary yet."""
    furthest = max(row["step"] for row in found.rows)
    begun = len({(row["method"], row["seed"]) for row in found.rows})
    planned = len(found.config.get("methods") or []) * len(found.config.get("seeds") or [])
    runs = f"{begun} of {planned} runs" if planned >= begun else f"{begun} runs"
    return (
        f"This comparison is unfinished: {runs} have begun, the furthest is at step "
        f"{furthest:,}. The numbers are the state so far; there is no verdict yet."
    )


def _goal(summary: Summary) -> str:
    loss = numbers.loss(summary["target_train_loss"])
    return f"the train loss at which {summary['baseline']} ended ({loss})"


def _no_target(summary: Summary) -> str | None:
    """Why there is nothing to reach, and what to do; None where there is a target."""
    if _baseline(summary)["steps_to_target_ratio"] is not None:
        return None
    base, end = summary["baseline"], numbers.loss(summary["target_train_loss"])
    return (
        f"There is no time to compare: {base} ended no lower than it began (train loss {end}), "
        f"so train for longer"
    )


def _winner(summary: Summary) -> str:
    """The fastest method, by the time to the target."""
    base, goal, name = summary["baseline"], _goal(summary), best(summary)
    if (why := _no_target(summary)) is not None:
        return f"{why}."
    if name is None:
        return _nobody(summary)
    time = summary["methods"][name]["time_to_target_ratio"] or 0.0
    share = numbers.percent(time)
    if share == "100%":
        return f"{name} reached {goal} in the same training time as {base}."
    if time < 1:
        return f"{name} reached {goal} first, in {share} of the training time of {base}."
    return f"Nothing was faster than {base}: to reach {goal}, {name} took {share} of its time."


def _nobody(summary: Summary) -> str:
    """No method reached the target: which came closest."""
    ends = {
        method["final"]["train_loss"]["mean"]: name
        for name, method in summary["methods"].items()
        if name != summary["baseline"] and math.isfinite(method["final"]["train_loss"]["mean"])
    }
    if not ends:
        return f"No method reached {_goal(summary)}, or ended at a finite one."
    end = min(ends)
    return f"No method reached {_goal(summary)}: {ends[end]} ended at {numbers.loss(end)}."


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
        return f"Of its {len(alone)} seeds, {len(ratios)} reached it."
    low, high = f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"
    return f"Seed by seed it took {low if low == high else f'{low} to {high}'} times the steps."


def facts(found: Comparison) -> list[tuple[str, str]]:
    """The best method in large print: numbers, and what they are; none without a target."""
    summary = found.summary
    name = best(summary)
    if name is None or not found.finished:
        return []
    method, base = summary["methods"][name], summary["baseline"]
    measure, ours, theirs = _tests(method["final"], _baseline(summary)["final"])
    return [
        (numbers.ratio(method["time_to_target_ratio"]), f"the training time of {base}"),
        (numbers.ratio(method["steps_to_target_ratio"]), f"the steps of {base}"),
        (numbers.ratio(method["step_cost_ratio"]), f"the cost of a step of {base}"),
        (ours, f"{measure} at the end, against {theirs}"),
    ]


def _tests(final: Final, baseline: Final) -> tuple[str, str, str]:
    """The name of the test measure, its value, and the baseline's."""
    measure = tested_by(final)
    ours, theirs = (each[measure]["mean"] for each in (final, baseline))
    if measure == "test_error":
        return "test error", numbers.percent(ours, 2), numbers.percent(theirs, 2)
    return "test perplexity", f"{ours:.1f}", f"{theirs:.1f}"


# ------------------------------------------------------------------------------ method by method


def sentences(found: Comparison) -> list[str]:
    """One sentence per method other than the baseline; none before the end."""
    summary = found.summary
    if not found.finished or not math.isfinite(summary["target_train_loss"]):
        return []
    base = _baseline(summary)["final"]
    return [
        f"{_train(name, method, summary)}; {_test(method['final'], base)}."
        for name, method in summary["methods"].items()
        if name != summary["baseline"]
    ]


def _train(name: str, method: MethodSummary, summary: Summary) -> str:
    end = numbers.loss(method["final"]["train_loss"]["mean"])
    if (why := _no_target(summary)) is not None:
        return f"{why}; {name} ended at {end}"
    steps, time = method["steps_to_target_ratio"], method["time_to_target_ratio"]
    if steps is None or time is None:
        length = f"{method['final']['step']} steps"
        return f"{name} did not reach {_goal(summary)} in {length}: it ended at {end}"
    joint = "and" if (steps < 1) == (time < 1) else "but"
    effort = f"{numbers.percent(steps)} of the steps {joint} {numbers.percent(time)}"
    ratio = method["step_cost_ratio"]
    cost = "" if ratio is None else f", at {ratio:.2f} times the cost per step"
    return f"To reach {_goal(summary)}, {name} needed {effort} of the training time{cost}"


def _test(final: Final, baseline: Final) -> str:
    text = "its {} was {} against {}".format(*_tests(final, baseline))
    ours, theirs = (each[tested_by(final)] for each in (final, baseline))
    if ours["std"] is None or theirs["std"] is None:
        return text + ", from one seed"
    # Two standard errors of the difference: less than that is what chance does with these seeds.
    noise = 2 * math.hypot(ours["std"], theirs["std"]) / math.sqrt(min(ours["n"], theirs["n"]))
    same = abs(ours["mean"] - theirs["mean"]) <= noise
    return text + (f", a difference within the noise of {ours['n']} seeds" if same else "")
