"""Drawing 128 and updating 128 of N examples: the time must hardly grow with N.

python benchmarks/draw_cost.py
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from salience import ImportanceSampler
from salience.compare.records import environment

SIZES = (10**4, 10**5, 10**6, 10**7)
BATCH = 128


def seen_sampler(n: int) -> ImportanceSampler:
    """A sampler that has seen every example once."""
    sampler = ImportanceSampler(n, BATCH, score="history")
    for part in torch.split(torch.arange(n), 1_000_000):
        sampler.update(part, torch.rand(len(part)) * 3)
    return sampler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    samplers = {n: seen_sampler(n) for n in SIZES}
    seconds: dict[int, list[tuple[float, float]]] = {n: [] for n in SIZES}
    losses = torch.rand(BATCH)
    for _ in range(options.rounds):
        for n, sampler in samplers.items():
            start = time.perf_counter()
            indices, _ = sampler.draw()
            drawn = time.perf_counter()
            sampler.update(indices, losses)
            seconds[n].append((drawn - start, time.perf_counter() - drawn))
    results: dict[str, Any] = {"command": " ".join(sys.argv), **environment(1), "sizes": {}}
    base = median(sum(pair) for pair in seconds[10**5])
    for n, pairs in seconds.items():
        low, both, high = quantiles([sum(pair) for pair in pairs], n=4)
        draw, update = median(a for a, _ in pairs), median(b for _, b in pairs)
        print(
            f"N = {n:>10,}: draw {1e6 * draw:4.0f} us, update {1e6 * update:4.0f} us, "
            f"both {1e6 * both:4.0f} us (quartiles {1e6 * low:.0f} .. {1e6 * high:.0f}), "
            f"{both / base:.2f} x N = 100,000"
        )
        results["sizes"][n] = {"draw": draw, "update": update, "both": both, "ratio": both / base}
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
