"""The soak: its replay agrees with a training that was resumed, and sees what is wrong."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soak
import soak_run
import torch
from soak_run import RECORD, Training

PLAN = {"seed": 5, "workers": False, "steps": 60, "pause": 0.0, "troubles": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two lives of 60 steps: the second one begins at the last checkpoint of the first."""
    folder = tmp_path_factory.mktemp("soak")
    (folder / "disk").mkdir()
    plan = {**PLAN, "score": "history", "on_bad_loss": "skip", "own_disk": False}
    (folder / "plan.json").write_text(json.dumps({**plan, "steps": 40}))
    first = Training(folder)
    first.go()  # and is never heard of again: its last checkpoint is that of step 25
    (folder / "plan.json").write_text(json.dumps(plan))
    second = Training(folder, life=1)
    assert (first.step, second.step) == (40, 25)
    second.fail_to_save()
    second.go()
    second.finish()
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def rewrite(folder: Path, change: Any) -> None:
    rows = np.frombuffer((folder / "log").read_bytes(), RECORD).copy()
    (folder / "log").write_bytes(change(rows).tobytes())


def test_a_resumed_training_is_that_of_the_replay(folder: Path) -> None:
    found = soak.verify(folder)
    assert found["problems"] == []
    assert (found["steps"], found["records"], found["redone"]) == (60, 75, 15)
    assert found["bad_losses"] > 0, "some losses are bad, or nothing was tested"


def altered(name: str, place: int) -> Any:
    def change(rows: Any) -> Any:
        rows[name][place] += 1
        return rows

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (altered("indices", -1), "1 batches are not those of the replay"),
        (altered("weights", 3), "1 batches are not those of the replay"),
        (altered("losses", 2), "batches are not those of the replay"),
        (altered("losses", 45), "came again and were not the same"),
        (lambda rows: rows[rows["step"] != 30], "1 steps are missing"),
    ],
    ids=["other examples", "other weights", "other losses", "another time", "missing"],
)
def test_what_is_wrong_is_seen(folder: Path, change: Any, problem: str) -> None:
    rewrite(folder, change)
    assert problem in " ".join(soak.verify(folder)["problems"])


def test_lost_history_is_seen(folder: Path) -> None:
    [path] = folder.glob("scores-*.pt")
    scores = torch.load(path, weights_only=True)
    scores[7] = float("nan")
    torch.save(scores, path)
    assert "what is known of 1 examples" in " ".join(soak.verify(folder)["problems"])


def test_torn_records_are_seen(folder: Path) -> None:
    with (folder / "log").open("ab") as file:
        file.write(b"x")
    assert "torn record" in soak.verify(folder)["problems"][0]


def test_growth_is_told_from_noise() -> None:
    noise = np.random.default_rng(0).normal(0, 2, 200)
    steady = [[100.0 * i, 300 + noise[i], 20.0] for i in range(200)]
    leaking = [[step, memory + step / 400, files] for step, memory, files in steady]
    open_files = [[step, memory, files + step / 5000] for step, memory, files in steady]
    assert soak.flat(steady)["problems"] == []
    assert "memory has grown" in soak.flat(leaking)["problems"][0]
    assert "more files are open" in soak.flat(open_files)["problems"][0]


def test_bad_losses_follow_from_seed_and_step() -> None:
    steps = [soak_run.bad_at(3, step) for step in range(600)]
    assert repr(steps) == repr([soak_run.bad_at(3, step) for step in range(600)])
    assert 5 < sum(map(bool, steps)) < 60
