"""What was compared and what came out, in plain sentences that follow from the numbers."""

import math
from typing import Any, Literal

from salience.compare.measures import Measure
from salience.compare.paired import CLOCK, Paired
from salience.compare.reading import Comparison
from salience.compare.report import numbers
from salience.compare.report.reasons import decided, few_seeds, reasons
from salience.compare.summary import MethodSummary, Summary, ended_at
from salience.compare.verdict import Category, call, leading, verdict, verdicts

__all__ = ["best", "compared", "facts", "outcome", "sentences", "setting", "title"]

MOST_NAMES = 4
WORST = Measure("error_worst", "error of the worst class", "lower", "%")


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
    """The verdict in one sentence, what to say of the other methods, and why it does not pay."""
    summary = found.summary
    base, name = summary["baseline"], leading(summary)
    if not found.finished:
        return _unfinished(found)
    if len(summary["methods"]) == 1:
        return f"Only {base} was trained, so there is nothing to compare it with."
    if not _differing(summary):
        parts = [f"There is no difference: {_exactly(_others(summary), found)}."]
    elif name is None:
        parts = [f"No method ended at a finite {_label(found)}."]
    else:
        parts = [f"{_sentence(name, found)}.", _rest(name, found), _over_budgets(found)]
    return " ".join(filter(None, [*parts, _no_finite_target(found), _why_not(name, found)]))


def best(summary: Summary) -> str | None:
    """The method, other than the baseline, that there is most to say for; None if none differs."""
    name = leading(summary)
    return name if name in _differing(summary) else None


def _others(summary: Summary) -> list[str]:
    return [name for name in summary["methods"] if name != summary["baseline"]]


def _differing(summary: Summary) -> list[str]:
    """The methods that did not train exactly as the baseline."""
    return [name for name, found in verdicts(summary).items() if found.category != "identical"]


def _exactly(names: list[str], found: Comparison) -> str:
    length = "" if found.budgets is None else ", with the whole length"
    return f"{_listed(names)} trained exactly as {found.summary['baseline']}{length}"


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


def _no_finite_target(found: Comparison) -> str:
    if math.isfinite(found.summary["target_train_loss"]):
        return ""
    base = found.summary["baseline"]
    return f"{base} did not end at a finite train loss, so there is no target to reach."


def _why_not(name: str | None, found: Comparison) -> str:
    """The first reason why the method that leads, or all of them, gain nothing."""
    name = name or next(iter(_others(found.summary)))
    if verdict(name, found.summary).category in ("pays", "better test", "sooner"):
        return ""
    return next(iter(reasons(name, found)), few_seeds(name, found))


# What the other methods did, beside the one that leads.
DID: dict[Category, str] = {
    "pays": "also paid",
    "better test": "also had better test results",
    "sooner": "trained faster",
    "mixed": "had mixed results",
    "one seed": "",
    "no difference": "made no difference",
    "does not pay": "did not pay",
    "identical": "trained exactly as the baseline",
    "unknown": "did not end at a finite test result",
}


def _rest(name: str, found: Comparison) -> str:
    """The verdicts of the other methods, in a few words."""
    every = {other: v.category for other, v in verdicts(found.summary).items() if other != name}
    parts = []
    for category, did in DID.items():
        names = [other for other, each in every.items() if each == category]
        if names and did:
            parts.append(f"{_listed(names)} {did}")
    return f"{'; '.join(parts)}." if parts else ""


# ------------------------------------------------------------------------------------ the verdict


def _sentence(name: str, found: Comparison) -> str:
    """The verdict on one method, from its test results and its time to the target."""
    summary, base = found.summary, found.summary["baseline"]
    said = verdict(name, summary)
    test, pace = _equal(name, found), _pace(name, found)
    more = "".join(f", {each}" for each in _beside(name, found))
    alone = len(_others(summary)) == 1
    match said.category:
        case "identical":
            return f"There is no difference: {_exactly([name], found)}"
        case "pays":
            return f"{name} pays: {test}{more}, and it {pace}"
        case "better test":
            return f"{name} pays on the test set: {test}{more}; it {pace}"
        case "sooner":
            none = f"with no difference in {_label(found)}"
            return f"{name} trains faster: it {pace}, {none}: {test}{more}"
        case "mixed":
            other = "; ".join(_beside(name, found))
            return f"{name} has mixed results: {test}, but {other}; it {pace}"
        case "one seed":
            again = "add some with --seeds 3 --resume"
            return f"One seed gives no verdict, so {again}: {test}, and it {pace}"
        case "no difference":
            return f"No difference between {name} and {base}: {test}{more}, and it {pace}"
        case _:
            no = f"{name} does not pay" if alone else f"No method pays. {name} came closest"
            if said.pace == "sooner":
                return f"{no}: it {pace}, but {_worse(name, found)}"
            return f"{no}: {test}{more}; it {pace}"


def _worse(name: str, found: Comparison) -> str:
    """What is worse on the test set, where the train loss fell sooner."""
    if verdict(name, found.summary).test != "worse":
        return f"{'; '.join(_beside(name, found))}; {_equal(name, found)}"
    higher = "higher" if found.summary["better"] == "lower" else "lower"
    more = "".join(f", {each}" for each in _beside(name, found))
    values = _equal(name, found).partition(" is ")[2]
    return f"its {_label(found)} in equal time is {higher}: {values}{more}"


Which = Literal["equal_time", "best", "worst"]


def _pair(name: str, found: Comparison, which: Which) -> tuple[Paired, float, float, Measure]:
    """A difference, the two values, and what they are of."""
    method, base = found.summary["methods"][name], _baseline(found.summary)
    pairs = method["differences"]
    assert pairs is not None
    if which == "worst":
        own, theirs = (each["final"]["test_error_worst"]["mean"] for each in (method, base))
        return pairs["worst"], own, theirs, WORST
    measure = found.measures[found.primary]
    if which == "best":
        return pairs["best"], method["best"]["mean"], base["best"]["mean"], measure
    theirs = ended_at(base["final"], found.primary)["mean"]
    return pairs["equal_time"], theirs + pairs["equal_time"]["mean"], theirs, measure


def _values(name: str, found: Comparison, which: Which) -> tuple[str, str]:
    """The two values, with the digits of their difference."""
    difference, own, theirs, measure = _pair(name, found, which)
    digits = numbers.digits(difference, own, measure.unit == "%")
    return (
        numbers.measured(own, measure.unit == "%", digits),
        numbers.measured(theirs, measure.unit == "%", digits),
    )


def _against(name: str, found: Comparison, which: Which) -> str:
    """ "1.20% against 1.90% (-0.70 points, 95% interval -0.90 to -0.50)"."""
    own, theirs = _values(name, found, which)
    difference, _, _, measure = _pair(name, found, which)
    return f"{own} against {theirs}{_interval(difference, measure)}"


def _equal(name: str, found: Comparison) -> str:
    of = f"the {_label(found)} of {name}"
    return f"in equal time {of} is {_against(name, found, 'equal_time')}"


def _beside(name: str, found: Comparison) -> list[str]:
    """Best point and worst class, where they tell something else than equal time."""
    said = verdict(name, found.summary)
    told: list[str] = []
    if said.best in ("better", "worse") and said.best != said.test:
        against = _against(name, found, "best")
        told.append(f"at the best point of each run the {_label(found)} is {against}")
    if said.worst in ("better", "worse") and said.worst != said.test:
        told.append(f"the error of the worst class is {_against(name, found, 'worst')}")
    return told


def _interval(difference: Paired, measure: Measure) -> str:
    """In brackets, the difference and its interval; nothing without one."""
    if difference["low"] is None or difference["same"]:
        return ""
    percent = measure.unit == "%"
    unit = " points" if percent else ""
    text = numbers.difference(difference, percent).replace(" (", f"{unit}, 95% interval ", 1)
    return f" ({text}"


def _label(found: Comparison) -> str:
    return f"test {found.measures[found.primary].label}"


def _over_budgets(found: Comparison) -> str:
    """The method that came to the baseline's test result in the least time."""
    if found.budgets is None:
        return ""
    summary, base = found.summary, found.summary["baseline"]
    every = found.budgets["same_error"]
    reached = {n: every[n] for n in _differing(summary) if every[n]["share"] is not None}
    goal = f"the {_label(found)} of {base} at its whole length"
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


def _pace(name: str, found: Comparison) -> str:
    """The time to the target: "reaches the train loss ... in 62% of the time of uniform"."""
    summary = found.summary
    method, base, goal = summary["methods"][name], summary["baseline"], _goal(summary)
    pace, time = verdict(name, summary).pace, method["time_to_target_ratio"]
    if pace == "no target":
        why = f"{base} ended no lower than it began ({numbers.loss(summary['target_train_loss'])})"
        if not math.isfinite(summary["target_train_loss"]):
            why = f"{base} has no finite one"
        return f"has no train loss to reach: {why}, so train for longer"
    if pace == "never" or time is None:
        return f"does not reach {goal}: it ends at {_end(method)}"
    took, around = f"{numbers.percent(time)} of the time of {base}", method["time_to_target_range"]
    if pace == "one seed" or around is None:
        every = "" if pace == "one seed" else ", though not with every seed"
        return f"reaches {goal} in {took}{every}"
    interval = f"95% interval {numbers.percent(around[0])} to {numbers.percent(around[1])}"
    if pace == "sooner":
        return f"reaches {goal} sooner, in {took} ({interval})"
    if pace == "later":
        return f"reaches {goal} later, in {took} ({interval})"
    if 1 / CLOCK <= time <= CLOCK:
        return f"reaches {goal} in the same time"
    if around[0] <= 1 <= around[1]:
        return f"reaches {goal} in {took}, which is no difference ({interval})"
    return f"reaches {goal} in {took}, which is the clock's doing: it took as many steps"


def _end(method: MethodSummary) -> str:
    end = method["final"]["train_loss"]["mean"]
    return numbers.loss(end) if math.isfinite(end) else "no finite one"


def facts(found: Comparison) -> list[tuple[str, str]]:
    """The best method in large print: numbers, and what they are; none without a comparison."""
    summary = found.summary
    name = best(summary)
    if name is None or not found.finished:
        return []
    method, base = summary["methods"][name], summary["baseline"]
    ours, theirs = _values(name, found, "equal_time")
    large = [(ours, f"{_label(found)} in equal time, against {theirs}")]
    if found.budgets is not None and found.budgets["same_error"][name]["share"] is not None:
        share = numbers.ratio(found.budgets["same_error"][name]["share"])
        large.append((share, f"the training time of {base} to its {_label(found)}"))
    pairs = method["differences"]
    if pairs is not None and "worst" in pairs:
        own, worst = _values(name, found, "worst")
        large.append((own, f"error of the worst class, against {worst}"))
    time = numbers.ratio(method["time_to_target_ratio"])
    large.append((time, f"the training time of {base} to its train loss"))
    return [*large, (numbers.ratio(method["step_cost_ratio"]), f"the cost of a step of {base}")]


# ------------------------------------------------------------------------------ method by method


def sentences(found: Comparison) -> list[str]:
    """A few sentences per method other than the baseline; none before the end.

    All of its results, what ``auto`` decided, and the reasons where it gains nothing.
    """
    if not found.finished:
        return []
    return [_told(name, found) for name in _others(found.summary)]


def _told(name: str, found: Comparison) -> str:
    why, decision = reasons(name, found), decided(name, found)
    if any(reason.startswith(decision.removesuffix(".")) for reason in why):
        decision = ""  # the reason says so too, with what to try
    return " ".join(filter(None, [_about(name, found), decision, *why]))


def _about(name: str, found: Comparison) -> str:
    summary = found.summary
    method, base = summary["methods"][name], summary["baseline"]
    if verdict(name, summary).category == "identical":
        return f"{name} trained exactly as {base}: no difference."
    parts = [_test(name, found)]
    if math.isfinite(summary["target_train_loss"]):
        parts.append(_train(name, method, summary))
    return f"{'; '.join(filter(None, parts))}."


def _test(name: str, found: Comparison) -> str:
    """The test result in equal time, at the best point, and of the worst class."""
    pairs = found.summary["methods"][name]["differences"]
    if pairs is None:
        return f"{name} has no seed in common with {found.summary['baseline']}"
    text = f"In equal time, the {_label(found)} of {name} was {_judged(name, found, 'equal_time')}"
    text += f", at the best point of each run {_judged(name, found, 'best')}"
    return (
        f"{text}, of the worst class {_judged(name, found, 'worst')}" if "worst" in pairs else text
    )


def _judged(name: str, found: Comparison, which: Which) -> str:
    """ "1.20% against 1.90% (lower: -0.70 points, 95% interval -0.90 to -0.50)"."""
    own, theirs = _values(name, found, which)
    difference, _, _, measure = _pair(name, found, which)
    inside, told = _interval(difference, measure), _direction(difference, measure)
    return f"{own} against {theirs} ({told}{f': {inside[2:-1]}' if inside else ''})"


def _direction(difference: Paired, measure: Measure) -> str:
    called = call(difference, measure.better)
    if called == "none":
        return "no difference"
    if called not in ("better", "worse"):
        return called
    return "lower" if (called == "better") == (measure.better == "lower") else "higher"


def _train(name: str, method: MethodSummary, summary: Summary) -> str:
    if _baseline(summary)["steps_to_target_ratio"] is None:
        base, end = summary["baseline"], numbers.loss(summary["target_train_loss"])
        return (
            f"there is no time to compare: {base} ended no lower than it began (train loss {end}), "
            f"so train for longer; {name} ended at {_end(method)}"
        )
    steps, time = method["steps_to_target_ratio"], method["time_to_target_ratio"]
    if steps is None or time is None:
        length = f"{method['final']['step']} steps"
        return f"it did not reach {_goal(summary)} in {length} and ended at {_end(method)}"
    joint = "and" if (steps < 1) == (time < 1) else "but"
    effort = f"{numbers.percent(steps)} of the steps {joint} {numbers.percent(time)}"
    ratio, around = method["step_cost_ratio"], method["time_to_target_range"]
    cost = "" if ratio is None else f", at {ratio:.2f} times the cost per step"
    interval = ""
    if around is not None:
        interval = f" (95% interval {numbers.percent(around[0])} to {numbers.percent(around[1])})"
    return f"to reach {_goal(summary)}, it needed {effort} of the training time{interval}{cost}"
