"""Run directories: written completely or not at all, read with checks."""

import gzip
import json
import math
import re

import pytest

from compare.conftest import WRITTEN
from compare.made_up import SEEDS, WINS, directory, run
from salience.compare.directory import finite, write
from salience.compare.measures import describe, measures_of
from salience.compare.reading import read_comparison
from salience.compare.report.page import write_report
from salience.errors import ArgumentError, SalienceError


def test_a_line_cut_off_while_it_was_written_does_not_matter(tmp_path):
    made = directory(tmp_path / "run", WINS, finished=False)
    path = made / "runs.jsonl"
    path.write_text(path.read_text()[:-25])
    assert len(read_comparison(made).rows) == len(WINS) - 1
    path.write_text(path.read_text() + "\n")
    with pytest.raises(ArgumentError, match="line 10"):
        read_comparison(made)


def test_the_measures_and_their_directions_are_read_back(tmp_path):
    rows = [
        {**row, "test_auc": value / 10}
        for row, value in zip(WINS, (5, 6, 7, 9, 8, 5, 7, 8, 6, 6), strict=True)
    ]
    written = describe(measures_of(["auc"], None))
    found = read_comparison(directory(tmp_path / "run", rows, **written))
    assert (found.primary, found.measures["test_auc"].label) == ("test_auc", "AUC")
    assert [*found.measures] == ["test_loss", "test_auc"]
    assert found.summary["methods"]["uniform"]["best"]["mean"] == 0.9
    assert found.summary["methods"]["history"]["differences"]["best"]["mean"] == pytest.approx(-0.1)
    older = read_comparison(directory(tmp_path / "older", WINS))
    assert (older.primary, older.measures["test_error"].unit) == ("test_error", "%")
    none = {**written, "primary": "test_f1"}
    with pytest.raises(ArgumentError, match=r"config.json is damaged \(no 'test_f1'\)"):
        read_comparison(directory(tmp_path / "none", rows, **none))


# What is missing or damaged.


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.json", None, "is missing: name a directory a comparison wrote to, or run it"),
        ("runs.jsonl", None, "is missing"),
        ("config.json", "{", "is damaged (Expecting property name"),
        ("config.json", "[]", "is damaged (list in place of an object)"),
        ("config.json", b"\xff\xfe", "is damaged ('utf-8' codec"),
        # Found by fuzz: taken, and an error of Python in the report.
        ("config.json", '{"steps": [null]}', "is damaged (steps is [None])"),
        ("config.json", '{"seconds": true}', "is damaged (seconds is True)"),
        ("config.json", '{"budgets": -1}', "is damaged (budgets is -1)"),
        ("config.json", '{"budgets": [0.5, [0]]}', "is damaged (budgets are [0.5, [0]])"),
        ("config.json", '{"hardware": "x"}', "is damaged (hardware is 'x')"),
        ("runs.jsonl", json.dumps({**WINS[0], "examples": [1]}) + "\n", "[1] in place of a number"),
        ("runs.jsonl", "", "has no rows: nothing has been measured yet; run the comparison first"),
        ("runs.jsonl", "{}\n", "is damaged (line 1: no 'method')"),
        ("runs.jsonl", "nonsense\n{}\n", "is damaged (line 1: Expecting value"),
        ("runs.jsonl", json.dumps({**WINS[0], "train_loss": "low"}) + "\n", "'low' in place of"),
        ("runs.jsonl", json.dumps({**WINS[0], "step": math.inf}) + "\n", "line 1: cannot convert"),
        ("runs.jsonl", json.dumps(WINS[0]) + "\n", "has no rows of 'history', which config.json"),
        ("hardest.json", "[1]", "is damaged (list in place of an object)"),
        ("hardest.json", '{"methods": {"a": [{"index": 1}]}}', "is damaged (no 'loss')"),
        (
            "hardest.json",
            '{"methods": {"a": [{"index": 1, "loss": 1, "image": [[1, 2]]}]}}',
            "is damaged (an image has the shape (1, 2), not [channels, height, width])",
        ),
        (
            "hardest.json",
            '{"methods": {"a": [{"index": 1, "loss": 1, "image": [[[256]]]}]}}',
            "pixels that are not whole numbers from 0 to 255",
        ),
    ],
)
def test_a_missing_or_damaged_file_is_refused_by_name(tmp_path, name, content, sentence):
    made = directory(tmp_path / "run", WINS)
    if content is None:
        (made / name).unlink()
    else:
        (made / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SalienceError, match=re.escape(sentence)) as refusal:
        write_report(made)
    assert str(made / name) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not any((made / written).exists() for written in WRITTEN)


def test_no_directory_and_no_place_to_write_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="there is no directory"):
        write_report(tmp_path / "nowhere")
    made = directory(tmp_path / "run", run("uniform", [2.0, 1.0]))
    (made / "report.html").mkdir()
    with pytest.raises(ArgumentError, match=r"cannot write .*report\.html"):
        write_report(made)


def test_the_summary_follows_from_the_rows_whatever_summary_json_says(tmp_path):
    made = directory(tmp_path / "run", WINS)
    (made / "summary.json").write_text("{}")
    found = read_comparison(made)
    assert found.finished
    assert found.summary["methods"]["history"]["time_to_target_ratio"] == pytest.approx(0.6)


def test_the_baseline_comes_first_whatever_the_order_of_the_rows(tmp_path):
    found = read_comparison(directory(tmp_path / "run", SEEDS[::-1]))
    assert [*found.summary["methods"]] == ["uniform", "loss", "history"]
    assert found.summary["baseline"] == "uniform"


def test_rows_may_be_compressed(tmp_path):
    made = directory(tmp_path / "run", WINS)
    (made / "runs.jsonl.gz").write_bytes(gzip.compress((made / "runs.jsonl").read_bytes()))
    (made / "runs.jsonl").unlink()
    assert read_comparison(made).rows == WINS


def test_writing_replaces_a_file_as_a_whole(tmp_path):
    path = write(tmp_path / "deep" / "a.json", {"x": [math.nan, (1, math.inf)]})
    assert json.loads(path.read_text()) == {"x": [None, [1, None]]}
    assert finite({"x": (1, 2.0)}) == {"x": [1, 2.0]}
    assert [each.name for each in path.parent.iterdir()] == ["a.json"]
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match=r"cannot write to .*file is a file"):
        write(tmp_path / "file" / "below", "text")
