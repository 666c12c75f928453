"""Numbers for people: as many digits as the evidence carries."""

import math

from salience.compare.budgets import SameError
from salience.compare.paired import Paired
from salience.compare.summary import Spread

__all__ = [
    *("difference", "digits", "duration", "loss", "measured", "percent", "ratio", "same_error"),
    "spread",
]


def loss(value: float) -> str:
    """Three significant digits: 0.00191."""
    return f"{value:.2e}" if 0 < abs(value) < 1e-4 else f"{value:.3g}"


def percent(value: float, digits: int = 0) -> str:
    """A share as a percentage: 82%."""
    return f"{100 * value:.{digits}f}%"


def ratio(value: float | None) -> str:
    """Times the baseline; words where the target was not reached."""
    return "not reached" if value is None else f"{value:.2f}x"


def duration(seconds: float) -> str:
    """A time for people: 0.4 s, 45 s, 3 min, 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.1g} s" if 0 < seconds < 1 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 48 and rest else f"{round(minutes / 60)} h"


def difference(value: Paired, percent: bool = False) -> str:
    """A difference and its 95 % interval: -0.72 (-1.50 to +0.06); of percentages, in points."""
    if value["same"]:
        return "none: identical"
    if not math.isfinite(value["mean"]):
        return "not finite"
    shown, scale = digits(value, value["mean"], percent), 100 if percent else 1
    mean = f"{scale * value['mean']:+.{shown}f}"
    low, high = value["low"], value["high"]
    if low is None or high is None:
        return mean
    return f"{mean} ({scale * low:+.{shown}f} to {scale * high:+.{shown}f})"


def digits(value: Paired, beside: float, percent: bool = False) -> int:
    """Decimals of a difference and its two values: two of percentages, else what they carry.

    That is two digits of half the interval, and without one three digits of ``beside``.
    """
    if percent:
        return 2
    low, high = value["low"], value["high"]
    width = abs(beside) / 10 if low is None or high is None or low == high else (high - low) / 2
    if not (width > 0 and math.isfinite(width)):
        return 3
    return max(0, min(9, 1 - math.floor(math.log10(width))))


def measured(value: float, percent: bool, digits: int) -> str:
    """A value with so many decimals."""
    if not math.isfinite(value):
        return "not finite"
    return f"{100 * value:.{digits}f}%" if percent else f"{value:.{digits}f}"


def same_error(value: SameError) -> str:
    """A share of time and its interval: 0.62x (0.55 to 0.71); words where it was not reached."""
    if value["share"] is None:
        return "not reached"
    text = ("at most " if value["at_most"] else "") + ratio(value["share"])
    if value["n"] < 2:
        return text
    low, high = ("not reached" if v is None else f"{v:.2f}" for v in (value["low"], value["high"]))
    return f"{text} ({low} to {high})"


def spread(value: Spread, percent: bool = False) -> str:
    """Mean ± standard deviation, the latter with two digits: 0.00191 ± 0.00030."""
    scale, unit = (100, "%") if percent else (1, "")
    mean, std = scale * value["mean"], scale * (value["std"] or 0.0)
    if not math.isfinite(mean):
        return "not finite"
    if value["std"] is None:
        return loss(mean) + unit
    if std == 0:
        return f"{loss(mean)} ± 0{unit}"
    digits = max(0, 1 - math.floor(math.log10(std)))
    return f"{mean:.{digits}f} ± {std:.{digits}f}{unit}"
