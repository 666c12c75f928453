"""Comparisons: resumable after a kill at any point, refused clearly, the same in any order."""

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from salience import ArgumentError
from salience.cli.main import make_app
from salience.compare.methods import METHOD_NAMES, OnlineSelection, make_method, parse_methods
from salience.compare.plan import Plan, compare, rows_on_disk
from salience.compare.results import Results
from salience.compare.training import Run, Task
from salience.paper.tasks import SCHEDULES, make_task

METHODS = ("uniform", "history", "approx", "loss", "random-subset", "online-selection")


def plan(**changes: Any) -> Plan:
    options: dict[str, Any] = {
        "make_task": partial(make_task, "digits", probe=200),
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


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_scale_the_learning_rate(name: str) -> None:
    task = make_task("digits", schedule=name)
    run = Run(task, make_method("uniform"), 0, steps=10)
    rates = []
    for _ in range(10):
        run.advance(1)
        rates.append(run.optimizer.param_groups[0]["lr"])
    expected = [1e-3 * SCHEDULES[name](step / 10) for step in range(10)]
    assert rates == pytest.approx(expected)
    assert {"constant": rates[-1] == 1e-3, "stepped": rates[6:8] == [1e-3, 1e-4]}.get(name, True)


def test_the_baseline_comes_first_and_specs_carry_options() -> None:
    methods = parse_methods("loss:k=1:presample=4:draw=multinomial, history:smoothing=0.1")
    assert [m.name for m in methods] == [
        "uniform",
        "loss:k=1:presample=4:draw=multinomial",
        "history:smoothing=0.1",
    ]
    assert methods[1].k == 1.0
    assert methods[1].options == {"score": "loss", "presample": 4.0, "draw": "multinomial"}
    assert methods[2].options == {"score": "history", "smoothing": 0.1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("magic", r"method must be one of auto, .*; got 'magic'"),
        (" , ", r"at least one of"),
        ("loss,loss", r"'loss' is named twice"),
        ("loss:k", r"setting 'k': write option=value"),
        ("loss:colour=red", r"setting 'colour=red'"),
        ("loss:k=big", r"k must be a number; got 'big'"),
    ],
)
def test_bad_methods(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_methods(text)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_trains(name: str) -> None:
    run = Run(make_task("digits", probe=50), make_method(name), 0, steps=3)
    run.advance(3)
    assert run.evaluate()["step"] == 3


@pytest.mark.parametrize("seed", range(5))
def test_no_seed_trains_on_the_probe_first(seed: int) -> None:
    run = Run(make_task("digits", probe=200), make_method("uniform"), seed)
    probe = {run.train_index(place) for place in range(200)}
    run.advance(1)
    first = set(run.loader.indices.tolist())
    # By chance 18 of 128 are in a probe of 200 out of 1,437, and 40 are six deviations away.
    assert len(first & probe) < 40


def test_online_selection_draws_by_rank_of_fresh_losses() -> None:
    task = make_task("digits", probe=50)
    model = task.model()
    score = OnlineSelection(task, model, pressure=100.0)
    every = len(task.train) // task.batch_size // 2
    for step in range(every):
        changed = score.update(torch.tensor([step]), torch.tensor([0.0]))
        assert len(changed) == (len(task.train) if step == every - 1 else 0)
    model.eval()
    with torch.no_grad():
        losses = task.losses(model, task.train[:])
    scores = score.score(torch.arange(len(task.train)), None)
    assert scores[losses.argmax()] == 1.0
    assert float(scores.max() / scores.min()) == pytest.approx(100, rel=0.01)
    assert (scores[losses.argsort(descending=True)].diff() < 0).all()


def command(*arguments: Any) -> Any:
    return CliRunner().invoke(make_app(), ["compare", *map(str, arguments)])


QUICK = ("--steps", 12, "--evaluations", 3, "--seeds", 2, "--threads", 1)


def test_the_command_writes_the_files_of_the_contract(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = command("digits", "--methods", "history,loss:k=1", *QUICK, "--out", out)
    assert result.exit_code == 0, result.output
    names = "config.json runs.jsonl summary.json hardest.json report.html report.md curves.png"
    assert set(names.split()) <= {path.name for path in out.iterdir()}
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary["methods"]) == ["uniform", "history", "loss:k=1"]
    assert (summary["task"], summary["baseline"]) == ("digits", "uniform")
    config = json.loads((out / "config.json").read_text())
    assert (config["steps"], config["seeds"], config["model"]) == (12, [0, 1], "small")
    assert {"versions", "hardware", "commit", "command"} <= set(config)
    hardest = json.loads((out / "hardest.json").read_text())
    example = hardest["methods"]["history"][0]
    assert len(example["image"]) == 1
    assert len(example["history"]) == len(hardest["steps"]) == 4
    assert example["history"][-1] == pytest.approx(example["loss"], rel=1e-5)
    again = command("digits", "--methods", "history,loss:k=1", *QUICK, "--out", out)
    assert again.exit_code == 2
    kept = (out / "runs.jsonl").read_text()
    resumed = command("digits", "--methods", "history,loss:k=1", *QUICK, "--out", out, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert (out / "runs.jsonl").read_text() == kept


REFUSED = [
    (("nothing",), "task must be one of digits, mnist, cifar10, ptb"),
    (("digits", "--methods", "magic"), "method must be one of"),
    (("digits", "--steps", 0), "steps must be greater than 0; got 0"),
    (("digits", "--seconds", -1), "seconds must be greater than 0; got -1"),
    (("digits", "--steps", 5, "--seconds", 5), "give one of them"),
    (("digits", "--seeds", 0), "seeds must be between 1 and 100; got 0"),
    (("digits", "--jobs", 0), "jobs must be at least 1; got 0"),
    (("digits", "--evaluations", 0), "evaluations must be greater than 0"),
    (("digits", "--schedule", "odd"), "schedule must be one of"),
    (("digits", "--model", "huge"), "model must be small or paper; got 'huge'"),
    (("missing.py:make_task",), "there is no file missing.py"),
    (("mnist", "--data-dir", "nowhere"), "salience data fetch mnist"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_the_command_refuses(arguments: Any, message: str, tmp_path: Path) -> None:
    result = command(*arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "target must be one of fig1a, fig1b"),
        (("fig1a", "--scale", 0), "scale must be above 0 and at most 1; got 0"),
        (("fig1a", "--model", "huge"), "model must be small or paper; got 'huge'"),
        (("fig1a", "--seeds", 0), "seeds must be at least 1; got 0"),
        (("fig1a", "--data-dir", "nowhere"), "salience data fetch mnist"),
    ],
)
def test_reproduce_refuses(arguments: Any, message: str, tmp_path: Path) -> None:
    given = ["reproduce", *map(str, arguments), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(make_app(), given)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_report_is_written_again_from_the_files(tmp_path: Path) -> None:
    refused = CliRunner().invoke(make_app(), ["report", str(tmp_path)])
    assert refused.exit_code == 2
    out = tmp_path / "out"
    assert command("digits", "--methods", "history", *QUICK, "--out", out).exit_code == 0
    (out / "report.html").unlink()
    again = CliRunner().invoke(make_app(), ["report", str(out)])
    assert again.exit_code == 0, again.output
    assert (out / "report.html").exists()


def test_resuming_with_other_options_is_refused(tmp_path: Path) -> None:
    Results(tmp_path, plan(), {"task": "digits"}, jobs=1, resume=False)
    with pytest.raises(ArgumentError, match=r"begun with steps 24, not 25"):
        Results(tmp_path, plan(steps=25), {"task": "digits"}, jobs=1, resume=True)
    (tmp_path / "config.json").write_text("{half")
    with pytest.raises(ArgumentError, match=r"config.json is damaged"):
        Results(tmp_path, plan(), {"task": "digits"}, jobs=1, resume=True)


PAGE = Path(__file__).parent.parent / "docs" / "compare.md"


def own_task() -> str:
    """The example of the documentation, and a function that returns something else."""
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    assert block is not None
    return block[1] + "\n\ndef not_a_task():\n    return 3\n"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_task_of_the_users_own(tmp_path: Path, jobs: int) -> None:
    file = tmp_path / "mine.py"
    file.write_text(own_task())
    spec, out = f"{file}:make_task", tmp_path / "out"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "salience", "compare", spec, "--methods", "auto"),
            *(*map(str, QUICK), "--jobs", str(jobs), "--out", str(out)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "summary.json").read_text())["task"] == "mine"
    for name, message in (("nothing", "has no function"), ("not_a_task", "returned int")):
        with pytest.raises(ArgumentError, match=message):
            make_task(f"{file}:{name}")
