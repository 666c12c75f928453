"""Every example runs, and prints what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DISTRIBUTED = ROOT / "examples" / "distributed"  # those with a framework: tests/integrations
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
# The line that says what the example is about. A new example without an entry fails.
SAYS = {
    "quickstart": r"^test error: \d+\.\d %$",
    "resume": r"^identical: 14 of 23 steps",
    "stream": r"^epoch 9: mean loss \d\.\d+ over the stream$",
    "custom_score": r"^hardest five examples: \[(\d+, ){4}\d+\]$",
    "insight": r"^wrong labels found: [56]\d of 72$",
    "wrong_labels": r"^focus=closeness: test error \d\.\d %$",
    "custom_loop": r"^step 400: mean loss 0\.\d+, effective sample size \d+\.\d of 64$",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_says_what_it_promises(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[path.stem], done.stdout, re.MULTILINE), done.stdout
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


ABORTED = "terminate called without an active exception"


def torchrun(name: str, folder: Path) -> str:
    """What two ranks say; some times more if torch aborted while a rank was ending, as it may."""
    before = {file: file.read_bytes() for file in folder.iterdir()}
    done = launched(name, folder)
    for _ in range(4):
        if ABORTED not in done.stderr:
            break
        for file in folder.iterdir():
            file.unlink()
        for file, content in before.items():
            file.write_bytes(content)
        done = launched(name, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def launched(name: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *TORCHRUN, str(DISTRIBUTED / f"{name}.py")],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=180,
    )


RANKS_SAY = {
    "ddp": r"^test error on 2 ranks: \d\.\d %$",
    "fsdp2": r"^test error: \d\.\d %, rank 0 holds 32 of 64 rows of the first layer$",
}


@pytest.mark.parametrize("name", RANKS_SAY)
def test_the_example_runs_on_two_ranks(name: str, tmp_path: Path) -> None:
    said = torchrun(name, tmp_path)
    assert re.search(RANKS_SAY[name], said, re.MULTILINE), said
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_the_elastic_example_resumes(tmp_path: Path) -> None:
    """It saves at step 200; the second run repeats the last 30 steps."""
    said = [torchrun("elastic", tmp_path) for _ in range(2)]
    begun = [sorted(re.findall(r"rank \d begins at step \d+", text)) for text in said]
    assert begun == [[f"rank {rank} begins at step {step}" for rank in (0, 1)] for step in (0, 200)]
    losses = [sorted(re.findall(r"rank \d: mean loss \d\.\d{3}", text)) for text in said]
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "elastic.ckpt",
        "elastic.ckpt.previous",
    ]


def test_every_distributed_example_is_run() -> None:
    """Here, or with its framework in tests/integrations."""
    frameworks = {"accelerate_launch", "lightning_ddp", "ray_train"}
    found = {path.stem for path in DISTRIBUTED.glob("*.py")}
    assert found == {*RANKS_SAY, "elastic", *frameworks}


@pytest.mark.parametrize(
    "path", [*EXAMPLES, *sorted(DISTRIBUTED.glob("*.py"))], ids=lambda path: path.stem
)
def test_the_example_is_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) < (40 if path in EXAMPLES else 70)
