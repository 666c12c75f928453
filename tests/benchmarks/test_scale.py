"""The benchmark of many examples and ranks: its arithmetic, and short runs of it."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import contenders
import numpy as np
import processes
import pytest
import scale
import scale_report
from costs import Seconds

TINY = ["--sizes", "1500,3000", "--batches", "16", "--draws", "6", "--seconds", "1"]
ABOUT: dict[str, Any] = {
    "commit": "0123456789",
    "versions": {"torch": "2"},
    "hardware": {"cpu": "C", "cores": 2, "platform": "P"},
}


def run(monkeypatch: pytest.MonkeyPatch, rows: Path, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["scale", "--rows", str(rows), *map(str, arguments)])
    scale.main()


def row(method: str, n: int, batch: int = 128, **values: Any) -> dict[str, Any]:
    times = {"mean_ms": 1.0, "longest_ms": 2.0, "processor_ms": 0.5}
    sizes = {"bytes_per_example": 30.0, "peak_bytes_per_example": 35.0, "construction_seconds": 1.0}
    case = {"part": "draws", "method": method, "n": n, "batch": batch, "ranks": 1}
    return {**case, "status": "done", **times, **sizes, **ABOUT, **values}


# Arithmetic.


def test_what_begins_an_epoch_is_shared_among_its_steps():
    assert scale.amortised([10.0, 1.0, 1.0], [True, False, False], 100) == pytest.approx(1.09)
    assert scale.amortised([10.0, 1.0], [False, False], 1) == 5.5
    assert scale.amortised([10.0], [True], 1) == 10.0


def test_the_longest_step_is_by_the_shorter_of_both_clocks():
    found = scale.summary([Seconds(0.010, 0.001), Seconds(0.004, 0.004)])
    assert found["longest_ms"] == pytest.approx(4)
    assert found["longest_wall_ms"] == pytest.approx(10)


@pytest.mark.parametrize("name", contenders.BASELINES)
def test_each_baseline_draws_whole_batches(name: str):
    loop = contenders.contender(name, 100, 10)
    began = []
    for _ in range(20):
        loop.step()
        began.append(loop.first)
    per_epoch = loop.epoch == 10
    assert began == ([True] + [False] * 9) * 2 if per_epoch else not any(began)
    if hasattr(loop, "weights"):  # losses have replaced the first weights
        assert np.unique(loop.weights).size > 10


def test_a_case_over_its_limit_is_ended_and_errors_come_back():
    with pytest.raises(processes.OverLimitError):
        processes.alone(time.sleep, 60, limit=0.5)
    with pytest.raises(RuntimeError, match="ValueError: no"):
        processes.alone(_fail, limit=60)


def _fail() -> None:
    raise ValueError("no")


# Tables.


def test_cases_without_a_number_say_why():
    cell = scale_report.cell
    assert cell(None, "mean_ms") == ""
    assert cell(row("history", 10), "mean_ms", "longest_ms") == "1 (2)"
    assert cell(row("history", 10), "step_ms", "longest_ms") == "0.5 (2)"
    assert cell({"status": "error", "error": "too many"}, "mean_ms") == "fails"
    assert cell({"status": "over the limit", "limit_seconds": 900.0}, "mean_ms") == "over 900 s"


def test_growth_and_limits_are_those_of_the_rows():
    rows = [
        row("history", 10**5, mean_ms=1.0, processor_ms=1.1, longest_ms=2.0),
        row(
            "history",
            10**8,
            mean_ms=9.0,  # other programs ran
            processor_ms=1.5,
            longest_ms=5.0,
            bytes_per_example=41.0,
        ),
    ]
    last = scale_report.growth_table(rows).splitlines()[-1]
    assert last == "| `history` | 1 (2) | 1.5 (5) | 1.5 | **2.5** | 1 | **41** |"


def test_the_large_table_shows_the_slowest_rank():
    one = row("auto:on", 10**7, 8192)
    ranks = {"part": "ranks", "ranks": 2, "mean_without_gather_ms": 1.0, "longest_wall_ms": 30.0}
    ranks["longest_without_gather_ms"] = 3.0
    rows = [one, *({**one, **ranks, "rank": r, "mean_ms": 2.0 + r} for r in (0, 1))]
    lines = scale_report.large_table(rows).splitlines()[2:]
    assert lines[0] == "| `auto:on` | 1 | 1 | 2 |  |  | 0.5 |"
    assert lines[1] == "| `auto:on` | 2 | 3 | **30** | 1 | 3 | 0.5 |"


def test_tables_go_between_their_marks(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- draws -->\nold\n<!-- /draws -->\nafter\n")
    for _ in range(2):
        scale_report.write_page(page, {"draws": "new \\1"})
        assert page.read_text() == ("before\n<!-- draws -->\n\nnew \\1\n\n<!-- /draws -->\nafter\n")
    with pytest.raises(SystemExit, match="memory"):
        scale_report.write_page(page, {"memory": ""})


# Runs.


def test_unknown_parts_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, tmp_path / "rows.jsonl", "darws")
    assert "darws" in capsys.readouterr().err


def test_a_short_run_resumes_and_becomes_tables_and_a_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    rows, methods = tmp_path / "rows.jsonl", "auto:on;WeightedRandomSampler, each epoch"
    run(monkeypatch, rows, "draws", *TINY, "--methods", methods)
    found = scale_report.read_rows(rows)
    assert [each["status"] for each in found] == ["done"] * 4
    assert all(each["mean_ms"] > 0 and each["steps"] == 6 for each in found)
    before = rows.read_text()
    capsys.readouterr()
    run(monkeypatch, rows, "draws", *TINY, "--methods", methods)
    assert rows.read_text() == before
    assert "| 16 | `auto:on` |" in capsys.readouterr().out
    run(monkeypatch, rows, "--table", rows, "--figure", tmp_path / "draws.png")
    assert (tmp_path / "draws.png").stat().st_size > 10_000


def test_two_ranks_and_a_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    short = ["--ranks", "2,32,2000", "--rank-steps", "5", "--rounds", "1"]
    run(monkeypatch, rows, "ranks", "state", *TINY, *short, "--methods", "auto:on")
    first, second, state = scale_report.read_rows(rows)
    assert [first["rank"], second["rank"]] == [0, 1]
    assert 0 < first["mean_without_gather_ms"] < first["mean_ms"]
    assert first["gather_ms"] + first["mean_without_gather_ms"] == pytest.approx(first["mean_ms"])
    assert state["status"] == "done", state
    assert state["bytes"] > 4 * 3000
    assert list(tmp_path.iterdir()) == [rows]


def test_a_failure_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    run(monkeypatch, rows, "draws", *TINY[:1], "1500", *TINY[2:], "--methods", "histroy")
    (found,) = [json.loads(line) for line in rows.read_text().splitlines()]
    assert found["status"] == "error"
    assert "histroy" in found["error"]
