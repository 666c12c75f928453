"""A training that survives kills, run by torchrun: ``elastic_run.py FOLDER one|two STEPS``.

It saves every few steps, in one file or in two that belong together, resumes from what it finds,
and logs what it does. ``FOLDER/plan.json`` lists how its lives end: each life takes the first entry
that no life has taken, and leaves a mark as it dies.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from parts import auto_is, cross_entropy, force_auto, make_dataset
from salience import ImportanceLoader, checkpoint

EVERY = 7  # steps between checkpoints
PATIENCE = 3 * EVERY  # steps after which a kill that waits for a time does not wait any longer


class Log:
    """Lines that are there once they are written, whatever happens to the process."""

    def __init__(self, path: Path, life: int) -> None:
        self._file, self._life = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), life

    def __call__(self, **line: Any) -> None:
        os.write(self._file, (json.dumps({"life": self._life, **line}) + "\n").encode())


class Killer:
    """Ends this life as ``ending`` says: ``at`` a place, on rank ``by``, of ``whom``."""

    def __init__(self, folder: Path, life: int, ending: dict[str, Any] | None, rank: int) -> None:
        self.folder, self.life, self.rank = folder, life, rank
        self.ending = ending if ending is not None and ending["by"] == rank else None
        self.places = 0

    def reached(self, place: str) -> None:
        """Here, and never again: the mark is made first."""
        if self.ending is None or place != self.ending["at"]:
            return
        self.places += 1
        if self.places <= self.ending["skip"]:
            return
        ending, self.ending = self.ending, None
        (self.folder / f"mark-{self.life}").write_text(place)
        sibling = int((self.folder / f"pid-{1 - self.rank}").read_text())
        victims = {"me": [os.getpid()], "sibling": [sibling]}
        victims["all"] = [os.getppid(), sibling, os.getpid()]  # torchrun first: it would restart
        for pid in victims[ending["whom"]]:
            os.kill(pid, signal.SIGKILL)

    def watch_saves(self) -> None:
        """The calls that a save makes are places."""
        for name in ("fsync", "link", "replace"):
            setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, call: Any) -> Any:
        def watched(*args: Any) -> Any:
            self.reached(f"{name} {Path(args[-1]).name}" if name != "fsync" else name)
            return call(*args)

        return watched

    def start_clock(self) -> None:
        if self.ending is not None and self.ending["at"] == "time":
            clock = threading.Timer(self.ending["seconds"], self.reached, ["time"])
            clock.daemon = True
            clock.start()


class Training:
    def __init__(self, folder: Path, mode: str) -> None:
        force_auto("focused", trust=True, every=7)
        torch.manual_seed(0)
        x, y = make_dataset(250).tensors
        self.model = nn.Linear(6, 3).double()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.loader = ImportanceLoader(TensorDataset(x.double(), y), 6, seed=5)
        names = {"one": ["run.ckpt"], "two": ["model.ckpt", "loader.ckpt"]}[mode]
        self.step, self.files = 0, [folder / name for name in names]

    def parts(self) -> list[Any]:
        network = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return [network, self.loader.state_dict()]

    def save(self, killer: Killer) -> None:
        states = self.parts()

        def progress(*_: int) -> None:
            killer.reached("write")

        if len(self.files) == 1:
            checkpoint.save(self.files[0], states, step=self.step, progress=progress)
        else:
            together = dict(zip(self.files, states, strict=True))
            checkpoint.save_together(together, step=self.step, progress=progress)

    def resume(self) -> None:
        if not all(checkpoint.exists(path) for path in self.files):
            return
        found = checkpoint.load_together(*self.files)
        network, loader = found[0].state if len(found) == 1 else [each.state for each in found]
        self.model.load_state_dict(network["model"])
        self.optimizer.load_state_dict(network["optimizer"])
        self.loader.load_state_dict(loader)
        self.step = found[0].step


def main() -> None:
    folder, mode, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    # Before the ranks meet: no kill comes earlier, so both count the same.
    life = len(list(folder.glob("mark-*")))
    plan = json.loads((folder / "plan.json").read_text())
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    dist.init_process_group("gloo")
    killer = Killer(folder, life, plan[life] if life < len(plan) else None, rank)
    log = Log(folder / f"log-{rank}", life)
    killer.reached("load")
    training = Training(folder, mode)
    training.resume()
    log(resumed=training.step)
    wrapped, resumed = DistributedDataParallel(training.model), training.step
    killer.watch_saves()
    killer.start_clock()
    while training.step < steps:
        for batch in training.loader:
            killer.reached("drawn")
            loss = training.loader.mean(cross_entropy(wrapped, batch))
            killer.reached("weighed")
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()
            training.step += 1
            loader = training.loader
            log(step=training.step, row=[loader.indices.tolist(), loader.weights.tolist()])
            if training.step == resumed + PATIENCE:
                killer.reached("time")
            if rank == 0 and training.step % EVERY == 0:
                training.save(killer)
                killer.reached("saved")
                log(acknowledged=training.step)
            if training.step == steps:
                break
    parameters = [p.tolist() for p in training.model.parameters()]
    log(done=parameters, auto=auto_is(training.loader._sampler))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
