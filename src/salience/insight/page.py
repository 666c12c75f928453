"""A loss history as a page: one file, the first examples of each group with pictures or text."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from salience.compare.reading import Example
from salience.compare.report import numbers
from salience.compare.report.hardest import card
from salience.compare.report.interactive import render
from salience.compare.user_code import user_code
from salience.errors import ArgumentError
from salience.history import ClassSummary, Group, LossHistory
from salience.insight.words import about, facts, lead, shown_groups

__all__ = ["TOP", "Show", "html"]

TOP = 24  # examples of each group
MOST_CLASSES = 100
CHANNELS = (1, 3, 4)

Show = Callable[[int], Any]
"""An example for people: an image [C, H, W] or [H, W] in 0 .. 1, or as bytes, or a text."""


def html(history: LossHistory, name: str, show: Show | None = None, top: int = TOP) -> str:
    """The whole page. However many examples there are, it shows the first ``top`` of each group."""
    groups = [_group(history, group, show, top) for group in shown_groups(history)]
    classes = history.classes()
    return render(
        "salience.insight:insight.html.jinja",
        scripts=(),
        title=f"{name}: what the losses tell",
        lead=lead(history),
        facts=facts(history),
        groups=groups,
        pictures=show is not None,
        recorded=history.recorded,
        classes=[_class_cells(each) for each in classes[:MOST_CLASSES]],
        more_classes=max(0, len(classes) - MOST_CLASSES),
    )


def _group(history: LossHistory, group: Group, show: Show | None, top: int) -> dict[str, Any]:
    title, text = about(group, history)
    places = history.places(group, top).tolist()
    whole = 0 if group == "hardest" else len(history.places(group))
    curves = {place: history.curve(place) for place in places}
    highest = max((loss for curve in curves.values() for loss in curve), default=0.0)
    return {
        "name": group,
        "title": title,
        "text": text,
        "count": f"the first {len(places):,} of {whole:,}" if whole > len(places) else "",
        "cards": [
            {**_card(history, at, curves[at], highest, show), "facts": _facts(history, group, at)}
            for at in places
        ],
    }


def _card(
    history: LossHistory, place: int, curve: list[float], highest: float, show: Show | None
) -> dict[str, Any]:
    index, loss = int(history.index[place]), float(history.loss[place])
    image, text = (None, "") if show is None else _shown(show, index)
    shown = card(Example(index, loss, curve, image, text), highest)
    if math.isnan(loss):
        shown["loss"] = "no loss"
    return shown


def _facts(history: LossHistory, group: Group, place: int) -> str:
    """The label, and what the group is about."""
    said = [] if history.label is None else [f"label {history.label[place]}"]
    if group == "forgotten" and history.forgotten is not None:
        said.append(f"forgotten {history.forgotten[place]:,}x")
    elif group == "unseen" and history.last_visit is not None:
        last = history.last_visit[place]
        said.append(f"last seen at step {last:,}" if last else "never seen")
    elif history.visits is not None:
        said.append(f"{history.visits[place]:,} visits")
    return " · ".join(said)


def _class_cells(each: ClassSummary) -> list[str]:
    loss = numbers.loss(each.loss) if math.isfinite(each.loss) else "not seen"
    counts = [f"{value:,}" for value in each[3:] if value is not None]
    return [str(each.label), f"{each.examples:,}", loss, *counts]


# ---------------------------------------------------------------------------------------- pictures


def _shown(show: Show, index: int) -> tuple[np.ndarray[Any, np.dtype[np.uint8]] | None, str]:
    """Pixels [C, H, W], or else a text."""
    with user_code(f"showing example {index}"):
        found = show(index)
    if isinstance(found, np.ndarray):
        found = torch.from_numpy(found)
    if not isinstance(found, Tensor):
        return None, "" if found is None else str(found)
    image = found.detach().to("cpu")
    image = image.unsqueeze(0) if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[0] not in CHANNELS or not image.numel():
        raise ArgumentError(
            f"example {index} is shown as {list(found.shape)}: return an image [C, H, W] with 1, 3 "
            f"or 4 channels, [H, W], or a text"
        )
    if image.dtype != torch.uint8:
        image = (image.float().nan_to_num() * 255).round().clamp(0, 255).to(torch.uint8)
    return image.numpy(), ""
