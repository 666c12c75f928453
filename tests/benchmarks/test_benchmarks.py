"""The benchmarks: their arithmetic, and a short run of each as users start it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

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
    out = tmp_path / "costs.json"
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


# Payoff.


def test_medians_count_a_seed_that_never_arrives_as_infinite():
    middle = load("payoff").middle
    assert middle([0.5, None, 0.4]) == "0.50 (0.40, 0.50, never)"
    assert middle([None, 0.4, None]) == "never (0.40, never, never)"


def test_equal_time_never_looks_beyond_the_time():
    at_equal_time = load("payoff").at_equal_time
    rows = [{"seconds": 0.0}, {"seconds": 1.0}, {"seconds": 2.1}]
    assert at_equal_time(rows, 2.0) == {"seconds": 1.0}
    assert at_equal_time(rows, 2.1) == {"seconds": 2.1}


def test_a_short_payoff_from_beginning_to_end(tmp_path: Path):
    short = ("--cases", "digits", "--schedules", "constant", "--steps", 20, "--seeds", 1)
    done = run("payoff", *short, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "table.json").read_text())
    ((name, found),) = results.items()
    assert name == "digits, constant"
    # The first 20 steps of auto are ordinary shuffling: bitwise identical to uniform.
    assert found["steps_to_target"] == [1.0]
    assert found["time_to_target"] == pytest.approx([found["step_cost"]], rel=0.5)
    assert (tmp_path / "table.md").read_text().strip() in done.stdout
    again = run("payoff", "--cases", "digits", "--table", "--out", tmp_path)
    assert json.loads((tmp_path / "table.json").read_text()) == results, again.stderr
