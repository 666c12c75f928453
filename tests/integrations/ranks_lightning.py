"""On each of two ranks: Lightning with strategy="ddp"."""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
from harness import EPOCHS, make_loader
from lightning_parts import Classifier, Kept, make_trainer
from rank_cases import MUTANTS, WORLD, Case, Doubles, main, model

from salience.integrations.lightning import LogImportance

CASES = [
    *(Case(score, accumulate) for score in ("history", "uniform", "auto") for accumulate in (1, 2)),
    Case("history", workers=2),
    *(Case("history", accumulate=2, stop=stop) for stop in (1, 2, 3)),
    *(Case(mutant=each) for each in MUTANTS),
]


def run(case: Case, folder: Path) -> list[Any]:
    """The models that were trained, before and after a stop."""
    if not case.stop:
        return [fit(case, folder)[1].model]
    trainer, first = fit(case, folder, max_steps=case.stop, max_epochs=-1)
    trainer.save_checkpoint(folder / "stopped.ckpt")
    # In the middle of an epoch more steps go on, and at its end more epochs: see its page.
    middle = case.stop % 2
    options = {"max_steps": 2 * EPOCHS, "max_epochs": -1} if middle else {}
    _, second = fit(case, folder, ckpt_path=folder / "stopped.ckpt", **options)
    return [first.model, second.model]


def fit(case: Case, folder: Path, ckpt_path: Any = None, **options: Any) -> tuple[Any, Classifier]:
    module = Classifier()
    module.model = model()
    logger = Kept()
    trainer = make_trainer(
        strategy="ddp",
        devices=WORLD,
        accumulate_grad_batches=case.accumulate,
        callbacks=[LogImportance(every=1)],
        logger=logger,
        **options,
    )
    loader = make_loader(Doubles(), score=case.score, num_workers=case.workers)
    trainer.fit(module, loader, ckpt_path=ckpt_path, weights_only=True)
    assert trainer.world_size == dist.get_world_size() == WORLD
    folder.mkdir(exist_ok=True)
    logged = len(logger.steps("importance/mean_loss"))
    (folder / f"rank {trainer.global_rank} logged {logged}").touch()
    return trainer, module


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(run, CASES, Path(sys.argv[1]))
