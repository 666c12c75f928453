"""One life of a training under stress, which ``soak.py`` begins in a process of its own.

``FOLDER/plan.json`` says what is trained, and for how long. It resumes from ``disk/last.ckpt``,
saves every few steps, and logs what it was given and what it weighed: one record for each step.
Things go wrong on the way, as ``plan.json`` says:

==========  =========================================================================
bad losses  nan, infinite and negative ones, at steps that follow from the seed
workers     a worker of the ``DataLoader`` is killed
disk        the disk is full when a checkpoint is saved
clock       all clocks jump ahead, and the wall clock back as well
memory      hardly any memory is left for some steps
==========  =========================================================================

After an error that ends an ordinary training, this one goes back to the last checkpoint, in the
same process. Steps that come again have to be the same again.
"""

import gc
import json
import multiprocessing
import os
import pickle
import resource
import signal
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from salience import ImportanceLoader, checkpoint
from salience.compare.digits import digits
from salience.errors import LossError

__all__ = ["BATCH", "EXAMPLES", "RECORD", "STEPS", "Training", "bad_at", "live", "options"]

BATCH, STEPS = 64, 150  # examples of a batch, batches of an epoch
WORKERS, AHEAD = 2, 2
EVERY = 25  # steps between checkpoints
SAMPLE = 100  # steps between two looks at memory and handles
EXAMPLES = 1437
# Life, step (from 0), checksums of indices and weights, and the losses.
RECORD = np.dtype(
    [
        *(("life", "<i4"), ("step", "<i8"), ("indices", "<u4"), ("weights", "<u4"), ("n", "<i4")),
        ("losses", "<f4", BATCH),
    ]
)
TROUBLES = ("workers", "disk", "clock", "memory")
OFTEN = 120  # steps between two troubles, on average
# How torch tells that a worker has died, or that memory is short; in the middle of a message too.
DEATHS = (
    *(RuntimeError, MemoryError, OSError, EOFError),
    *(multiprocessing.ProcessError, pickle.UnpicklingError),
)


def options(plan: dict[str, Any]) -> dict[str, Any]:
    """What the loader is made with; ``soak.py`` makes a sampler with the same."""
    return {"score": plan["score"], "on_bad_loss": plan["on_bad_loss"], "seed": plan["seed"]}


def bad_at(seed: int, step: int) -> list[tuple[int, float]]:
    """Which places of a batch have a bad loss, and which: of one step in some thirty."""
    rng = Random(seed * 1_000_003 + step)
    if rng.random() > 1 / 30:
        return []
    values = (float("nan"), float("inf"), -1.0)
    return [(rng.randrange(20), rng.choice(values)) for _ in range(rng.randrange(1, 4))]


def checksum(values: Tensor) -> int:
    return zlib.crc32(values.contiguous().numpy().tobytes())


# -------------------------------------------------------------------------------------- troubles


@final
class Clock:
    """All clocks of this process, with an offset once ``begin`` was called."""

    ahead = wall = 0.0

    def begin(self) -> None:
        real = (time.perf_counter, time.monotonic, time.time)
        time.perf_counter = lambda: real[0]() + self.ahead  # type: ignore[assignment]
        time.monotonic = lambda: real[1]() + self.ahead  # type: ignore[assignment]
        time.time = lambda: real[2]() + self.wall  # type: ignore[assignment]

    def jump(self, rng: Random) -> None:
        self.ahead += rng.choice((0.5, 60.0, 86_400.0))
        self.wall += rng.choice((-1e9, -3600.0, 3600.0, 1e8))


CLOCK = Clock()


@contextmanager
def full(disk: Path, real: bool) -> Iterator[None]:
    """No room on the disk, or in any file where it is not one of our own."""
    filler = disk / "filler"
    if real:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        try:
            yield
        finally:
            filler.unlink()
        return
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def little_memory(room: int) -> Iterator[None]:
    """So many bytes more than now, and no more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# -------------------------------------------------------------------------------------- training


@final
class Training:
    """A small network on the digits, with everything that has to be resumed."""

    def __init__(self, folder: Path, life: int = 0) -> None:
        self.plan = json.loads((folder / "plan.json").read_text())
        self.disk, self.life = folder / "disk", life
        self.rng = Random(self.plan["seed"] * 7919 + self.life)
        self._log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._folder, self.data = folder, digits(train=True)
        self.samples: list[list[float]] = []
        self.stopping = False  # SIGTERM came: save after this step, and end
        self.make()

    def make(self) -> None:
        """Everything anew, from the last checkpoint if there is one."""
        torch.manual_seed(self.plan["seed"])
        self.model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 10)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        workers = {"num_workers": WORKERS, "prefetch_factor": AHEAD} if self.plan["workers"] else {}
        self.loader = ImportanceLoader(
            self.data, BATCH, steps_per_epoch=STEPS, **options(self.plan), **workers
        )
        self.step = 0
        path = self.disk / "last.ckpt"
        if checkpoint.exists(path):
            found = checkpoint.load(path)
            self.step = found.step
            for name in ("model", "optimizer", "loader"):
                getattr(self, name).load_state_dict(found.state[name])
            torch.set_rng_state(found.state["rng"])

    def save(self) -> None:
        state = {n: getattr(self, n).state_dict() for n in ("model", "optimizer", "loader")}
        state["rng"] = torch.get_rng_state()
        checkpoint.save(self.disk / "last.ckpt", state, step=self.step)

    def count(self, event: str) -> None:
        """Where it stays, however this life ends."""
        with (self._folder / "events").open("a") as file:
            file.write(f"{event}\n")

    def go(self) -> None:
        """Until the plan's steps are done, or we are told to stop."""
        failed: str | None = None
        while not self.done:
            try:
                if failed is not None:
                    self.count(f"went back: {failed}")
                    failed = None
                    self.make()
                self.epoch()
            except DEATHS as error:
                # The death of a worker is raised wherever the program is then, here too.
                failed = type(error).__name__
        if failed is not None:
            self.make()

    @property
    def done(self) -> bool:
        return self.stopping or self.step >= self.plan["steps"]

    def epoch(self) -> None:
        for x, y in self.loader:
            self.train(x, y)
            if self.step % EVERY == 0 or self.stopping:
                self.save()
            if self.step % SAMPLE == 0:
                self.sample()
            if self.done:
                return
            if self.rng.random() < 1 / OFTEN and self.plan["troubles"]:
                self.trouble(self.rng.choice(TROUBLES))
            time.sleep(self.plan["pause"])

    def train(self, x: Tensor, y: Tensor) -> None:
        losses = nn.functional.cross_entropy(self.model(x), y, reduction="none")
        given = losses
        for place, value in bad_at(self.plan["seed"], self.step):
            at = torch.arange(len(losses)) == place % len(losses)
            given = torch.where(at, value, given)  # no gradient from there
        try:
            mean = self.loader.mean(given)
        except LossError:
            self.count("bad losses raised")
            given = losses
            mean = self.loader.mean(given)
        mean.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.write(given.detach())
        self.step += 1

    def write(self, losses: Tensor) -> None:
        """In one piece, before the next step: a kill loses the last one at most."""
        row = np.zeros((), RECORD)
        row["life"], row["step"], row["n"] = self.life, self.step, len(losses)
        row["indices"], row["weights"] = (
            checksum(self.loader.indices),
            checksum(self.loader.weights),
        )
        row["losses"][: len(losses)] = losses.numpy()
        os.write(self._log, row.tobytes())

    def trouble(self, what: str) -> None:
        self.count(what)
        if what == "workers":
            children = multiprocessing.active_children()
            if children:
                os.kill(self.rng.choice(children).pid, signal.SIGKILL)
        elif what == "clock":
            CLOCK.jump(self.rng)
            share = self.loader.metrics()["scoring_fraction"]
            assert 0 <= share <= 1, share
        elif what == "disk":
            self.fail_to_save()
        else:
            with little_memory(self.rng.choice((1 << 20, 1 << 23, 1 << 26))):
                for _ in range(3):
                    self.loader.state_dict()
                    self.save()

    def fail_to_save(self) -> None:
        path = self.disk / "last.ckpt"
        before = checkpoint.load(path).step if checkpoint.exists(path) else None
        try:
            with full(self.disk, self.plan["own_disk"]):
                self.save()
        except OSError:
            after = checkpoint.load(path).step if checkpoint.exists(path) else None
            assert before == after, (before, after)
        else:
            raise AssertionError("the disk was full, and a checkpoint was saved")

    def sample(self) -> None:
        """Memory and handles, with nothing running in workers counted."""
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        handles = len(os.listdir("/proc/self/fd"))
        self.samples.append([self.step, resident / 2**20, handles])

    def finish(self) -> None:
        """What was learned, for ``soak.py``, with the last step that it was learned from."""
        report = {
            "life": self.life,
            "step": self.step,
            "samples": self.samples,
            "metrics": {k: v for k, v in self.loader.metrics().items() if v == v},
        }
        torch.save(self.loader.scores(), self._folder / f"scores-{self.life}.pt")
        (self._folder / f"life-{self.life}.json").write_text(json.dumps(report))


def live(folder: Path, life: int) -> None:
    """From here to the end of the process; what it has to say goes to ``FOLDER/errors``."""
    errors = os.open(folder / "errors", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(errors, stream)
    os.close(errors)
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    training = Training(folder, life)
    CLOCK.begin()

    def stop(*_: Any) -> None:
        training.stopping = True

    signal.signal(signal.SIGTERM, stop)
    training.go()
    training.finish()
