"""Numbers for people: as many digits as the evidence carries."""

import math

from salience.compare.summary import Spread

__all__ = ["loss", "percent", "ratio", "spread"]


def loss(value: float) -> str:
    """Three significant digits: 0.00191."""
    return f"{value:.2e}" if 0 < abs(value) < 1e-4 else f"{value:.3g}"


def percent(value: float, digits: int = 0) -> str:
    """A share as a percentage: 82%."""
    return f"{100 * value:.{digits}f}%"


def ratio(value: float | None) -> str:
    """Times the baseline; words where the target was not reached."""
    return "not reached" if value is None else f"{value:.2f}x"


def spread(value: Spread, percent: bool = False) -> str:
    """Mean ± standard deviation, the latter with two digits: 0.00191 ± 0.00030."""
    scale, unit = (100, "%") if percent else (1, "")
    mean, std = scale * value["mean"], scale * (value["std"] or 0.0)
    if not math.isfinite(mean):
        return "not finite"
    if value["std"] is None:
        return loss(mean) + unit
    shown = std if std > 0 else mean
    digits = max(0, 1 - math.floor(math.log10(shown))) if shown > 0 else 0
    return f"{mean:.{digits}f} ± {std:.{digits}f}{unit}"
