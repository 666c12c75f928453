"""What ``record=True`` costs: a draw and an update with and without it.

Both take turns in blocks of 640 steps; a figure is the median of the blocks, in processor time per
step, after every example was seen once.

    python benchmarks/recording.py                                                # two minutes
"""

import argparse
import json
import time
from statistics import median

import torch

from salience import ImportanceSampler
from salience.compare.directory import environment

BATCH, BLOCK = 128, 640


def steps(sampler: ImportanceSampler, losses: torch.Tensor, count: int) -> float:
    """Seconds per step."""
    started = time.process_time()
    for _ in range(count):
        draw = sampler.draw()
        sampler.update(draw, losses[: len(draw)])
    sampler.catch_up()
    return (time.process_time() - started) / count


def touched(n: int, record: bool, score: str) -> ImportanceSampler:
    """A sampler that has seen every example, so that its memory is there."""
    sampler = ImportanceSampler(n, BATCH, score=score, record=record)  # type: ignore[arg-type]
    for part in torch.randperm(n).split(65536):
        sampler.update(part, torch.rand(len(part)))
    return sampler


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="1e5,1e7")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(environment(threads=1)))
    losses = torch.rand(BATCH)
    for size in options.sizes.split(","):
        n = int(float(size))
        for score in ("uniform", "auto"):
            both = {record: touched(n, record, score) for record in (False, True)}
            times: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(options.rounds):
                for record, sampler in both.items():
                    times[record].append(steps(sampler, losses, BLOCK))
            without, recorded = (1e6 * median(times[record]) for record in (False, True))
            row = {"n": n, "score": score, "rounds": options.rounds}
            found = {"without_us": round(without, 1), "with_us": round(recorded, 1)}
            print(json.dumps({**row, **found}), flush=True)


if __name__ == "__main__":
    main()
