"""Curves over a training: a measure against steps and time, and what ``auto`` did meanwhile.

From rows alone, so that they can be drawn of a comparison that still runs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from salience.compare.charts import Chart, Line, Panel, Stretch, Strip, logarithmic
from salience.compare.measures import LOSS, Measure
from salience.compare.run import Row
from salience.compare.summary import Curve, by_seed, curve

__all__ = ["TRAIN", "Marked", "add_mode", "measured", "modes", "modes_now", "shown_as", "switching"]

AXES = {"steps": "steps", "seconds": "seconds of training"}
TRAIN = {"train_loss": LOSS, "train_max_loss": Measure("max_loss", "largest train loss")}
LONGEST = 200  # characters of what a sampler tells
MODES = {
    "off": "shuffled passes, as without importance sampling",
    "focused": "examples with a large loss are visited more often",
}

Marked = Callable[[str, Curve], tuple[int | None, dict[str, str]]]
"""Of a method: the place of a point to mark, and the text beside it on each axis."""


def shown_as(column: str, measure: Measure) -> str:
    """A column of rows in words: test error, validation AUC."""
    own = measure.label.startswith(("train", "largest"))
    return measure.label if own else f"{column.partition('_')[0]} {measure.label}"


def measured(
    name: str,
    rows: Sequence[Row],
    methods: Sequence[str],
    column: str,
    measure: Measure,
    title: str,
    *,
    level: float | None = None,
    level_text: str = "",
    marked: Marked = lambda *_: (None, {}),
) -> Chart:
    """A measure of all methods, the baseline first, against steps and against seconds."""
    shown, scale = shown_as(column, measure), 100.0 if measure.unit == "%" else 1.0
    lines: dict[str, list[Line]] = {on: [] for on in AXES}
    for method in methods:
        found = curve(by_seed(rows, method), column)
        place, texts = marked(method, found)
        mean, low, high = ([scale * value for value in side] for side in found[2:])
        for on in AXES:
            line = Line(method, getattr(found, on), mean, low, high)
            lines[on].append(replace(line, mark=place, note=texts.get(on, "")))
    better = ", higher is better" if measure.better == "higher" else ""
    panels = [
        Panel(
            title=f"{shown[:1].upper()}{shown[1:]} against {on}{better}",
            x=AXES[on],
            y=shown,
            lines=lines[on],
            log=logarithmic(lines["steps"]),
            level=None if level is None else scale * level,
            level_text=level_text,
            unit=measure.unit,
        )
        for on in AXES
    ]
    return Chart(name, title, panels, baseline=methods[0], share_y=True)


# --------------------------------------------------------------------------------------- samplers


def switching(name: str, rows: Sequence[Row], methods: Sequence[str], task: str) -> Chart | None:
    """When a sampler that turns itself on and off was on; None where no method has one."""
    strips = [
        Strip(method, f"seed {run[0]['seed']}", modes(run))
        for method in methods
        for run in by_seed(rows, method)
        if any(_sampler(row) for row in run)
    ]
    if not strips:
        return None
    several = len({strip.label for strip in strips}) > 1
    if several:
        strips = [replace(strip, name=f"{strip.label[:12]} {strip.name[5:]}") for strip in strips]
    owner = "methods" if several else strips[0].label
    panel = Panel(f"What {owner} did", "steps", "", strips=strips)
    title = f"{task}: {'; '.join(f'{mode}: {what}' for mode, what in MODES.items())}"
    return Chart(name, title, [panel], baseline=methods[0])


def modes(run: Iterable[Row]) -> list[Stretch]:
    """The modes of one run, as its evaluations saw them, each until the next."""
    seen = [(float(row["step"]), _sampler(row)) for row in run]
    found: list[Stretch] = []
    for (step, sampler), (until, _) in pairwise(seen):
        add_mode(found, step, until, sampler)
    return found


def add_mode(found: list[Stretch], step: float, until: float, sampler: Mapping[str, Any]) -> None:
    """Go on with what a sampler told at ``step``: a longer stretch, or another one."""
    mode = str(sampler.get("mode", "on" if sampler.get("active") else "off"))[:LONGEST]
    why = _reason(sampler)
    if not found or found[-1].mode != mode:
        found.append(Stretch(step, until, mode, _why(mode, step, sampler)))
        return
    last = found[-1]
    told = last.why if why in last.why else f"{last.why}; from step {step:,.0f} on: {why}"
    found[-1] = replace(last, end=until, why=told)


def modes_now(runs: Iterable[Sequence[Row]]) -> str:
    """What the samplers of some runs do at the moment: "off", or "2 focused, 1 off"."""
    last = [str(found.get("mode", "off")) for run in runs if run and (found := _sampler(run[-1]))]
    counts = {mode: last.count(mode) for mode in dict.fromkeys(last)}
    if len(counts) < 2:
        return "".join(counts)
    return ", ".join(f"{count} {mode}" for mode, count in counts.items())


def _sampler(row: Row) -> Mapping[str, Any]:
    found = cast(Mapping[str, Any], row).get("sampler")
    return found if isinstance(found, Mapping) else {}


def _why(mode: str, step: float, sampler: Mapping[str, Any]) -> str:
    """From when, what that is, and the reason and the numbers that the sampler gave."""
    parts = [f"{mode} from step {step:,.0f} on", MODES.get(mode, ""), _reason(sampler)]
    gain = sampler.get("gain")
    if isinstance(gain, int | float) and not isinstance(gain, bool):
        parts.append(f"gain {gain:.2f}")
    return "; ".join(filter(None, parts))


def _reason(sampler: Mapping[str, Any]) -> str:
    """Why it is off."""
    why = sampler.get("why")
    return why[:LONGEST] if isinstance(why, str) else ""
