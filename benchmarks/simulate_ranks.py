"""What 64 and 1,024 ranks would cost: a simulation, from a model and from toy problems.

Nothing here ran on that many ranks. Stated for each part is what it rests on:

- communication: bytes of the gather of losses, and its time by the alpha-beta model (latency per
  message, bandwidth), for a ring (what gloo does) and for recursive doubling. ``gloo``: the model
  against measured gathers of 2 to 8 processes on this machine.
- memory: measured bytes per example times the examples, for one copy per rank, one per machine,
  and shards.
- processor: draw and update of a whole global batch, measured in one process.
- staleness: training of a toy model in one process, with draws made some batches ahead.
- shards: variance of the step estimator when each rank draws from its own examples only, against
  draws from all of them.

    python benchmarks/simulate_ranks.py                        # a few minutes
    python benchmarks/simulate_ranks.py --parts communication,shards --out runs/ranks.json
    python benchmarks/simulate_ranks.py --table runs/ranks.json --page docs/distributed-costs.md
"""

import argparse
import gc
import json
import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from costs import DrawLoop, forced, progress
from numpy.typing import NDArray
from processes import alone, on_ranks
from scale_report import markdown, number, read_rows, write_page
from torch import Tensor

from salience import Draw, ImportanceSampler, functional
from salience.compare.directory import environment

Row = dict[str, Any]
Floats = NDArray[np.float64]

RANKS = (64, 1024)
PER_RANK = 32  # rows on each rank
GLOBAL = 8192  # the other case: rows on all ranks together
HEADER = 12  # bytes of a message before the losses: number, checksum and pool of the draw
ALPHAS = (50e-6, 5e-6)  # seconds per message: TCP, a fast network
BANDWIDTHS = (1e9, 10e9)  # bytes per second
BYTES = {"history": 21.5, "auto:on": 8.3}  # per example: results/README.md, at 10^8
LOOK_AHEAD = (0, 2, 8, 32)
DRAWS = 256  # of each shard, to estimate a variance


def batches(world: int) -> tuple[int, ...]:
    """Global batches: the same on any number of ranks, and the same on each rank."""
    return tuple(sorted({GLOBAL, PER_RANK * world}))


# ----------------------------------------------------------------------------------- communication


def message(batch: int, world: int) -> int:
    """Bytes that one rank contributes to the gather of a step."""
    return HEADER + 4 * math.ceil(batch / world)


def ring(world: int, size: int, alpha: float, bandwidth: float) -> float:
    """Seconds of an all-gather: W - 1 rounds, in each of which one message moves on by one rank."""
    return (world - 1) * (alpha + size / bandwidth)


def doubling(world: int, size: int, alpha: float, bandwidth: float) -> float:
    """Seconds of an all-gather: log2 W rounds, in each of which what one has doubles."""
    return math.ceil(math.log2(world)) * alpha + (world - 1) * size / bandwidth


def communication() -> list[Row]:
    return [
        {
            "ranks": world,
            "batch": batch,
            "message_bytes": message(batch, world),
            "received_bytes": (world - 1) * message(batch, world),
            "alpha_us": 1e6 * alpha,
            "bandwidth_gb": bandwidth / 1e9,
            "ring_ms": 1e3 * ring(world, message(batch, world), alpha, bandwidth),
            "doubling_ms": 1e3 * doubling(world, message(batch, world), alpha, bandwidth),
        }
        for world in RANKS
        for batch in batches(world)
        for alpha in ALPHAS
        for bandwidth in BANDWIDTHS
    ]


def gather_seconds(rank: int, sizes: list[int], repeats: int) -> list[float]:  # noqa: ARG001
    """The median time of an all-gather of each size, on this rank."""
    return [median(_gather(size) for _ in range(repeats)) for size in sizes]


def _gather(size: int) -> float:
    outbox = torch.zeros(size // 4, dtype=torch.int32)
    inbox = outbox.new_empty(dist.get_world_size(), len(outbox))
    dist.barrier()
    started = time.perf_counter()
    dist.all_gather(list(inbox), outbox)
    return time.perf_counter() - started


def gloo(worlds: list[int], sizes: list[int], repeats: int) -> list[Row]:
    """Measured gathers beside the ring with the latency and bandwidth of two processes."""
    measured = {}
    for world in worlds:
        progress(f"gloo, {world} processes")
        found = on_ranks(world, gather_seconds, sizes, repeats, limit=600)
        measured[world] = [max(times) for times in zip(*found, strict=True)]
    alpha, bandwidth = fitted(sizes, measured[worlds[0]], worlds[0])
    return [
        {
            "ranks": world,
            "message_bytes": size,
            "measured_ms": 1e3 * seconds,
            "model_ms": 1e3 * ring(world, size, alpha, bandwidth),
            "alpha_us": 1e6 * alpha,
            "bandwidth_gb": bandwidth / 1e9,
        }
        for world in worlds
        for size, seconds in zip(sizes, measured[world], strict=True)
    ]


def fitted(sizes: list[int], seconds: list[float], world: int) -> tuple[float, float]:
    """alpha and bandwidth of the ring, by least squares of relative errors."""
    rounds = (world - 1) / np.array(seconds)
    system = np.stack([rounds, rounds * np.array(sizes)], axis=1)
    (alpha, inverse), *_ = np.linalg.lstsq(system, np.ones(len(sizes)), rcond=None)
    return float(alpha), float(1 / max(inverse, 1e-15))


# ------------------------------------------------------------------------------------------ memory


def measured_bytes(rows: list[Row]) -> dict[str, float]:
    """By method, at the most examples that were measured, and the smallest batch."""
    done = [row for row in rows if row["part"] == "draws" and row["status"] == "done"]
    by_size = sorted(done, key=lambda row: (row["n"], -row["batch"]))
    return {row["method"]: row["bytes_per_example"] for row in by_size if row["method"] in BYTES}


def memory(per_example: dict[str, float], n: int, machine: int = 8) -> list[Row]:
    """GB that the examples take: a copy on each rank, one on each machine, or shards."""
    return [
        {
            "ranks": world,
            "examples": n,
            "method": method,
            "bytes_per_example": size,
            "rank_gb": n * size / 1e9,
            "machine_gb": machine * n * size / 1e9,
            "machine_shared_gb": n * (size + (machine - 1) * own_bytes(method)) / 1e9,
            "machine_sharded_gb": sharded(method, machine * n * size / world / 1e9),
        }
        for method, size in per_example.items()
        for world in RANKS
    ]


def own_bytes(method: str) -> float:
    """Of each example, what every rank keeps for itself beside a copy that they share."""
    return 4.0 if method.startswith("auto") else 0.0


def sharded(method: str, value: float) -> float | str:
    """``auto`` does not go with shards."""
    return "none" if method.startswith("auto") else value


# --------------------------------------------------------------------------------------- processor


def step_seconds(method: str, n: int, batch: int, steps: int) -> dict[str, float]:
    """Of draw and update in one process, after every example was seen."""
    gc.disable()  # a full collection takes 80 ms with torch loaded, among the steps or not
    loop = DrawLoop(method, n, batch)
    loop.prepare()
    with forced(method):
        times = loop.seconds(steps)
    return {
        "mean_ms": 1e3 * fmean(each.wall for each in times),
        "processor_ms": 1e3 * fmean(each.processor for each in times),
    }


def processor(methods: list[str], n: int, steps: int) -> list[Row]:
    """Replicated: every rank draws the whole batch, of all N. Sharded: its rows, of N / W."""
    rows = []
    for world in RANKS:
        for batch in batches(world):
            for method in methods:
                progress(f"processor, {method}, G = {batch:,}")
                whole = alone(step_seconds, method, n, batch, steps, limit=600)
                part = (method, n // world, batch // world)
                shard = alone(step_seconds, *part, steps, limit=600)
                rows.append(
                    {
                        "ranks": world,
                        "batch": batch,
                        "examples": n,
                        "method": method,
                        "steps": steps,
                        "replicated_ms": whole["processor_ms"],
                        "sharded_ms": sharded(method, shard["processor_ms"]),
                    }
                )
    return rows


# --------------------------------------------------------------------------------------- staleness


class Toy:
    """Logistic regression whose examples are learned at different speeds; SGD by k = 1."""

    def __init__(self, n: int, seed: int, width: int = 16) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, width, generator=generator)
        truth = torch.randn(width, generator=generator)
        self.x *= torch.exp(0.5 * torch.randn(n, 1, generator=generator))  # unequal lengths
        self.sign = torch.sign(self.x @ truth)
        self.lengths = self.x.norm(dim=1)
        self.w = torch.zeros(width)

    def losses(self, at: Tensor | slice = slice(None)) -> Tensor:
        return torch.nn.functional.softplus(-self.sign[at] * (self.x[at] @ self.w))

    def slopes(self, at: Tensor | slice = slice(None)) -> Tensor:
        """dL_i / d(w . x_i)."""
        return -self.sign[at] * torch.sigmoid(-self.sign[at] * (self.x[at] @ self.w))

    def step(self, draw: Draw, world: int, rate: float) -> None:
        """The mean over ``world`` logical ranks of the mean over the rows of each."""
        rows = (draw.weights * self.slopes(draw.indices)).unsqueeze(1) * self.x[draw.indices]
        self.w -= rate * rows.unflatten(0, (world, -1)).mean(1).mean(0)

    def variance(self, draw: Draw) -> float:
        """Of an estimate of the gradient from one example by p, over that of a uniform one."""
        slopes = self.slopes()
        mean = (slopes.unsqueeze(1) * self.x).mean(0).square().sum()
        uniform = (slopes * self.lengths).square().mean() - mean
        scaled = slopes[draw.indices] * self.lengths[draw.indices] * draw.inverse()
        return float((scaled.square().mean() - mean) / uniform)


def stale_run(n: int, world: int, ahead: int, steps: int, seed: int) -> dict[str, float]:
    """Train with draws that are made ``ahead`` batches before their losses are known."""
    toy, batch = Toy(n, seed), PER_RANK * world
    sampler = ImportanceSampler(n, batch, score="history", k=1.0, seed=seed)
    for part in torch.split(torch.arange(n), 65536):
        sampler.update(part, toy.losses(part))
    waiting: deque[Draw] = deque()
    variances, tracking = [], []
    for step in range(steps):
        while len(waiting) <= ahead:
            waiting.append(sampler.draw())
        draw = waiting.popleft()
        losses = toy.losses(draw.indices)
        if step % 10 == 9 and step >= steps // 4:
            variances.append(toy.variance(draw))
            tracking.append(float(functional.tracking_coefficient(draw.scores, losses)))
        toy.step(draw, world, rate=0.3)
        sampler.update(draw, losses)
    final = float(toy.losses().mean())
    return {"variance": fmean(variances), "tracking": fmean(tracking), "final_loss": final}


def staleness(n: int, steps: int, seeds: int) -> list[Row]:
    rows = []
    for world in RANKS:
        for ahead in LOOK_AHEAD:
            progress(f"staleness, {world} ranks, {ahead} batches ahead")
            found = [stale_run(n, world, ahead, steps, seed) for seed in range(seeds)]
            row: Row = {"ranks": world, "batch": PER_RANK * world, "examples": n}
            row |= {"ahead": ahead, "steps": steps, "seeds": seeds}
            rows.append({**row, **spread(found)})
    return rows


def spread(found: list[dict[str, float]]) -> dict[str, list[float]]:
    """Mean and standard deviation over the seeds."""
    columns = {key: [each[key] for each in found] for key in found[0]}
    return {
        key: [fmean(values), stdev(values) if len(values) > 1 else 0.0]
        for key, values in columns.items()
    }


# ------------------------------------------------------------------------------------------ shards


def importances(n: int, classes: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """q and the class of each example; classes differ fourfold, examples of one lognormally."""
    label = rng.integers(classes, size=n)
    scale = np.geomspace(1, 4, classes)[label]
    return scale * rng.lognormal(sigma=0.5, size=n) + 0.5, label.astype(np.float64)


def shard_orders(q: Floats, label: Floats, rng: np.random.Generator) -> dict[str, Any]:
    """Which examples lie together: shards are cut from these orders."""
    return {
        "random": rng.permutation(len(q)),
        "by class": np.argsort(label, kind="stable"),
        "sorted by q": np.argsort(q),
    }


def inflation(q: Floats, world: int) -> float:
    """1 + cv^2 of the masses Q_r of equal shards."""
    masses = q.reshape(world, -1).sum(axis=1)
    return float(1 + masses.var() / masses.mean() ** 2)


def drawn_inflation(q: Floats, s: Floats, world: int, rng: np.random.Generator) -> float:
    """The same by draws: the mean square of alpha_i s_i over that of draws from all examples.

    ``s``: gradient norms, which q follows only roughly.
    """
    total = float(q.sum())
    squares = []
    for masses, norms in zip(q.reshape(world, -1), s.reshape(world, -1), strict=True):
        own = float(masses.sum())
        drawn = rng.choice(len(masses), DRAWS, p=masses / own)
        sizes = {"n": len(q), "total": total, "own": own, "world": world}
        alpha = functional.shard_weights(masses[drawn], 1.0, **sizes)
        squares.append(np.square(alpha * norms[drawn]).mean())
    return float(np.mean(squares) / (total * (s * s / q).sum() / len(q) ** 2))


def shards(n: int, seeds: int, classes: int = 100) -> list[Row]:
    found: dict[tuple[int, str], list[dict[str, float]]] = {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        q, label = importances(n, classes, rng)
        norms = q * rng.lognormal(sigma=0.3, size=n)
        for name, order in shard_orders(q, label, rng).items():
            for world in RANKS:
                cut = order[: n - n % world]
                each = {"formula": inflation(q[cut], world)}
                each["drawn"] = drawn_inflation(q[cut], norms[cut], world, rng)
                found.setdefault((world, name), []).append(each)
    return [
        {"ranks": world, "shards": name, "examples": n, "seeds": seeds, **spread(each)}
        for (world, name), each in sorted(found.items())
    ]


# ------------------------------------------------------------------------------------------ tables

TITLES = {
    "communication": "Simulated: the gather of losses, per step and rank.",
    "gloo": "Measured on one machine: the model beside gloo over loopback.",
    "memory": "Calculated: memory for the examples, machines of 8 ranks.",
    "processor": "Measured in one process: processor time of a draw and an update.",
    "staleness": "Simulated: draws made ahead, logistic regression; mean (sd) over seeds.",
    "shards": "Simulated: variance against draws from all examples; mean (sd) over seeds.",
}
COLUMNS: dict[str, dict[str, str]] = {
    "communication": {
        "ranks": "ranks",
        "batch": "G",
        "message_bytes": "sent, bytes",
        "received_bytes": "received, bytes",
        "alpha_us": "alpha, us",
        "bandwidth_gb": "GB/s",
        "ring_ms": "ring, ms",
        "doubling_ms": "recursive doubling, ms",
    },
    "gloo": {
        "ranks": "processes",
        "message_bytes": "message, bytes",
        "measured_ms": "measured, ms",
        "model_ms": "model, ms",
    },
    "memory": {
        "ranks": "ranks",
        "examples": "examples",
        "method": "method",
        "bytes_per_example": "bytes per example",
        "rank_gb": "rank, GB",
        "machine_gb": "machine, GB",
        "machine_shared_gb": "one copy per machine",
        "machine_sharded_gb": "sharded",
    },
    "processor": {
        "ranks": "ranks",
        "batch": "G",
        "examples": "examples",
        "method": "method",
        "replicated_ms": "replicated, ms",
        "sharded_ms": "sharded, ms",
    },
    "staleness": {
        "ranks": "ranks",
        "batch": "G",
        "examples": "examples",
        "ahead": "batches ahead",
        "variance": "variance / uniform's",
        "tracking": "tracking",
        "final_loss": "final loss",
        "seeds": "seeds",
    },
    "shards": {
        "ranks": "ranks",
        "shards": "shards",
        "examples": "examples",
        "formula": "1 + cv^2",
        "drawn": "by draws",
        "seeds": "seeds",
    },
}


def shown(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]:.4f} ({value[1]:.4f})"
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else number(value)


def tables(results: dict[str, Any]) -> dict[str, str]:
    """By name, as marked in the page."""
    return {
        f"simulated-{part}": f"{TITLES[part]}\n\n{table(part, results[part])}"
        for part in COLUMNS
        if part in results
    }


def table(part: str, rows: list[Row]) -> str:
    columns = COLUMNS[part]
    return markdown(list(columns.values()), [[shown(row[key]) for key in columns] for row in rows])


# ------------------------------------------------------------------------------------ command line


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(COLUMNS), help="separated by commas")
    parser.add_argument("--examples", type=float, default=2**20, help="of draws and shards")
    parser.add_argument("--toy", type=int, default=2**17, help="examples of the toy model")
    parser.add_argument("--large", type=float, default=1e8, help="examples of the memory table")
    parser.add_argument("--rows", type=Path, help="of scale.py: for the bytes per example")
    parser.add_argument("--steps", type=int, default=400, help="of training")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=200, help="steps of processor time")
    parser.add_argument("--processes", default="2,4,8", help="of gloo")
    parser.add_argument("--repeats", type=int, default=200, help="gathers of each size")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/scale/simulation.json"))
    parser.add_argument("--table", type=Path, help="print the tables of these results only")
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    options = parser.parse_args()
    unknown = sorted(set(options.parts.split(",")) - set(COLUMNS))
    if unknown:
        parser.error(f"parts must be among {', '.join(COLUMNS)}; got {', '.join(unknown)}")
    return options


def simulate(options: argparse.Namespace) -> dict[str, Any]:
    n = int(options.examples)
    per_example = measured_bytes(read_rows(options.rows)) if options.rows else BYTES
    sizes = [int(2**e) for e in (5, 8, 12, 15, 18)]
    worlds = [int(world) for world in options.processes.split(",")]
    parts: dict[str, Callable[[], list[Row]]] = {
        "communication": communication,
        "gloo": lambda: gloo(worlds, sizes, options.repeats),
        "memory": lambda: memory(per_example, int(options.large)),
        "processor": lambda: processor(["history", "auto:off", "auto:on"], n, options.draws),
        "staleness": lambda: staleness(options.toy, options.steps, options.seeds),
        "shards": lambda: shards(n, options.seeds),
    }
    chosen = options.parts.split(",")
    return {part: compute() for part, compute in parts.items() if part in chosen}


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    if options.table:
        results = json.loads(options.table.read_text("utf-8"))
    else:
        results = {"simulation": True, **environment(options.threads), **simulate(options)}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    made = tables(results)
    print("\n\n".join(made.values()))
    if options.page:
        write_page(options.page, made)


if __name__ == "__main__":
    main()
