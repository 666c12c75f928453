"""Cost of a training step with each score, as a ratio to a plain DataLoader loop.

Methods take turns in short blocks, so that whatever else the machine does hurts all alike; each
ratio is a block's time over that of the plain loop in the same round, and what is printed is the
median over the rounds with the quartiles.

    python benchmarks/step_cost.py                       # the demo network and the paper's three
    python benchmarks/step_cost.py --network demo --rounds 200
    python benchmarks/step_cost.py --network ptb-small --methods approx,loss:draw=multinomial
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

import salience
from salience import ImportanceLoader
from salience.compare import demo
from salience.compare.digits import digits
from salience.compare.methods import make_method
from salience.compare.records import environment
from salience.paper.networks import WORDS, Size, cifar10_network, mnist_network, ptb_network

# With its own settings each, and the loss also as the paper draws: with replacement.
METHODS = ("uniform", "history", "approx", "loss", "loss:draw=multinomial", "upper_bound", "gnorm")


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def stepper(
    name: str, dataset: Dataset[Any], network: Callable[[], nn.Module], batch: int
) -> Callable[[], None]:
    """One training step, as users write it with and without Salience."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if name == "plain":
        loader: Any = DataLoader(dataset, batch, shuffle=True, drop_last=True)
        mean: Callable[[Any], Any] = torch.mean
    else:
        method = make_method(name)
        needed = {"model": model, "loss": nn.CrossEntropyLoss(reduction="none")}
        options = {**method.options, **needed}
        loader = ImportanceLoader(dataset, batch, k=method.k, drop_last=True, **options)
        mean = loader.mean
    batches = endless(loader)

    def step() -> None:
        x, y = next(batches)
        losses = cross_entropy(model(x), y, reduction="none")
        mean(losses).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def block_seconds(step: Callable[[], None], steps: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        step()
    return time.perf_counter() - started


def measure(
    names: list[str], make: Callable[[str], Callable[[], None]], rounds: int, steps: int
) -> dict[str, list[float]]:
    """Seconds per step of each block, by method."""
    steppers = {name: make(name) for name in names}
    for step in steppers.values():
        block_seconds(step, 3)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            seconds[name].append(block_seconds(steppers[name], steps) / steps)
        if sys.stderr.isatty():
            print(f"\rround {turn + 1} of {rounds}", end="", file=sys.stderr)
    return seconds


def report(title: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    plain = seconds["plain"]
    print(f"\n{title}: plain DataLoader loop {1e3 * median(plain):.2f} ms a step", flush=True)
    rows = {}
    for name, own in seconds.items():
        if name == "plain":
            continue
        low, middle, high = quantiles([a / b for a, b in zip(own, plain, strict=True)], n=4)
        rows[name] = {"ratio": middle, "quartiles": [low, high], "rounds": len(own)}
        print(f"  {name:22s} {middle:.3f}  (quartiles {low:.3f} .. {high:.3f}, {len(own)} rounds)")
    return {"plain_ms": 1e3 * median(plain), "methods": rows}


def noise(n: int, *shape: int) -> TensorDataset:
    """Images of noise, or words at random: what they show does not change what a pass costs.

    Their losses are all alike, so the fewest draws repeat and can be merged: the dearest case.
    """
    generator = torch.Generator().manual_seed(0)
    if len(shape) == 1:
        words = torch.randint(1, WORDS, (n, *shape), generator=generator)
        return TensorDataset(words, torch.randint(1, WORDS, (n,), generator=generator))
    images = torch.rand(n, *shape, generator=generator)
    return TensorDataset(images, torch.randint(0, 10, (n,), generator=generator))


def sized(size: Size, steps: int) -> dict[str, Any]:
    """The three networks of the paper in one size; steps of a block."""
    return {
        f"mnist-{size}": (
            lambda: noise(60_000, 1, 28, 28),
            lambda: mnist_network(size),
            128,
            steps,
        ),
        f"cifar10-{size}": (
            lambda: noise(50_000, 3, 32, 32),
            lambda: cifar10_network(size),
            128,
            steps,
        ),
        f"ptb-{size}": (lambda: noise(900_000, 20), lambda: ptb_network(size), 128, steps),
    }


# name: dataset, network, batch size, steps of a block
NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[], nn.Module], int, int]] = {
    "demo": (lambda: digits(train=True), demo.network, demo.BATCH_SIZE, 11),
    **sized("paper", 1),
    **sized("small", 10),
}
USUAL = [name for name in NETWORKS if not name.endswith("small")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=[*NETWORKS, "all"], default="all")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = USUAL if options.network == "all" else [options.network]
    print(f"salience {salience.__version__}, torch {torch.__version__}, {platform.machine()}")
    results: dict[str, Any] = {"command": " ".join(sys.argv), **environment(options.threads)}
    for title in chosen:
        dataset, network, batch, steps = NETWORKS[title]
        data = dataset()
        names = ["plain", *options.methods.split(",")]
        seconds = measure(
            names,
            lambda name, data=data, network=network, batch=batch: stepper(
                name, data, network, batch
            ),
            options.rounds,
            steps,
        )
        results[title] = report(title, seconds)
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
