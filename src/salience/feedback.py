"""Losses that come back: checked, weighed, matched with their draws, brought to the host."""

import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from salience import functional, saved
from salience.draw import Draw
from salience.errors import LossError, UsageError

__all__ = ["Feedback", "Seen", "Window", "bad_losses", "per_example", "refuse_bad", "weighted_mean"]

STEPS = 64  # that metrics look back on


# ------------------------------------------------------------------------------- pure functions


def per_example(losses: Tensor, batch: int) -> Tensor:
    """[B] or [B, T, ...] -> [B], averaged over everything but the examples."""
    if losses.shape == (batch,) and batch:
        return losses
    if losses.ndim == 0:
        raise LossError(
            "losses must be one per example, got a single number: "
            "compute them with reduction='none' and let mean() average; "
            "a loss that only the whole batch has cannot be weighed"
        )
    if len(losses) != batch:
        raise LossError(
            f"losses must be one per example of the batch: got shape {list(losses.shape)} for a "
            f"batch of {batch}: {_reshaped(losses, batch)}"
        )
    if losses.numel() == 0:
        raise LossError(f"losses are empty: got shape {list(losses.shape)}")
    return losses.flatten(1).mean(1, dtype=torch.promote_types(losses.dtype, torch.float32))


def _reshaped(losses: Tensor, batch: int) -> str:
    """What to do about losses of another length."""
    rest, left_over = divmod(len(losses), max(batch, 1))
    if losses.ndim == 1 and rest > 1 and not left_over:
        return f"if they were flattened from [{batch}, {rest}], pass them in that shape"
    return "give one row per example, or name the examples with mean(losses, slots)"


def bad_losses(losses: Tensor) -> Tensor:
    """True where a loss is nan, infinite or negative."""
    return ~((losses >= 0) & (losses < torch.inf))


def refuse_bad(bad: Tensor, losses: Tensor, indices: Tensor, step: int) -> None:
    """Raise with step, indices and values; everything is on the host here."""
    places = bad.nonzero().flatten()[:5].tolist()
    named = ", ".join(f"example {int(indices[i])}: {float(losses[i]):g}" for i in places)
    more = int(bad.sum()) - len(places)
    raise LossError(
        f"losses must be finite and >= 0; at step {step} {named}"
        f"{f' and {more} more' if more else ''}: look at these examples and the learning rate, "
        f"or pass on_bad_loss='skip' to leave such examples out"
    )


def weighted_mean(
    losses: Tensor,
    weights: Tensor | None,
    divisor: float | Tensor | None = None,
    *,
    skip_bad: bool = False,
) -> Tensor:
    """(1/B) sum_i alpha_i L_i, in float32 at least, with alpha, B = ``weights``, ``divisor``.

    No weights: all are 1. No divisor: the number of losses. With ``skip_bad``, nan, infinite and
    negative losses weigh 0.
    """
    if weights is None and divisor is None and not skip_bad and losses.dtype == torch.float32:
        return losses.mean()  # what users have written without us, and at the same cost
    if skip_bad:
        # where and not a product: 0 x nan is nan. The mask is made and used on the device.
        losses = torch.where(bad_losses(losses.detach()), torch.zeros_like(losses), losses)
    dtype = torch.promote_types(losses.dtype, torch.float32)
    if weights is None:
        return losses.mean(dtype=dtype) if divisor is None else losses.sum(dtype=dtype) / divisor
    weights = weights.to(losses.device, dtype, non_blocking=True)
    # One product instead of a multiplication and a mean: half the work for autograd.
    return torch.dot(losses.to(dtype), weights) / (len(losses) if divisor is None else divisor)


def outside_graphs(function: Any) -> Any:
    """Keep torch.compile out of ``function``, without loading the compiler before it is called."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # Not kept for the next call: the compiler traces this function and cannot store it.
        return torch.compiler.disable(function)(*args, **kwargs)  # type: ignore[no-untyped-call]

    return wrapper


# ------------------------------------------------------------- from an accelerator to the host


@final
class Transfer:
    """Copies started now and read later. Tensors that are on the host are there at once.

    The copies are queued behind the work that makes the values. By the time the next step asks
    for them the accelerator has passed that point, so ``result`` finds them ready and the queue of
    work behind them still full.
    """

    def __init__(self, draws: dict[int, Draw], slots: Tensor | None, losses: Tensor) -> None:
        devices = {t.device for t in (losses, slots) if t is not None} - {torch.device("cpu")}
        self.draws = {number: draw.map(_start_copy) for number, draw in draws.items()}
        self.slots = None if slots is None else _start_copy(slots)
        self.losses = _start_copy(losses)
        self._events = [_event(device) for device in devices]

    def wait(self) -> None:
        """Until ``draws``, ``slots`` and ``losses`` can be read."""
        for event in self._events:
            event.synchronize()


def _start_copy(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor.clone()  # the user may change it in place before it is read
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)


def _event(device: torch.device) -> Any:
    event = torch.Event(device)
    event.record()
    return event


# ------------------------------------------------------------- which losses belong to which draw


@final
class Places:
    """The rows of draws ``numbers`` that slots name, looked up without reading the slots.

    A slot is draw number x batch size + position in the draw.
    """

    def __init__(self, numbers: list[int], batch_size: int, slots: Tensor) -> None:
        self.numbers, self._batch_size, self._device = numbers, batch_size, slots.device
        at = torch.tensor(numbers, device="cpu").to(slots.device, non_blocking=True)
        wanted, self._position = slots // batch_size, slots % batch_size
        self._rows = torch.searchsorted(at, wanted).clamp(max=len(numbers) - 1)
        self.known = at[self._rows] == wanted

    def get(self, values: list[Tensor], dtype: torch.dtype) -> Tensor:
        """Of what each draw has one of per row, that of the slots, where these are."""
        table = self._table(values, dtype).to(self._device, non_blocking=True)
        return table[self._rows, self._position]

    def exchange(self, values: list[Tensor | None], new: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What slots have already or else ``new``, where this is, and all values with these."""
        nothing = new.new_full((0,), math.nan)
        known = [nothing if value is None else value for value in values]
        table = self._table(known, new.dtype, math.nan)
        rows, position = (x.to(new.device, non_blocking=True) for x in (self._rows, self._position))
        before = table[rows, position]
        found = torch.where(before.isnan(), new, before)
        return found, [*table.index_put_((rows, position), found)]

    def _table(self, values: list[Tensor], dtype: torch.dtype, fill: float = 0) -> Tensor:
        shape = (len(values), self._batch_size)
        table = torch.full(shape, fill, dtype=dtype, device=values[0].device)
        for row, value in zip(table, values, strict=True):
            row[: len(value)] = value
        return table


class Partial(NamedTuple):
    """The losses of a draw of which only some have come back."""

    losses: Tensor  # float32 [B]
    there: Tensor  # bool [B]


class Means(NamedTuple):
    """Unbiased estimates of means over the dataset."""

    loss: float
    smoothed: float  # what smoothing follows: the loss, or the score
    square: float = 0.0  # of the squared losses, where that decides whether pools are scored


class Seen(NamedTuple):
    """Examples and their losses, on the host."""

    draw: Draw
    losses: Tensor  # float32 [B]

    def state(self) -> tuple[Any, ...]:
        return self.draw.state_dict(), self.losses.clone()

    @staticmethod
    def from_state(draw: Any, losses: Tensor, n: int | None = None) -> "Seen":
        found = Draw.from_state(draw, n)
        # Not looked at yet: bad losses among them are reported when they are taken.
        return Seen(found, saved.floats(losses, len(found), unknown=True).float().clone())


class Arrived(NamedTuple):
    """A draw whose losses have come back, on the host."""

    draw: Draw
    losses: Tensor  # float32 [B]
    means: Means | None = None  # None: those of these losses
    seen: Seen | None = None  # what a focus learns; None: the same

    @property
    def number(self) -> int:
        return self.draw.number

    def result(self) -> "Arrived":
        return self

    def state(self) -> tuple[Any, ...]:
        """Plain values, with tensors of their own."""
        means = None if self.means is None else list(self.means)
        own = (self.draw.state_dict(), self.losses.clone(), means)
        return own if self.seen is None else (*own, self.seen.state())

    @staticmethod
    def from_state(
        draw: Any, losses: Tensor, means: Any, seen: Any = None, *, n: int | None = None
    ) -> "Arrived":
        """What ``state`` was taken of, with ``n`` examples; ValueError: it is damaged."""
        found = Seen.from_state(draw, losses, n)
        every = None if seen is None else Seen.from_state(seen[0], seen[1], n)
        known = None if means is None else Means(*map(saved.at_least_zero, means))
        return Arrived(*found, known, every)


class Arriving(Protocol):
    """The losses of draw ``number`` on their way: from an accelerator, or from other ranks."""

    @property
    def number(self) -> int: ...

    def result(self) -> Arrived:
        """Waits for them."""
        ...


@final
class Here:
    """Losses of one draw on their way from an accelerator of this process."""

    def __init__(self, draw: Draw, losses: Tensor) -> None:
        self.number, self._transfer = draw.number, Transfer({draw.number: draw}, None, losses)

    def result(self) -> Arrived:
        self._transfer.wait()
        draw = self._transfer.draws[self.number]
        return Arrived(draw, self._transfer.losses.to(torch.float32))


class Learner(Protocol):
    """What becomes of losses."""

    def learn(self, draw: Draw, losses: Tensor) -> None:
        """Of the rows that this process has trained on, now."""
        ...

    def learn_late(self, local: Arriving) -> Arriving:
        """The same for losses on their way: what to ``take`` a step later."""
        ...

    def take(
        self, draw: Draw, losses: Tensor, means: Means | None = None, seen: Seen | None = None
    ) -> None:
        """What has arrived."""
        ...

    @property
    def focused(self) -> bool:
        """Whether losses are multiplied by more than weights."""
        ...

    def factors_of(self, losses: Tensor, indices: Tensor) -> Tensor:
        """By what else, [B], where the losses are; nothing is read back from there."""
        ...


Finish = Callable[[Draw, Tensor], None]


@final
class Feedback:
    """The draws that were handed out and not weighed yet, and what to do with their losses.

    ``learner`` gets the losses of each draw once, with everything on the host, when all of them
    have come back. ``deferred``: None learns one step late on accelerators only, True on the host
    as well.
    """

    def __init__(self, learner: Learner, batch_size: int, *, skip_bad: bool) -> None:
        self._learner, self._batch_size, self._skip_bad = learner, batch_size, skip_bad
        self.deferred: bool | None = None
        self.waiting: dict[int, Draw] = {}  # handed out and not weighed, in this order
        self.last: Draw | None = None  # handed out last
        self._weighed: dict[int, Draw] = {}  # weighed last: they may be weighed again
        self._factors: dict[int, Tensor] = {}  # of their rows, and of others'; nan: none yet
        self._partial: dict[int, Partial] = {}
        self._repeat: Tensor | None = None  # slots of the last call
        self._travelling: Transfer | None = None
        self._late: deque[Arriving] = deque()  # learned at the next step

    def hand_out(self, draw: Draw) -> None:
        self.waiting[draw.number] = draw
        self.last = draw

    def skip(self) -> Draw:
        """The batch handed out last is not trained on."""
        if self.last is None or self.last.number not in self.waiting:
            raise UsageError("skip() needs a batch that was not passed to mean() yet")
        self._partial.pop(self.last.number, None)
        return self.waiting.pop(self.last.number)

    def forget(self) -> None:
        """Forget all batches that were handed out, and which one was weighed last."""
        self.waiting.clear()
        self._partial.clear()
        self._weighed.clear()
        self._factors.clear()

    def mean(self, losses: Tensor, slots: Tensor | None, divisor: float | Tensor | None) -> Tensor:
        """The weighted mean; records the losses of draws that are weighed for the first time."""
        if self._learner.focused:
            self.flush()  # factors follow from all losses before these
        if slots is None:
            draw = self._only_one()
            losses = per_example(losses, len(draw))
            weights = None
            if not draw.uniform:
                weights = draw.step_weights() if divisor is None else draw.weights
            if self._learner.focused:
                weights = self._focus(draw, losses.detach(), weights)
            if draw.number in self.waiting:
                self._record(draw, losses.detach())
        else:
            losses = per_example(losses, len(slots))
            weights = self._record_slots(slots, losses.detach(), scaled=divisor is None)
        return weighted_mean(losses, weights, divisor, skip_bad=self._skip_bad)

    def _focus(self, draw: Draw, losses: Tensor, weights: Tensor | None) -> Tensor:
        """The weights with the factors; those of the first call, if the draw was weighed before."""
        factors = self._factors.get(draw.number)
        if draw.number in self.waiting or factors is None:
            padded = weights if draw.scale != 1 else None
            factors = self._learner.factors_of(self._counted(losses, padded), draw.indices)
            self._factors = {draw.number: factors}
        factors = factors[: len(draw)]
        return factors if weights is None else weights.to(factors, non_blocking=True) * factors

    def _counted(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        """At least float32, and 0 where a loss is left out or weighs nothing."""
        losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
        if self._skip_bad:
            losses = torch.where(bad_losses(losses), torch.zeros_like(losses), losses)
        if weights is None:
            return losses
        weights = weights.to(losses.device, non_blocking=True)
        return torch.where(weights > 0, losses, torch.zeros_like(losses))

    def _only_one(self) -> Draw:
        """The draw that losses without slots belong to."""
        if len(self.waiting) > 1:
            raise UsageError(
                f"{len(self.waiting)} batches are outstanding (handed out and not weighed), so it "
                f"cannot be told which one these losses belong to: pass slots=True to the loader "
                f"and mean(losses, slots), or call loader.skip() for a batch that is deliberately "
                f"left out"
            )
        for draw in (self.waiting or self._weighed).values():
            return draw
        raise UsageError("mean() needs a batch: iterate over the loader first")

    def _record(self, draw: Draw, losses: Tensor) -> None:
        if self._is_late(losses):
            self.flush()
            self._late.append(self._learner.learn_late(Here(draw, losses)))
        else:
            losses = losses if losses.dtype == torch.float32 else losses.float()
            self._learner.learn(draw, losses)
        del self.waiting[draw.number]
        self._weighed = {draw.number: draw}

    def _is_late(self, tensor: Tensor) -> bool:
        """Whether its values cannot be read without waiting for an accelerator."""
        return not tensor.is_cpu or bool(self.deferred)

    def flush(self) -> None:
        """Learn the losses that are still on their way."""
        self._read_slots()
        while self._late:
            self._learner.take(*self._late.popleft().result())  # a bad loss is reported once

    def settle(self) -> None:
        """Wait for losses on their way; when they are learned does not change."""
        self._read_slots()
        self._late = deque(each.result() for each in self._late)

    def _read_slots(self) -> None:
        """Which draws the losses on their way belong to."""
        arrived, self._travelling = self._travelling, None
        if arrived is None:
            return
        arrived.wait()
        assert arrived.slots is not None
        losses = arrived.losses.to(torch.float32)
        self._arrive(arrived.slots, losses, arrived.draws, self._learn_late)

    @property
    def late(self) -> set[int]:
        """The numbers of draws that were weighed and are learned at the next step."""
        return {each.number for each in self._late}

    def _learn_late(self, draw: Draw, losses: Tensor) -> None:
        self._late.append(self._learner.learn_late(Arrived(draw, losses)))

    def slots(self, draw: Draw) -> Tensor:
        """One int64 per example of ``draw``."""
        first = draw.number * self._batch_size
        return torch.arange(first, first + len(draw), device="cpu")

    def _record_slots(self, slots: Tensor, losses: Tensor, *, scaled: bool) -> Tensor:
        """The weights of ``slots``; their losses are kept until their draw is complete."""
        if slots.is_floating_point() or slots.shape != losses.shape:
            raise UsageError(
                f"slots must be whole numbers, one per loss; got {slots.dtype} of shape "
                f"{list(slots.shape)} for {len(losses)} losses: pass those that came with the batch"
            )
        late = self._is_late(slots) or self._is_late(losses)
        if late:
            self.flush()
        if not (self.waiting or self._weighed):
            raise UsageError("mean() needs a batch: iterate over the loader first")
        draws = {**self._weighed, **self.waiting}
        places = Places(sorted(draws), self._batch_size, slots)
        weights = self._weights(draws, places, scaled)
        given = None
        if self._learner.focused:
            given = self._factors_of(draws, places, self._counted(losses, weights))
        if late:
            self._travelling = Transfer(self.waiting, slots, losses)
        else:
            self._arrive(slots, losses.to(torch.float32), self.waiting, self._learner.learn)
        if given is None:
            return weights
        factors, rows = given
        self._factors = dict(zip(places.numbers, rows, strict=True))
        return weights.to(factors, non_blocking=True) * factors

    def _weights(self, draws: dict[int, Draw], places: Places, scaled: bool) -> Tensor:
        """0 for slots that are not known."""
        found = [draws[n].step_weights() if scaled else draws[n].weights for n in places.numbers]
        dtype = torch.float64 if any(w.dtype == torch.float64 for w in found) else torch.float32
        return places.get(found, dtype) * places.known

    def _factors_of(
        self, draws: dict[int, Draw], places: Places, losses: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Those of an earlier call for these slots, or else those of the losses of this one."""
        indices = places.get([draws[n].indices for n in places.numbers], torch.int64)
        factors = self._learner.factors_of(losses, indices)
        return places.exchange([self._factors.get(n) for n in places.numbers], factors)

    def _arrive(
        self, slots: Tensor, losses: Tensor, draws: dict[int, Draw], finish: Finish
    ) -> None:
        """Keep losses until their draw is complete, then ``finish`` it; all is on the host."""
        if self._repeat is not None and torch.equal(slots, self._repeat):
            return  # weighed again, as LBFGS and SAM do
        number, position = slots // self._batch_size, slots % self._batch_size
        named = np.unique(number.numpy()).tolist()
        for n in named:
            self._refuse_slots(n, position[number == n])
        wanted = [n for n in named if n not in self._weighed]
        done = {}
        for n in wanted:
            mine, draw = number == n, draws[n]
            if self._keep(n, position[mine], losses[mine]):
                self._finish(n, position[mine], draw, finish)
                done[n] = draw
        self._repeat = slots.clone()
        self._weighed = done or self._weighed

    def _refuse_slots(self, number: int, positions: Tensor) -> None:
        """Slots that belong to no batch, or were weighed before."""
        draw = self.waiting.get(number, self._weighed.get(number))
        part = self._partial.get(number)
        first = number * self._batch_size + int(positions[0])
        if draw is None or int(positions.max()) >= len(draw):
            raise UsageError(
                f"slot {first} belongs to no batch that waits for its losses (it was weighed "
                f"before, or comes from another loader): pass the slots of this batch, once"
            )
        seen = len(np.unique(positions.numpy())) < len(positions)
        if seen or (part is not None and bool(part.there[positions].any())):
            raise UsageError(f"slot {first} or one beside it was weighed before: name each once")

    def _keep(self, number: int, positions: Tensor, losses: Tensor) -> bool:
        """Whether the draw is complete with these."""
        size = len(self.waiting[number])
        part = self._partial.get(number)
        if part is None:
            part = Partial(torch.empty(size, device="cpu"), torch.zeros(size, device="cpu") > 0)
            self._partial[number] = part
        part.losses[positions], part.there[positions] = losses, True
        return bool(part.there.all())

    def _finish(self, number: int, positions: Tensor, draw: Draw, finish: Finish) -> None:
        try:
            finish(draw, self._partial[number].losses)
        except LossError:
            self._partial[number].there[positions] = False  # the batch still waits
            raise
        del self.waiting[number], self._partial[number]

    def state_dict(self) -> list[Any]:
        """What has arrived and is not learned yet."""
        self.settle()
        return [each.result().state() for each in self._late]

    def load(self, late: list[Arrived]) -> None:
        """Begin anew, with what ``read_state`` made of a state."""
        self.forget()
        self.last = self._repeat = self._travelling = None
        self._late = deque(late)

    @staticmethod
    def read_state(state: list[Any], n: int | None = None) -> list[Arrived]:
        """The draws and losses of a ``state_dict``; nothing is changed yet."""
        return [Arrived.from_state(*each, n=n) for each in state]


# ------------------------------------------------------------------------------------- metrics


@final
class Window:
    """The last ``STEPS`` steps. Appending keeps references and computes nothing."""

    def __init__(self) -> None:
        self._steps: deque[tuple[Draw, Tensor]] = deque(maxlen=STEPS)

    def append(self, draw: Draw, losses: Tensor) -> None:
        self._steps.append((draw, losses))

    def rows(self) -> dict[str, Tensor]:
        """Index, weight, score and loss of each example of these steps, oldest first: copies."""
        empty = torch.empty(0, dtype=torch.float32, device="cpu")
        return {
            "indices": torch.cat([empty.long(), *(draw.indices for draw, _ in self._steps)]),
            "weights": torch.cat([empty, *(draw.weights for draw, _ in self._steps)]),
            "scores": torch.cat([empty, *(draw.scores.to(empty) for draw, _ in self._steps)]),
            "losses": torch.cat([empty, *(losses for _, losses in self._steps)]),
        }

    def summary(self) -> dict[str, float]:
        """Averages over the window; nan before the first step."""
        steps = list(self._steps)
        return {
            "variance_reduction": _variance_reduction(steps),
            "effective_sample_size": _average(
                [functional.effective_sample_size(draw.weights) for draw, _ in steps]
            ),
            "unique_fraction": _average([_unique_fraction(draw) for draw, _ in steps]),
            "tracking": _average(
                [functional.tracking_coefficient(draw.scores, losses) for draw, losses in steps]
            ),
        }


def _variance_reduction(steps: list[tuple[Draw, Tensor]]) -> float:
    """N sum L^2 / (sum L)^2 of the whole dataset, estimated from the weighted batches."""
    if not steps:
        return math.nan
    inverse = torch.cat([draw.inverse() for draw, _ in steps])
    losses = torch.cat([losses for _, losses in steps]).to(inverse.dtype)
    mean = (inverse * losses).sum() / inverse.sum()
    square = (inverse * losses * losses).sum() / inverse.sum()
    return float(square / mean**2) if mean > 0 else 1.0


def _unique_fraction(draw: Draw) -> float:
    draws = len(draw) if draw.counts is None else float(draw.counts.sum())
    return len(torch.unique(draw.indices)) / draws


def _average(values: Sequence[Tensor | float]) -> float:
    return sum(float(value) for value in values) / len(values) if values else math.nan
