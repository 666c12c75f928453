"""What was compared and what came out, in plain sentences that follow from the numbers."""

import math
from typing import Any, Literal

from salience.compare.paired import Paired
from salience.compare.reading import Comparison
from salience.compare.report import numbers
from salience.compare.summary import MethodSummary, Summary, ended_at

__all__ = ["best", "compared", "facts", "judge", "outcome", "sentences", "setting", "title"]

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
    if config.get("budgets"):
        length = f"{_listed([numbers.percent(share) for share in config['budgets']])} of {length}"
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
    """What came out, in a few sentences: test results first, then train results."""
    summary = found.summary
    base = summary["baseline"]
    if not found.finished:
        return _unfinished(found)
    if len(summary["methods"]) == 1:
        return f"Only {base} was trained, so there is nothing to compare it with."
    if not _differing(summary):
        length = "" if found.budgets is None else ", with the whole length"
        who = _listed(_others(summary))
        return f"There is no difference: {who} trained exactly as {base}{length}."
    tested = [_tested(summary), _over_budgets(found)]
    if not math.isfinite(summary["target_train_loss"]):
        no_target = f"{base} did not end at a finite train loss, so there is no target to reach."
        return " ".join(filter(None, [*tested, no_target]))
    return " ".join(filter(None, [*tested, _winner(summary), _caution(summary)]))


def _others(summary: Summary) -> list[str]:
    return [name for name in summary["methods"] if name != summary["baseline"]]


def _differing(summary: Summary) -> list[str]:
    """The methods that did not train exactly as the baseline."""
    pairs = {name: summary["methods"][name]["differences"] for name in _others(summary)}
    return [name for name, each in pairs.items() if each is None or not each["end"]["same"]]


def _unfinished(found: Comparison) -> str:
    """How far a comparison has come that has no summary yet."""
    furthest = max(row["step"] for row in found.rows)
    begun = len({(row["method"], row["seed"]) for row in found.rows})
    planned = len(found.config.get("methods") or []) * len(found.config.get("seeds") or [])
    runs = f"{begun} of {planned} runs" if planned >= begun else f"{begun} runs"
    budget = found.rows[0].get("budget")
    runs += "" if budget is None else f" with a budget of {numbers.percent(budget)}"
    return (
        f"This comparison is unfinished: {runs} have begun, the furthest is at step "
        f"{furthest:,}. The numbers are the state so far; there is no verdict yet."
    )


# ----------------------------------------------------------------------------------- test results


def best(summary: Summary) -> str | None:
    """The method, other than the baseline, with the best test result in equal time; None if none.

    Of equals, the one that reached the target first.
    """
    ranked = {}
    for name in _differing(summary):
        method = summary["methods"][name]
        pairs, time = method["differences"], method["time_to_target_ratio"]
        if pairs is not None and math.isfinite(pairs["equal_time"]["mean"]):
            ranked[name] = pairs["equal_time"]["mean"], math.inf if time is None else time
    return min(ranked, key=lambda name: ranked[name], default=None)


Judgement = Literal["lower", "higher", "no difference", "one seed"]


def judge(difference: Paired) -> Judgement:
    """No difference where the interval includes 0 and where two trainings are identical."""
    low, high = difference["low"], difference["high"]
    if difference["same"] or (difference["mean"] == 0 and low is None):
        return "no difference"
    if low is None or high is None:
        return "one seed"
    return "lower" if high < 0 else "higher" if low > 0 else "no difference"


def _tested(summary: Summary) -> str:
    """The best test result in equal time."""
    name, base = best(summary), summary["baseline"]
    if name is None:
        return "No method ended at a finite test result."
    pairs = summary["methods"][name]["differences"]
    assert pairs is not None
    measure, ours, theirs = _equal_time(summary, name)
    against = f"{ours} against {theirs}{_interval(pairs['equal_time'], measure)}"
    verdict = judge(pairs["equal_time"])
    if verdict == "one seed":
        return f"In equal training time, the {measure} of {name} was {ours} against {theirs}."
    if verdict == "no difference":
        return (
            f"In equal training time, there was no difference in {measure} between {name} and "
            f"{base}: {against}."
        )
    first = "No method was better: in" if verdict == "higher" else "In"
    return f"{first} equal training time, {name} had a {verdict} {measure} than {base}: {against}."


def _equal_time(summary: Summary, name: str) -> tuple[str, str, str]:
    """The name of the test measure, its value in equal time, and the baseline's."""
    final, pairs = _baseline(summary)["final"], summary["methods"][name]["differences"]
    measure = summary["primary"]
    theirs = ended_at(final, measure)["mean"]
    ours = math.nan if pairs is None else theirs + pairs["equal_time"]["mean"]
    return _named(measure), _measured(ours, measure), _measured(theirs, measure)


def _named(measure: str) -> str:
    return measure.replace("_", " ")


def _measured(value: float, measure: str) -> str:
    return numbers.percent(value, 2) if measure.startswith("test_error") else f"{value:.1f}"


def _interval(difference: Paired, measure: str) -> str:
    """In brackets, the difference and its interval; nothing without one."""
    if difference["low"] is None or difference["same"]:
        return ""
    percent = measure.startswith("test error")
    unit = " points" if percent else ""
    text = numbers.difference(difference, percent).replace(" (", f"{unit}, 95% interval ", 1)
    return f" ({text}"


def _over_budgets(found: Comparison) -> str:
    """The method that came to the baseline's test result in the least time."""
    if found.budgets is None:
        return ""
    summary, base = found.summary, found.summary["baseline"]
    every = found.budgets["same_error"]
    reached = {n: every[n] for n in _differing(summary) if every[n]["share"] is not None}
    goal = f"the {_named(found.budgets['measure'])} of {base} at its whole length"
    if not reached:
        return f"Within the budgets, no method came to {goal}."
    name = min(reached, key=lambda name: reached[name]["share"] or 0.0)
    each = reached[name]
    share = numbers.percent(each["share"] or 0.0)
    low, high = (
        "not reached" if each[end] is None else numbers.percent(each[end] or 0.0)
        for end in ("low", "high")
    )
    around = f" (95% interval {low} to {high})" if each["n"] > 1 else ""
    most = "at most " if each["at_most"] else ""
    return f"Over all budgets, {name} came to {goal} in {most}{share} of its time{around}."


# ---------------------------------------------------------------------------------- train results


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
    base, goal, name = summary["baseline"], _goal(summary), fastest(summary)
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
    finals = {name: summary["methods"][name]["final"] for name in _differing(summary)}
    ends = {
        final["train_loss"]["mean"]: name
        for name, final in finals.items()
        if math.isfinite(final["train_loss"]["mean"])
    }
    if not ends:
        return f"No method reached {_goal(summary)}, or ended at a finite one."
    end = min(ends)
    return f"No method reached {_goal(summary)}: {ends[end]} ended at {numbers.loss(end)}."


def fastest(summary: Summary) -> str | None:
    """The method other than the baseline that reached the target first; None if none did."""
    times = {
        name: summary["methods"][name]["time_to_target_ratio"]
        for name in _differing(summary)
        if summary["methods"][name]["time_to_target_ratio"] is not None
    }
    return min(times, key=lambda name: times[name] or 0.0, default=None)


def _caution(summary: Summary) -> str:
    """How far the seeds agree."""
    name = fastest(summary)
    if _baseline(summary)["n"] < 2:
        return "This is one seed: another may turn out differently."
    if name is None:
        return ""
    alone = summary["methods"][name]["seeds_to_target"]
    ratios = sorted(value for value in alone if value is not None)
    if len(ratios) < len(alone):
        return f"Of its {len(alone)} seeds, {len(ratios)} reached it."
    low, high = f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"
    return f"Seed by seed {name} took {low if low == high else f'{low} to {high}'} times the steps."


def facts(found: Comparison) -> list[tuple[str, str]]:
    """The best method in large print: numbers, and what they are; none without a comparison."""
    summary = found.summary
    name = best(summary)
    if name is None or not found.finished:
        return []
    method, base = summary["methods"][name], summary["baseline"]
    measure, ours, theirs = _equal_time(summary, name)
    time = method["time_to_target_ratio"]
    large = [(ours, f"{measure} in equal time, against {theirs}")]
    if found.budgets is not None and found.budgets["same_error"][name]["share"] is not None:
        share = numbers.ratio(found.budgets["same_error"][name]["share"])
        large.append((share, f"the training time of {base} to its {measure}"))
    if "test_error_worst" in method["final"]:
        own, worst = (
            numbers.percent(each["final"]["test_error_worst"]["mean"], 2)
            for each in (method, _baseline(summary))
        )
        large.append((own, f"error of the worst class, against {worst}"))
    large.append((numbers.ratio(time), f"the training time of {base} to its train loss"))
    return [*large, (numbers.ratio(method["step_cost_ratio"]), f"the cost of a step of {base}")]


# ------------------------------------------------------------------------------ method by method


def sentences(found: Comparison) -> list[str]:
    """One or two sentences per method other than the baseline; none before the end."""
    return [_about(name, found.summary) for name in _others(found.summary) if found.finished]


def _about(name: str, summary: Summary) -> str:
    method, base = summary["methods"][name], summary["baseline"]
    pairs = method["differences"]
    if pairs is not None and pairs["end"]["same"]:
        return f"{name} trained exactly as {base}: no difference."
    parts = [_test(name, summary)]
    if math.isfinite(summary["target_train_loss"]):
        parts.append(_train(name, method, summary))
    return f"{'; '.join(filter(None, parts))}."


def _test(name: str, summary: Summary) -> str:
    """The test result in equal time, at the best point, and of the worst class."""
    method = summary["methods"][name]
    pairs = method["differences"]
    if pairs is None:
        return f"{name} has no seed in common with {summary['baseline']}"
    measure, ours, theirs = _equal_time(summary, name)
    text = f"In equal time, the {measure} of {name} was {ours} against {theirs}"
    text += _judged(pairs["equal_time"], measure)
    best_of_all = _measured(method["best"]["mean"], summary["primary"])
    base_best = _measured(_baseline(summary)["best"]["mean"], summary["primary"])
    text += f", at the best point of each run {best_of_all} against {base_best}"
    text += _judged(pairs["best"], measure)
    if "worst" in pairs:
        own, base = (
            numbers.percent(each["final"]["test_error_worst"]["mean"], 2)
            for each in (method, _baseline(summary))
        )
        text += f", of the worst class {own} against {base}{_judged(pairs['worst'], measure)}"
    return text


def _judged(difference: Paired, measure: str) -> str:
    verdict = judge(difference)
    if verdict == "one seed":
        return " (one seed)"
    if verdict == "no difference":
        return f" (no difference{_bare(difference, measure)})"
    return f" ({verdict}{_bare(difference, measure)})"


def _bare(difference: Paired, measure: str) -> str:
    inside = _interval(difference, measure)
    return f": {inside[2:-1]}" if inside else ""


def _train(name: str, method: MethodSummary, summary: Summary) -> str:
    end = numbers.loss(method["final"]["train_loss"]["mean"])
    if (why := _no_target(summary)) is not None:
        return f"{why[0].lower()}{why[1:]}; {name} ended at {end}"
    steps, time = method["steps_to_target_ratio"], method["time_to_target_ratio"]
    if steps is None or time is None:
        length = f"{method['final']['step']} steps"
        return f"it did not reach {_goal(summary)} in {length} and ended at {end}"
    joint = "and" if (steps < 1) == (time < 1) else "but"
    effort = f"{numbers.percent(steps)} of the steps {joint} {numbers.percent(time)}"
    ratio = method["step_cost_ratio"]
    cost = "" if ratio is None else f", at {ratio:.2f} times the cost per step"
    return f"to reach {_goal(summary)}, it needed {effort} of the training time{cost}"
