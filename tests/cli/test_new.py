"""``salience new``, and tasks as a new user would write them, from the file to the verdict."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import salience
from salience.cli import main
from salience.cli.new import KINDS
from salience.compare.reading import read_comparison

SOURCE = str(Path(salience.__file__).parents[1])
QUICK = ("--steps", 6, "--seeds", 1, "--evaluations", 3, "--methods", "auto,loss")
PRIMARY = {
    "classification": "test_auc",
    "regression": "test_mae",
    "text": "test_error",
    "images": "test_error",
}


def invoke(*arguments: Any) -> Any:
    return CliRunner().invoke(main.make_app(), [str(argument) for argument in arguments])


def start(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """In a process of its own, as users do."""
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "salience", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, **options.pop("env", {})},
        **options,
    )


def rows(out: Path) -> list[dict[str, Any]]:
    lines = (out / "runs.jsonl").read_text().splitlines()
    return [{**json.loads(line), "seconds": 0} for line in lines]


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_task_runs_unchanged(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"new_{kind}.py"
    written = invoke("new", file, "--kind", kind)
    assert written.exit_code == 0, written.output
    assert f"salience compare {file}" in written.output
    out = tmp_path / "out"
    done = invoke("compare", file, *QUICK, "--out", out)
    assert done.exit_code == 0, done.stderr
    found = read_comparison(out)
    assert (found.summary["task"], found.primary) == (f"new_{kind}", PRIMARY[kind])
    assert found.finished
    if kind != "text":
        assert "validation_loss" in found.rows[0]
    if kind in ("text", "images"):
        assert found.hardest["uniform"][0].text or found.hardest["uniform"][0].image is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_task_is_short(kind: str, tmp_path: Path) -> None:
    """What it takes to describe a task, beside the data, the network and imports."""
    invoke("new", tmp_path / "mine.py", "--kind", kind)
    text = (tmp_path / "mine.py").read_text()
    assert max(map(len, text.splitlines())) <= 100
    body = text.partition("    return Task(\n")[2]
    lines = [line for line in body.splitlines() if line.strip() and line.strip()[0] not in "#)"]
    assert len(lines) <= 15


def test_a_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("precious")
    result = invoke("new", file)
    assert result.exit_code == 2
    assert f"{file} exists: choose another name, or pass --force" in result.stderr
    assert file.read_text() == "precious"
    assert invoke("new", file, "--force").exit_code == 0
    assert "make_task" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("mine.py", "--kind", "video"), "kind must be one of classification, regression, text"),
        (("mine.txt",), "mine.txt cannot be the name of a task: it must end in .py"),
        (("json.py",), "json.py has the name of a module that Python knows already"),
        (("none/mine.py",), "cannot write none/mine.py (No such file or directory)"),
    ],
)
def test_new_refuses(
    arguments: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("new", *arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert [*tmp_path.iterdir()] == []


# ------------------------------------------------------------------------------- a user's errors

BESIDE = """
import torch
from torch.utils.data import Dataset

class Data(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == BROKEN:
            raise ValueError("example 63 is damaged")
        return {"x": torch.full((2,), index / 64), "y": torch.tensor(index % 2)}

BROKEN = None
"""
MINE = """
import os
import time
from torch import nn
import beside_mine
from salience.compare import Task

class Model(nn.Linear):
    def forward(self, x):
        time.sleep(PAUSE)
        return super().forward(x)

PAUSE = float(os.environ.get("PAUSE", 0))

def make_task():
    data = beside_mine.Data()
    return Task("mine", data, data, lambda: Model(2, 2), loss=nn.functional.cross_entropy,
                metrics=["error"], batch_size=4)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "beside_mine.py").write_text(BESIDE)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def test_an_error_in_the_task_is_one_sentence_with_its_line(mine: Path) -> None:
    broken = BESIDE.replace("BROKEN = None", "BROKEN = 63")
    (mine / "beside_mine.py").write_text(broken)
    out = mine / "out"
    process = start("compare", "mine.py", *QUICK, "--out", out, cwd=mine)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 2
    (sentence,) = told.splitlines()
    line = 1 + broken.splitlines().index('            raise ValueError("example 63 is damaged")')
    assert f"failed in beside_mine.py, line {line} " in sentence
    assert "ValueError: example 63 is damaged (--debug shows the whole traceback)" in sentence
    assert not out.exists()
    process = start("compare", "mine.py", *QUICK, "--debug", "--out", out, cwd=mine)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "Traceback (most recent call last)" in told
    assert told.startswith(sentence)


def test_files_beside_the_task_with_jobs_and_after_a_kill(mine: Path) -> None:
    """Killed in the middle and resumed: the rows of a run that was not."""
    length = ("--steps", 8, "--seeds", 2, "--evaluations", 4, "--methods", "auto", "--jobs", 2)
    whole, out = mine / "whole", mine / "out"
    done = invoke("compare", mine / "mine.py", *length[:-2], "--out", whole)
    assert done.exit_code == 0, done.stderr
    more = ("--checkpoint-seconds", 0, "--out", out)
    process = start("compare", "mine.py", *length, *more, cwd=mine, env={"PAUSE": "0.05"})
    end = time.monotonic() + 240
    while not [*(out / "state").glob("*.pt")]:
        assert process.poll() is None and time.monotonic() < end  # noqa: PT018
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = start("compare", "mine.py", *length, *more, "--resume", cwd=mine)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert rows(out) == rows(whole)
