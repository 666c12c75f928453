"""Random programs of calls on ``ImportanceSampler`` and ``ImportanceLoader``, checked call by call.

A program is made from a number: arguments, then some dozens of calls (draw, update, mean, with and
without slots, skip, metrics, scores, save and load, deep copy, pickle, extend, validation, breaking
out of an epoch; seldom with workers). Each result is compared with ``reference.py``, which follows
the definitions in float64. After a state was saved and loaded, or a sampler copied, both go on side
by side and have to stay bitwise equal.

    python benchmarks/programs.py --programs 1e5             # an hour; appended to --rows
    python benchmarks/programs.py --replay 1234              # one of them again, with its calls
    python benchmarks/programs.py --table runs/fuzz/programs.jsonl
"""

import argparse
import copy
import io
import math
import pickle
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import torch
from fuzz import append, read_rows
from reference import Epochs, MeanOverTime, Reference, WrongError, closeness, ordered, same
from torch import Tensor
from torch.utils.data import Dataset

from salience import ImportanceLoader, ImportanceSampler
from salience.checkpoint import archive
from salience.compare.directory import environment
from salience.errors import LossError, SalienceError, UsageError

__all__ = ["LoaderProgram", "SamplerProgram", "run"]

PART = 500  # programs of one row
CALLS = 30


class Numbers(Dataset[Tensor]):
    """Example i is the number i. It may grow."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(range(self.n)[index])


def frozen(tree: Any) -> Any:
    """Equal if and only if bitwise so."""
    if isinstance(tree, dict):
        return {key: frozen(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [frozen(value) for value in tree]
    if isinstance(tree, Tensor):
        return str(tree.dtype), tuple(tree.shape), tree.detach().numpy().tobytes()
    return repr(tree) if isinstance(tree, float) else tree


def through(rng: Random, state: Any) -> Any:
    """A state as it comes back from a file."""
    how = rng.randrange(3)
    if how == 0:
        return state
    if how == 1:
        return archive.unpack(archive.pack(state))
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def copied(rng: Random, system: Any) -> Any:
    if rng.random() < 0.5:
        return copy.deepcopy(system)
    return pickle.loads(pickle.dumps(system))


def some_losses(rng: Random, n: int) -> Tensor:
    """Multiples of 1/64: sums of them are exact."""
    kind = rng.random()
    if kind < 0.05:
        return torch.zeros(n)
    if kind < 0.1:
        return torch.full((n,), rng.randrange(640) / 64)
    return torch.tensor([rng.randrange(640) / 64 for _ in range(n)], dtype=torch.float32)


def spoiled(rng: Random, losses: Tensor) -> Tensor:
    losses = losses.clone()
    for _ in range(rng.randrange(1, 3)):
        losses[rng.randrange(len(losses))] = rng.choice((math.nan, math.inf, -1.0))
    return losses


class Program:
    """Arguments, systems that have to agree, and calls that were made."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.calls: list[str] = []
        rng = self.rng
        self.n, self.batch = rng.choice((1, 2, 5, 9, 17, 40, 200)), rng.choice((1, 2, 4, 7, 16))
        self.k = rng.choice((1.0, 0.5, 0.5, 0.0, -1.0))
        self.c = rng.choice((None, None, 0.0, 0.25, 3.0))
        self.score = rng.choice(("uniform", "history", "history", "history", "auto"))
        self.scheme = rng.choice(("systematic", "multinomial"))
        self.skips = rng.random() < 0.5
        self.seed = rng.randrange(1000)
        self.reference = Reference(self.n, self.batch, self.score, self.k, self.c, self.scheme)

    def options(self) -> dict[str, Any]:
        smoothing = "adaptive" if self.c is None else self.c
        return {
            "score": self.score,
            "k": self.k,
            "smoothing": smoothing,
            "draw": self.scheme,
            "on_bad_loss": "skip" if self.skips else "raise",
            "seed": self.seed,
        }

    def describe(self) -> str:
        return f"n={self.n}, batch={self.batch}, {self.options()}"

    def go(self) -> None:
        names = list(self.CALLS)
        weights = [self.CALLS[name] for name in names]
        for _ in range(self.rng.randrange(5, CALLS)):
            name = self.rng.choices(names, weights)[0]
            self.calls.append(name)
            getattr(self, name)()
        self.calls.append("end")
        self.end()

    CALLS: ClassVar[dict[str, int]] = {}

    def end(self) -> None:
        raise NotImplementedError


# ---------------------------------------------------------------------------------------- sampler


class SamplerProgram(Program):
    """Calls on one sampler and, after a copy or a load, on two."""

    CALLS: ClassVar = {
        "draw": 10,
        "update": 8,
        "update_by_indices": 2,
        "update_others": 1,
        "bad_update": 1,
        "metrics": 1,
        "scores": 1,
        "load": 2,
        "copy": 1,
        "extend": 1,
        "new_epoch": 1,
        "forget": 1,
        "validation": 1,
        "wrong_calls": 1,
        "compare_states": 1,
    }

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.first = self.n
        self.systems = [self.make()]
        self.waiting: dict[int, Any] = {}  # number to draw

    def make(self) -> Any:
        return ImportanceSampler(self.n, self.batch, **self.options())

    def draw(self) -> None:
        draws = [system.draw() for system in self.systems]
        for other in draws[1:]:
            if frozen(other.state_dict()) != frozen(draws[0].state_dict()):
                raise WrongError("a copy has drawn something else")
        self.reference.check(draws[0])
        self.waiting[draws[0].number] = draws[0]

    def _some_draw(self) -> Any:
        return self.waiting[self.rng.choice(list(self.waiting))] if self.waiting else None

    def update(self) -> None:
        if (draw := self._some_draw()) is None:
            return
        losses = some_losses(self.rng, len(draw))
        if self.skips and self.rng.random() < 0.2:
            losses = spoiled(self.rng, losses)
        self._learn(draw, draw, losses)

    def _learn(self, given: Any, draw: Any, losses: Tensor) -> None:
        for system in self.systems:
            system.update(given, losses)
        indices = draw.indices if draw is not None else given
        self.reference.update(draw, indices.numpy(), losses.numpy())
        if draw is not None:
            del self.waiting[draw.number]

    def update_by_indices(self) -> None:
        """Of the oldest draw that has the same."""
        if (draw := self._some_draw()) is None:
            return
        equal = (d for d in self.waiting.values() if torch.equal(d.indices, draw.indices))
        self._learn(draw.indices.clone(), next(equal), some_losses(self.rng, len(draw)))

    def update_others(self) -> None:
        """A uniform sample that nobody has drawn."""
        count = self.rng.randrange(1, 6)
        indices = torch.tensor([self.rng.randrange(self.n) for _ in range(count)])
        if not any(torch.equal(d.indices, indices) for d in self.waiting.values()):
            self._learn(indices, None, some_losses(self.rng, count))

    def bad_update(self) -> None:
        """Refused, and nothing has changed."""
        if self.skips or (draw := self._some_draw()) is None:
            return
        for system in self.systems:
            before = frozen(system.state_dict())
            self.refused(LossError, system.update, draw, spoiled(self.rng, torch.ones(len(draw))))
            self.refused(LossError, system.update, draw, torch.ones(len(draw) + 1))
            if frozen(system.state_dict()) != before:
                raise WrongError("a refused update has changed something")

    def wrong_calls(self) -> None:
        for system in self.systems:
            self.refused(SalienceError, system.update, torch.tensor([self.n]), torch.ones(1))
            self.refused(SalienceError, system.validation, math.nan)
            self.refused(SalienceError, system.load_state_dict, {"version": -1})
            self.refused(SalienceError, system.extend, self.n - 1)
            self.refused(SalienceError, system.scores, torch.tensor([-1]))

    @staticmethod
    def refused(kind: type[Exception], call: Callable[..., Any], *args: Any) -> None:
        try:
            call(*args)
        except kind:
            return
        raise WrongError(f"{call.__name__}{args} was not refused")

    def metrics(self) -> None:
        self.reference.check_metrics(self.systems[0].metrics())

    def scores(self) -> None:
        self.reference.check_scores(self.systems[0].scores())
        some = torch.tensor([self.rng.randrange(self.n) for _ in range(3)])
        same(self.systems[0].scores(some), self.systems[0].scores()[some], "some scores")

    def load(self) -> None:
        """A new one goes on beside the old one."""
        new, state = self.make(), self.systems[0].state_dict()
        new.load_state_dict(through(self.rng, state))
        if frozen(new.state_dict()) != frozen(state):
            raise WrongError("the state of what was loaded is another one")
        self.systems = [new, self.systems[0]]
        self.reference.window.clear()

    def copy(self) -> None:
        self.systems = [copied(self.rng, self.systems[0]), self.systems[0]]

    def extend(self) -> None:
        if self.n > 300:
            return
        self.n += self.rng.choice((0, 1, 3, 20))
        for system in self.systems:
            system.extend(self.n)
        self.reference.extend(self.n)

    def new_epoch(self) -> None:
        for system in self.systems:
            system.new_epoch()
        self.reference.new_epoch()

    def forget(self) -> None:
        for system in self.systems:
            system.forget()
        self.waiting = {}

    def validation(self) -> None:
        for system in self.systems:
            system.validation(self.rng.choice((0.5, 1.0, 2.0)))
        # Both were told other numbers, which changes nothing but their states.
        if len(self.systems) > 1 and self.score == "auto":
            self.systems = self.systems[:1]

    def compare_states(self) -> None:
        states = [frozen(system.state_dict()) for system in self.systems]
        if any(state != states[0] for state in states[1:]):
            raise WrongError("states of copies differ")

    def end(self) -> None:
        self.metrics()
        self.scores()
        self.compare_states()
        if self.systems[0].step != self.reference.steps:
            raise WrongError(f"{self.systems[0].step} steps, expected {self.reference.steps}")


# ----------------------------------------------------------------------------------------- loader


class Focus:
    """What a focus knows, from its definition."""

    def __init__(self, name: str | None, n: int) -> None:
        self.name, self.wrong = name, MeanOverTime(0.99)
        self.p = np.full(n, np.nan)

    def factors(self, at: np.ndarray, losses: np.ndarray) -> np.ndarray:
        good = (losses >= 0) & (losses < np.inf)
        losses = np.where(good, losses, 0.0)
        if self.name == "ordered":
            return ordered(losses, self.wrong.value())
        if self.name == "closeness":
            return closeness(losses, self.p[at])
        return np.ones(len(at))

    def update(self, draw: Any, losses: np.ndarray) -> None:
        good = (losses >= 0) & (losses < np.inf)
        at, losses = draw.indices.numpy()[good], losses[good]
        if not len(at):
            return
        inverse = 1 / (draw.pool * draw.probabilities.numpy()[good])
        self.wrong.values.append(float((inverse * (losses >= math.log(2))).mean()))
        for i in dict.fromkeys(at.tolist()):
            p = float(np.exp(-losses[at == i]).mean())
            self.p[i] = p if math.isnan(self.p[i]) else 0.8 * self.p[i] + 0.2 * p

    def extend(self, n: int) -> None:
        self.p = np.concatenate([self.p, np.full(n - len(self.p), np.nan)])


class LoaderProgram(Program):
    """Calls on one loader, and on a twin as long as both are at the same place."""

    CALLS: ClassVar = {
        "next": 12,
        "mean": 12,
        "mean_again": 1,
        "skip": 1,
        "leave": 1,
        "load": 2,
        "copy": 1,
        "extend": 1,
        "metrics": 1,
        "scores": 1,
        "validation": 1,
        "bad_mean": 1,
    }

    def __init__(self, seed: int, workers: int = 0) -> None:
        super().__init__(seed)
        rng = self.rng
        self.slots, self.workers = rng.random() < 0.4, workers
        self.focus_name = rng.choice((None, None, "ordered", "closeness"))
        self.given = rng.choice((None, None, 3))
        if workers:  # which draw ahead: what is drawn does not depend on losses then
            self.score, self.given = rng.choice(("uniform", "auto")), None
            self.reference.score = self.score
        self.dataset = Numbers(self.n)
        self.loader, self.twin = self.make(), None
        self.focus = Focus(self.focus_name, self.n)
        self.epochs = Epochs(self.steps(), self.slots)
        self.iterators: dict[int, Iterator[Any]] = {}
        self.draws: dict[int, Any] = {}  # number to draw, of those that were handed out
        self.slots_of: dict[int, Tensor] = {}
        self.last: int | None = None  # number of the batch weighed last, with its factors
        self.last_losses = torch.empty(0)

    def make(self) -> Any:
        return ImportanceLoader(
            Numbers(self.n),
            self.batch,
            slots=self.slots,
            focus=self.focus_name,
            steps_per_epoch=self.given,
            num_workers=self.workers,
            **self.options(),
        )

    def describe(self) -> str:
        more = f"slots={self.slots}, focus={self.focus_name}, steps={self.given}"
        return f"{super().describe()}, {more}, workers={self.workers}"

    def steps(self) -> int:
        return self.given or -(-self.n // self.batch)

    def systems(self) -> list[Any]:
        return [self.loader] if self.twin is None else [self.loader, self.twin]

    def next(self) -> None:
        """The next batch; where there is no iteration, one begins."""
        begun = id(self.loader) in self.iterators
        if not begun:
            self.begin()
        number = self.epochs.next()
        batches = [self._next_of(system) for system in self.systems()]
        if number is None:
            if batches[0] is not None:
                raise WrongError("a batch after the end of the epoch")
            self.iterators, self.twin = {}, None
            self._forget_gone()
            self._check_epoch()
            return
        if batches[0] is None:
            raise WrongError("the epoch has ended early")
        if self.twin is not None:
            self._compare_twin(batches)
        self._check_batch(number, batches[0])

    def begin(self) -> None:
        anew = self.epochs.begin(self.steps())
        if anew and self.given is None:
            self.reference.new_epoch()
        self._forget_gone()
        for system in self.systems():
            if id(system) not in self.iterators:
                self.iterators[id(system)] = iter(system)

    def _next_of(self, system: Any) -> Any:
        return next(self.iterators[id(system)], None)

    def _compare_twin(self, batches: list[Any]) -> None:
        same_draw = frozen(self.loader.last_draw.state_dict()) == frozen(
            self.twin.last_draw.state_dict()
        )
        if batches[1] is None or not same_draw:
            raise WrongError("a copy has drawn something else")

    def _check_batch(self, number: int, batch: Any) -> None:
        draw = self.loader.last_draw
        values, slots = batch if self.slots else (batch, None)
        if not torch.equal(values, draw.indices):
            raise WrongError(f"examples {values}, drawn {draw.indices}")
        if number >= 0:
            if frozen(draw.state_dict()) != frozen(self.draws[number].state_dict()):
                raise WrongError("a batch came again as another one")
        else:
            self.reference.check(draw)
        same(self.loader.weights, draw.weights, "weights")
        self.draws[draw.number] = draw
        self.epochs.hand_out(draw.number)
        if slots is not None:
            self.slots_of[draw.number] = slots

    def _check_epoch(self) -> None:
        if self.loader.epoch != self.epochs.epoch:
            raise WrongError(f"epoch {self.loader.epoch}, expected {self.epochs.epoch}")

    def _forget_gone(self) -> None:
        alive = {*self.epochs.waiting, *self.epochs.again}
        self.draws = {n: d for n, d in self.draws.items() if n in alive}

    # ----------------------------------------------------------------------------------- losses

    def mean(self) -> None:
        if not self.epochs.waiting:
            return
        if not self.slots and len(self.epochs.waiting) > 1:
            self._refused(UsageError, torch.ones(len(self.draws[self.epochs.waiting[-1]])))
            return
        number = self.rng.choice(self.epochs.waiting)
        draw = self.draws[number]
        losses = some_losses(self.rng, len(draw))
        if self.skips and self.rng.random() < 0.2:
            losses = spoiled(self.rng, losses)
        for part in self._parts(len(draw)):
            factors = self.focus.factors(draw.indices.numpy()[part], losses.numpy()[part])
            self._check_mean(number, part, losses, factors)
        self.reference.update(draw, draw.indices.numpy(), losses.numpy())
        self.focus.update(draw, losses.numpy())
        del self.draws[number]
        self.epochs.weigh(number)
        self.last, self.last_losses, self.last_draw = number, losses, draw
        self._forget_gone()
        self._check_epoch()

    def _parts(self, n: int) -> list[np.ndarray]:
        """All at once or, with slots, in any order and in two parts."""
        if not self.slots:
            return [np.arange(n)]
        order = np.array(self.rng.sample(range(n), n))
        cut = self.rng.randrange(n)
        return [order[:cut], order[cut:]] if cut else [order]

    def _check_mean(
        self, number: int, part: np.ndarray, losses: Tensor, factors: np.ndarray
    ) -> None:
        given, slots = losses[torch.from_numpy(part)], None
        if self.slots:
            slots = self.slots_of[number][torch.from_numpy(part)]
        found = [system.mean(given.clone(), slots) for system in self.systems()]
        values = given.numpy().astype(np.float64)
        good = (values >= 0) & (values < np.inf)
        weights = self.draws[number].weights.numpy().astype(np.float64)[part]
        expected = (weights * factors * np.where(good, values, 0.0)).sum() / len(part)
        same(float(found[0]) + 1, expected + 1, "mean", 1e-5)
        if len(found) > 1 and float(found[0]) != float(found[1]):
            raise WrongError("means of copies differ")

    def _refused(self, kind: type[Exception], *args: Any) -> None:
        for system in self.systems():
            SamplerProgram.refused(kind, system.mean, *args)

    def bad_mean(self) -> None:
        if self.skips or self.slots or len(self.epochs.waiting) != 1:
            return
        draw = self.draws[self.epochs.waiting[0]]
        if self.focus_name is None:
            self._refused(LossError, spoiled(self.rng, torch.ones(len(draw))))
        self._refused(LossError, torch.ones(len(draw) + 1))
        self._refused(LossError, torch.ones(()))

    def mean_again(self) -> None:
        """Weighs what was weighed last once more, and records nothing."""
        if self.slots or self.epochs.waiting or self.last is None or self.focus_name is not None:
            return
        try:
            found = [float(s.mean(self.last_losses)) for s in self.systems()]
        except UsageError:
            return  # forgotten, for an epoch has ended or begun
        losses = self.last_losses.numpy().astype(np.float64)
        losses = np.where((losses >= 0) & (losses < np.inf), losses, 0.0)
        expected = (self.last_draw.weights.numpy() * losses).mean()
        same(found[0] + 1, expected + 1, "mean of the same again", 1e-5)

    def skip(self) -> None:
        for system in self.systems():
            if self.epochs.waiting and self._last_waits():
                system.skip()
            else:
                SamplerProgram.refused(UsageError, system.skip)
        if self.epochs.waiting and self._last_waits():
            self.epochs.skip()

    def _last_waits(self) -> bool:
        """Whether the batch handed out last was not weighed yet."""
        last = self.loader._feedback.last
        return last is not None and last.number == self.epochs.waiting[-1]

    # ------------------------------------------------------------------------------------ state

    def leave(self) -> None:
        """Break out of the loop: what was loaded goes on with its epoch, the other one does not."""
        self.iterators, self.twin = {}, None

    def load(self) -> None:
        new, state = self.make(), self.loader.state_dict()
        new.load_state_dict(through(self.rng, state))
        if frozen(new.state_dict()) != frozen(state):
            raise WrongError("the state of what was loaded is another one")
        side_by_side = not self.epochs.waiting and id(self.loader) in self.iterators
        self._replace(new, self.epochs.saved(), side_by_side and not self.epochs.finished)
        self.reference.window.clear()
        self.last = None

    def copy(self) -> None:
        if self.workers:
            self.leave()
        side_by_side = not self.epochs.waiting and id(self.loader) in self.iterators
        copied_epochs = self.epochs.copied()
        # Batches that were handed out wait in the copy as well, and come again if it is iterated.
        new = copied(self.rng, self.loader)
        self._replace(new, copied_epochs, side_by_side and not self.epochs.finished)

    def _replace(self, new: Any, epochs: Epochs, side_by_side: bool) -> None:
        """Go on with ``new``, beside the old one where both are at the same place."""
        old = self.loader
        self.iterators = {id(old): self.iterators[id(old)]} if side_by_side else {}
        self.twin = old if side_by_side else None
        self.loader, self.epochs = new, epochs
        self._check_epoch()

    def extend(self) -> None:
        if self.n > 300 or self.workers or self.twin is not None:
            return
        self.n += self.rng.choice((1, 3, 20))
        self.loader.dataset.n = self.n
        self.loader.extend()
        self.reference.extend(self.n)
        self.focus.extend(self.n)

    def metrics(self) -> None:
        found = self.loader.metrics()
        self.reference.check_metrics(found)
        if not 0 <= found["scoring_fraction"] <= 1:
            raise WrongError(f"scoring_fraction {found['scoring_fraction']}")

    def scores(self) -> None:
        self.reference.check_scores(self.loader.scores())

    def validation(self) -> None:
        for system in self.systems():
            system.validation(1.0)

    def end(self) -> None:
        self.metrics()
        self.scores()
        if self.given is None and len(self.loader) != self.steps():
            raise WrongError(f"{len(self.loader)} batches, expected {self.steps()}")


# ------------------------------------------------------------------------------------------- rows


def make(number: int) -> Program:
    """The program of a number."""
    if number % 400 == 399:
        return LoaderProgram(number, workers=1)
    return LoaderProgram(number) if number % 2 else SamplerProgram(number)


def run(number: int) -> tuple[Program | None, str | None]:
    """A program, and what was wrong with it."""
    program = None
    try:
        program = make(number)
        program.go()
    except Exception as error:
        calls = ", ".join(program.calls) if program is not None else ""
        about = program.describe() if program is not None else ""
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return program, f"{type(error).__name__}: {error} ({where}); {about}; {calls}"
    return program, None


def part(first: int, count: int) -> dict[str, Any]:
    started, calls, failures = time.perf_counter(), Counter[str](), []
    for number in range(first, first + count):
        program, problem = run(number)
        calls.update(program.calls if program is not None else [])
        if problem is not None:
            failures.append({"program": number, "error": problem})
    return {
        "first": first,
        "programs": count,
        "failed": len(failures),
        "failures": failures[:20],
        "calls": dict(calls),
        "seconds": round(time.perf_counter() - started, 2),
    }


def table(rows: list[dict[str, Any]]) -> str:
    calls = Counter[str]()
    for row in rows:
        calls.update(row["calls"])
    calls.pop("end", None)
    sums = {key: sum(row[key] for row in rows) for key in ("programs", "failed", "seconds")}
    lines = [
        "| programs | calls | failed | programs per s |",
        "|---|---|---|---|",
        f"| {sums['programs']:,} | {sum(calls.values()):,} | {sums['failed']} | "
        f"{sums['programs'] / max(sums['seconds'], 1e-9):,.0f} |",
        "",
        "| call | times |",
        "|---|---|",
        *(f"| {name} | {count:,} |" for name, count in calls.most_common()),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--programs", type=lambda text: int(float(text)), default=10**4)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first one")
    parser.add_argument("--rows", type=Path, default=Path("runs/fuzz/programs.jsonl"))
    parser.add_argument("--table", type=Path, help="print the table of these rows, and end")
    parser.add_argument("--replay", type=int, metavar="NUMBER")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.table is not None:
        print(table(read_rows(given.table)))
        return 0
    if given.replay is not None:
        program = make(given.replay)
        print(program.describe())
        try:
            program.go()
        finally:
            print(", ".join(program.calls))
        return 0
    made = environment(threads=1)
    failed, first = 0, given.seed + sum(row["programs"] for row in read_rows(given.rows))
    while first < given.seed + given.programs:
        row = part(first, min(PART, given.seed + given.programs - first))
        append(given.rows, {**row, "commit": made["commit"], "versions": made["versions"]})
        first, failed = first + row["programs"], failed + row["failed"]
        print(f"{first:,} programs, {failed} failed, {row['seconds']:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
