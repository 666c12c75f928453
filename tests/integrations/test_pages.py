"""The pages about frameworks show code that runs, and changes of at most six lines."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from salience.compare.digits import digits
from test_docs import DOCS, blocks

PAGES = sorted((DOCS / "integrations").glob("*.md"))
NEEDED = {"trackers": ["tensorboard", "mlflow", "wandb"]}


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the reader of a page is assumed to have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    torch.manual_seed(0)
    modules = {"torch": torch, "nn": nn, "F": F, "DataLoader": DataLoader}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    given = {"dataset": digits(train=True), "model": model, "optimizer": optimizer}
    return {"__name__": "page", **modules, **given}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_python_of_a_page_runs(path: Path, names: dict[str, Any]) -> None:
    for needed in NEEDED.get(path.stem, [path.stem]):
        if importlib.util.find_spec(needed) is None:
            assert os.environ.get("SALIENCE_INTEGRATIONS") != "1", needed
            pytest.skip(f"{needed} is not installed")
    shown = blocks(path, "python")
    assert shown
    for block in shown:
        exec(compile(block, str(path), "exec"), names)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_change_is_small(path: Path) -> None:
    first = blocks(path, "diff")[0].splitlines()
    assert 1 <= len([line for line in first if line.startswith("+")]) <= 6, path.name
    assert len([line for line in first if line.startswith("-")]) <= 6, path.name
