"""What is learned from the losses that come back: by the score, by smoothing, and for metrics."""

import math
import time
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from salience import saved
from salience.assembly import Parts
from salience.draw import Draw
from salience.feedback import Arrived, Means, Seen, Window, bad_losses, refuse_bad
from salience.focus import Focus
from salience.memory import Turns
from salience.record import Record, distinct
from salience.smoothing import RunningMean
from salience.sources import Worth

__all__ = ["Learning"]

Losses = NDArray[np.float32]

LARGE = 16384  # losses that are learned at once, rather than kept
BACKLOG = 64  # steps whose losses are learned together


@final
class Learning:
    """Checks losses when they come, and keeps them until something depends on them.

    Several steps in a row take a fraction of the time that they take one by one, with a training
    step in between. When they are learned changes no draw.
    """

    def __init__(self, *, skips_bad: bool) -> None:
        self._skips_bad = skips_bad
        self._backlog: list[tuple[int, Arrived]] = []  # step; taken and not learned yet
        self._unwritten: list[tuple[Tensor, Tensor]] = []  # indices and losses, until its turn
        self._mean_loss = RunningMean()
        self.window = Window()
        self.step = 0
        self.skipped = 0
        self.seconds = 0.0

    def use(self, parts: Parts, turns: Turns | None) -> None:
        """Teach these; ``turns`` with ranks that share their memory."""
        self._parts, self._turns = parts, turns
        self._score, self._smoothing, self._source = parts.preset
        in_losses = self._score.unit == "loss"
        self._from_losses = getattr(self._score, "from_losses", None) if in_losses else None
        self._worth: Worth | None = getattr(self._source, "worth", None)

    def take(
        self, draw: Draw, losses: Tensor, means: Means | None = None, seen: Seen | None = None
    ) -> None:
        """Check the losses of a draw now, and keep them.

        ``seen``: what a focus and a record learn instead.
        """
        good, values = self._checked(draw, losses.numpy())
        self.step += 1
        # A copy: the user may change them in place.
        arrived = Arrived(good, torch.from_numpy(values.copy()), means, seen)
        if len(values) or means is not None:  # with none of its own, a rank follows the others
            self._backlog.append((self.step, arrived))
        if self._parts.focus is not None:
            self._focus(self._parts.focus, seen or Seen(arrived.draw, arrived.losses))
        steps = len(self._backlog)
        if steps >= BACKLOG or steps * len(values) >= LARGE:
            self.learn()

    def _focus(self, focus: Focus, seen: Seen) -> None:
        """At once, for the next factors follow from what was taken last."""
        start = time.perf_counter()
        if len(seen.losses):
            focus.update(*seen)
        self.seconds += time.perf_counter() - start

    def _checked(self, draw: Draw, values: Losses) -> tuple[Draw, Losses]:
        """Without bad losses, or an error."""
        # The extremes show every bad loss, for nan is both; reductions would take twice as long.
        if not len(values) or (values[values.argmin()] >= 0 and values[values.argmax()] < math.inf):
            return draw, values
        losses = torch.from_numpy(values)
        bad = bad_losses(losses)
        if not self._skips_bad:
            refuse_bad(bad, losses, self._parts.positions(draw.indices), self.step + 1)
        self.skipped += int(bad.sum())
        return draw.map(lambda x: x[~bad]), values[~bad.numpy()]

    def learn(self) -> None:
        """Learn everything that was taken."""
        if not self._backlog:
            return
        start = time.perf_counter()
        backlog, self._backlog = self._backlog, []
        for step, (draw, losses, means, seen) in backlog:
            found = means or self.means(draw, losses)
            self._learn(draw, losses, found)
            if self._parts.record is not None:
                self._record(self._parts.record, step, seen or Seen(draw, losses), found.loss)
        self.seconds += time.perf_counter() - start

    def _learn(self, draw: Draw, losses: Tensor, means: Means) -> None:
        self._mean_loss.update(means.loss)
        self._smoothing.update(means.smoothed)
        if self._worth is not None:
            self._worth.update(means.loss, means.square)
        if not len(losses):
            return
        self.window.append(draw, losses)
        if self._turns is not None and not self._turns.writes:
            return  # another rank does
        once = _once(draw, losses)
        if self._turns is None:
            self._observe(*once)
        else:
            self._unwritten.append(once)

    def _record(self, record: Record, step: int, seen: Seen, mean: float) -> None:
        """Every rank has a record of its own, with the losses of all of them."""
        record.begin(mean)
        if len(seen.losses):
            record.update(*_once(*seen), step)

    def means(self, draw: Draw, losses: Tensor) -> Means:
        """With shards, so that their mean over the ranks is one over all examples."""
        share = 1.0 if self._parts.shard is None else self._parts.shard.share
        loss = draw.unbiased_mean(losses) * share
        if self._from_losses is not None:
            return Means(loss, draw.unbiased_mean(self._from_losses(draw.indices, losses)) * share)
        in_losses = self._score.unit == "loss"
        smoothed = loss if in_losses else draw.unbiased_mean(draw.scores) * share
        if self._worth is None:
            return Means(loss, smoothed)
        return Means(loss, smoothed, draw.unbiased_mean(losses.double().square()) * share)

    def means_of_shard(self, draw: Draw, losses: Tensor) -> Means:
        """The same for a draw with positions in the dataset."""
        within = replace(draw, indices=self._parts.places(draw.indices))
        return self.means(within, losses)

    def _observe(self, indices: Tensor, losses: Tensor) -> None:
        changed = self._score.update(indices, losses)
        if self._source is not None:
            self._source.update(changed)

    def settle(self) -> None:
        """Write what was learned, between two draws; only the rank that writes waits for others."""
        if self._unwritten and self._turns is not None:
            self._turns.wait()
            self.write()

    def write(self) -> None:
        """Into memory that ranks share, when it is this one's turn."""
        unwritten, self._unwritten = self._unwritten, []
        for once in unwritten:
            self._observe(*once)

    def rows(self) -> dict[str, Tensor]:
        """Of the steps that metrics look at, with positions in the dataset."""
        rows = self.window.rows()
        return {**rows, "indices": self._parts.positions(rows["indices"])}

    def metrics(self) -> dict[str, float]:
        return {
            "mean_loss": self._mean_loss.value,
            **self.window.summary(),
            "skipped_losses": float(self.skipped),
        }

    def state_dict(self) -> dict[str, Any]:
        """Without what the parts have learned, which they save themselves."""
        return {
            "step": self.step,
            "skipped": self.skipped,
            "mean_loss": self._mean_loss.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._backlog, self._unwritten, self.window = [], [], Window()
        self.step, self.skipped = (
            saved.whole(state["step"], 0, saved.STEPS),
            saved.whole(state["skipped"]),
        )
        self._mean_loss.load_state_dict(state["mean_loss"])


def _once(draw: Draw, losses: Tensor) -> tuple[Tensor, Tensor]:
    """Each index of ``draw`` once, with its loss."""
    return (draw.indices, losses) if draw.uniform else distinct(draw.indices, losses)
