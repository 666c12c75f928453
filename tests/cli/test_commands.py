"""The commands, from what is typed to the files: complete, or refused with one sentence."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import salience
from compare.made_up import WINS, run
from salience import ArgumentError
from salience.cli import main
from salience.cli.progress import LINES, watch
from salience.cli.tasks import resolve
from salience.compare import Row, Run
from salience.compare.reading import read_comparison
from salience.compare.report import numbers
from salience.compare.report.words import outcome, sentences
from salience.compare.summary import summarize

SOURCE = str(Path(salience.__file__).parents[1])
ABSENT = ("budget", "test_perplexity", "test_error_rare", "sampler")
FIELDS = [name for name in Row.__annotations__ if name not in ABSENT]
DATA = ["config.json", "hardest.json", "runs.jsonl", "summary.json"]
FIGURES = ["cost.png", "curves.png", "test.png", "worst.png"]
WRITTEN = sorted([*DATA, *FIGURES, "report.html", "report.md", "state"])


def invoke(*arguments: Any) -> Any:
    return CliRunner().invoke(main.make_app(), [str(argument) for argument in arguments])


def read(directory: Path, name: str) -> Any:
    return json.loads((directory / name).read_text())


# ------------------------------------------------------------------------------------------- demo


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """One tiny demo, over what an earlier one left."""
    out = tmp_path_factory.mktemp("demo") / "deep" / "out"
    first = invoke("demo", "--steps", 2, "--seeds", 1, "--out", out)
    assert first.exit_code == 0, first.output
    return invoke("demo", "--steps", 10, "--seeds", 2, "--seed", 5, "--out", out), out


def test_the_demo_ends_with_table_sentence_and_files(finished: tuple[Any, Path]) -> None:
    result, out = finished
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == sorted([*WRITTEN, "auto.png"])
    for name in {*WRITTEN} - {"state"}:
        assert str(out / name) in result.output
    flat, found = " ".join(result.output.split()), read_comparison(out)
    assert flat.startswith("Training a small network on 1,437 hand-written digits. 4 runs: uniform")
    assert sentences(found)[0] in flat
    assert outcome(found) in flat
    assert numbers.spread(found.summary["methods"]["auto"]["final"]["train_max_loss"]) in flat
    assert "\x1b" not in result.output


def test_rows_have_the_fields_of_the_contract(finished: tuple[Any, Path]) -> None:
    rows = [json.loads(line) for line in (finished[1] / "runs.jsonl").read_text().splitlines()]
    decided = [row.pop("sampler", None) for row in rows]
    assert [row["method"] for row, each in zip(rows, decided, strict=True) if each] == ["auto"] * 22
    assert all([*row] == FIELDS for row in rows)
    runs = {(row["method"], row["seed"]) for row in rows}
    assert runs == {(method, seed) for method in ("uniform", "auto") for seed in (5, 6)}
    assert len(rows) == 4 * 11
    assert {row["task"] for row in rows} == {"digits"}
    written = read(finished[1], "summary.json")
    assert written == summarize(rows)
    assert (written["task"], written["baseline"]) == ("digits", "uniform")
    wanted = {"step_cost_ratio", "time_to_target_ratio", "steps_to_target_ratio", "final", "n"}
    for method in written["methods"].values():
        assert wanted <= {*method}
        assert method["n"] == 2


def test_the_config_names_versions_hardware_and_seed_and_nobody(
    finished: tuple[Any, Path],
) -> None:
    config, text = read(finished[1], "config.json"), (finished[1] / "config.json").read_text()
    assert (config["seed"], config["seeds"], config["steps"]) == (5, [5, 6], 10)
    assert config["optimizer"] == {"name": "Adam", "learning_rate": 1e-3}
    assert config["command"] == "salience demo --steps 10 --seeds 2 --seed 5"
    assert config["versions"]["torch"] == torch.__version__
    assert config["versions"]["salience"] == salience.__version__
    assert {*config["hardware"]} == {"cpu", "cores", "threads", "platform"}
    assert (config["hardware"]["threads"], config["batch_size"]) == (1, 128)
    assert str(finished[1]) not in text
    assert str(Path.home()) not in text


def test_the_demo_does_not_replace_other_results(tmp_path: Path) -> None:
    config = {"command": "salience compare demo.py:make", "versions": {"salience": "0.1.0"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = invoke("demo", "--steps", 2, "--out", tmp_path)
    assert result.exit_code == 2
    assert "already holds an unfinished comparison" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seeds", "0"], "seeds must be between 1 and 100; got 0: try --seeds 3"),
        (["--steps", "0"], "steps must be greater than 0; got 0"),
        (["--steps", "-5"], "got -5"),
        (["--seed", "-1"], "seed must be between 0 and"),
        (["--out", "{tmp}/file"], "is a file"),
        (["--out", "{tmp}/file/below"], "cannot write to"),
    ],
)
def test_bad_values_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Run, "advance", lambda *_: pytest.fail("training has begun"))
    (tmp_path / "file").touch()
    result = invoke("demo", *(part.format(tmp=tmp_path) for part in arguments))
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("salience: ")
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# ---------------------------------------------------------------------------------------- compare

QUICK = ("--steps", 12, "--evaluations", 3, "--seeds", 2, "--threads", 1)


def test_compare_writes_the_files_of_the_contract(tmp_path: Path) -> None:
    out = tmp_path / "out"
    typed = ("compare", "digits", "--methods", "history,loss:k=1", *QUICK, "--out", out)
    result = invoke(*typed)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == WRITTEN
    summary, config, hardest = (
        read(out, f"{name}.json") for name in ("summary", "config", "hardest")
    )
    assert list(summary["methods"]) == ["uniform", "history", "loss:k=1"]
    assert (summary["task"], summary["baseline"]) == ("digits", "uniform")
    assert (config["steps"], config["seeds"], config["model"]) == (12, [0, 1], "small")
    assert {"versions", "hardware", "commit", "command"} <= set(config)
    example = hardest["methods"]["history"][0]
    assert len(example["image"]) == 1
    assert len(example["history"]) == len(hardest["steps"]) == 4
    assert example["history"][-1] == pytest.approx(example["loss"], rel=1e-5)
    assert invoke(*typed).exit_code == 2
    rows = (out / "runs.jsonl").read_text()
    resumed = invoke(*typed, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert (out / "runs.jsonl").read_text() == rows
    (out / "report.html").unlink()
    again = invoke("report", out)
    assert again.exit_code == 0, again.output
    assert (out / "report.html").exists()


def test_compare_within_budgets(tmp_path: Path) -> None:
    out = tmp_path / "out"
    typed = ("compare", "digits", "--methods", "infobatch,random-subset", *QUICK, "--out", out)
    result = invoke(*typed, "--budgets", "0.5,1", "--jobs", 2)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == sorted([*WRITTEN, "budgets.png"])
    rows = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    assert len(rows) == 3 * 2 * 2 * 4
    assert {(row["budget"], row["step"]) for row in rows if row["step"]} >= {(0.5, 6), (1.0, 12)}
    told = " ".join(result.output.split())
    assert "Over all budgets, " in told or "Within the budgets, " in told
    written = read(out, "summary.json")
    assert written["budgets"]["shares"] == [0.5, 1.0]
    assert [*written["budgets"]["same_error"]] == ["uniform", "infobatch", "random-subset"]
    refused = invoke(*typed, "--budgets", "0.25,1", "--resume")
    assert refused.exit_code == 2
    assert "begun with budgets [0.5, 1.0]" in refused.stderr


SIZES = "model must be one of tiny, small, paper, perceptron, strided; got 'huge'"
REFUSED = [
    (("nothing",), "task must be one of digits, mnist, cifar10, ptb"),
    (("digits", "--methods", "magic"), "method must be one of"),
    (("digits", "--steps", 0), "steps must be greater than 0; got 0"),
    (("digits", "--seconds", -1), "seconds must be greater than 0; got -1"),
    (("digits", "--steps", 5, "--seconds", 5), "give one of them"),
    (("digits", "--seeds", 0), "seeds must be between 1 and 100; got 0"),
    (("digits", "--jobs", 0), "jobs must be at least 1; got 0"),
    (("digits", "--evaluations", 0), "evaluations must be greater than 0"),
    (("digits", "--schedule", "odd"), "schedule must be one of"),
    (("digits", "--budgets", "half"), "budgets must be shares above 0 and at most 1, such as"),
    (
        ("digits", "--model", "huge"),
        "model must be one of tiny, small, paper, perceptron, strided; got 'huge'",
    ),
    (("missing.py:make_task",), "there is no file missing.py"),
    (("mnist", "--data-dir", "nowhere"), "salience data fetch mnist"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_compare_refuses(arguments: Any, message: str, tmp_path: Path) -> None:
    result = invoke("compare", *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


PAGE = Path(__file__).parents[2] / "docs" / "compare.md"


def own_task() -> str:
    """The example of the documentation, and a function that returns something else."""
    block = re.search(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    assert block is not None
    return block[1] + "\n\ndef not_a_task():\n    return 3\n"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_task_of_the_users_own(tmp_path: Path, jobs: int) -> None:
    file = tmp_path / "mine.py"
    file.write_text(own_task())
    spec, out = f"{file}:make_task", tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "salience", "compare", spec, "--methods", "auto"),
            *(*map(str, QUICK), "--jobs", str(jobs), "--out", str(out)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert read(out, "summary.json")["task"] == "mine"
    for name, message in (("nothing", "has no function"), ("not_a_task", "returned int")):
        with pytest.raises(ArgumentError, match=message):
            resolve(f"{file}:{name}", "small", None, None)


# ------------------------------------------------------------------------------ other commands


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "target must be one of fig1a, fig1b"),
        (("fig1a", "--scale", 0), "scale must be above 0 and at most 1; got 0"),
        (
            ("fig1a", "--model", "huge"),
            "model must be one of tiny, small, paper, perceptron, strided; got 'huge'",
        ),
        (("fig1a", "--seeds", 0), "seeds must be at least 1; got 0"),
        (("fig1a", "--data-dir", "nowhere"), "salience data fetch mnist"),
    ],
)
def test_reproduce_refuses(arguments: Any, message: str, tmp_path: Path) -> None:
    result = invoke("reproduce", *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_report_refuses_a_directory_without_rows(tmp_path: Path) -> None:
    result = invoke("report", tmp_path)
    assert result.exit_code == 2
    assert "config.json is missing" in " ".join(result.stderr.split())


def run_main(capsys: Any, *arguments: Any) -> Any:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    return ended.value.code, capsys.readouterr()


@pytest.mark.parametrize(
    "arguments", [["demo", "--seeds", "many"], ["demo", "--sed", "1"], ["dmo"]]
)
def test_misspelt_commands_get_one_sentence(capsys: Any, arguments: Any) -> None:
    code, captured = run_main(capsys, *arguments)
    assert code == 2
    assert len(captured.err.splitlines()) == 1
    assert "salience --help" in captured.err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["demo", "--help"]])
def test_help_has_examples(capsys: Any, arguments: Any) -> None:
    code, captured = run_main(capsys, *arguments)
    assert code == 0
    assert "Examples:" in captured.out
    assert (
        "salience demo --seeds" if arguments[:1] == ["demo"] else "salience demo"
    ) in captured.out


def test_version(capsys: Any) -> None:
    code, captured = run_main(capsys, "--version")
    assert (code, captured.out) == (0, f"salience {salience.__version__}\n")


def test_without_the_extra_there_is_one_sentence(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(main, "find_spec", lambda name: None if name == "matplotlib" else name)
    code, captured = run_main(capsys, "demo")
    assert code == 2
    sentence = "salience: the command line needs matplotlib: pip install 'salience[cli]'\n"
    assert captured.err == sentence


def test_python_m_salience_works_in_a_log_without_unicode(tmp_path: Any) -> None:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-W", "error", "-m", "salience", "demo", "--steps=2", "--seeds=1"]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stderr) == (0, "")
    written = {path.name for path in (tmp_path / "salience-demo").iterdir()}
    assert sorted(written) == sorted([*WRITTEN, "auto.png"])
    assert "Train loss at the end" in result.stdout
    assert "\x1b" not in result.stdout


# --------------------------------------------------------------------------------------- progress


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_takes_every_row(terminal: bool) -> None:
    console = Console(file=(to := io.StringIO()), force_terminal=terminal, width=100)
    evaluations = sum(row["method"] == "uniform" for row in WINS) - 1
    rows = iter(WINS)
    watch(rows, {"uniform": 1, "history": 1}, evaluations, console)
    assert not list(rows)
    text = to.getvalue()
    assert ("\x1b" in text) == terminal
    assert "0.125" in text


def test_a_log_gets_few_lines() -> None:
    rows = run("uniform", [1.0] * 200, every=1)
    console = Console(file=(to := io.StringIO()), force_terminal=False, width=100)
    watch(rows, {"uniform": 1}, 199, console)
    assert len(to.getvalue().splitlines()) == LINES
