"""What ``salience demo`` trains: a small convolutional network on digits, twice for each seed."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from salience.compare.digits import digits
from salience.compare.records import environment
from salience.compare.training import Method, Row, Run, Task, interleave, warm_up
from salience.errors import ArgumentError

__all__ = [
    "METHODS",
    "SEEDS",
    "STEPS",
    "adam",
    "announcement",
    "config",
    "demo_rows",
    "digits_task",
    "few_threads",
    "network",
    "seeds_from",
    "wrong",
]

STEPS = 800
SEEDS = 3
EVALUATIONS = 50
THREADS = 1  # on a network this small a second one is no faster, and suffers from busy cores
BATCH_SIZE = 128
LEARNING_RATE = 1e-3
MOST_SEEDS = 100
LARGEST_SEED = 2**32 - 1

METHODS = (
    Method("uniform", k=1.0, options={"score": "uniform"}),
    Method("history", k=0.5, options={"score": "history"}),
)


def digits_task() -> Task:
    """1,437 digits to learn and 360 to test on, for a network of 38,282 weights with dropout."""
    return Task(
        name="digits",
        train=digits(train=True),
        test=digits(train=False),
        model=network,
        optimizer=adam,
        loss=partial(nn.functional.cross_entropy, reduction="none"),
        wrong=wrong,
        batch_size=BATCH_SIZE,
    )


def network() -> nn.Module:
    """Two convolutions, one pooling, two linear layers: [B, 1, 8, 8] -> [B, 10]."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(64, 10),
    )


def seeds_from(first: int, count: int) -> list[int]:
    """``count`` seeds from ``first`` on; refuses what cannot be one before anything is trained."""
    if not 1 <= count <= MOST_SEEDS:
        raise ArgumentError(
            f"seeds must be between 1 and {MOST_SEEDS}; got {count}: try --seeds {SEEDS}"
        )
    if not 0 <= first <= LARGEST_SEED - count:
        raise ArgumentError(
            f"seed must be between 0 and {LARGEST_SEED - count}; got {first}: try --seed 0"
        )
    return list(range(first, first + count))


def config(seeds: list[int], steps: int) -> dict[str, Any]:
    """Everything that decides what is measured, and the machine it is measured on."""
    return {
        "command": "demo",
        "task": "digits",
        "methods": [{"name": m.name, "k": m.k, **m.options} for m in METHODS],
        "seed": seeds[0],
        "seeds": seeds,
        "steps": steps,
        "evaluations": min(EVALUATIONS, steps),
        "batch_size": BATCH_SIZE,
        "optimizer": {"name": "Adam", "learning_rate": LEARNING_RATE},
        **environment(threads=min(torch.get_num_threads(), THREADS)),
    }


def announcement(seeds: list[int], steps: int) -> str:
    """What is about to happen, for people."""
    several = f"{len(seeds)} seeds each" if len(seeds) > 1 else "one seed each"
    return (
        f"Training a small network on 1,437 hand-written digits: uniform sampling and importance "
        f"sampling, {several}, {steps} steps, side by side."
    )


def demo_rows(seeds: list[int], steps: int) -> Iterator[Row]:
    """Train every method with every seed, interleaved, and yield each evaluation as it comes."""
    if steps < 1:
        raise ArgumentError(f"steps must be at least 1; got {steps}: try --steps {STEPS}")
    return _train(seeds, steps)


def _train(seeds: list[int], steps: int) -> Iterator[Row]:
    task = digits_task()
    with few_threads():
        warm_up(task, METHODS)
        runs = [Run(task, method, seed) for seed in seeds for method in METHODS]
        yield from interleave(runs, steps, EVALUATIONS)


@contextmanager
def few_threads() -> Iterator[None]:
    """At most ``THREADS`` threads for torch, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, THREADS))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=LEARNING_RATE)


def wrong(output: Tensor, target: Tensor) -> Tensor:
    return output.argmax(1) != target
