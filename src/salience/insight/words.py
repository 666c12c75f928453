"""The groups of a loss history in words, for the page and the terminal alike."""

import math
from typing import NamedTuple

import numpy as np

from salience.compare.report import numbers
from salience.history import GROUPS, Group, LossHistory

__all__ = ["About", "about", "facts", "lead", "shown_groups"]


class About(NamedTuple):
    """What a group is called, and what it is."""

    title: str
    text: str


def about(group: Group, history: LossHistory) -> About:
    if group == "hardest":
        return About("Hardest", "The largest running mean of the losses.")
    if group == "forgotten":
        return About(
            "Forgotten after being learned",
            "The loss was below half the mean loss of the first ten steps, and later above it "
            "again. Most often forgotten first.",
        )
    if group == "unseen":
        return About(
            "Not seen again",
            "No visit in the last half of the training, the longest ago first.",
        )
    if history.suspected:
        text = "Labels that contradict what was learned: their losses stand apart from the others."
    else:
        text = "No losses stand apart from the others. These are the clearest, in any case."
    return About("Likely wrong labels", f"{text} Look at them before you relabel or drop any.")


def shown_groups(history: LossHistory) -> list[Group]:
    """Those that are known."""
    return [group for group in GROUPS if history.recorded or group in ("hardest", "suspects")]


def lead(history: LossHistory) -> str:
    """What was counted, in one sentence."""
    n, wrong = len(history), history.suspected
    share = f" ({numbers.percent(wrong / n, 1)})" if wrong else ""
    contradict = "contradict" if wrong > 1 else "contradicts"
    said = [
        f"{f'{wrong:,}' if wrong else 'None'} of {n:,} labels{share} {contradict} what was learned"
    ]
    if history.recorded:
        forgotten, unseen = (len(history.places(group)) for group in GROUPS[2:])
        said.append(f"{_examples(forgotten)} learned and then forgotten")
        said.append(
            f"{_examples(unseen)} not seen in the last half of the training"
            if unseen
            else "all were seen in the last half of the training"
        )
    return "; ".join(said) + "."


def _examples(count: int) -> str:
    if count < 2:
        return f"{'one' if count else 'no'} example was"
    return f"{count:,} examples were"


def facts(history: LossHistory) -> list[tuple[str, str]]:
    """A few numbers of the whole, as (value, label)."""
    seen = ~np.isnan(history.loss)
    mean = float(history.loss[seen].mean()) if seen.any() else math.nan
    found = [
        (f"{len(history):,}", "examples"),
        (f"{history.step:,}", "steps"),
        (numbers.loss(mean) if math.isfinite(mean) else "none yet", "mean running loss"),
    ]
    if history.visits is not None:
        found.append((numbers.loss(float(history.visits.mean())), "visits per example"))
    return found
