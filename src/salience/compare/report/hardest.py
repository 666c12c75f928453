"""The examples that stayed hard, for a page: pictures, texts, and their losses as small lines."""

import math
from base64 import b64encode
from io import BytesIO
from typing import Any

import numpy as np

from salience.compare.reading import Example
from salience.compare.report import numbers

__all__ = ["card", "cards", "sparkline"]

LONGEST = 600  # characters of a text
WIDTH, HEIGHT, EDGE = 100.0, 28.0, 2.0  # of a sparkline, in its own units


def cards(hardest: dict[str, list[Example]]) -> dict[str, list[dict[str, Any]]]:
    """What the page shows of each example, the hardest of a method first, losses to one scale."""
    histories = [each.history for found in hardest.values() for each in found]
    top = max((loss for each in histories for loss in each if math.isfinite(loss)), default=0.0)
    return {
        name: [
            card(each, top)
            for each in sorted(found, key=lambda e: (math.isnan(e.loss), e.loss), reverse=True)
        ]
        for name, found in hardest.items()
        if found
    }


def card(example: Example, top: float) -> dict[str, Any]:
    """One example, with its losses as a line from 0 to ``top``."""
    image, text = example.image, example.text
    known = [numbers.loss(loss) for loss in example.history if math.isfinite(loss)]
    return {
        "index": example.index,
        "loss": numbers.loss(example.loss) if math.isfinite(example.loss) else "not finite",
        "picture": "" if image is None else _data_uri(image),
        "shape": (0, 0) if image is None else (image.shape[2], image.shape[1]),
        "text": text if len(text) <= LONGEST else text[:LONGEST].rstrip() + " …",
        "lines": sparkline(example.history, top),  # points
        "facts": "",
        "history": f"loss from {known[0]} to {known[-1]}" if known else "no loss history",
    }


def _data_uri(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    """An image [C, H, W] as a PNG inside an address."""
    from PIL import Image

    whole = np.moveaxis(pixels, 0, 2)  # [H, W, C]
    readable = whole if whole.shape[2] in (3, 4) else whole[:, :, 0]
    content = BytesIO()
    Image.fromarray(np.ascontiguousarray(readable)).save(content, format="PNG", optimize=True)
    return "data:image/png;base64," + b64encode(content.getvalue()).decode("ascii")


def sparkline(history: list[float], top: float) -> list[str]:
    """A loss history as points of lines from 0 to ``top``; a loss that is not finite is a gap."""
    lines: list[list[str]] = [[]]
    for place, loss in enumerate(history):
        if math.isfinite(loss):
            along, share = place / max(1, len(history) - 1), loss / top if top else 0.0
            x = EDGE + along * (WIDTH - 2 * EDGE)
            y = HEIGHT - EDGE - share * (HEIGHT - 2 * EDGE)
            lines[-1].append(f"{x:.1f},{y:.1f}")
        elif lines[-1]:
            lines.append([])
    return [" ".join(line) for line in lines if line]
