"""The losses that a comparison records are those of its training, and cost it nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parts import make_dataset
from salience import ImportanceLoader, LossHistory
from salience.compare.digits import digits_task
from salience.compare.plan import Plan, compare
from salience.compare.recorded import HISTORY, Recorded, default_method


def small_task() -> Any:
    return replace(digits_task(), probe=100)


def plan(**changes: Any) -> Plan:
    options: dict[str, Any] = {"seeds": (3, 4), "steps": 12, "evaluations": 3, "threads": 1}
    options |= {"make_task": small_task, "methods": ("uniform", "auto"), "checkpoint_seconds": 0.0}
    return Plan(**{**options, **changes})


def same(a: LossHistory, b: LossHistory) -> None:
    assert a.columns().keys() == b.columns().keys()
    for name, column in a.columns().items():
        assert np.array_equal(column, b.columns()[name], equal_nan=True), name
    assert np.array_equal(a.course, b.course)
    assert a.step == b.step


@pytest.mark.parametrize("score", ["uniform", "history"])
def test_it_is_what_the_loader_itself_would_record(score: Any) -> None:
    inside = ImportanceLoader(make_dataset(40), 8, score=score, record=True)
    beside = Recorded(ImportanceLoader(make_dataset(40), 8, score=score))
    for loader in (inside, beside):
        torch.manual_seed(0)
        for _ in range(3):
            for x, _ in loader:
                loader.mean(x[:, 0].abs().repeat(3, 1).T)  # of three positions each
    found, expected = beside.history(), inside.history()
    assert expected.start == pytest.approx(found.start, rel=0.3)  # which is not weighed
    for name in ("visits", "last_visit", "first_loss", "last_loss", "loss", "label"):
        assert np.allclose(found.columns()[name], expected.columns()[name], equal_nan=True), name


def test_bad_losses_that_are_skipped_are_not_recorded() -> None:
    loader = Recorded(ImportanceLoader(make_dataset(8), 4, score="uniform", on_bad_loss="skip"))
    for _ in loader:
        loader.mean(torch.tensor([1.0, float("nan"), float("inf"), 2.0]))
    assert loader.history().visits.sum() == 4
    assert loader.metrics()["skipped_losses"] == 4


def test_a_comparison_leaves_the_history_of_its_default_method(tmp_path: Path) -> None:
    rows = compare(plan(), tmp_path)
    early = [next(rows) for _ in range(6)]
    assert {row["step"] for row in early} <= {0, 4}
    running = LossHistory.load(tmp_path / HISTORY)  # of a training that goes on
    assert running.step <= 4
    list(rows)
    found = LossHistory.load(tmp_path / HISTORY)
    assert (found.step, found.visits.sum(), len(found)) == (12, 12 * 128, 1437)
    assert found.label.tolist() == digits_task().train.tensors[1].tolist()


def test_a_resumed_comparison_has_the_same_history(tmp_path: Path) -> None:
    list(compare(plan(), tmp_path / "whole"))
    rows = compare(plan(), tmp_path / "resumed")
    for _ in range(9):
        next(rows)
    rows.close()
    list(compare(plan(), tmp_path / "resumed"))
    same(*(LossHistory.load(tmp_path / name / HISTORY) for name in ("whole", "resumed")))


def test_the_default_method_is_auto_or_the_first() -> None:
    assert default_method(("uniform", "loss", "auto:k=1")) == "auto:k=1"
    assert default_method(("uniform", "loss")) == "uniform"


def test_rivals_and_observed_runs_are_left_alone(tmp_path: Path) -> None:
    list(compare(plan(methods=("infobatch",), seeds=(3,)), tmp_path / "rival"))
    seen = plan(seeds=(3,), observe=lambda run: {"kind": type(run.loader).__name__})
    list(compare(seen, tmp_path / "seen"))
    assert not list(tmp_path.rglob(HISTORY.name))
