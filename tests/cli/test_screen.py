"""What a terminal shows: at any width, with any names, while training and after Ctrl-C."""

import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import salience
from compare.made_up import BUDGETS, FALLING, MANY, SEEDS, directory, run
from salience.cli.common import show
from salience.cli.progress import watch
from salience.compare.reading import read_comparison
from salience.compare.report import numbers
from salience.compare.report.table import cells, columns

SOURCE = str(Path(salience.__file__).parents[1])
LONG = "loss:presample=4:" + "draw=multinomial:" * 11  # 200 characters and more
HOSTILE = ["uniform", LONG, "[bold]b[/bold]", "<script>alert(1)</script>", "[link=x]y"]
NASTY = [
    row
    for place, name in enumerate(HOSTILE)
    for row in run(name, [x / (1 + place) for x in FALLING], task="[red]t[/red]" + 200 * "a")
]


def screen(found: Any, width: int, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    show(found, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("rows", [SEEDS, MANY, BUDGETS, NASTY], ids=["seeds", "many", "bud", "bad"])
def test_tables_fit_and_keep_every_label_number_and_name(
    tmp_path: Path, rows: Any, width: int
) -> None:
    found = read_comparison(directory(tmp_path, rows))
    text = screen(found, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "\x1b" not in text
    for label in columns(found)[1:]:
        assert re.search(rf"^ {re.escape(label)}( |$)", text, re.M), label
    packed = re.sub(r"\s", "", text)
    for line in cells(found):
        for cell in line[1:]:
            for part in re.split(r" |; ", cell):
                assert part.replace(" ", "") in packed
    for name in found.summary["methods"]:
        assert name in packed.replace("\n", "") or len(name) > 20
        assert _folded(name, text)


def _folded(name: str, text: str) -> bool:
    """Whether all of the name is there, in pieces below each other where it is long."""
    pieces = [name[at : at + 20] for at in range(0, len(name), 20)]
    return all(piece[-20:] in text or piece in text for piece in pieces)


def test_colours_only_where_there_is_a_terminal(tmp_path: Path) -> None:
    found = read_comparison(directory(tmp_path, NASTY))
    assert "[bold]b[/bold]" in screen(found, 120, force_terminal=True)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [60, 80])
def test_progress_shows_all_runs_and_any_name(terminal: bool, width: int) -> None:
    console = Console(file=(to := io.StringIO()), force_terminal=terminal, width=width)
    watch(iter(NASTY), dict.fromkeys(HOSTILE, 1), len(FALLING) - 1, console)
    text = to.getvalue()
    assert f"{len(HOSTILE)} of {len(HOSTILE)} runs done, 100% in" in re.sub(r"\s+", " ", text)
    assert "[bold]b[/bold]" in text
    assert numbers.loss(0.125) in text
    if terminal:
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        assert max(map(len, re.split(r"[\r\n]", plain))) <= width


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.0, "0 s"), (0.42, "0.4 s"), (45, "45 s"), (150, "2 min"), (5399, "1 h 30 min")),
        *((7800, "2 h 10 min"), (7200, "2 h"), (400_000, "111 h")),
    ],
)
def test_times_are_for_people(seconds: float, text: str) -> None:
    assert numbers.duration(seconds) == text


# ------------------------------------------------------------------------------------ interrupted

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from salience.compare import Task

def data(n):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(n))
    return TensorDataset(x, (x[:, :2].sum(1) > 0).long())

def make_task():
    return Task("tiny", data(256), data(128), lambda: nn.Linear(8, 2),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda o, y: nn.functional.cross_entropy(o, y, reduction="none"),
        lambda o, y: o.argmax(1) != y, 32)
"""
OPTIONS = [
    *("--methods", "uniform,auto,history", "--seeds", "2", "--steps", "800"),
    *("--evaluations", "20", "--threads", "1", "--checkpoint-seconds", "0.2"),
]


def heeds_ctrl_c() -> None:
    """Also where the tests run in the background, whose programs are deaf to it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(folder: Path, *more: str, **options: Any) -> "subprocess.Popen[str]":
    (folder / "tiny.py").write_text(TASK)
    command = [sys.executable, "-m", "salience", "compare", "tiny.py:make_task", *OPTIONS]
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "--out", "out", *more],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds_ctrl_c,
        **options,
    )


def rows_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "out" / "runs.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if key != "seconds"}
        for line in lines
    ]


def at_row(process: "subprocess.Popen[str]", folder: Path, count: int) -> bool:
    """Wait until so many rows are written; False where the process ended before."""
    path = folder / "out" / "runs.jsonl"
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return True
        time.sleep(0.005)
    return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows without any interruption."""
    folder = tmp_path_factory.mktemp("whole")
    process = started(folder)
    assert process.communicate()[0]
    assert process.returncode == 0
    return rows_of(folder)


def test_a_comparison_that_is_stopped_twice_ends_with_the_same_rows(
    whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    """By Ctrl-C, and the resumed one by a kill; each at a point that is not chosen."""
    chance = random.Random(os.getpid())
    process = started(tmp_path)
    assert at_row(process, tmp_path, chance.randrange(1, len(whole) // 2))
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "Traceback" not in told
    command = re.search(r"^  python -m salience (compare .* --resume)$", told, re.M)
    assert command is not None, told
    typed = ["compare", "tiny.py:make_task", *OPTIONS, "--out", "out", "--resume"]
    assert command[1].split() == typed
    assert not (tmp_path / "out" / ".lock").exists()
    assert [*(tmp_path / "out" / "state").glob("*.pt")]
    killed = started(tmp_path, "--resume")
    assert at_row(killed, tmp_path, chance.randrange(len(whole) // 2, len(whole) - 6))
    killed.kill()
    killed.communicate()
    assert (tmp_path / "out" / ".lock").exists()
    resumed = started(tmp_path, "--resume")
    _, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    assert rows_of(tmp_path) == whole
