"""Figures and tables of the paper: each target from end to end on a small task."""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_data import stand_in

from salience.compare.run import Row
from salience.errors import ArgumentError
from salience.paper import stages
from salience.paper.reproduce import Outcome, finish, prepare
from salience.paper.stages import Settings, Stage
from salience.paper.targets import TARGETS

SCALE = 0.0002  # 4 steps for MNIST, 10 for CIFAR-10, 20 for Penn Treebank
SEEDS = 2


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "make_task", stand_in)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all targets, as users have it: later ones find the runs of earlier ones."""
    return tmp_path_factory.mktemp("reproduced")


def run(name: str, out: Path, *, resume: bool = False, **more: Any) -> list[Row]:
    settings = Settings(**{"scale": SCALE, "model": "small", "seeds": SEEDS, **more})
    parts = prepare(name, settings, out, resume=resume)
    return [row for part in parts for row in part.rows()]


@pytest.mark.usefixtures("_tasks")
@pytest.mark.parametrize("name", TARGETS)
def test_a_target_from_end_to_end(name: str, out: Path) -> None:
    rows = run(name, out)
    settings = Settings(SCALE, "small", SEEDS)
    parts = [Stage(study, settings, out) for study in TARGETS[name].studies]
    expected = sum(SEEDS * len(part.runs) * (part.evaluations + 1) for part in parts)
    assert len(rows) == expected, "every method, seed and evaluation, once"
    assert {row["method"] for row in rows} == {label for part in parts for label in part.runs}

    outcome = finish(name, out)
    written = {*outcome.files}
    assert {out / name / f"{name}.{kind}" for kind in ("png", "html", "json", "csv")} <= written
    check_figure(name, out / name, outcome)
    check_result(name, out / name, outcome)


def check_figure(name: str, at: Path, outcome: Outcome) -> None:
    (chart,) = outcome.found.charts
    assert (at / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    page = (at / f"{name}.html").read_text()
    assert "Charts.draw" in page
    assert 'src="http' not in page
    assert "scale 0.0002" in page
    lines = [line for panel in chart.panels for line in panel.lines]
    assert all(math.isfinite(y) for line in lines for y in line.y)
    with (at / f"{name}.csv").open() as file:
        head, *points = csv.reader(file)
    assert head == ["panel", "line", "x", "y", "low", "high"]
    assert len(points) == sum(len(line.x) for line in lines) > 0
    first, band = lines[0], [low[0] if low else "" for low in (lines[0].low, lines[0].high)]
    assert points[0] == [
        str(each) for each in (chart.panels[0].title, first.label, first.x[0], first.y[0], *band)
    ]
    assert "scale 0.0002" in chart.title
    assert json.loads((at / f"{name}.json").read_text())["title"] == chart.title


def check_result(name: str, at: Path, outcome: Outcome) -> None:
    result = json.loads((at / "result.json").read_text())
    assert (result["target"], result["scale"]) == (name, SCALE)
    assert result["config"]["versions"]["torch"] == torch.__version__
    assert len({claim["name"] for claim in result["claims"]}) == len(outcome.found.claims) > 0
    for claim, written in zip(outcome.found.claims, result["claims"], strict=True):
        assert (written["verdict"], written["words"]) == (claim.verdict, claim.words)
        assert written["numbers"]
        assert claim.sentence in result["paragraph"]
    assert "scale 0.0002" in outcome.paragraph
    assert TARGETS[name].where in outcome.paragraph


@pytest.mark.usefixtures("_tasks")
def test_the_table_is_beside_the_papers(out: Path) -> None:
    run("table1", out, resume=(out / "table1").exists())
    outcome = finish("table1", out)
    (table,) = outcome.found.tables
    assert len(table.rows) == 3 * 3 * 5
    first = dict(zip(table.columns, table.rows[2], strict=True))
    assert (first["task"], first["epoch"], first["method"]) == ("mnist", 5, "loss k=0.5")
    assert (first["paper mean"], first["paper std"], first["n"]) == (0.56, 0.04, SEEDS)
    assert first["step"] == 1  # a quarter of four
    text = (out / "table1" / "table1.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + 9
    assert f" | {first['mean']:.2f} ± {first['std']:.2f} (0.56 ± 0.04) | " in lines[2]
    assert lines[-1].startswith("| Penn Treebank | 50 | 20 | ")
    assert lines[-1].endswith("(127.4 ± 1.45) |")


@pytest.mark.usefixtures("_tasks")
def test_targets_share_runs_and_resume_without_training(tmp_path: Path) -> None:
    before = run("cifar10", tmp_path)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")}
    assert len(files) == 4 * SEEDS
    run("tracking", tmp_path)
    assert all(path.stat().st_mtime_ns == at for path, at in files.items())
    again = run("cifar10", tmp_path, resume=True)
    key = lambda row: (row["method"], row["seed"], row["step"])  # noqa: E731
    assert sorted(again, key=key) == sorted(before, key=key)  # the seconds too: nothing was trained


@pytest.mark.usefixtures("_tasks")
def test_results_are_not_overwritten_by_accident(tmp_path: Path) -> None:
    run("fig1b", tmp_path)
    with pytest.raises(ArgumentError, match="--resume"):
        run("fig1b", tmp_path)
    with pytest.raises(ArgumentError, match="begun with seeds 2, not 1"):
        run("fig1b", tmp_path, seeds=1, resume=True)


@pytest.mark.usefixtures("_tasks")
def test_seeds_can_be_added(tmp_path: Path) -> None:
    before = run("fig1b", tmp_path, seeds=1)
    after = run("fig1b", tmp_path, seeds=2, resume=True)
    assert len(after) == 2 * len(before)
    assert all(row in after for row in before)  # the seconds too: nothing was trained again
    (place,) = (tmp_path / "fig1b").glob("config.json")
    assert json.loads(place.read_text())["studies"][0]["seeds"] == [0, 1]
    finish("fig1b", tmp_path)


@pytest.mark.usefixtures("_tasks")
def test_an_unfinished_target_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="run the target"):
        finish("fig1b", tmp_path)
    (stage,) = prepare("fig1b", Settings(SCALE, "small", 1), tmp_path)
    rows = stage.rows()
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="not finished"):
        finish("fig1b", tmp_path)


@pytest.mark.usefixtures("_tasks")
def test_one_task_of_several(tmp_path: Path) -> None:
    run("table1", tmp_path, task="ptb")
    outcome = finish("table1", tmp_path, task="ptb")
    assert outcome.directory == tmp_path / "table1-ptb"
    assert {row[0] for row in outcome.found.tables[0].rows} == {"ptb"}


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("fig9", {}, "fig1a, fig1b, cifar10, ptb, table1, gnorm-vs-loss, tracking; got 'fig9'"),
        ("fig1a", {"scale": 0.0}, "scale must be above 0 and at most 1; got 0.0"),
        ("fig1a", {"scale": 1.5}, "got 1.5"),
        ("fig1a", {"seeds": 0}, "seeds must be at least 1; got 0"),
        ("fig1a", {"model": "huge"}, "got 'huge'"),
        ("fig1a", {"task": "ptb"}, "one of those of fig1a: mnist; got 'ptb'"),
    ],
)
def test_what_cannot_run_is_refused_at_once(
    name: str, settings: Any, match: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=match):
        run(name, tmp_path, **settings)
    assert not list(tmp_path.iterdir())
