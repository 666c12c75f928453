"""On each of two workers of Ray Train: the loop of DistributedDataParallel."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from harness import EPOCHS, make_loader, sgd
from rank_cases import MUTANTS, WORLD, Case, Doubles, main, model

CASES = [
    *(Case(score) for score in ("history", "uniform", "auto")),
    Case("history", workers=2),
    *(Case("history", stop=stop) for stop in (1, 3, 7)),
    *(Case(mutant=each) for each in MUTANTS),
]


def run(case: Case, folder: Path) -> list[Any]:  # noqa: ARG001
    """The models that were trained, before and after a stop."""
    first = made(case)
    train(*first, stop=case.stop)
    if not case.stop:
        return [first[0]]
    again = made(case)
    for mine, theirs in zip(again, first, strict=True):  # network, optimizer, loader
        mine.load_state_dict(theirs.state_dict())
    train(*again)
    return [first[0], again[0]]


def made(case: Case) -> tuple[Any, ...]:
    from ray.train.torch import prepare_model

    assert dist.get_world_size() == WORLD
    net = prepare_model(model())
    loader = make_loader(Doubles(), score=case.score, num_workers=case.workers)
    return net, sgd(net), loader


def train(net: Any, optimizer: Any, loader: Any, stop: int | None = None) -> None:
    """What is left of three epochs, or ``stop`` steps of it."""
    done = 0
    while loader.epoch < EPOCHS:
        for x, y, slots in loader:
            losses = F.cross_entropy(net(x), y, reduction="none")
            loader.mean(losses, slots).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == stop:
                return


def on_two_workers(folder: Path) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    def train_loop() -> None:
        main(run, CASES, folder)

    ray.init(num_cpus=WORLD, include_dashboard=False, logging_level="error")
    with tempfile.TemporaryDirectory() as directory:
        TorchTrainer(
            train_loop,
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=WORLD),
            run_config=RunConfig(storage_path=directory),
        ).fit()
    ray.shutdown()


if __name__ == "__main__":
    on_two_workers(Path(sys.argv[1]))
