"""Every program and every code block that readers are shown does run."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from salience import ImportanceLoader
from salience.compare.digits import digits

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# The line that says what the example is about. A new example without an entry fails.
SAYS = {
    "quickstart": r"^test error: \d+\.\d %$",
    "resume": r"^identical: 14 of 23 steps",
    "stream": r"^epoch 9: mean loss \d\.\d+ over the stream$",
    "own_score": r"^hardest five examples: \[(\d+, ){4}\d+\]$",
    "own_plumbing": r"^step 400: mean loss 0\.\d+, effective sample size \d+\.\d of 64$",
}


def blocks(path: Path) -> list[str]:
    """The fenced python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)


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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_is_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) < 40


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from digits(train=True)


def test_the_blocks_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = digits(train=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    before = [p.clone() for p in model.parameters()]
    names: dict[str, Any] = {
        "torch": torch,
        "F": F,
        "DataLoader": DataLoader,
        "ImportanceLoader": ImportanceLoader,
        "dataset": dataset,
        "images": dataset.tensors[0],
        "classes": dataset.tensors[1],
        "stream": Stream(),
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
    }
    found = blocks(ROOT / "README.md")
    assert len(found) == 4
    for block in found:
        exec(compile(block, "README.md", "exec"), names)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_change_at_the_top_of_the_readme_trains() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    (diff,) = re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    sides = {
        sign: "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] != sign)
        for sign in "+-"
    }
    trained = []
    for program in sides.values():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        names = {"F": F, "DataLoader": DataLoader, "dataset": digits(train=True), "model": model}
        optimizer = torch.optim.Adam(model.parameters())
        exec(compile(program, "README.md", "exec"), {**names, "optimizer": optimizer})
        trained.append(model[1].weight)
    assert not torch.equal(*trained)
    assert "ImportanceLoader" not in sides["+"]
    assert ".mean()" not in sides["-"]


def test_the_score_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(ROOT / "docs" / "README.md")
    exec(compile(block, "docs/README.md", "exec"), names := dict[str, Any]())
    assert "'mean_loss'" in capsys.readouterr().out
    scores = names["loader"]._sampler.score.score(torch.arange(len(names["dataset"])), None)
    assert 0 < float(scores[~scores.isnan()].max()) < 1
