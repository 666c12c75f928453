"""``salience demo`` from the command to the files, and the verdict on made-up numbers."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import Dataset, TensorDataset
from typer.testing import CliRunner

import salience
from salience import cli
from salience.cli.progress import LINES, watch
from salience.compare import demo, training
from salience.compare.report import numbers
from salience.compare.report.curves import curves_png
from salience.compare.report.table import summary_table
from salience.compare.report.verdict import verdicts
from salience.compare.summary import summarize
from salience.compare.training import Method, Row, Run, Task, interleave
from salience.errors import ArgumentError

FIELDS = [
    name for name in Row.__annotations__ if name not in ("test_perplexity", "test_error_rare")
]
WRITTEN = ["config.json", "curves.png", "runs.jsonl", "summary.json"]
UNIFORM, HISTORY = demo.METHODS


@pytest.fixture(autouse=True)
def _one_thread():
    with demo.few_threads():
        yield


def curve(method, losses, *, seed=0, step_seconds=0.1, every=10, test_error=0.02):
    """Made-up rows: one evaluation each ``every`` steps, the first before training."""
    seconds = step_seconds if callable(step_seconds) else lambda step: step * step_seconds
    return [
        Row(
            task="made up",
            method=method,
            k=0.5,
            seed=seed,
            step=i * every,
            seconds=seconds(i * every),
            examples=i * every * 64,
            train_loss=loss,
            train_max_loss=10 * loss,
            test_loss=loss,
            test_error=test_error,
        )
        for i, loss in enumerate(losses)
    ]


def text_of(table):
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return console.file.getvalue()


FALLING = [2.0, 1.0, 0.5, 0.25, 0.125]  # the target is 0.125, reached at step 40
WINS = curve("uniform", FALLING) + curve("history", [2.0, 0.5, 0.125, 0.1, 0.1], step_seconds=0.12)
COSTLY = curve("uniform", FALLING) + curve("history", [2.0, 0.5, 0.1, 0.1, 0.1], step_seconds=0.3)
EVEN = curve("uniform", FALLING) + curve("history", FALLING)
NEVER = curve("uniform", FALLING) + curve("history", [2.0, 1.5, 1.0, 0.7, 0.6], test_error=0.04)


@pytest.mark.parametrize(
    ("rows", "steps", "time", "cost"),
    [(WINS, 0.5, 0.6, 1.2), (COSTLY, 0.5, 1.5, 3.0), (EVEN, 1, 1, 1), (NEVER, None, None, 1)],
)
def test_ratios_are_over_the_baseline_and_none_where_the_target_is_not_reached(
    rows, steps, time, cost
):
    summary = summarize(rows)
    found = summary["methods"]["history"]
    assert summary["target_train_loss"] == 0.125
    assert found["steps_to_target_ratio"] == steps
    assert found["time_to_target_ratio"] == (time and pytest.approx(time))
    assert found["step_cost_ratio"] == pytest.approx(cost)
    assert summary["methods"]["uniform"]["time_to_target_ratio"] == 1


def test_the_baseline_too_is_done_when_it_first_meets_its_final_loss():
    rows = curve("uniform", [2.0, 0.5, 0.1, 0.3, 0.2]) + curve("history", [2.0, 0.2, 0.2, 0.2, 0.2])
    assert summarize(rows)["methods"]["history"]["steps_to_target_ratio"] == 0.5


@pytest.mark.parametrize("losses", [[1.5, 1.2, 0.9], [2.5, 2.4, 2.3]])
def test_a_baseline_that_ends_above_where_it_began_has_no_time_to_compare_with(losses):
    rows = curve("uniform", [1.0, 1.5, 2.0]) + curve("history", losses)
    summary = summarize(rows)
    for method in summary["methods"].values():
        assert method["time_to_target_ratio"] is None
        assert method["steps_to_target_ratio"] is None
    (sentence,) = verdicts(summary)
    assert sentence.startswith("There is no time to compare: uniform ended no lower than it began")
    assert f"history ended at {losses[-1]}" in sentence
    assert text_of(summary_table(summary))
    assert curves_png(rows, summary)


def test_seeds_are_averaged_before_the_target_is_looked_for():
    rows = [
        *curve("uniform", [2.0, 1.0, 0.4], seed=0),
        *curve("uniform", [2.0, 1.0, 0.6], seed=1),
        *curve("history", [2.0, 0.4, 0.1], seed=0),
        *curve("history", [2.0, 0.9, 0.8], seed=1),
    ]
    summary = summarize(rows)
    assert summary["target_train_loss"] == pytest.approx(0.5)
    assert summary["methods"]["history"]["steps_to_target_ratio"] == 1
    assert summary["methods"]["history"]["seeds_to_target"] == [0.5, None]
    assert summary["methods"]["uniform"]["seeds_to_target"] == [1, None]
    spread = summary["methods"]["uniform"]["final"]["train_loss"]
    assert spread == {"mean": pytest.approx(0.5), "std": pytest.approx(0.02**0.5), "n": 2}


def test_a_machine_that_slows_down_halfway_favours_nobody():
    def busy(step):
        return 0.1 * step if step <= 20 else 2.0 + 5.0 * (step - 20)

    rows = [
        *curve("uniform", FALLING, step_seconds=busy),
        *curve("history", [2.0, 0.5, 0.1, 0.1, 0.1], step_seconds=lambda step: 1.2 * busy(step)),
    ]
    assert summarize(rows)["methods"]["history"]["time_to_target_ratio"] == pytest.approx(0.6)


def test_the_summary_does_not_depend_on_the_order_of_rows():
    expected = summarize(WINS)
    assert summarize(WINS[::-1]) == expected


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (WINS, ["needed 50% of the steps and 60% of the training time", "1.20 times the cost"]),
        (COSTLY, ["needed 50% of the steps but 150% of the training time", "3.00 times the cost"]),
        (EVEN, ["needed 100% of the steps and 100% of the training time"]),
        (NEVER, ["did not reach", "(0.125)", "in 40 steps", "ended at 0.6", "4.00% against 2.00%"]),
    ],
)
def test_the_sentence_follows_the_numbers(rows, parts):
    (sentence,) = verdicts(summarize(rows))
    for part in [*parts, "mportance sampling (history)", "from one seed"]:
        assert part in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize(("errors", "noise"), [((0.03, 0.01), True), ((0.06, 0.05), False)])
def test_a_difference_in_test_error_is_called_noise_only_where_it_may_be(errors, noise):
    rows = [
        *curve("uniform", FALLING, seed=0, test_error=0.02),
        *curve("uniform", FALLING, seed=1, test_error=0.01),
        *curve("history", FALLING, seed=0, test_error=errors[0]),
        *curve("history", FALLING, seed=1, test_error=errors[1]),
    ]
    (sentence,) = verdicts(summarize(rows))
    assert ("within the noise of 2 seeds" in sentence) == noise


def test_the_table_says_where_the_target_was_not_reached():
    text = text_of(summary_table(summarize(NEVER)))
    assert text.count("not reached") == 2
    assert "0 of 1" in text
    assert "one seed, no spread" in text


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (0.0019103, 0.000303, "0.00191 ± 0.00030"),
        (12.3, 0.0, "12 ± 0"),
        (0.0, 0.0, "0 ± 0"),
        (0.125, None, "0.125"),
        (0.0000123, None, "1.23e-05"),
    ],
)
def test_numbers_show_as_many_digits_as_their_spread_carries(mean, std, text):
    assert numbers.spread({"mean": mean, "std": std, "n": 3}) == text


@pytest.mark.parametrize("rows", [WINS, NEVER, curve("uniform", [1.0, 0.0])])
def test_the_figure_is_a_png_also_with_a_loss_of_zero(rows):
    png = curves_png(rows, summarize(rows))
    assert png.startswith(b"\x89PNG")
    assert len(png) > 10_000


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_passes_every_row_on(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    evaluations = sum(row["method"] == "uniform" for row in WINS) - 1
    shown = list(watch(WINS, {"uniform": 1, "history": 1}, evaluations, console))
    assert shown == WINS
    text = console.file.getvalue()
    assert ("\x1b" in text) == terminal
    assert "0.125" in text


def test_a_log_gets_few_lines():
    rows = curve("uniform", [1.0] * 200, every=1)
    console = Console(file=io.StringIO(), force_terminal=False, width=100)
    list(watch(rows, {"uniform": 1}, 199, console))
    assert len(console.file.getvalue().splitlines()) == LINES


# The training itself.


def test_both_methods_start_from_the_same_weights():
    task = demo.digits_task()
    first, second = Run(task, UNIFORM, seed=3).evaluate(), Run(task, HISTORY, seed=3).evaluate()
    assert first["train_loss"] == second["train_loss"]
    assert first["train_loss"] != Run(task, UNIFORM, seed=4).evaluate()["train_loss"]


def test_a_run_goes_the_same_way_alone_and_interleaved():
    task = demo.digits_task()
    alone = Run(task, HISTORY, seed=1)
    alone.advance(20)
    before = torch.get_rng_state()
    rows = list(interleave([Run(task, UNIFORM, 1), Run(task, HISTORY, 1)], 20, evaluations=2))
    assert torch.equal(torch.get_rng_state(), before)
    (row,) = (row for row in rows if row["method"] == "history" and row["step"] == 20)
    assert {**alone.evaluate(), "seconds": None} == {**row, "seconds": None}


def test_the_order_turns_round_after_each_block():
    runs = [Run(linear_task(Plain(), 4), method, 0) for method in demo.METHODS]
    order = [row["method"][0] for row in interleave(runs, steps=3, evaluations=3)]
    assert "".join(order) == "uh" + "uh" + "hu" + "uh"


def test_torch_gets_its_threads_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with demo.few_threads():
            assert torch.get_num_threads() == demo.THREADS
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_rows_come_evenly_and_count_examples_and_training_time_only():
    task = demo.digits_task()
    rows = list(interleave([Run(task, UNIFORM, 0)], steps=50, evaluations=4))
    assert [row["step"] for row in rows] == [0, 12, 25, 37, 50]
    assert [row["examples"] for row in rows] == [task.batch_size * row["step"] for row in rows]
    assert rows[0]["seconds"] == 0
    assert all(a["seconds"] < b["seconds"] for a, b in pairwise(rows))


class Plain(Dataset):
    """Any dataset, not only tensors."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([float(index)]), index % 2


def linear_task(train, batch_size):
    loss = nn.CrossEntropyLoss(reduction="none")
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.01)  # noqa: E731
    wrong = lambda output, target: output.argmax(1) != target  # noqa: E731
    return Task("lines", train, train, lambda: nn.Linear(1, 2), sgd, loss, wrong, batch_size)


def test_any_dataset_and_model_can_be_a_task():
    run = Run(linear_task(Plain(), 4), Method("mine", k=1.0, options={"score": "history"}), seed=0)
    run.advance(5)
    row = run.evaluate()
    assert (row["task"], row["method"], row["examples"]) == ("lines", "mine", 20)
    assert [*row] == FIELDS


def test_rare_targets_have_an_error_of_their_own():
    task = replace(linear_task(Plain(), 4), rare=lambda y: y == 1)
    run = Run(task, Method("mine", k=1.0, options={"score": "uniform"}), seed=0)
    run.advance(3)
    row = run.evaluate()
    x, y = torch.arange(10.0)[:, None], torch.arange(10) % 2
    with torch.no_grad():
        wrong = (run.model(x).argmax(1) != y).double()
    assert row["test_error"] == pytest.approx(float(wrong.mean()))
    assert row["test_error_rare"] == pytest.approx(float(wrong[1::2].mean()))
    assert row["test_error_rare"] != row["test_error"]


def test_a_batch_larger_than_the_training_set_is_refused():
    data = TensorDataset(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="batch_size 4 is larger"):
        Run(linear_task(data, 4), UNIFORM, seed=0)


# The command.


def invoke(*arguments):
    return CliRunner().invoke(cli.make_app(), [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One tiny demo, over what an earlier one left."""
    out = tmp_path_factory.mktemp("demo") / "deep" / "out"
    out.mkdir(parents=True)
    (out / "runs.jsonl").write_text("left behind\n")
    return invoke("demo", "--steps", 10, "--seeds", 2, "--seed", 5, "--out", out), out


def test_the_demo_ends_well_and_writes_its_files(finished):
    result, out = finished
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == WRITTEN
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    for name in WRITTEN:
        assert str(out / name) in result.output


def test_rows_have_the_fields_of_the_contract(finished):
    rows = [json.loads(line) for line in (finished[1] / "runs.jsonl").read_text().splitlines()]
    assert all([*row] == FIELDS for row in rows)
    runs = {(row["method"], row["seed"]) for row in rows}
    assert runs == {(method, seed) for method in ("uniform", "history") for seed in (5, 6)}
    assert len(rows) == 4 * 11
    assert {row["task"] for row in rows} == {"digits"}


def test_the_summary_follows_from_the_rows(finished):
    _, out = finished
    rows = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    written = json.loads((out / "summary.json").read_text())
    assert written == summarize(rows)
    assert (written["task"], written["baseline"]) == ("digits", "uniform")
    wanted = {"step_cost_ratio", "time_to_target_ratio", "steps_to_target_ratio", "final", "n"}
    for method in written["methods"].values():
        assert wanted <= {*method}
        assert method["n"] == 2


def test_the_output_has_table_and_sentence_from_the_summary_and_no_control_codes(finished):
    result, out = finished
    summary = json.loads((out / "summary.json").read_text())
    flat = " ".join(result.output.split())
    assert verdicts(summary)[0] in flat
    assert numbers.spread(summary["methods"]["history"]["final"]["train_loss"]) in flat
    assert "\x1b" not in result.output


def test_the_config_names_versions_hardware_and_seed_and_nobody(finished):
    text = (finished[1] / "config.json").read_text()
    config = json.loads(text)
    assert (config["seed"], config["seeds"], config["steps"]) == (5, [5, 6], 10)
    assert config["versions"]["torch"] == torch.__version__
    assert config["versions"]["salience"] == salience.__version__
    assert {*config["hardware"]} == {"cpu", "cores", "threads", "platform"}
    assert str(finished[1]) not in text
    assert str(Path.home()) not in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seeds", "0"], "seeds must be between 1 and 100; got 0: try --seeds 3"),
        (["--steps", "0"], "steps must be at least 1; got 0: try --steps"),
        (["--steps", "-5"], "got -5"),
        (["--seed", "-1"], "seed must be between 0 and"),
        (["--out", "{tmp}/file"], "it is a file"),
        (["--out", "{tmp}/file/below"], "cannot write to"),
    ],
)
def test_bad_values_are_refused_before_training(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training.Run, "advance", lambda *_: pytest.fail("training has begun"))
    (tmp_path / "file").touch()
    result = invoke("demo", *(part.format(tmp=tmp_path) for part in arguments))
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("salience: ")
    assert len(result.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def run_main(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    return ended.value.code, capsys.readouterr()


@pytest.mark.parametrize(
    "arguments", [["demo", "--seeds", "many"], ["demo", "--sed", "1"], ["dmo"]]
)
def test_misspelt_commands_get_one_sentence(capsys, arguments):
    code, captured = run_main(capsys, *arguments)
    assert code == 2
    assert len(captured.err.splitlines()) == 1
    assert "salience --help" in captured.err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["demo", "--help"]])
def test_help_has_examples(capsys, arguments):
    code, captured = run_main(capsys, *arguments)
    assert code == 0
    assert "Examples:" in captured.out
    assert (
        "salience demo --seeds" if arguments[:1] == ["demo"] else "salience demo"
    ) in captured.out


def test_version(capsys):
    code, captured = run_main(capsys, "--version")
    assert (code, captured.out) == (0, f"salience {salience.__version__}\n")


def test_without_the_extra_there_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "matplotlib" else name)
    code, captured = run_main(capsys, "demo")
    assert code == 2
    assert captured.err == ("salience: the command line needs matplotlib: install salience[cli]\n")


def test_python_m_salience_works_in_a_log_without_unicode(tmp_path):
    source = str(Path(salience.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-W", "error", "-m", "salience", "demo", "--steps=2", "--seeds=1"]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "salience-demo").iterdir()) == WRITTEN
    assert "final train loss" in result.stdout
    assert "\x1b" not in result.stdout
