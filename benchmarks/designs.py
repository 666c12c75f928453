"""Ways to choose examples that were tried for ``auto``, on a network small enough to try them all.

A perceptron with two hidden layers learns MNIST (with its own labels, with a fifth of them wrong,
or with a long tail), 4,000 steps of 128 examples. For each design: the share of uniform's steps
after which the mean train loss is where uniform's ended, train loss and test error at the end, and
the time of a step over uniform's.

    python benchmarks/designs.py --data-dir data
    python benchmarks/designs.py --data-dir data --case wrong-labels --designs history,running,auto
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from salience.compare.records import environment
from salience.compare.training import Method, Row, Run, Task, interleave
from salience.distribution import Adaptive, Fading
from salience.functional import weights
from salience.loader import ImportanceLoader
from salience.paper.data.images import Images
from salience.paper.tasks import SCHEDULES, make_task
from salience.scores import Approx, History
from salience.scores.history import KEPT

CASES = {
    "mnist": "mnist",
    "wrong-labels": "mnist-wrong-labels",
    "random-labels": "mnist-random-labels",
    "long-tail": "mnist-long-tail",
}
EVALUATIONS = 25
SHARE = 0.2  # smoothing as a share of the mean loss, where a design does not say otherwise


# ------------------------------------------------------------------------------ the task, in small


def perceptron() -> nn.Module:
    hidden = 128
    return nn.Sequential(
        *(nn.Linear(784, hidden), nn.ReLU(), nn.Dropout(0.25)),
        *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.25)),
        nn.Linear(hidden, 10),
    )


def flat(images: Images) -> TensorDataset:
    return TensorDataset(images.scale(images.images).flatten(1), images.targets)


def small_task(case: str, data_dir: Path | None, schedule: str) -> Task:
    task = make_task(CASES[case], data_dir=data_dir, schedule=schedule)
    return replace(
        task,
        train=flat(task.train),  # type: ignore[arg-type]
        test=flat(task.test),  # type: ignore[arg-type]
        model=perceptron,
        collate=None,
    )


# -------------------------------------------------------------------------------- scores that lost


class Trial:
    """A score known by index, in the unit of the loss; trials are not interrupted and resumed."""

    by_index, unit = True, "loss"

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class Refreshed(Trial):
    """A running mean that also looks at ``fresh`` examples per step, the ones longest unseen."""

    def __init__(self, task: Task, model: nn.Module, fresh: int) -> None:
        self._task, self._model, self._fresh = task, model, fresh
        self._scores = History(len(task.train), KEPT)  # type: ignore[arg-type]
        self._seen = np.zeros(len(task.train), dtype=np.int64)  # type: ignore[arg-type]
        self._steps = 0

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        return self._scores.score(indices, batch)

    @torch.no_grad()
    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        self._steps += 1
        self._seen[indices.numpy()] = self._steps
        self._scores.update(indices, losses)
        stale = torch.from_numpy(np.argpartition(self._seen, self._fresh)[: self._fresh].copy())
        self._seen[stale.numpy()] = self._steps
        self._model.eval()
        found = self._task.losses(self._model, self._task.train[stale])
        self._model.train()
        self._scores.update(stale, found.float())
        return torch.cat([indices, stale])


class Doubted(Trial):
    """The last loss times a trust, halved whenever a large loss has not fallen since last time."""

    def __init__(self, n: int) -> None:
        self._last = np.full(n, np.nan, dtype=np.float32)
        self._trust = np.ones(n, dtype=np.float32)

    def score(self, indices: Tensor, batch: Any) -> Tensor:  # noqa: ARG002
        at = indices.numpy()
        return torch.from_numpy(self._last[at] * self._trust[at])

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        at, seen = indices.numpy(), losses.numpy()
        stuck = (seen > 0.9 * self._last[at]) & (seen > 0.5)
        self._trust[at] = np.where(stuck, self._trust[at] / 2, np.minimum(1, 2 * self._trust[at]))
        self._last[at] = seen
        return indices


class Bounded(Trial):
    """A running mean of 1 - exp(-loss): near the gradient norm of cross entropy, and at most 1."""

    unit = "gradient"

    def __init__(self, n: int) -> None:
        self._scores = History(n, KEPT)

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        return self._scores.score(indices, batch)

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        return self._scores.update(indices, -torch.expm1(-losses))


class ByClass(Trial):
    """A running mean, and the running mean of its class for an example that was never seen."""

    def __init__(self, n: int, labels: Tensor) -> None:
        self._scores, self._labels = History(n, KEPT), labels.numpy()
        self._means = np.full(int(labels.max()) + 1, np.nan, dtype=np.float32)

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        own = self._scores.score(indices, batch).numpy()
        return torch.from_numpy(
            np.where(np.isnan(own), self._means[self._labels[indices.numpy()]], own)
        )

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        self._scores.update(indices, losses)
        for each in np.unique(self._labels[indices.numpy()]):
            mean = float(losses[torch.from_numpy(self._labels[indices.numpy()] == each)].mean())
            old = self._means[each]
            self._means[each] = mean if np.isnan(old) else 0.9 * old + 0.1 * mean
        return indices


# ------------------------------------------------------------------- loaders that choose otherwise


class Reweighed:
    """An ImportanceLoader whose weights are changed on their way into the mean."""

    def __init__(self, loader: ImportanceLoader, change: Callable[[Tensor], Tensor]) -> None:
        self._loader, self._change = loader, change

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def mean(self, losses: Tensor) -> Tensor:
        self._loader.mean(losses.detach())
        return (self._change(self._loader.weights) * losses).mean()


class Annealed(Reweighed):
    """k rises from its value to 1 in the course of ``steps``."""

    def __init__(self, loader: ImportanceLoader, k: float, steps: int) -> None:
        super().__init__(loader, self._annealed)
        self._k, self._steps, self._done = k, steps, 0

    def _annealed(self, weights: Tensor) -> Tensor:
        self._done += 1
        now = self._k + (1 - self._k) * min(self._done / self._steps, 1)
        return weights ** (now / self._k)


def undealt(loader: ImportanceLoader) -> ImportanceLoader:
    """One systematic draw for each batch instead of one for many."""
    loader._sampler.source._batches = lambda _: 1  # type: ignore[union-attr]
    return loader


class Thinned:
    """Shuffled passes that leave examples out: each comes at most once, with probability pi_i.

    pi_i is proportional to the smoothed score and at most 1, and the weight is (mean pi / pi)^k: a
    pass gets shorter as more of its examples are learned.
    """

    def __init__(self, task: Task, seed: int, k: float, kept: float) -> None:
        self._data, self._batch, self._k = task.train, task.batch_size, k
        n = len(task.train)  # type: ignore[arg-type]
        self._scores, self._kept = History(n, KEPT), kept
        self._generator = torch.Generator().manual_seed(seed + 1)
        self._n, self._passes = n, 0

    def __len__(self) -> int:
        return self._n // self._batch

    def __iter__(self) -> Iterator[Any]:
        chance = self._chances()
        order = torch.randperm(self._n, generator=self._generator)
        chosen = order[torch.rand(self._n, generator=self._generator) < chance[order]]
        p = chance / chance.sum()
        alpha = torch.from_numpy(weights(p.numpy(), self._k, self._n)).float()
        self._passes += 1
        for at in torch.split(chosen, self._batch):
            if len(at) == self._batch:
                self._at, self._weights = at, alpha[at]
                yield self._data[at]

    def _chances(self) -> Tensor:
        """The highest exponent-free water level at which a share ``kept`` of all is expected."""
        if self._passes == 0:
            return torch.ones(self._n)
        scores = self._scores.score(torch.arange(self._n), None).nan_to_num()
        q = scores + SHARE * scores.mean()
        chance = q / q.mean() * self._kept
        for _ in range(20):  # what is cut off above 1 goes to the others
            chance = (chance * self._kept * self._n / chance.clamp(max=1).sum()).clamp(max=1)
        return chance.clamp(max=1)

    def mean(self, losses: Tensor) -> Tensor:
        self._scores.update(self._at, losses.detach())
        return (self._weights * losses).mean()


# ------------------------------------------------------------------------------------- the designs


def size(task: Task) -> int:
    return len(task.train)  # type: ignore[arg-type]


def labels(task: Task) -> Tensor:
    return task.train.tensors[-1]  # type: ignore[attr-defined,no-any-return]


class Design(Method):
    """A method that may build its loader in a way of its own."""

    def __init__(
        self,
        name: str,
        make: Callable[[Task, nn.Module], Any] | str,
        k: float = 0.5,
        wrap: Callable[..., Any] | None = None,
        smoothing: Callable[[], Any] | None = None,
        **options: Any,
    ) -> None:
        named = {"score": make} if isinstance(make, str) else {}
        super().__init__(name, k, {**options, **named}, None if named else make)
        self.__dict__.update(wrap=wrap, smoothing=smoothing)

    def loader(self, task: Task, model: nn.Module, seed: int) -> Any:
        options = dict(self.options)
        if self.smoothing is not None:  # one with a memory, so one for each run
            options["smoothing"] = self.smoothing()
        plain = Method(self.name, self.k, options, self.score)
        if self.wrap is Thinned:
            return Thinned(task, seed, self.k, 0.5)
        loader = plain.loader(task, model, seed)
        return loader if self.wrap is None else self.wrap(loader)


def designs(steps: int) -> list[Design]:
    def remembered(task: Task, model: nn.Module) -> Any:  # noqa: ARG001
        return History(size(task))

    def running(task: Task, model: nn.Module, kept: float = KEPT) -> Any:  # noqa: ARG001
        return History(size(task), kept)

    def predicted(task: Task, model: nn.Module, every: int) -> Any:  # noqa: ARG001
        return Approx(size(task), labels(task), every=every)

    less = partial(Adaptive, SHARE)
    return [
        Design("uniform", "uniform", k=1.0),
        Design("history", remembered),
        Design("history, multinomial draws", remembered, draw="multinomial"),
        Design("history, pools of 2 batches", remembered, presample=2),
        Design("history, pools of 8 batches", remembered, presample=8),
        Design("history, smoothing 0.2", remembered, smoothing=less),
        Design("history, discounted where losses stay", lambda task, _: Doubted(size(task))),
        Design("running 0.8, bounded", lambda task, _: Bounded(size(task)), smoothing=less),
        Design("approx, trained at every step", partial(predicted, every=1)),
        Design("approx, trained at every 8th", partial(predicted, every=8)),
        Design("loss, pools of 2 batches", "loss"),
        Design("running 0.5", partial(running, kept=0.5)),
        Design("running 0.8", running),
        Design("running 0.8, smoothing 0.2", running, smoothing=less),
        Design("running 0.5, smoothing 0.2", partial(running, kept=0.5), smoothing=less),
        Design("running 0.9, smoothing 0.2", partial(running, kept=0.9), smoothing=less),
        Design("the same as 0.8, k = 1", running, k=1.0, smoothing=less),
        Design("the same as 0.8, k = 0.25", running, k=0.25, smoothing=less),
        Design("the same as 0.8, k = 0", running, k=0.0, smoothing=less),
        Design(
            "the same as 0.8, k from 0.5 to 1",
            running,
            smoothing=less,
            wrap=lambda loader: Annealed(loader, 0.5, steps),
        ),
        Design(
            "the same as 0.8, weights at most 1",
            running,
            smoothing=less,
            wrap=lambda loader: Reweighed(loader, lambda w: w.clamp(max=1)),
        ),
        Design(
            "the same as 0.8, weights of mean 1",
            running,
            smoothing=less,
            wrap=lambda loader: Reweighed(loader, lambda w: w / w.mean()),
        ),
        Design("the same as 0.8, multinomial draws", running, smoothing=less, draw="multinomial"),
        Design("the same as 0.8, a draw for each batch", running, smoothing=less, wrap=undealt),
        Design("passes thinned to half", "uniform", wrap=Thinned),
        Design(
            "running 0.8, 32 stale examples looked at per step",
            lambda task, model: Refreshed(task, model, 32),
            smoothing=less,
        ),
        Design(
            "running 0.8, unseen examples by their class",
            lambda task, _: ByClass(size(task), labels(task)),
            smoothing=less,
        ),
        Design("running 0.8, fading smoothing", running, smoothing=Fading),
        Design("auto", "auto"),
        Design("auto, independent draws", "auto", draw="multinomial"),
        Design("auto, k = 1", "auto", k=1.0),
    ]


# ------------------------------------------------------------------------------------ running them


def summary(rows: dict[int, list[Row]], base: dict[int, list[Row]]) -> dict[str, Any]:
    target = fmean(run[-1]["train_loss"] for run in base.values())
    groups = zip(*rows.values(), strict=True)
    curve = [fmean(row["train_loss"] for row in group) for group in groups]
    steps = [row["step"] for row in next(iter(rows.values()))]
    reached = next((s for s, loss in zip(steps, curve, strict=True) if loss <= target), None)
    last = [run[-1] for run in rows.values()]
    seconds = fmean(row["seconds"] for row in last)
    found = {
        "steps_to_target": None if reached is None else reached / steps[-1],
        "train_loss": fmean(row["train_loss"] for row in last),
        "test_error": [row["test_error"] for row in last],
        "step_cost": seconds / fmean(run[-1]["seconds"] for run in base.values()),
    }
    if "test_error_rare" in last[0]:
        found["test_error_rare"] = [row["test_error_rare"] for row in last]
    return found


def line(name: str, found: dict[str, Any]) -> str:
    reached = found["steps_to_target"]
    errors = found["test_error"]
    cells = [
        name,
        "never" if reached is None else f"{reached:.2f}",
        f"{found['train_loss']:.4f}",
        f"{100 * fmean(errors):.2f}% ({100 * min(errors):.2f} .. {100 * max(errors):.2f})",
        f"{found['step_cost']:.2f}",
    ]
    if "test_error_rare" in found:
        cells.insert(4, f"{100 * fmean(found['test_error_rare']):.2f}%")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, default="mnist")
    parser.add_argument("--schedule", choices=SCHEDULES, default="constant")
    parser.add_argument("--designs", help="names, divided by ;  (default: all)")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    task = small_task(options.case, options.data_dir, options.schedule)
    known = {design.name: design for design in designs(options.steps)}
    chosen = options.designs.split(";") if options.designs else list(known)
    unknown = [name for name in chosen if name not in known]
    if unknown:
        parser.error(f"designs must be among {'; '.join(known)}; got {'; '.join(unknown)}")
    results: dict[str, Any] = {"options": vars(options) | {"data_dir": None, "out": None}}
    results |= environment(options.threads)
    print("| design | steps to uniform's train loss | train loss | test error | step cost |")
    base: dict[int, list[Row]] = {}
    for name in dict.fromkeys(["uniform", *chosen]):
        rows: dict[int, list[Row]] = {}
        for seed in range(options.seeds):
            run = Run(task, known[name], seed, steps=options.steps)
            rows[seed] = list(interleave([run], options.steps, EVALUATIONS))
        base = base or rows
        results[name] = summary(rows, base)
        print(line(name, results[name]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
