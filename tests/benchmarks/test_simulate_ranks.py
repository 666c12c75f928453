"""The simulation of many ranks: its models against small cases that can be worked out."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import simulate_ranks as simulate
import torch

from salience import Draw


def test_bytes_and_seconds_of_a_gather():
    assert simulate.message(8192, 64) == 12 + 4 * 128
    assert simulate.message(10, 4) == 12 + 4 * 3
    assert simulate.ring(4, 100, 1.0, 50.0) == 3 * (1 + 2)
    assert simulate.doubling(4, 100, 1.0, 50.0) == 2 + 6
    assert simulate.doubling(5, 100, 1.0, 50.0) == 3 + 8


def test_latency_and_bandwidth_are_found_again():
    sizes = [32, 4096, 262144]
    seconds = [simulate.ring(3, size, 20e-6, 2e9) for size in sizes]
    assert simulate.fitted(sizes, seconds, 3) == pytest.approx((20e-6, 2e9))


def test_memory_of_machines():
    first = simulate.memory({"history": 20.0}, 10**8)[0]
    assert (first["ranks"], first["rank_gb"], first["machine_gb"]) == (64, 2, 16)
    assert (first["machine_shared_gb"], first["machine_sharded_gb"]) == (2, 0.25)


def test_logical_ranks_step_like_one_process():
    draw = Draw(0, torch.arange(64), torch.rand(64), *2 * [torch.ones(64).double()], 64)
    steps = []
    for world in (1, 4):
        toy = simulate.Toy(64, seed=0)
        toy.step(draw, world, rate=1.0)
        steps.append(toy.w)
    torch.testing.assert_close(*steps)


def test_the_variance_of_uniform_draws_is_that_of_uniform_draws():
    toy = simulate.Toy(512, seed=0)
    everything = torch.arange(512)
    p = torch.full((512,), 1 / 512, dtype=torch.float64)
    assert toy.variance(Draw(0, everything, p.float(), p, p, 512)) == pytest.approx(1)


def test_shards_inflate_the_variance_by_the_spread_of_their_masses():
    q = np.array([1.0, 1.0, 3.0, 3.0])
    assert simulate.inflation(q, 2) == pytest.approx(1.25)
    rng = np.random.default_rng(0)
    assert simulate.drawn_inflation(q, q, 2, rng) == pytest.approx(1.25)
    assert simulate.inflation(q[[0, 2, 1, 3]], 2) == 1


def test_random_shards_are_best():
    found = {(row["ranks"], row["shards"]): row["formula"][0] for row in simulate.shards(20480, 2)}
    for world in simulate.RANKS:
        random, classes, ordered = (
            found[world, order] for order in ("random", "by class", "sorted by q")
        )
        assert 1 <= random < classes < ordered


def test_a_short_simulation_from_beginning_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "simulation.json"
    monkeypatch.setattr(simulate, "RANKS", (2, 4))
    short = ["--parts", "communication,memory,staleness,shards", "--examples", "4096"]
    short += ["--toy", "2048", "--steps", "20", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["simulate_ranks", *short, "--out", str(out)])
    simulate.main()
    results = json.loads(out.read_text())
    assert results["simulation"] is True
    assert [row["ahead"] for row in results["staleness"]] == [*simulate.LOOK_AHEAD] * 2
    assert "Simulated" in capsys.readouterr().out


def test_gloo_is_measured_beside_the_model():
    rows = simulate.gloo([2], [32, 4096], repeats=3)
    assert [row["message_bytes"] for row in rows] == [32, 4096]
    assert all(row["measured_ms"] > 0 and row["model_ms"] > 0 for row in rows)
