"""Made-up loss histories, small and large."""

from pathlib import Path

import numpy as np

from salience import LossHistory

BAD = '<script>alert("x")</script> & <b>bold</b> ' + "x" * 200


def made(n: int = 60, *, recorded: bool = True, classes: int = 3) -> LossHistory:
    """Losses that grow with the index; the last tenth is suspected, two are forgotten or unseen."""
    random = np.random.default_rng(0)
    loss = (np.arange(n, dtype=np.float32) + 1) / n
    visits = np.full(n, 5)
    last = np.full(n, 100)
    visits[0], last[0], loss[0], last[1] = 0, 0, np.nan, 50
    forgotten = np.zeros(n, np.int64)
    forgotten[2:4] = (3, 1)
    course = np.resize(random.random((64, 18)).astype(np.float16), (n, 18))
    columns = {
        "visits": visits,
        "last_visit": last,
        "first_loss": np.where(visits, np.float32(2), np.nan).astype(np.float32),
        "last_loss": loss,
        "lowest_loss": loss,
        "forgotten": forgotten,
        "course": course,
    }
    return LossHistory(
        step=100,
        start=2.0,
        suspected=n // 10,
        index=np.arange(n),
        loss=loss,
        suspect=loss,
        label=np.arange(n) % classes,
        **(columns if recorded else {}),
    )


SHOWS = Path(__file__).parent / "shows.py"
