"""The benchmarks: their arithmetic, and a short run of each as users start it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from small_data import stand_in
from torch import nn

from salience.scores import GradientNorm, Loss

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("name", ["costs", "payoff"])
def test_unknown_cases_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", [name, "--cases", "digits,minst"])
    with pytest.raises(SystemExit, match="2"):
        load(name).main()
    assert "minst" in capsys.readouterr().err


# Costs.


def test_ratios_are_of_the_same_round(capsys: pytest.CaptureFixture[str]):
    costs = load("costs")
    plain = [[costs.Seconds(t, 1.0)] for t in (1.0, 2.0, 4.0)]
    own = [[costs.Seconds(2 * t, 3.0)] for t in (1.0, 2.0, 4.0)]  # twice as long each time
    found = costs.step_report("case", {"plain": plain, "own": own})
    assert found["plain_ms"] == 2000
    assert found["methods"]["own"] == {
        "ratio": 2.0,
        "quartiles": [2.0, 2.0],
        "processor_ratio": 3.0,
        "longest_ms": 3000,
        "rounds": 3,
    }
    assert "own                    2.000" in capsys.readouterr().out


def test_costs_of_auto_while_on(tmp_path: Path):
    """The benchmark itself asserts that ``auto`` is on when it is measured."""
    out = tmp_path / "runs" / "costs.json"  # a folder that is not there yet
    short = ("--cases", "demo", "--rounds", 2, "--sizes", 2000, "--draws", 20)
    done = run("costs", "--methods", "auto:on", *short, "--out", out)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert set(results["demo"]["methods"]) == {"plain", "auto:on"}
    assert results["demo"]["methods"]["plain"]["ratio"] == 1
    draws = results["draws"]["auto:on, 2000"]
    assert draws["steps"] == 20
    assert 0 < draws["bytes_per_example"] <= draws["peak_bytes_per_example"]
    assert draws["longest_ms"] > 0


@pytest.mark.parametrize(
    ("name", "score"), [("gnorm:one-by-one", GradientNorm), ("loss:at-once", Loss)]
)
def test_scores_of_the_benchmark_are_those_of_the_library(name, score):
    costs = load("costs")
    torch.manual_seed(0)
    needed = {"model": nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))}
    needed["loss"] = nn.CrossEntropyLoss(reduction="none")
    batch = [torch.randn(5, 3, 4), torch.tensor([0, 2, 1, 1, 0])]
    found = costs.OWN_SCORES[name](**needed).score(torch.arange(5), batch)
    torch.testing.assert_close(found, score(**needed).score(torch.arange(5), batch))
    assert all(weight.grad is None for weight in needed["model"].parameters())


# Payoff.


def test_cells_are_those_of_the_summary():
    def found(mean: float, same: bool = False) -> dict[str, object]:
        return {"mean": mean, "low": mean - 0.001, "high": mean + 0.001, "n": 3, "same": same}

    final = {"test_error": {"mean": 0.05, "std": 0.002, "n": 3}}
    told = {"end": found(-0.01), "best": found(0.002), "worst": found(0.0, same=True)}
    lower = {"test_error": {**final["test_error"], "mean": 0.04}}
    ours = {"final": lower, "differences": told, "steps_to_target_ratio": None, "n": 3}
    cells = load("payoff").cells({"methods": {"uniform": {"final": final, "n": 3}, "auto": ours}})
    assert cells == [
        *("3", "5.00 (0.20) %", "4.00 %", "-1.00 (-1.10 to -0.90)"),
        *("+0.20 (+0.10 to +0.30)", "none", "never"),
    ]


def test_shorter_budgets_are_trainings_of_their_own_or_the_beginning_of_one():
    def row(method: str, seed: int, step: int, error: float, **more: float) -> dict[str, object]:
        return {"method": method, "seed": seed, "step": step, "test_error": error, **more}

    errors = {"uniform": [0.5, 0.4, 0.3, 0.2], "auto": [0.3, 0.3, 0.3, 0.3]}
    prefixes = [
        row(method, seed, 10 * i, error + seed / 10 * (method == "auto"))
        for method, values in errors.items()
        for seed in (0, 1)
        for i, error in enumerate([0.9, *values])
    ]
    half = 12.706 * 100 * 0.1 / 2  # t s / sqrt(2) of two values that differ by 0.1
    expected = [
        f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})" for mean in (-15, -5, 5, 15)
    ]
    payoff = load("payoff")
    assert payoff.shorter(prefixes) == {"auto": expected}
    whole = [
        row(str(r["method"]), int(str(r["seed"])), step, error, budget=0.25 * i)
        for r in prefixes
        if (i := int(str(r["step"])) // 10)
        for step, error in ((0, 0.9), (i, float(str(r["test_error"]))))
    ]
    assert payoff.shorter(whole) == {"auto": expected}
    same = [{**r, "method": "auto"} for r in prefixes if r["method"] == "uniform"]
    assert payoff.shorter([*(r for r in prefixes if r["method"] == "uniform"), *same]) == {
        "auto": ["none"] * 4
    }


def test_a_short_payoff_from_beginning_to_end(tmp_path: Path):
    short = ("--cases", "digits", "--steps", 20, "--seeds", 1)
    done = run("payoff", *short, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "table.md").read_text()
    assert made.strip() in done.stdout
    # The first 20 steps of auto are ordinary shuffling: bitwise identical to uniform.
    assert [cell.strip() for cell in made.splitlines()[2].split("|")][5:7] == ["none", "none"]
    again = run("payoff", "--cases", "digits", "--table", "--out", tmp_path)
    assert (tmp_path / "table.md").read_text() == made, again.stderr


# Variance.


def test_the_table_of_variances_has_the_last_step_of_each_case():
    variance = load("variance")
    parts = ("loss", "loss_pool", "gnorm", "gnorm_pool")
    rows = [
        {"case": case, "seed": seed, "step": step, "train_loss": 0.5 / step, "loss_gain": 2.0}
        | dict.fromkeys(parts, 0.25 * step + seed / 10)
        for case in ("mnist:tiny", "ptb:tiny")
        for seed in range(1 + (case == "mnist:tiny"))
        for step in (1, 2)
    ]
    found = variance.table(rows).splitlines()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found]
    assert lines[0] == list(variance.HEAD)
    assert lines[2] == ["mnist, tiny", "2", "0.25 (0)", "2 (0)", *["0.55 (0.071)"] * 4]
    assert lines[3] == ["ptb, tiny", "1", "0.25", "2", *["0.5"] * 4]


def test_variances_while_a_network_learns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    """As users start it, on images that stand in for the paper's; a finished case is kept."""
    variance, rows = load("variance"), tmp_path / "rows.jsonl"
    monkeypatch.setattr(variance, "make_task", stand_in)
    short = ["--cases", "mnist:tiny", "--steps", "6", "--points", "2", "--seeds", "1"]
    monkeypatch.setattr(sys, "argv", ["variance", *short, "--rows", str(rows)])
    assert variance.main() == 0
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["step"] for row in found] == [3, 6]
    for row in found:
        assert 0 < row["gnorm"] <= row["loss"]
        assert row["gnorm"] < row["gnorm_pool"]
        assert row["versions"]["torch"]
    assert variance.table(found) in capsys.readouterr().out
    before = rows.read_text()
    assert variance.main() == 0
    assert rows.read_text() == before
