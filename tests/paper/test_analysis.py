"""From runs to claims and charts."""

import math

import pytest
from small_runs import row, trace

from salience.paper.analysis import Material
from salience.paper.figures import gnorm_vs_loss, largest_loss, speed, tracking
from salience.paper.measures import Trace


def maxima(values: list[float], seed: int) -> Trace:
    rows = enumerate(values)
    return trace([row(i, 1.0, seed=seed, train_max_loss=value) for i, value in rows])


def test_smaller_k_lowers_the_maximum() -> None:
    def seeds(end: list[float]) -> list[Trace]:
        return [maxima([9.0] * 5 + [value + s / 100 for value in end], s) for s in range(3)]

    levels = {"uniform": 4.0, "k=1": 4.1, "k=0.5": 3.0, "k=0": 2.0}
    runs = {label: seeds([level] * 5) for label, level in levels.items()}
    runs["k=0.75"] = seeds([7.4, 7.4, 7.4, 7.4, 0.4])  # one lucky moment does not count
    found = largest_loss(Material({"mnist": runs}, {"mnist": "stated"}))
    outcome = {claim.name: claim.verdict for claim in found.claims}
    assert outcome == {
        "k=0 lowers the maximum": "holds",
        "k=0.5 lowers the maximum": "holds",
        "k=0.75 lowers the maximum": "does not hold",
        "k=1 is like uniform": "holds",
    }
    lines = {line.label: line for line in found.charts[0].panels[0].lines}
    assert lines["k=0"].y[-1] == pytest.approx((2.0 + 2.01 + 2.02) / 3)
    assert lines["k=0"].y[4] == pytest.approx((9 * 3 + 2.01 * 2) / 5)


def test_tasks_with_the_same_settings_are_named_together() -> None:
    same = Material({}, {"mnist": "6 steps", "cifar10": "9 steps", "ptb": "6 steps"})
    assert same.stated == "MNIST, Penn Treebank: 6 steps; CIFAR-10: 9 steps"


def test_tracking_rises_or_does_not() -> None:
    def seeds(curve: list[float]) -> list[Trace]:
        made = []
        for seed in range(3):
            rows = [row(i, 1.0, seed=seed) for i in range(len(curve) + 1)]
            seen = [{"tracking": math.nan}, *({"tracking": a + seed / 1000} for a in curve)]
            made.append(Trace(rows, seen))
        return made

    rising, falling = [0.1, 0.2, 0.3, 0.5, 0.6, 0.7], [0.6, 0.5, 0.1, 0.0, -0.1, -0.2]
    runs = {
        "cifar10": {"loss": seeds(falling), "approx": seeds(rising)},
        "ptb": {"loss": seeds(rising), "approx": seeds(falling)},
    }
    found = tracking(Material(runs, {"cifar10": "a", "ptb": "b"}))
    assert {claim.name: claim.verdict for claim in found.claims} == {
        "cifar10, loss: positive": "does not hold",
        "cifar10, approx: positive": "holds",
        "cifar10, approx: rising": "holds",
        "ptb, loss: positive": "holds",
        "ptb, approx: positive": "does not hold",
        "ptb, approx: rising": "does not hold",
    }
    rise = next(c for c in found.claims if c.name == "cifar10, approx: rising")
    assert rise.numbers["mean"] == pytest.approx(0.65 - 0.15)  # last two less first two
    assert found.charts[0].panels[0].lines[0].x == [1, 2, 3, 4, 5, 6]  # nothing known at 0


def test_speed_is_judged_in_steps_and_before_the_drop_in_time() -> None:
    """Ten evaluations of ten steps. Uniform ends at 0.1 and is at 0.4 before the rate falls."""

    def seeds(losses: list[float], pace: float, error: float) -> list[Trace]:
        return [
            trace(
                [
                    row(10 * i, loss, 10 * i * pace, s, test_error=error + s / 1000)
                    for i, loss in enumerate(losses)
                ]
            )
            for s in range(3)
        ]

    slow = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4, 0.3, 0.2, 0.1]
    quick = [1.0, 0.7, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    runs = {
        "uniform": seeds(slow, 1.0, 0.2),
        "loss": seeds(quick, 2.0, 0.1),
        "approx": seeds(slow, 2.0, 0.4),
        "online-selection": seeds(slow, 1.0, 0.2),
    }
    found = speed(Material({"cifar10": runs}, {"cifar10": "stated"}))
    claims = {claim.name: claim for claim in found.claims}
    assert {name: claim.verdict for name, claim in claims.items()} == {
        "loss: fewer steps": "holds",
        "loss: less time": "holds",
        "loss: less time at the paper's costs": "holds",
        "loss: test": "holds",
        "approx: fewer steps": "tie",
        "approx: less time": "does not hold",
        "approx: less time at the paper's costs": "does not hold",
        "approx: test": "does not hold",
        "online-selection: fewer steps": "tie",
    }
    assert claims["loss: fewer steps"].numbers["values"] == [0.5] * 3
    assert claims["loss: less time"].numbers["values"] == pytest.approx([2 / 7 * 2] * 3)
    costly = claims["loss: less time at the paper's costs"]
    assert costly.numbers["values"] == pytest.approx([2 / 7 * 1.2 / 0.9] * 3)
    assert "1.33 of uniform's (before the learning rate falls)" in costly.statement
    costly = claims["approx: less time at the paper's costs"]
    assert costly.numbers["values"] == pytest.approx([1.2] * 3)
    assert claims["approx: less time"].numbers["whole_run_ratios"] == [2.0] * 3
    by_epochs, by_seconds, by_cost = found.charts[0].panels
    assert {line.label: line.x[-1] for line in by_cost.lines} == pytest.approx(
        {"uniform": 70 / 300, "loss": 70 / 300 * 1.2 / 0.9, "approx": 70 / 300 * 1.2}
    )  # the paper does not tell the cost of online selection
    assert by_epochs.level == pytest.approx(0.1)
    assert by_epochs.lines[0].x[-1] == 100 / 300
    assert [line.x[-1] for line in by_seconds.lines] == [70, 140, 140, 70]


def test_losses_are_sorted_by_norm() -> None:
    seen = [{"norms": [float(-i)] * 2, "losses": [i, i]} for i in range(60)]
    runs = {"mnist": {"uniform": [Trace([row(i, 1.0) for i in range(60)], seen)]}}
    found = gnorm_vs_loss(Material(runs, {"mnist": "stated"}))
    assert found.tables[0].rows == [["mnist", 120, pytest.approx(-1.0)]]
    assert found.claims[0].verdict == "does not hold"
    (panel,) = found.charts[0].panels
    assert panel.title == "MNIST: rank correlation -1.00"
    # Half a window at the ends: 25 samples, from 59 down to 47.
    assert panel.lines[0].y[0] == pytest.approx((2 * sum(range(48, 60)) + 47) / 25)
