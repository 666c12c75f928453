"""A loss history in a terminal: a few examples of each group, and the classes."""

import math

from rich.table import Table
from rich.text import Text

from salience.compare.report import numbers
from salience.history import Group, LossHistory
from salience.insight.words import about, shown_groups

__all__ = ["class_table", "group_tables", "spark"]

BARS = "▁▂▃▄▅▆▇█"
MOST_CLASSES = 12


def group_tables(history: LossHistory, top: int) -> list[Table]:
    """The first ``top`` examples of each group that has any."""
    found = ((group, history.places(group, top).tolist()) for group in shown_groups(history))
    return [_table(history, group, places) for group, places in found if places]


def _table(history: LossHistory, group: Group, places: list[int]) -> Table:
    title, text = about(group, history)
    table = _empty(f"[b]{title}[/b]", caption=text)
    heads = ["example", *(["label"] if history.label is not None else []), "loss"]
    if history.recorded:
        heads += ["first", "visits", "last at", "forgotten"]
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    if history.recorded:
        table.add_column("course", no_wrap=True)
    for place in places:
        table.add_row(*_cells(history, place))
    return table


def _cells(history: LossHistory, place: int) -> list[str]:
    cells = [f"#{history.index[place]}"]
    if history.label is not None:
        cells.append(str(history.label[place]))
    cells.append(_loss(history.loss[place]))
    if history.visits is None or history.last_visit is None:
        return cells
    assert history.first_loss is not None
    assert history.forgotten is not None
    numbers_of = (history.visits, history.last_visit, history.forgotten)
    cells.append(_loss(history.first_loss[place]))
    cells += [f"{column[place]}" for column in numbers_of]
    return [*cells, spark(history.curve(place))]


def class_table(history: LossHistory) -> Table | None:
    """The hardest classes first; None where there are none."""
    found = history.classes()
    if not found:
        return None
    shown = found[:MOST_CLASSES]
    more = f"The {len(shown)} of {len(found)} classes with the largest loss."
    table = _empty("[b]Class by class[/b]", caption=more if len(found) > len(shown) else "")
    recorded = ["forgotten", "not seen again"] if history.recorded else []
    for head in ("class", "examples", "mean loss", "likely wrong", *recorded):
        table.add_column(head, justify="right", no_wrap=True)
    for each in shown:
        rest = [f"{each.suspects:,}", *(f"{v:,}" for v in each[4:] if v is not None)]
        table.add_row(str(each.label), f"{each.examples:,}", _loss(each.loss), *rest)
    return table


def _empty(title: str, caption: str) -> Table:
    left = {"title_justify": "left", "caption_justify": "left"}
    return Table(title=title, caption=Text(caption), box=None, padding=(0, 2, 0, 0), **left)  # type: ignore[arg-type]


def _loss(value: float) -> str:
    return numbers.loss(float(value)) if math.isfinite(value) else "-"


def spark(losses: list[float]) -> str:
    """Losses as bars from 0 to the largest."""
    top = max(losses, default=0.0)
    if not top > 0:
        return BARS[0] * len(losses)
    return "".join(BARS[min(int(loss / top * len(BARS)), len(BARS) - 1)] for loss in losses)
