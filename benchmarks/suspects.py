"""How many of the wrong labels ``suspects()`` finds: precision at the true count, by default.

A share of MNIST's training labels is drawn at random. A perceptron trains for 20 epochs with the
default loader. Of the n examples that suspects(n) names first, with n the number of labels that are
really wrong, this is the share that are; and the same for those that suspects() names by itself.

    python benchmarks/suspects.py --data-dir data --seeds 3 > suspects.jsonl      # five minutes
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from salience import ImportanceLoader
from salience.paper.data.images import Images
from salience.paper.data.mnist import mnist
from salience.paper.tasks import wrong_labels

EPOCHS, BATCH = 20, 128


def train(share: float, seed: int, data_dir: Path | None, epochs: int) -> dict[str, float]:
    clean = mnist(True, data_dir)
    noisy = wrong_labels(clean, share)
    loader = fitted(noisy, seed, epochs)
    wrong = noisy.targets != clean.targets
    count = int(wrong.sum())
    named = loader.suspects()
    return {
        "share": share,
        "seed": seed,
        "wrong": count,
        "precision_at_count": precision(wrong, loader.suspects(count)),
        "named": len(named),
        "precision_of_named": precision(wrong, named),
        "recall_of_named": float(wrong[named].sum()) / max(count, 1),
    }


def perceptron() -> nn.Module:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 128), nn.ReLU()),
        *(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def fitted(
    data: Images,
    seed: int,
    epochs: int,
    network: Callable[[], nn.Module] = perceptron,
    **options: Any,
) -> ImportanceLoader:
    """The loader of a network that was trained on ``data``."""
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = ImportanceLoader(data, BATCH, seed=seed, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for _ in range(epochs):
        for x, y in loader:
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
            loader.mean(losses).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return loader


def precision(wrong: Tensor, found: Tensor) -> float:
    return float(wrong[found].double().mean()) if len(found) else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--shares", default="0,0.05,0.2,0.5")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for share in map(float, options.shares.split(",")):
        for seed in range(options.seeds):
            found = train(share, seed, options.data_dir, options.epochs)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
