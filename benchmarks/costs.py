"""What Salience costs: training steps as ratios to a plain DataLoader loop, and single draws.

Steps: methods alternate in short blocks, so that other load on the machine affects all alike. A
ratio is a block's time over that of the plain loop in the same round; printed are the median over
the rounds with its quartiles, the same in processor time (which does not count the time of other
programs), and the longest step (by the shorter of both clocks; it needs a quiet machine).
``auto:off`` and ``auto:on`` are ``auto`` forced into one of its states, after its first pass.
``gnorm:one-by-one`` has a backward pass for each candidate, as one would write it by hand.
``loss:at-once`` scores each pool in a single pass; ``loss`` makes several on a CPU.

Draws: ``draw`` and ``update`` of a batch out of N examples, each N and method in its own process:
mean and longest time, the time to construct the sampler, and its memory per example: resident,
at most resident, and allocated (which includes pages that were not used yet). What is allocated in
later steps only is seen with more ``--draws``.

    python benchmarks/costs.py                                  # fast, demo, the paper's; draws
    python benchmarks/costs.py steps --cases fast --rounds 200
    python benchmarks/costs.py steps --cases ptb-small --methods approx,loss:draw=multinomial
    python benchmarks/costs.py steps --cases mnist-paper --methods loss,gnorm,gnorm:one-by-one
    python benchmarks/costs.py steps --cases cifar10-paper --methods loss:presample=2,loss:at-once
    python benchmarks/costs.py draws --sizes 1e5,1e7 --methods history,approx
    python benchmarks/costs.py draws --sizes 1e7 --batch 8192 --methods history:draw=multinomial
"""

import argparse
import gc
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

from salience import ImportanceLoader, ImportanceSampler, recency
from salience.batches.rows import Stacked
from salience.compare.digits import digits, network
from salience.compare.directory import environment, write
from salience.compare.methods import make_method
from salience.paper.data.examples import Examples
from salience.paper.networks import WORDS, cifar10_network, mnist_network, ptb_network
from salience.scores.criterion import per_example
from salience.scores.model import ModelScore, scoring
from salience.sources import auto

BATCH = 128
SPECIAL = ("auto:off", "auto:on", "gnorm:one-by-one", "loss:at-once")
STEP_METHODS = ("uniform", "history", "auto:off", "auto:on")
DRAW_METHODS = ("history", "auto:off", "auto:on")
SIZES = "1e5,1e7,1e8"


# ------------------------------------------------------------------------------- auto, on or off


@contextmanager
def forced(name: str, **more: Any) -> Iterator[None]:
    """``auto:on`` and ``auto:off``: set what ``auto`` turns on and off by."""
    state = name.partition(":")[2]
    if state not in ("on", "off"):
        yield
        return
    gain = 0.0 if state == "on" else math.inf
    gains = {"ON": gain, "OFF": gain, "DOUBT": math.inf, "LEFT": -1.0, **more}
    measured = {"ENOUGH": 0.0, "FEW": 0, "SLOPE": math.inf}  # at once, and nothing memorises
    with replaced(auto, gains), replaced(recency, measured):
        yield


@contextmanager
def replaced(module: Any, values: dict[str, Any]) -> Iterator[None]:
    before = {key: getattr(module, key) for key in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


def settle(name: str, step: Callable[[], None], chooser: Any, steps: int = 3) -> None:
    """Train for some steps with ``auto`` off; only then turn it on, if that is wanted."""
    with forced("auto:off"):
        for _ in range(steps):
            step()
    with forced(name, EVERY=1):
        for _ in range(3):
            step()
    check(name, chooser)


def check(name: str, chooser: Any) -> None:
    if name in ("auto:on", "auto:off"):
        active = bool(chooser.metrics()["active"])
        assert active == (name == "auto:on"), f"{name}: active is {active}"


# ------------------------------------------------------------------------------------------ steps


class Vectors(Examples):
    """Rows of a matrix, read a batch at a time: the plain loop reads them as fast as ours."""

    def __init__(self, x: Tensor, targets: Tensor) -> None:
        self.x, self.targets = x, targets

    def __getitems__(self, indices: Sequence[int]) -> Stacked:
        chosen = torch.as_tensor(indices)
        return Stacked(self.x.index_select(0, chosen), self.targets.index_select(0, chosen))


class Case(NamedTuple):
    """A dataset, a network, and the steps of a block."""

    dataset: Callable[[], Dataset[Any]]
    network: Callable[[], nn.Module]
    steps: int


def noise(n: int, *shape: int) -> TensorDataset:
    """Random images, or random words: what they show does not change what a step costs.

    Their losses are all alike, so the fewest draws repeat and can be merged: the dearest case.
    """
    generator = torch.Generator().manual_seed(0)
    if shape == (20,):
        words = torch.randint(1, WORDS, (n, *shape), generator=generator)
        return TensorDataset(words, torch.randint(1, WORDS, (n,), generator=generator))
    images = torch.rand(n, *shape, generator=generator)
    return TensorDataset(images, torch.randint(0, 10, (n,), generator=generator))


def perceptron(width: int) -> nn.Module:
    """[B, 256] -> [B, 10]. Width 192 takes a plain step of 1.5 to 2 ms on one thread."""
    hidden = (nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def paper_cases(size: Any, n: int, steps: int) -> dict[str, Case]:
    return {
        f"mnist-{size}": Case(partial(noise, n, 1, 28, 28), partial(mnist_network, size), steps),
        f"cifar10-{size}": Case(
            partial(noise, n, 3, 32, 32), partial(cifar10_network, size), steps
        ),
        f"ptb-{size}": Case(partial(noise, n, 20), partial(ptb_network, size), steps),
    }


CASES = {
    "fast": Case(lambda: Vectors(*noise(25_600, 256).tensors), partial(perceptron, 192), 50),
    # Read one by one, as DataLoader does; ours reads tensors a batch at a time.
    "fast-tensors": Case(partial(noise, 25_600, 256), partial(perceptron, 128), 50),
    "demo": Case(partial(digits, train=True), network, 11),
    **paper_cases("paper", 20 * BATCH, 1),  # a pass of 20 steps, because each takes so long
    **paper_cases("small", 100 * BATCH, 10),
}
USUAL = [name for name in CASES if not name.endswith("small")]


class OneByOne(ModelScore):
    """Gradient norms by one forward and backward pass for each candidate."""

    name, unit = "gnorm", "gradient"

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        weights = list(self.model.parameters())
        norms = []
        with scoring(self.model, self.mode), torch.enable_grad():
            for i in range(len(indices)):
                loss = self.loss(self.model, [each[i : i + 1] for each in batch]).sum()
                gradients = torch.autograd.grad(loss, weights)
                norms.append(torch.stack([each.square().sum() for each in gradients]).sum().sqrt())
        return torch.stack(norms)


class AtOnce(ModelScore):
    """Losses by one forward pass over the whole pool."""

    name, unit = "loss", "loss"

    def score(self, indices: Tensor, batch: Any) -> Tensor:
        with scoring(self.model, self.mode):
            return per_example(self.loss(self.model, batch), len(indices))


OWN_SCORES = {"gnorm:one-by-one": OneByOne, "loss:at-once": AtOnce}


class Trainer:
    """A training loop as users write it, with Salience or (``plain``) without."""

    def __init__(self, name: str, dataset: Dataset[Any], network: Callable[[], nn.Module]) -> None:
        torch.manual_seed(0)
        self.name, self.model = name, network()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        options = {"drop_last": True, "collate_fn": getattr(dataset, "collate", None)}
        if name == "plain":
            self.loader: Any = DataLoader(dataset, BATCH, shuffle=True, **options)
        else:
            method = make_method(name.partition(":")[0] if name in SPECIAL else name)
            needed = {"model": self.model, "loss": nn.CrossEntropyLoss(reduction="none")}
            options = {**options, **method.options, **needed}
            if name in OWN_SCORES:
                options["score"] = OWN_SCORES[name](**needed)
            self.loader = ImportanceLoader(dataset, BATCH, k=method.k, **options)
        self.mean = torch.mean if name == "plain" else self.loader.mean
        self._batches = self._endless()
        first_pass = len(self.loader) if name.startswith("auto:") else 3
        settle(name, self.step, self.loader, first_pass)

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def step(self) -> None:
        x, y = next(self._batches)
        losses = cross_entropy(self.model(x), y, reduction="none")
        self.mean(losses).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def block(self, steps: int) -> list["Seconds"]:
        """The seconds of each of some steps."""
        with forced(self.name):
            return [timed(self.step) for _ in range(steps)]


class Seconds(NamedTuple):
    """Of one step, by two clocks."""

    wall: float
    processor: float

    @property
    def least(self) -> float:
        """The better bound of what the step itself took."""
        return min(self)


def timed(action: Callable[[], None]) -> Seconds:
    started, used = time.perf_counter(), time.process_time()
    action()
    return Seconds(time.perf_counter() - started, time.process_time() - used)


def step_costs(title: str, methods: list[str], rounds: int) -> dict[str, Any]:
    case = CASES[title]
    dataset = case.dataset()
    trainers = {name: Trainer(name, dataset, case.network) for name in ("plain", *methods)}
    blocks: dict[str, list[list[Seconds]]] = {name: [] for name in trainers}
    for turn in range(rounds):
        for name in trainers if turn % 2 == 0 else reversed(trainers):
            blocks[name].append(trainers[name].block(case.steps))
        progress(f"{title}: round {turn + 1} of {rounds}")
    for name, trainer in trainers.items():
        check(name, trainer.loader)
    return step_report(title, blocks)


def step_report(title: str, blocks: dict[str, list[list[Seconds]]]) -> dict[str, Any]:
    plain_ms = 1e3 * median(fmean(step.wall for step in block) for block in blocks["plain"])
    print(f"\n{title}: plain DataLoader loop {plain_ms:.2f} ms a step", flush=True)
    result: dict[str, Any] = {"plain_ms": plain_ms, "methods": {}}
    for name, own in blocks.items():
        low, middle, high = quantiles(ratios(own, blocks["plain"], "wall"), n=4)
        processor = median(ratios(own, blocks["plain"], "processor"))
        longest = 1e3 * max(step.least for block in own for step in block)
        result["methods"][name] = {
            "ratio": middle,
            "quartiles": [low, high],
            "processor_ratio": processor,
            "longest_ms": longest,
            "rounds": len(own),
        }
        print(
            f"  {name:22s} {middle:.3f}  (quartiles {low:.3f} .. {high:.3f}, {len(own)} rounds); "
            f"processor {processor:.3f}; longest step {longest:.1f} ms"
        )
    return result


def ratios(own: list[list[Seconds]], plain: list[list[Seconds]], clock: str) -> list[float]:
    """The time of each block over that of the plain loop in the same round."""
    times = [[fmean(getattr(step, clock) for step in b) for b in each] for each in (own, plain)]
    return [a / b for a, b in zip(*times, strict=True)]


# ------------------------------------------------------------------------------------------ draws


def draw_costs(name: str, n: int, batch: int, steps: int) -> dict[str, float]:
    """One method and size, in a fresh process: memory that was freed before would hide some."""
    torch.set_num_threads(1)
    gc.disable()
    DrawLoop(name, 10 * BATCH, BATCH).seconds(10)  # what torch itself allocates at its first use
    before, allocated, started = memory(), memory("VmData"), time.perf_counter()
    loop = DrawLoop(name, n, batch)
    constructed = time.perf_counter() - started
    loop.prepare()
    seconds = loop.seconds(steps)
    check(name, loop.sampler)
    return {
        "mean_ms": 1e3 * fmean(step.wall for step in seconds),
        "median_ms": 1e3 * median(step.wall for step in seconds),
        "processor_ms": 1e3 * fmean(step.processor for step in seconds),
        "longest_ms": 1e3 * max(step.least for step in seconds),
        "construction_seconds": constructed,
        "bytes_per_example": (memory() - before) / n,
        "peak_bytes_per_example": (memory("VmHWM") - before) / n,
        "allocated_bytes_per_example": (memory("VmData") - allocated) / n,
        "steps": steps,
    }


class DrawLoop:
    """A custom loop round ``ImportanceSampler``, without a network."""

    def __init__(self, name: str, n: int, batch: int) -> None:
        method = make_method("auto" if name.startswith("auto:") else name)
        self.name, self.n = name, n
        self.sampler = ImportanceSampler(n, batch, k=method.k, **method.options)
        self._losses, self._done = [3 * torch.rand(batch) for _ in range(64)], 0

    def step(self) -> None:
        draw = self.sampler.draw()
        self._done += 1
        self.sampler.update(draw, self._losses[self._done % 64][: len(draw)])

    def prepare(self) -> None:
        """Every example is seen once, so that all memory is in use."""
        size = min(8192, self.n // 10)  # small beside what is measured
        with forced("auto:off"):
            for start in range(0, self.n, size):
                part = torch.arange(start, min(start + size, self.n))
                self.sampler.update(part, 3 * torch.rand(len(part)))
        settle(self.name, self.step, self.sampler)

    def seconds(self, steps: int) -> list[Seconds]:
        with forced(self.name):
            return [timed(self.step) for _ in range(steps)]


def memory(kind: str = "VmRSS") -> int:
    """Bytes of this process (Linux): resident, at most resident (VmHWM) or allocated (VmData)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return 1024 * int(values[kind].split()[0])


def draws(methods: list[str], sizes: list[int], batch: int, steps: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    context = multiprocessing.get_context("spawn")
    print(f"\ndraw and update of {batch}", flush=True)
    for n in sizes:
        for name in methods:
            progress(f"{name}, N = {n:,}")
            with ProcessPoolExecutor(1, context) as process:
                cost = process.submit(draw_costs, name, n, batch, steps).result()
            found[f"{name}, {n}"] = cost
            print(
                f"  N = {n:>11,} {name:10s} mean {cost['mean_ms']:.3f} ms, median "
                f"{cost['median_ms']:.3f}, processor {cost['processor_ms']:.3f}, longest "
                f"{cost['longest_ms']:.1f}; constructed in "
                f"{cost['construction_seconds']:.2f} s, {cost['bytes_per_example']:.1f} bytes "
                f"per example (peak {cost['peak_bytes_per_example']:.1f}, allocated "
                f"{cost['allocated_bytes_per_example']:.1f})",
                flush=True,
            )
    return found


# ---------------------------------------------------------------------------------- command line


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="\r", file=sys.stderr)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["steps", "draws", "all"], default="all")
    parser.add_argument("--cases", default=",".join(USUAL), help=f"of {', '.join(CASES)}")
    parser.add_argument("--methods", help=f"any score, or {', '.join(SPECIAL)}")
    parser.add_argument("--rounds", type=int, default=40, help="of steps, at least 2")
    parser.add_argument("--sizes", default=SIZES, help="numbers of examples to draw from")
    parser.add_argument("--batch", type=int, default=BATCH, help="examples in a draw")
    parser.add_argument("--draws", type=int, default=20_000, help="draws of each size")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    unknown = sorted(set(options.cases.split(",")) - set(CASES))
    if unknown:
        parser.error(f"cases must be among {', '.join(CASES)}; got {', '.join(unknown)}")
    return options


def main() -> None:
    # A full collection of Python's garbage takes 90 ms with torch loaded, whoever sets it off.
    gc.disable()
    options = arguments()
    torch.set_num_threads(options.threads)
    given = options.methods.split(",") if options.methods else None
    results: dict[str, Any] = {"command": " ".join(sys.argv), **environment(options.threads)}
    if options.part != "draws":
        for title in options.cases.split(","):
            results[title] = step_costs(title, given or list(STEP_METHODS), options.rounds)
    if options.part != "steps":
        sizes = [int(float(size)) for size in options.sizes.split(",")]
        methods = given or list(DRAW_METHODS)
        results["draws"] = draws(methods, sizes, options.batch, options.draws)
    if options.out:
        write(options.out, results)


if __name__ == "__main__":
    main()
