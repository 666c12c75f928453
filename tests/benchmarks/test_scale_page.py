"""The tables of docs/distributed-costs.md are those of the recorded rows."""

import json
from pathlib import Path

import pytest
import scale_report
import simulate_ranks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "distributed-costs.md").read_text("utf-8")
ROWS = ROOT / "results" / "scale" / "rows.jsonl.gz"
SIMULATION = ROOT / "results" / "scale" / "simulation.json"


@pytest.mark.skipif(not ROWS.exists(), reason="nothing recorded yet")
def test_measured_tables_are_those_of_the_rows():
    for name, table in scale_report.tables(scale_report.read_rows(ROWS)).items():
        assert f"<!-- {name} -->\n\n{table}\n\n<!-- /{name} -->" in PAGE


@pytest.mark.skipif(not SIMULATION.exists(), reason="nothing recorded yet")
def test_simulated_tables_are_those_of_the_results():
    for name, table in simulate_ranks.tables(json.loads(SIMULATION.read_text("utf-8"))).items():
        assert f"<!-- {name} -->\n\n{table}\n\n<!-- /{name} -->" in PAGE


def test_nothing_is_left_to_fill_in_once_results_are_recorded():
    if ROWS.exists() and SIMULATION.exists():
        assert "TODO-FINAL" not in PAGE
