"""Comparisons: resumable after a kill at any point, refused clearly, the same in any order."""

import json
import multiprocessing
import os
import platform
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
from salience.compare.lock import LOCK, locked
from salience.compare.methods import OWN, RIVALS
from salience.compare.plan import Plan, compare, finish, rows_on_disk, seeds_from, start

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


def read_summary(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return found


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


def begin(the_plan: Plan, out: Path, **options: Any) -> None:
    """Only the beginning of a comparison."""
    with start(the_plan, out, {"task": "digits"}, **options):
        pass


def test_resuming_with_other_options_is_refused(tmp_path: Path) -> None:
    begin(plan(), tmp_path)
    with pytest.raises(ArgumentError, match="holds an unfinished comparison: add --resume to"):
        begin(plan(), tmp_path)
    begin(plan(), tmp_path, jobs=2, resume=True)
    with pytest.raises(ArgumentError, match=r"begun with steps 24, not 25"):
        begin(plan(steps=25), tmp_path, resume=True)
    (tmp_path / "config.json").write_text("{half")
    with pytest.raises(ArgumentError, match=r"config.json is damaged"):
        begin(plan(), tmp_path, resume=True)


def test_seeds_can_be_added(whole: list[dict[str, Any]], tmp_path: Path) -> None:
    methods = ("uniform", "history")
    one, two = (plan(methods=methods, seeds=seeds) for seeds in ((3,), (3, 4)))
    with start(one, tmp_path, {"task": "digits"}) as rows:
        list(rows)
    kept = tmp_path / "state" / "history-3.pt"
    trained = kept.stat().st_mtime_ns
    finish(one, tmp_path)
    with start(two, tmp_path, {"task": "digits"}, resume=True) as rows:
        list(rows)
    assert kept.stat().st_mtime_ns == trained
    finish(two, tmp_path)
    expected = [row for row in whole if row["method"] in methods]
    assert untimed(rows_on_disk(tmp_path, two)) == expected
    assert read_summary(tmp_path)["methods"]["history"]["n"] == 2


def test_seeds_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    begin(plan(), tmp_path)
    more = plan(seeds=(3, 4, 5))
    choice = "add --resume to train the new seeds as well"
    with pytest.raises(ArgumentError, match=f"holds an unfinished comparison: {choice}, or choose"):
        begin(more, tmp_path)
    (tmp_path / "summary.json").touch()
    with pytest.raises(ArgumentError, match=f"holds a finished comparison: {choice}, or choose"):
        begin(more, tmp_path)
    begin(more, tmp_path, resume=True)
    with pytest.raises(ArgumentError, match=r"begun with seeds \[3, 4, 5\], not \[3, 4\]"):
        begin(plan(), tmp_path, resume=True)
    with pytest.raises(ArgumentError, match=r"begun with seed 3, not 4"):
        begin(plan(seeds=(4, 3, 5)), tmp_path, resume=True)


def test_starting_again_removes_what_was_made_from_the_rows(tmp_path: Path) -> None:
    begin(plan(), tmp_path)
    for name in ("summary.json", "report.html", "state/uniform-3.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    begin(plan(), tmp_path, resume=True)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "runs.jsonl", "state"}
    begin(plan(), tmp_path, replace=True)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "runs.jsonl"}


# -------------------------------------------------------------- directories that are not ours


def sentence(out: Path, **options: Any) -> str:
    """Why the directory is refused; nothing in it has changed."""
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    with pytest.raises(ArgumentError) as refusal:
        begin(plan(), out, **options)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"replace": True}])
@pytest.mark.parametrize("name", ["notes.txt", "state/model.pt", "config.json"])
def test_files_of_others_stay_as_they_are(tmp_path: Path, name: str, options: Any) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"model_type": "bert"}')
    shown = name.partition("/")[0]
    assert sentence(tmp_path, **options) == (
        f"{tmp_path} holds files that no comparison wrote ({shown}): choose another directory "
        f"with --out"
    )


def test_there_is_one_choice_and_it_is_told(tmp_path: Path) -> None:
    begin(plan(), tmp_path)
    anew, elsewhere = "add --replace to start over", "choose another directory with --out"
    held = f"{tmp_path} already holds"
    assert sentence(tmp_path, replace=False) == (
        f"{held} an unfinished comparison: add --resume to continue it, or {anew}, or {elsewhere}"
    )
    assert sentence(tmp_path) == (
        f"{held} an unfinished comparison: add --resume to continue it, or {elsewhere}"
    )
    (tmp_path / "summary.json").touch()
    assert (
        sentence(tmp_path, replace=False) == f"{held} a finished comparison: {anew}, or {elsewhere}"
    )
    with pytest.raises(ArgumentError, match=r"a finished comparison with steps 24, not 9: add --r"):
        begin(plan(steps=9), tmp_path, replace=False)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    begin(plan(), tmp_path)
    path = tmp_path / "state" / "uniform-3.pt"
    path.parent.mkdir()
    for content in (b"", b"nonsense", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(ArgumentError, match=r"uniform-3\.pt is damaged \(.*delete it"):
            list(compare(plan(), tmp_path))


# ----------------------------------------------------------------------------- one at a time


def _hold(out: Path, ready: Any, orphan: float) -> None:
    """Hold the lock until killed; an orphan holds it for so many seconds longer."""
    with locked(out):
        if orphan and os.fork() == 0:
            time.sleep(orphan)
            os._exit(0)
        ready.set()
        time.sleep(60)


def held(out: Path, orphan: float = 0.0) -> Any:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold, args=(out, ready, orphan))
    process.start()
    assert ready.wait(60)
    return process


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    out = tmp_path / "new"
    process = held(out)
    try:
        with pytest.raises(ArgumentError) as refusal:
            begin(plan(), out)
        named = f"{out} is in use by process {process.pid} on {platform.node()}: wait until"
        assert str(refusal.value).startswith(named)
        assert [path.name for path in out.iterdir()] == [LOCK]
    finally:
        process.kill()
        process.join()
    begin(plan(), out)  # killed, so the lock is free
    assert not (out / LOCK).exists()


def test_workers_that_outlive_a_killed_process_are_waited_for(tmp_path: Path) -> None:
    process = held(tmp_path, orphan=1.5)
    process.kill()
    process.join()
    began = time.monotonic()
    begin(plan(), tmp_path)
    assert time.monotonic() - began > 0.5


def test_a_lock_is_not_taken_twice_by_one_process(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ArgumentError, match=f"process {os.getpid()} on"):
        begin(plan(), tmp_path)
    with locked(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert not [*tmp_path.iterdir()]


def test_seeds_are_checked() -> None:
    assert seeds_from(5, 3) == (5, 6, 7)
    with pytest.raises(ArgumentError, match="seeds must be between 1 and 100; got 101"):
        seeds_from(0, 101)
    with pytest.raises(ArgumentError, match="seed must be between 0 and"):
        seeds_from(2**32, 1)
