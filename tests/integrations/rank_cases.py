"""What every framework is held to on two ranks: the cases, the plain loop, and three mutants."""

import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from harness import (
    BATCH,
    Examples,
    Trace,
    Watched,
    make_loader,
    plain_loop,
    sgd,
    watch,
    weights_of_one,
)

from parts import force_auto
from salience import distributed, sampler
from salience.distributed import Gather, Ranks

# Three batches an epoch for all ranks together. The last one has 5 examples: one rank repeats one.
N, WORLD = 21, 2
STEPS = -(-N // (WORLD * BATCH))


class Case(NamedTuple):
    score: str = "history"
    accumulate: int = 1
    workers: int = 0
    stop: int | None = None  # save after so many updates, and continue in new objects
    normalise: str | None = None  # a language model
    mutant: str | None = None


class Doubles(Examples):
    """Losses in float64: what differs is not rounding."""

    def __init__(self) -> None:
        super().__init__(N)
        self.x = self.x.double()


def model() -> Watched:
    return Watched().double()


def by_hand(case: Case, scale: Callable[..., float], ahead: int = 1) -> Trace:
    """One process with the batch of all ranks, trained with the sampler alone."""
    with pytest.MonkeyPatch.context() as patch:
        turn_on(patch)
        trace, one = watch(patch), model()
        loader = make_loader(Doubles(), WORLD * BATCH, score=case.score, num_workers=case.workers)
        plain_loop(loader, one, sgd(one), accumulate=case.accumulate, scale=scale, ahead=ahead)
        return trace.finish(one)


def turn_on(patch: pytest.MonkeyPatch) -> None:
    """``auto`` draws by importance from the first step on."""
    force_auto("focused", put=patch.setattr)


# ----------------------------------------------------------------------------------------- mutants


def same_rows(patch: pytest.MonkeyPatch) -> None:
    """All ranks train on the rows of the first."""
    rows_of = distributed.rows_of
    patch.setattr(sampler, "rows_of", lambda draw, ranks: rows_of(draw, Ranks(0, ranks.world)))


def another_order(patch: pytest.MonkeyPatch) -> None:
    """Losses are taken for those of another rank."""
    original = Gather.result
    patch.setattr(Gather, "result", lambda self: original(self)[::-1])


MUTANTS = {"weights_of_one": weights_of_one, "same_rows": same_rows, "another_order": another_order}


# --------------------------------------------------------------------------------------- the ranks

Run = Callable[[Case, Path], Any]


def main(run: Run, cases: Iterable[Case], folder: Path) -> None:
    """On each rank: train all cases, and leave a file with the traces."""
    torch.set_num_threads(1)
    found = {}
    for number, case in enumerate(cases):
        with pytest.MonkeyPatch.context() as patch:
            turn_on(patch)
            if case.mutant:
                MUTANTS[case.mutant](patch)
            trace = watch(patch)
            models = run(case, folder / str(number))
            trace.finish(models[-1])
            trace.ids = [ids for each in models for ids in Trace().finish(each).ids]
        found[case] = trace
    (folder / f"rank{dist.get_rank()}").write_bytes(pickle.dumps(found))


def check(one: Trace, many: list[Trace], *, tolerance: float, scaled: bool = True) -> None:
    """The rows of all ranks are those of one process, and so are weights and parameters.

    ``scaled``: weights are for a mean over the rows of a rank, else for a sum.
    """
    assert len(many) == WORLD
    for step, (ids, alpha) in enumerate(zip(one.ids, one.weights, strict=True)):
        seen = [zip(each.ids[step], each.weights[step], strict=True) for each in many]
        rows = [(i, w) for rank in seen for i, w in rank if w]  # what weighs nothing is padding
        assert [i for i, _ in rows] == ids, step
        filled = sum(len(each.ids[step]) for each in many) / len(ids) if scaled else 1.0
        assert [w for _, w in rows] == pytest.approx([filled * a for a in alpha], rel=1e-6), step
    for each in many:
        assert len(each.ids) == len(each.weights) == len(one.ids)
        for mine, theirs in zip(each.parameters, one.parameters, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)
