"""On each of two ranks: Accelerate's loop, as users write it."""

import sys
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import GradientState
from harness import BATCH, EPOCHS, make_loader, sgd
from rank_cases import MUTANTS, WORLD, Case, Doubles, N, main, model

from salience.integrations.accelerate import prepare

CASES = [
    *(Case(score, accumulate) for score in ("history", "uniform", "auto") for accumulate in (1, 2)),
    Case("history", workers=2),
    *(Case("history", accumulate=2, stop=stop) for stop in (1, 2, 3)),
    *(Case(mutant=each) for each in MUTANTS),
]


def run(case: Case, folder: Path) -> list[Any]:
    """The models that were trained, before and after a stop."""
    accelerator, *parts = made(case)
    train(accelerator, *parts, stop=case.stop)
    models = [parts[0]]
    if case.stop:
        accelerator.save_state(str(folder))
        accelerator.wait_for_everyone()
        accelerator, *parts = made(case)
        accelerator.load_state(str(folder))
        train(accelerator, *parts)
        models.append(parts[0])
    return models


def made(case: Case) -> tuple[Any, ...]:
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=case.accumulate)
    assert accelerator.num_processes == WORLD
    net = model()
    net, optimizer = accelerator.prepare(net, sgd(net))
    loader = make_loader(Doubles(), score=case.score, num_workers=case.workers)
    return accelerator, net, optimizer, prepare(accelerator, loader)


def train(accelerator: Any, net: Any, optimizer: Any, loader: Any, stop: int | None = None) -> None:
    """What is left of three epochs, or ``stop`` updates of it."""
    updates = 0
    for _ in range(loader.epoch, EPOCHS):
        for x, y, slots in loader:
            with accelerator.accumulate(net):
                losses = F.cross_entropy(net(x), y, reduction="none")
                accelerator.backward(loader.mean(losses, slots))
                optimizer.step()
                optimizer.zero_grad()
            check_gathered(accelerator, loader, x)
            updates += accelerator.sync_gradients
            if updates == stop:
                return


def check_gathered(accelerator: Any, loader: Any, x: Any) -> None:
    """For metrics, an example that fills up the last batch is left out."""
    gathered = accelerator.gather_for_metrics(x)
    short = (
        loader.loader._sampler.score_name == "uniform"
        and accelerator.gradient_state.end_of_dataloader
    )
    assert len(gathered) == (N % (WORLD * BATCH) if short else WORLD * BATCH)


if __name__ == "__main__":
    main(run, CASES, Path(sys.argv[1]))
