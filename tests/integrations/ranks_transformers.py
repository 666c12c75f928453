"""On each of two ranks: ImportanceTrainer, for classes and for texts of unequal lengths."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import BATCH
from rank_cases import MUTANTS, WORLD, Case, Doubles, main
from transformers_parts import Classifier, Dicts, Texts, llama, trainer

# An update over 3 batches has a short one, which rank 1 fills up with an example twice.
CASES = [
    *(Case(score, accumulate) for score in ("history", "uniform", "auto") for accumulate in (1, 3)),
    Case("history", workers=2),
    *(Case("history", accumulate=2, stop=stop) for stop in (1, 2, 3)),
    *(
        Case(score, accumulate, normalise=normalise)
        for score in ("history", "uniform")
        for accumulate in (1, 3)
        for normalise in ("tokens", "sequences")
    ),
    Case("auto", normalise="tokens"),
    Case("history", normalise="tokens", stop=4),
    *(Case(mutant=each) for each in MUTANTS),
    *(Case(normalise="tokens", mutant=each) for each in MUTANTS),
]


def run(case: Case, folder: Path) -> list[Any]:
    """The models that were trained, before and after a stop."""
    made = make(case, folder, save_steps=case.stop or 500, max_steps=case.stop or -1)
    saved: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        save = torch.save
        patch.setattr(torch, "save", lambda what, where: saved.append(where) or save(what, where))
        made.train()
    if not case.stop:
        return [made.model]
    ours = [each for each in saved if "importance" in str(each)]
    (folder / f"rank {made.args.process_index} saved {len(ours)}").touch()
    made.accelerator.wait_for_everyone()
    rest = make(case, folder, save_steps=500)
    rest.train(resume_from_checkpoint=str(folder / f"checkpoint-{case.stop}"))
    return [made.model, rest.model]


def make(case: Case, folder: Path, **options: Any) -> Any:
    made = trainer(
        language_model() if case.normalise else classifier(),
        folder,
        texts() if case.normalise else dicts(),
        importance={"score": case.score, "labels": None if case.normalise else Doubles().y},
        normalise=case.normalise,
        gradient_accumulation_steps=case.accumulate,
        dataloader_num_workers=case.workers,
        save_strategy="steps",
        ddp_backend="gloo",
        per_device_train_batch_size=BATCH,
        **options,
    )
    assert made.args.world_size == WORLD
    return made


def classifier() -> Any:
    return Classifier().double()


def language_model() -> Any:
    """The lengths of its texts differ, and so do the tokens of each rank."""
    return llama().double()


def dicts() -> Dicts:
    made = Dicts()
    made._examples = Doubles()
    return made


def texts() -> Texts:
    return Texts(len(Doubles()))


if __name__ == "__main__":
    main(run, CASES, Path(sys.argv[1]))
