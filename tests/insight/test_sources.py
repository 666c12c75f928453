"""Where a history comes from, and the command from what is typed to the files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from insight.histories import SHOWS, made
from parts import make_dataset
from salience import ArgumentError, ImportanceLoader, LossHistory, StateError, checkpoint
from salience.cli import main
from salience.insight.sources import read_source


def invoke(*arguments: Any) -> Any:
    return CliRunner().invoke(main.make_app(), [str(argument) for argument in arguments])


def trained() -> ImportanceLoader:
    loader = ImportanceLoader(make_dataset(40), 8, record=True)
    for _ in loader:
        loader.mean(torch.rand(8))
    return loader


def test_a_file_a_checkpoint_and_a_directory_give_the_same(tmp_path: Path) -> None:
    loader = trained()
    expected, state = loader.history(), loader.state_dict()
    expected.save(tmp_path / "run" / "history.npz")
    checkpoint.save(tmp_path / "last.ckpt", {"loader": state}, step=5)
    torch.save({"epoch": 1, "loader": state}, tmp_path / "last.pt")
    labels = loader.dataset.tensors[1]
    for name in ("run", "run/history.npz", "last.ckpt", "last.pt"):
        found = read_source(tmp_path / name, labels)
        for column, values in expected.columns().items():
            assert np.array_equal(found.history.columns()[column], values, equal_nan=True), column
        assert found.page.suffix == ".html"


def test_what_has_no_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"there is no .*none"):
        read_source(tmp_path / "none")
    with pytest.raises(ArgumentError, match="has no loss history: a comparison writes one"):
        read_source(tmp_path)
    for damaged in (b"no checkpoint", b"\x80\x02K", b"\x80\x02(", b"\x80\x02h\x00."):
        (tmp_path / "a.pt").write_bytes(damaged)
        with pytest.raises(StateError, match="cannot be read as a checkpoint of torch"):
            read_source(tmp_path / "a.pt")
    torch.save({"model": torch.ones(2)}, tmp_path / "b.pt")
    with pytest.raises(StateError, match="no state of a loader in it"):
        read_source(tmp_path / "b.pt")


# ------------------------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny comparison of the digits."""
    out = tmp_path_factory.mktemp("compared") / "digits"
    arguments = ("--methods", "uniform,auto", "--seeds", 1, "--steps", 24, "--evaluations", 2)
    done = invoke("compare", "digits", *arguments, "--out", out)
    assert done.exit_code == 0, done.output
    return out


def test_a_comparison_is_looked_into(compared: Path, tmp_path: Path) -> None:
    listed, table = tmp_path / "wrong.txt", tmp_path / "all.csv"
    export = ("--export", listed, "--group", "hardest", "--count", 7, "--export", table)
    done = invoke("insight", compared, *export, "--top", 6)
    assert done.exit_code == 0, done.output
    history = LossHistory.load(compared / "state" / "history.npz")
    assert (len(history), history.step) == (1437, 24)
    assert history.visits.sum() == 24 * 128
    chosen = [int(line) for line in listed.read_text().splitlines()]
    assert chosen == history.select("hardest", 7).tolist()
    assert len(table.read_text().splitlines()) == 1438
    page = (compared / "insight.html").read_text()
    assert page.count("data:image/png") >= 12
    assert f"#{chosen[0]}" in page
    flat = " ".join(done.output.split())
    for said in ("of 1,437 labels", "Hardest", "Class by class", f"#{chosen[0]} ", "insight.html"):
        assert said in flat
    assert max(map(len, done.output.partition("Written")[0].splitlines())) <= 80
    assert "\x1b" not in done.output


def test_a_plain_loop_is_shown_by_a_function(tmp_path: Path) -> None:
    made().save(tmp_path / "history.npz")
    out = tmp_path / "pages" / "mine.html"
    done = invoke("insight", tmp_path / "history.npz", "--show", f"{SHOWS}:text", "--out", out)
    assert done.exit_code == 0, done.output
    assert "59: &lt;script&gt;" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--top", 0), "top must be between 1 and 500; got 0"),
        (("--show", "none.py:show"), "there is no file 'none.py'"),
        (("--show", f"{SHOWS}:none"), "has no function 'none'"),
        (("--show", f"{SHOWS}:broken"), "showing example 59 failed"),
        (("--export", "a.txt", "--group", "easiest"), "group must be one of hardest"),
        (("--export", "a.doc"), "must end in .npz, .csv, .parquet"),
        (("--task", "digits"), "1437 training examples, the history 60"),
        (("--task", "nothing"), "task must be one of"),
    ],
)
def test_what_cannot_be_is_refused_with_one_sentence(
    arguments: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made().save("history.npz")
    done = invoke("insight", "history.npz", *arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert [each.name for each in tmp_path.iterdir()] == ["history.npz"]
