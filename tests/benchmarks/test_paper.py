"""The benchmark of the paper: pack, unpack and the tables, after small runs."""

import csv
import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_data import put_small_data, stand_in
from test_benchmarks import load, run
from typer.testing import CliRunner

from salience.cli.main import make_app
from salience.compare import directory
from salience.paper import stages
from salience.paper.reproduce import finish, prepare
from salience.paper.stages import Settings
from salience.paper.tasks import make_task

SMALL = ("--model", "small", "--scale", "0.0002", "--seeds", "2")
DONE = ("fig1b", "table1", "cifar10")  # beside them tracking has its runs too
PAGE = """Before.

<!-- targets -->

| target | figure |
|---|---|
| by hand | [tracking-ptb](tracking-ptb/tracking-ptb.png) |
| by hand | [table1-mnist](table1-mnist/table1-mnist.png) |
| by hand | [fig1a](fig1a/fig1a.png) |

<!-- /targets -->

<!-- claims -->

| target | the paper says | here | measured |
|---|---|---|---|
| [fig1a](fig1a) | old | old | old |
| [fig1b](fig1b) | old | old | old |

<!-- /claims -->

After.
"""


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs of some targets, with what ``salience reproduce`` made of them."""
    out, before = tmp_path_factory.mktemp("direct"), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "make_task", stand_in)
        for name in DONE:
            for stage in prepare(name, Settings(0.0002, "small", 2, 1), out):
                list(stage.rows())
            finish(name, out)
    yield out
    torch.set_num_threads(before)


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, with ``salience`` run in this process, where no data set can be read."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a data set was read")

    def here(command: list[str]) -> int:
        done = CliRunner().invoke(make_app(), command)
        if not isinstance(done.exception, SystemExit | None):
            raise done.exception
        return done.exit_code

    module = load("paper")
    monkeypatch.setattr(stages, "make_task", refused)
    monkeypatch.setattr(module, "salience", here)
    return module


@pytest.fixture
def results(tmp_path: Path) -> Path:
    place = tmp_path / "results"
    place.mkdir()
    (place / "README.md").write_text(PAGE)
    for name in ("table1-mnist", "fig1a"):  # of earlier runs
        (place / name).mkdir()
        (place / name / "result.json").write_text(json.dumps({"target": name.partition("-")[0]}))
    return place


def packs(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (place / "runs").iterdir()}


def test_packed_runs_are_not_trained_again(
    direct: Path, results: Path, paper: Any, tmp_path: Path
) -> None:
    to = ("--results", str(results))
    paper.main(["pack", "--out", str(direct), *to])
    first = packs(results)
    assert set(first) == {"mnist.jsonl.gz", "cifar10.jsonl.gz", "ptb.jsonl.gz"}
    for content in first.values():
        text = gzip.decompress(content).decode()
        assert str(direct) not in text
        assert json.loads(text.splitlines()[0])["environments"][0]["versions"]
    elsewhere = tmp_path / "elsewhere"
    paper.main(["unpack", "--out", str(elsewhere), *to])
    files = {path: path.stat().st_mtime_ns for path in elsewhere.rglob("*.pt")}
    assert len(files) == 2 * (7 + 6 + 5)
    for names in ("fig1b,table1", "cifar10"):
        paper.main(["run", "--out", str(elsewhere), *SMALL, "--targets", names])
    assert {path: path.stat().st_mtime_ns for path in elsewhere.rglob("*.pt")} == files
    again, before = (
        json.loads((out / "fig1b" / "result.json").read_text()) for out in (elsewhere, direct)
    )
    assert again["claims"] == before["claims"]
    paper.main(["pack", "--out", str(elsewhere), *to])
    assert packs(results) == first


def test_only_finished_runs_are_packed(direct: Path, results: Path, paper: Any) -> None:
    out = results.parent / "out"
    shutil.copytree(direct, out)
    (stage,) = prepare("cifar10", Settings(0.0002, "small", 2, 1), out, resume=True)
    gone = sorted((stage.directory / "state").glob("online*.pt"))[1]
    gone.unlink()
    paper.main(["pack", "--out", str(out), "--results", str(results)])
    lines = gzip.decompress(packs(results)["cifar10.jsonl.gz"]).decode().splitlines()[1:]
    runs = {(run["method"], run["seed"]) for run in map(json.loads, lines)}
    assert len(lines) == len(runs) == 11
    assert ("online-selection", 1) not in runs


def test_tables_are_those_of_reproduce(
    direct: Path, results: Path, paper: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ("--results", str(results))
    paper.main(["pack", "--out", str(direct), *to])
    capsys.readouterr()
    paper.main(["tables", *to])
    told = capsys.readouterr().out.splitlines()
    missing = {line.removeprefix("not complete: ") for line in told if line.startswith("not")}
    assert missing == {
        "fig1a, mnist: no runs",
        "ptb, ptb: 2 of 8 runs are missing",
        *(f"gnorm-vs-loss, {task}: no runs" for task in ("mnist", "cifar10", "ptb")),
    }
    for name in DONE:
        made, theirs = results / name, direct / name
        ours, reproduced = (json.loads((d / "result.json").read_text()) for d in (made, theirs))
        for key in ("target", "paper", "scale", "paragraph", "claims"):
            assert ours[key] == reproduced[key]
        assert (made / f"{name}.png").read_bytes() == (theirs / f"{name}.png").read_bytes()
        points = gzip.decompress((made / f"{name}.csv.gz").read_bytes())
        assert points == (theirs / f"{name}.csv").read_bytes()
    assert (results / "table1/table1.md").read_text() == (direct / "table1/table1.md").read_text()
    with gzip.open(results / "table1" / "table1-table.csv.gz", "rt") as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == 45
    assert all(cell["mean"] and cell["paper mean"] and cell["n"] == "2" for cell in cells)
    files = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    paper.main(["tables", *to])
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == files


def test_the_page_has_new_rows_and_keeps_the_others(
    direct: Path, results: Path, paper: Any
) -> None:
    to = ("--results", str(results))
    paper.main(["pack", "--out", str(direct), *to])
    paper.main(["tables", *to])
    page = (results / "README.md").read_text()
    assert page.startswith("Before.\n\n<!-- targets -->\n\n| target | figure |\n|---|---|\n")
    assert page.endswith(" |\n\n<!-- /claims -->\n\nAfter.\n")
    targets, claims = (part.split("<!--")[0] for part in page.split("s -->\n\n|")[1:])
    assert "| by hand | [fig1a](fig1a/fig1a.png) |" in targets
    assert "| by hand | [tracking-ptb]" not in targets  # all of tracking is there now
    assert not (results / "table1-mnist").exists()
    assert (results / "fig1a").exists()
    command = "`table1 --model small --scale 0.0002 --seeds 2`"
    row = next(line for line in targets.splitlines() if "[table1](table1/table1.png)" in line)
    assert row.startswith("| Table 1: test errors | 2 | `")
    assert row.endswith(f"` | {command} | [table1](table1/table1.png), [table](table1/table1.md) |")
    assert "| [fig1a](fig1a) | old | old | old |" in claims
    assert "| [fig1b](fig1b) | old" not in claims
    names = [line.split("](")[1].split(")")[0] for line in claims.splitlines() if "](" in line]
    assert [*dict.fromkeys(names)] == ["fig1a", "fig1b", "cifar10", "table1", "tracking"]
    for name in DONE:
        for claim in json.loads((results / name / "result.json").read_text())["claims"]:
            said = claim["statement"][0].upper() + claim["statement"][1:]
            shown = {"tie": "a tie", "unknown": "undecided"}
            verdict = shown.get(claim["verdict"], f"**{claim['verdict']}**")
            assert f"| [{name}]({name}) | {said} | {verdict} | {claim['evidence']} |" in claims


def test_one_task_of_several(direct: Path, results: Path, paper: Any) -> None:
    to = ("--results", str(results))
    paper.main(["pack", "--out", str(direct), *to])
    (results / "runs" / "ptb.jsonl.gz").unlink()
    paper.main(["tables", *to])
    page = (results / "README.md").read_text()
    assert not (results / "table1").exists()
    assert json.loads((results / "table1-mnist" / "result.json").read_text())["claims"]
    assert (results / "table1-cifar10" / "table1-cifar10.png").exists()
    assert "`table1 --task mnist --model small --scale 0.0002 --seeds 2`" in page
    assert "| by hand | [table1-mnist]" not in page
    assert "| by hand | [tracking-ptb]" in page


def test_commands_finish_the_first_seeds_of_all_targets_first(paper: Any, monkeypatch: Any) -> None:
    asked: list[list[str]] = []

    def noted(command: list[str]) -> int:
        asked.append(command)
        return 3 if len(asked) == 8 else 0

    monkeypatch.setattr(paper, "salience", noted)
    chosen = ["--targets", "fig1a,table1,gnorm-vs-loss", "--tasks", "mnist,ptb"]
    with pytest.raises(SystemExit, match="3"):  # the code of what failed; nothing after it runs
        paper.main(["run", *chosen, "--jobs", "2", "--data-dir", "data", "--out", "o"])
    rest = "--threads 1 --jobs 2 --out o --data-dir data --resume"
    assert [" ".join(words) for words in asked] == [
        f"reproduce fig1a --model tiny --scale 1 --seeds 2 {rest}",
        f"reproduce table1 --task mnist --model tiny --scale 1 --seeds 2 {rest}",
        f"reproduce table1 --task ptb --model tiny --scale 1 --seeds 2 {rest}",
        f"reproduce gnorm-vs-loss --task mnist --model tiny --scale 1 --seeds 1 {rest}",
        f"reproduce gnorm-vs-loss --task ptb --model tiny --scale 1 --seeds 1 {rest}",
        f"reproduce fig1a --model tiny --scale 1 --seeds 3 {rest}",
        f"reproduce table1 --task mnist --model tiny --scale 1 --seeds 3 {rest}",
        f"reproduce table1 --task ptb --model tiny --scale 1 --seeds 3 {rest}",
    ]


@pytest.mark.parametrize(("jobs", "counts"), [(1, [1, 2, 3]), (2, [2, 3]), (3, [3]), (4, [3])])
def test_seeds_begin_when_there_is_a_job_for_them(
    jobs: int, counts: list[int], paper: Any, monkeypatch: Any
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(paper, "salience", lambda words: asked.append(words[7]) or 0)
    paper.main(["run", "--targets", "fig1b", "--jobs", str(jobs)])
    assert asked == [str(count) for count in counts]


def test_packed_seeds_are_trained_no_more(paper: Any, results: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(stages, "make_task", stand_in)
    out, some = results.parent / "out", (*SMALL[:-1], "1", "--targets", "fig1b")
    for count, names in (("1", "0"), ("3", "012")):
        paper.main(["run", "--out", str(out), *some, "--seeds", count])
        paper.main(["pack", "--out", str(out), "--results", str(results)])
        lines = gzip.decompress(packs(results)["mnist.jsonl.gz"]).decode().splitlines()
        head, runs = json.loads(lines[0]), [json.loads(line) for line in lines[1:]]
        assert head["seeds"] == {"fig1b": int(count)}
        assert {str(run["seed"]) for run in runs} == set(names)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["pack", "--out", "nothing"], "nothing has no runs of the paper: run some targets first"),
        (["unpack"], "has no packed runs: pack some first"),
        (["tables"], "has no packed runs: pack some first"),
    ],
)
def test_nothing_to_do_is_said_in_one_sentence(
    arguments: list[str], why: str, paper: Any, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=why):
        paper.main([*arguments, "--results", str(tmp_path)])


def test_a_page_without_its_marks_is_refused_before_anything_is_written(
    direct: Path, results: Path, paper: Any
) -> None:
    to = ("--results", str(results))
    paper.main(["pack", "--out", str(direct), *to])
    (results / "README.md").write_text(PAGE.replace("<!-- /claims -->", ""))
    with pytest.raises(
        SystemExit, match=r"README\.md has no <!-- claims --> with <!-- /claims -->"
    ):
        paper.main(["tables", *to])
    assert not (results / "fig1b").exists()


def test_unknown_names_are_refused() -> None:
    done = run("paper", "run", "--targets", "fig1a,fig9")
    assert done.returncode == 2
    assert "targets must be among fig1a, fig1b" in done.stderr
    assert done.stderr.strip().endswith("got fig9")


def test_parts_on_several_cores_are_packed_together(
    direct: Path, results: Path, paper: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two methods in one place, one seed of the others in another: the runs of one process."""
    monkeypatch.setattr(stages, "make_task", stand_in)
    common = ("part", "--target", "cifar10", "--task", "cifar10", *SMALL[:4])
    one, other = tmp_path / "one", tmp_path / "other"
    paper.main([*common, "--labels", "uniform,loss", "--seeds", "2", "--out", str(one)])
    rest = ("--labels", "approx,online-selection", "--first", "1", "--seeds", "1")
    paper.main([*common, *rest, "--out", str(other)])
    for out in (one, other):
        paper.main(["pack", "--out", str(out), "--results", str(results)])
    packed = runs_of(results / "runs/cifar10.jsonl.gz")
    paper.main(["pack", "--out", str(direct), "--results", str(tmp_path / "whole")])
    whole = runs_of(tmp_path / "whole/runs/cifar10.jsonl.gz")
    assert {key for key in packed if key[1] == 0} == {
        key for key in whole if key[1] == 0 and key[0].startswith(("uniform", "loss:k=0.5"))
    }
    assert packed.items() <= whole.items()
    assert len(packed) == 2 * 2 + 2


def runs_of(path: Path) -> dict[tuple[str, int], list[float]]:
    """The train losses of each packed run."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()[1:]
    return {
        (run["method"], run["seed"]): [row["train_loss"] for row in run["rows"]]
        for run in map(json.loads, lines)
    }


def test_a_label_that_the_target_does_not_have_is_refused(paper: Any, tmp_path: Path) -> None:
    common = ("part", "--target", "ptb", "--task", "ptb", "--out", str(tmp_path / "out"))
    with pytest.raises(SystemExit, match=r"labels must be among uniform, loss.*got 'los'"):
        paper.main([*common, "--labels", "uniform,los"])


# Why claims do not hold.


def test_commands_that_ask_why(paper: Any, monkeypatch: Any, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr(paper, "salience", lambda words: asked.append(" ".join(words)) or 0)
    monkeypatch.setattr(paper.why, "measure", lambda words: asked.append(" ".join(words)) or 0)
    out = tmp_path / "out"
    common = ["--targets", "why", "--data-dir", "data", "--out", str(out)]
    paper.main(["run", *common, "--tasks", "mnist", "--jobs", "2"])
    one = "--threads 1 --data-dir data"
    costs = f"costs.py {paper.why.COSTS} --rounds 10 --out {out}/why/gnorm-cost.json"
    assert asked == [
        f"reproduce fig1a --model perceptron --scale 1 --seeds 3 --jobs 2 {one} --out {out}/why "
        "--resume",
        "variance.py --cases mnist:tiny,mnist:perceptron --seeds 3 --steps 6000 "
        f"--rows {out}/why/variance.jsonl --data-dir data",
        costs,
    ]
    (out / "why").mkdir(parents=True)
    (out / "why" / "gnorm-cost.json").write_text("{}")
    del asked[:]
    paper.main(["run", *common, "--tasks", "mnist,ptb", "--scale", "0.5"])
    assert costs not in asked
    assert asked[1].startswith("reproduce gnorm-vs-loss --task ptb --model small --scale 0.5 --s")
    assert asked[2].startswith("compare ptb --model tiny --steps 3000 --evaluations 20 --seeds 3")
    assert asked[2].endswith(f"--out {out}/why/ptb --resume")
    monkeypatch.setattr(paper.why, "measure", lambda _: 4)
    with pytest.raises(SystemExit, match="4"):
        paper.main(["run", *common])


def test_why_from_the_runs_to_the_page(
    direct: Path, results: Path, paper: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    """As users start it, with made-up pictures and sentences in place of the published sets."""
    why, out, place = paper.why, tmp_path / "out", results / "why"
    put_small_data(monkeypatch)
    monkeypatch.setattr(stages, "make_task", make_task)
    row = {"case": "mnist:tiny", "seed": 0, "step": 6, "train_loss": 0.5, "loss_gain": 2.0}
    row |= {"loss": 0.5, "loss_pool": 1.0, "gnorm": 0.25, "gnorm_pool": 0.75}

    def measured(words: list[str]) -> int:
        file = "variance.jsonl" if words[0] == "variance.py" else "gnorm-cost.json"
        command = f"{tmp_path}/costs.py --out {words[-1]} --rounds 2"
        (out / "why" / file).write_text(json.dumps({**row, "command": command}) + "\n")
        return 0

    monkeypatch.setattr(why, "measure", measured)
    short = ("--tasks", "mnist,cifar10", "--scale", "0.0002", "--seeds", "1", "--out", str(out))
    paper.main(["run", "--targets", "why", *short])
    to = ("--results", str(results))
    paper.main(["pack", "--out", str(direct), *to])
    paper.main(["pack", "--out", str(out), *to])
    found = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    cases = {name: case for name, case in why.CASES.items() if case.task == "cifar10"}
    written = {f"{case}/{file}" for case in cases for file in why.COMPARED}
    assert found == {"variance.jsonl.gz", "gnorm-cost.json", "runs/fig1a.jsonl.gz", *written}
    made = {case: (place / case / "summary.json").read_bytes() for case in cases}

    marks = ("targets", "claims", "trainings", "variance")
    (place / "README.md").write_text(
        "".join(f"<!-- {m} -->\n\n| old |\n|---|\n\n<!-- /{m} -->\n" for m in marks)
    )
    paper.main(["tables", *to])
    page = (place / "README.md").read_text()
    trainings = page.split("<!-- trainings -->")[1].split("<!-- /")[0].strip().splitlines()[2:]
    assert len(trainings) == sum(len(case.methods) for case in cases.values())
    for case, about in cases.items():
        assert (place / case / "summary.json").read_bytes() == made[case]
        drawn = (place / case / "curves.png").read_bytes()
        assert drawn == (out / "why" / case / "curves.png").read_bytes()
        for method in about.methods:
            begin = f"| [{about.about}]({case}) | `{method}` | 1 | "
            assert any(line.startswith(begin) for line in trainings)
    assert "| mnist, tiny | 1 | 0.5 | 2 | 0.5 | 1 | 0.25 | 0.75 |\n\n<!-- /variance -->" in page
    for file in place.rglob("*.json"):
        assert str(tmp_path) not in file.read_text()
    told = json.loads((place / "gnorm-cost.json").read_text())["command"]
    assert told == "costs.py --out gnorm-cost.json --rounds 2"

    elsewhere, asked = tmp_path / "elsewhere", []
    directory.write(elsewhere / "why" / "cifar10" / "config.json", {"begun": True})
    paper.main(["unpack", "--out", str(elsewhere), *to])
    assert [file.name for file in (elsewhere / "why" / "cifar10").iterdir()] == ["config.json"]
    shutil.rmtree(elsewhere / "why" / "cifar10")
    paper.main(["unpack", "--out", str(elsewhere), *to])
    assert len([*(elsewhere / "why").rglob("*.pt")]) == 3
    monkeypatch.setattr(paper, "salience", lambda words: asked.append(words[:2]) or 0)
    again = [*short[:-1], str(elsewhere)]
    paper.main(["run", "--targets", "why", *again])
    assert asked == [["reproduce", "fig1a"]]  # which finds its runs
    paper.main(["run", "--targets", "why", *again, "--seeds", "2"])
    assert asked[2:] == [["compare", case.compared.split()[0]] for case in cases.values()]
