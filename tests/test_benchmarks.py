"""The benchmark of ``auto``: its arithmetic, and one run as users start it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("target", BENCHMARKS / "time_to_target.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_medians_count_a_seed_that_never_arrives_as_infinite(benchmark):
    assert benchmark.middle([0.5, None, 0.4]) == "0.50 (0.40, 0.50, never)"
    assert benchmark.middle([None, 0.4, None]) == "never (0.40, never, never)"


def test_equal_time_never_looks_beyond_the_time(benchmark):
    run = [{"seconds": 0.0}, {"seconds": 1.0}, {"seconds": 2.1}]
    assert benchmark.at_equal_time(run, 2.0) == {"seconds": 1.0}
    assert benchmark.at_equal_time(run, 2.1) == {"seconds": 2.1}


def test_unknown_cases_are_refused(tmp_path: Path):
    done = run("--cases", "digits,minst", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "got minst" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_short_benchmark_from_beginning_to_end(tmp_path: Path):
    done = run("--cases", "digits", "--steps", "20", "--seeds", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "table.json").read_text())
    assert list(results) == ["digits, constant", "digits, cosine"]
    found = results["digits, constant"]
    # One pass is not over yet, so auto is still ordinary shuffling: the same steps to the bit.
    assert found["steps_to_target"] == [1.0]
    assert found["time_to_target"] == pytest.approx([found["step_cost"]], rel=0.5)
    assert (tmp_path / "table.md").read_text().strip() in done.stdout
    again = run("--cases", "digits", "--table", "--out", str(tmp_path))
    assert json.loads((tmp_path / "table.json").read_text()) == results, again.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "time_to_target.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
