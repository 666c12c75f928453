"""Comparisons: resumable after a kill at any point, refused clearly, the same in any order."""

import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from salience import ArgumentError
from salience.compare import Task
from salience.compare.digits import digits_task
from salience.compare.methods import OWN, RIVALS
from salience.compare.plan import Plan, compare, rows_on_disk, seeds_from, start

METHODS = ("uniform", "history", "approx", "loss", *OWN, *RIVALS)


def small_task() -> Task:
    return replace(digits_task(), probe=200)


def plan(**changes: Any) -> Plan:
    options: dict[str, Any] = {
        "make_task": small_task,
        "methods": METHODS,
        "seeds": (3, 4),
        "steps": 24,
        "evaluations": 4,
        "threads": 1,
        "checkpoint_seconds": 0.0,
    }
    return Plan(**{**options, **changes})


def untimed(rows: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def in_order(rows: Any) -> list[dict[str, Any]]:
    return sorted(untimed(rows), key=lambda row: (row["method"], row["seed"], row["step"]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of an uninterrupted comparison."""
    out = tmp_path_factory.mktemp("whole")
    rows = list(compare(plan(), out))
    assert in_order(rows) == in_order(rows_on_disk(out, plan()))
    return untimed(rows_on_disk(out, plan()))


def _all(the_plan: Plan, out: Path) -> None:
    torch.set_num_threads(1)
    list(compare(the_plan, out))


def test_ten_kills_in_a_row_change_nothing(whole: list[dict[str, Any]], tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    chance = random.Random(0)
    kills = 0
    while kills < 10:
        worker = context.Process(target=_all, args=(plan(), tmp_path))
        worker.start()
        progress = len(list(tmp_path.glob("state/*.pt")))
        deadline = time.monotonic() + 30
        # Let it get to work, so that kills come in the middle of it and not of importing torch.
        while time.monotonic() < deadline and worker.is_alive():
            if len(list(tmp_path.glob("state/*"))) > progress or progress == 2 * len(METHODS):
                break
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.25))
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        kills += 1
    _all(plan(), tmp_path)
    assert untimed(rows_on_disk(tmp_path, plan())) == whole


@pytest.mark.parametrize("stop", [1, 17, 40])
def test_stopping_anywhere_changes_nothing(
    stop: int, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    for checkpoint_seconds in (0.0, 0.2):
        out = tmp_path / str(checkpoint_seconds)
        going = compare(plan(checkpoint_seconds=checkpoint_seconds), out)
        for _ in range(stop):
            next(going)
        going.close()
        list(compare(plan(), out))
        assert untimed(rows_on_disk(out, plan())) == whole


def test_jobs_and_order_do_not_matter(whole: list[dict[str, Any]], tmp_path: Path) -> None:
    list(compare(plan(), tmp_path, jobs=2))
    assert untimed(rows_on_disk(tmp_path, plan())) == whole
    alone = plan(methods=("approx",), seeds=(4,))
    list(compare(alone, tmp_path / "alone"))
    expected = [row for row in whole if row["method"] == "approx" and row["seed"] == 4]
    assert untimed(rows_on_disk(tmp_path / "alone", alone)) == expected


def test_budgets_are_trainings_of_their_own_and_resumable(tmp_path: Path) -> None:
    methods = ("uniform", "infobatch", "random-subset")
    swept = plan(methods=methods, seeds=(3,), steps=24, evaluations=3, budgets=(0.5, 1.0))
    rows = untimed(compare(swept, tmp_path / "whole"))
    assert len(rows) == 2 * 3 * 4
    ends = {(row["method"], row["budget"]): row for row in rows}
    assert {(row["budget"], row["step"]) for row in ends.values()} == {(0.5, 12), (1.0, 24)}
    alone = plan(methods=("uniform",), seeds=(3,), steps=12, evaluations=3)
    short = [*compare(alone, tmp_path / "alone")][-1]
    assert ends["uniform", 0.5]["train_loss"] == short["train_loss"]
    assert ends["random-subset", 0.5]["train_loss"] != short["train_loss"]
    assert ends["random-subset", 1.0]["train_loss"] == ends["uniform", 1.0]["train_loss"]
    for stop in (2, 9, 14, 23):
        out = tmp_path / str(stop)
        going = compare(swept, out)
        for _ in range(stop):
            next(going)
        going.close()
        assert in_order(compare(swept, out)) == in_order(rows)
        assert in_order(rows_on_disk(out, swept)) == in_order(rows)


def _broken() -> Task:
    raise ArgumentError("this task cannot be made: try another")


def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="this task cannot be made"):
        list(compare(plan(make_task=_broken), tmp_path, jobs=2))


def test_a_budget_of_seconds_is_kept_by_every_run(tmp_path: Path) -> None:
    timed = plan(methods=("uniform", "loss"), steps=None, seconds=0.5)
    rows = list(compare(timed, tmp_path))
    last = [row for row in rows if row["seconds"] >= 0.5]
    assert len(last) == 4
    assert all(row["seconds"] < 1.5 and row["step"] > 0 for row in last)


def test_the_order_is_reversed_after_each_block(tmp_path: Path) -> None:
    rows = compare(plan(methods=("uniform", "history"), seeds=(0,), evaluations=3), tmp_path)
    assert "".join(row["method"][0] for row in rows) == "uh" + "hu" + "uh" + "hu"


def test_torch_gets_its_threads_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        going = compare(plan(methods=("uniform",), seeds=(0,)), tmp_path)
        next(going)
        assert torch.get_num_threads() == 1
        going.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_resuming_with_other_options_is_refused(tmp_path: Path) -> None:
    start(plan(), tmp_path, {"task": "digits"})
    with pytest.raises(ArgumentError, match="already holds results: pass --resume"):
        start(plan(), tmp_path, {"task": "digits"})
    start(plan(), tmp_path, {"task": "digits"}, jobs=2, resume=True)
    with pytest.raises(ArgumentError, match=r"begun with steps 24, not 25"):
        start(plan(steps=25), tmp_path, {"task": "digits"}, resume=True)
    (tmp_path / "config.json").write_text("{half")
    with pytest.raises(ArgumentError, match=r"config.json is damaged"):
        start(plan(), tmp_path, {"task": "digits"}, resume=True)


def test_starting_again_removes_what_was_made_from_the_rows(tmp_path: Path) -> None:
    start(plan(), tmp_path, {})
    for name in ("summary.json", "report.html", "state/uniform-3.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    start(plan(), tmp_path, {}, resume=True)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "runs.jsonl", "state"}
    start(plan(), tmp_path, {}, replace=True)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "runs.jsonl"}


def test_seeds_are_checked() -> None:
    assert seeds_from(5, 3) == (5, 6, 7)
    with pytest.raises(ArgumentError, match="seeds must be between 1 and 100; got 101"):
        seeds_from(0, 101)
    with pytest.raises(ArgumentError, match="seed must be between 0 and"):
        seeds_from(2**32, 1)
