"""What a loss history tells: groups, classes, files."""

import csv
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parts import make_dataset
from salience import (
    ArgumentError,
    ImportanceLoader,
    ImportanceSampler,
    LossHistory,
    StateError,
    checkpoint,
)
from salience.history import GROUPS

NAN = math.nan


def history(**columns: Any) -> LossHistory:
    """Five examples: easy, wrong, never seen, forgotten, and one not seen for long."""
    given = {
        "step": 100,
        "start": 2.0,
        "suspected": 1,
        "index": np.arange(5) * 10,
        "loss": np.array([0.1, 3.0, NAN, 0.5, 0.5], np.float32),
        "suspect": np.array([0.2, 0.9, NAN, 0.5, 0.5], np.float32),
        "label": np.array([7, 7, 7, 9, 9]),
        "visits": np.array([4, 4, 0, 5, 1]),
        "last_visit": np.array([100, 99, 0, 98, 50]),
        "first_loss": np.array([2.0, 2.5, NAN, 2.0, 2.0], np.float32),
        "last_loss": np.array([0.1, 3.0, NAN, 2.5, 0.5], np.float32),
        "lowest_loss": np.array([0.1, 2.5, NAN, 0.1, 0.5], np.float32),
        "forgotten": np.array([0, 0, 0, 2, 0]),
        "course": np.zeros((5, 18), np.float16),
        **columns,
    }
    return LossHistory(**given)


def same(a: LossHistory, b: LossHistory) -> None:
    for name in LossHistory.__dataclass_fields__:
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert np.array_equal(one, other, equal_nan=True), name


# ------------------------------------------------------------------------------------------ groups


@pytest.mark.parametrize(
    ("group", "n", "expected"),
    [
        ("hardest", None, [10, 30, 40, 0]),
        ("hardest", 2, [10, 30]),
        ("suspects", None, [10]),
        ("suspects", 3, [10, 30, 40]),
        ("suspects", 0, []),
        ("forgotten", None, [30]),
        ("unseen", None, [20, 40]),
        ("unseen", 1, [20]),
    ],
)
def test_a_group_has_its_examples_in_order(group: Any, n: int | None, expected: list[int]) -> None:
    assert history().select(group, n).tolist() == expected


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(0, 70))
def test_the_hardest_are_the_first_of_a_stable_sort(losses: list[int], n: int) -> None:
    """As few of them as with all: a large dataset is not sorted as a whole."""
    size = len(losses)
    one = LossHistory(
        step=1,
        start=NAN,
        suspected=0,
        index=np.arange(size),
        loss=np.where(np.array(losses) == 0, np.nan, losses).astype(np.float32),
        suspect=np.full(size, 0.5, np.float32),
    )
    known = [i for i in range(size) if losses[i] > 0]
    assert one.select("hardest", n).tolist() == sorted(known, key=lambda i: -losses[i])[:n]


def test_classes_are_summed_up_the_hardest_first() -> None:
    first, second = history().classes()
    assert first == (7, 3, pytest.approx(1.55), 1, 0, 1)
    assert second == (9, 2, pytest.approx(0.5), 0, 1, 1)
    assert history(label=None).classes() == []
    bare = history(visits=None, label=np.array([1, 1, 5, 1, 1])).classes()
    assert [each.forgotten for each in bare] == [None, None]
    assert [each.label for each in bare] == [1, 5]
    assert math.isnan(bare[1].loss)


def test_what_was_not_recorded_is_not_known() -> None:
    one = history(visits=None)
    assert not one.recorded
    with pytest.raises(ArgumentError, match=r"forgotten examples are not known.*record=True"):
        one.select("forgotten")
    with pytest.raises(ArgumentError, match=r"must be one of hardest, .*; got 'easiest'"):
        one.select("easiest")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="n must be a whole number >= 0; got -1"):
        one.select("hardest", -1)


# -------------------------------------------------------------------------------- from a training


def trained(record: bool, score: str = "history", wrong: int = 0) -> ImportanceLoader:
    """Losses that fall, except those of the first examples."""
    loader = ImportanceLoader(make_dataset(200), 20, score=score, record=record)  # type: ignore[arg-type]
    for epoch in range(4):
        for _ in loader:
            losses = (0.9 + 0.2 * loader.indices / 200) / (1 + 10 * epoch)
            loader.mean(torch.where(loader.indices < wrong, 3 + loader.indices / 200, losses))
    return loader


@pytest.mark.parametrize("score", ["uniform", "history", "auto"])
def test_suspects_of_a_history_are_those_of_the_loader(score: str) -> None:
    loader = trained(True, score, wrong=20)
    found = loader.history()
    if score != "history":  # which has seen some of the others only once
        assert sorted(found.select("suspects").tolist()) == list(range(20))
    for n in (None, 7, 60):
        assert found.select("suspects", n).tolist() == loader.suspects(n).tolist()


def test_without_a_record_there_are_losses_and_suspects() -> None:
    loader = trained(False, wrong=20)
    found = loader.history()
    assert set(found.columns()) == {"index", "loss", "suspect"}
    assert np.array_equal(found.loss, loader.scores().numpy())
    assert found.select("suspects").tolist() == loader.suspects().tolist()
    assert found.curve(0) == []
    assert f"{found.suspected} suspects, recorded=False" in repr(found)
    assert set(found.select("suspects").tolist()) >= set(range(20))


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("score", ["history", "auto"])
def test_a_checkpoint_has_the_same_history(score: str, record: bool, tmp_path: Path) -> None:
    loader = trained(record, score, wrong=20)
    checkpoint.save(tmp_path / "run.ckpt", {"a": {"loader": loader.state_dict()}}, step=1)
    state, labels = checkpoint.load(tmp_path / "run.ckpt").state, loader.dataset.tensors[1]
    expected = loader.history()
    wanted = labels if expected.label is not None else None
    same(LossHistory.from_state(state, wanted), expected)
    assert LossHistory.from_state(state).label is None


def test_states_without_losses_are_refused() -> None:
    for state in ({}, {"model": {"w": torch.ones(2)}}, ImportanceSampler(4, 2, score="uniform")):
        given = state.state_dict() if isinstance(state, ImportanceSampler) else state
        with pytest.raises(StateError, match="no state of a loader in it"):
            LossHistory.from_state(given)
    with pytest.raises(ArgumentError, match="got 3 for 4 examples"):
        LossHistory.from_state(ImportanceSampler(4, 2).state_dict(), [0, 1, 2])


@pytest.mark.parametrize("record", [False, True])
def test_damaged_states_are_refused(record: bool) -> None:
    """Found by fuzz: whatever torch or Python raised came out."""

    damaged, without = "the state of the loader is damaged .*: name another", "no state of a loader"
    good = trained(record, "auto", wrong=20).state_dict()
    changes = {"step": ["x", math.inf], "score": [{"mean": 3}, {}, [1]], "smoothing": [[]]}
    if record:
        visits = {**good["record"], "visits": torch.zeros(2, 2)}
        changes = {"step": ["x"], "record": [{}, 3, visits]}
    for key, values in changes.items():
        why = without if key == "score" else damaged
        for value in values:
            with pytest.raises(StateError, match=why):
                LossHistory.from_state({**good, key: value})


# ------------------------------------------------------------------------------------------- files


def test_a_saved_history_comes_back_whole(tmp_path: Path) -> None:
    for number, one in enumerate((history(), history(label=None), trained(False).history())):
        path = one.save(tmp_path / "new" / f"{number}.npz")
        same(LossHistory.load(path), one)
    assert sorted(each.name for each in path.parent.iterdir()) == ["0.npz", "1.npz", "2.npz"]


def test_csv_has_a_line_per_example_and_nothing_where_nothing_is_known(tmp_path: Path) -> None:
    one = history()
    with one.save(tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == list(one.columns())
    assert lines[2]["loss"] == lines[2]["first_loss"] == ""
    for name, column in one.columns().items():
        found = [float(line[name] or "nan") for line in lines]
        assert np.array_equal(np.array(found, column.dtype), column, equal_nan=True), name


def test_parquet_has_the_courses_too(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    one = trained(True).history()
    table = parquet.read_table(one.save(tmp_path / "a.parquet"))
    assert table.column_names == [*one.columns(), "course"]
    assert table["visits"].to_pylist() == one.visits.tolist()
    assert table["course"].to_pylist() == [one.curve(i) for i in range(len(one))]


def test_without_pyarrow_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ArgumentError, match=r"\.parquet files need pyarrow: install salience\["):
        history().save(tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"a\.xls must end in \.npz, \.csv, \.parquet"):
        history().save(tmp_path / "a.xls")
    with pytest.raises(StateError, match="there is no file"):
        LossHistory.load(tmp_path / "none.npz")
    whole = history().save(tmp_path / "a.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:200])
    (tmp_path / "text.npz").write_text("not a zip")
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    for name, column in (("short", np.ones(2)), ("texts", np.array(["a"] * 5))):
        LossHistory._write_npz(history(loss=column), tmp_path / f"{name}.npz")
    np.savez(tmp_path / "object.npz", a=np.array([{}], dtype=object))
    for name in ("cut", "text", "other", "object", "short", "texts"):
        with pytest.raises(StateError, match="is no loss history, or is damaged"):
            LossHistory.load(tmp_path / f"{name}.npz")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot write"):
        history().save(tmp_path / "file" / "a.npz")


def test_every_group_is_described() -> None:
    text = LossHistory.places.__doc__ or ""
    assert all(f'``"{group}"``' in text for group in GROUPS)
