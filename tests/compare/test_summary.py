"""The arithmetic of comparisons, on made-up numbers."""

import math

import pytest

from compare.made_up import EVEN, FALLING, LOSES, NEVER, WINS, run
from salience.compare.summary import Curve, by_seed, curve, summarize, to_target


@pytest.mark.parametrize(
    ("rows", "steps", "time", "cost"),
    [(WINS, 0.5, 0.6, 1.2), (LOSES, 0.5, 1.5, 3.0), (EVEN, 1, 1, 1), (NEVER, None, None, 1)],
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
    rows = run("uniform", [2.0, 0.5, 0.1, 0.3, 0.2]) + run("history", [2.0, 0.2, 0.2, 0.2, 0.2])
    assert summarize(rows)["methods"]["history"]["steps_to_target_ratio"] == 0.5


@pytest.mark.parametrize("losses", [[1.5, 1.2, 0.9], [2.5, 2.4, 2.3]])
def test_a_baseline_that_ends_above_where_it_began_has_no_time_to_compare_with(losses):
    rows = run("uniform", [1.0, 1.5, 2.0]) + run("history", losses)
    summary = summarize(rows)
    for method in summary["methods"].values():
        assert method["time_to_target_ratio"] is None
        assert method["steps_to_target_ratio"] is None


def test_seeds_are_averaged_before_the_target_is_looked_for():
    rows = [
        *run("uniform", [2.0, 1.0, 0.4], seed=0),
        *run("uniform", [2.0, 1.0, 0.6], seed=1),
        *run("history", [2.0, 0.4, 0.1], seed=0),
        *run("history", [2.0, 0.9, 0.8], seed=1),
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
        *run("uniform", FALLING, cost=busy),
        *run("history", [2.0, 0.5, 0.1, 0.1, 0.1], cost=lambda step: 1.2 * busy(step)),
    ]
    assert summarize(rows)["methods"]["history"]["time_to_target_ratio"] == pytest.approx(0.6)


def test_the_summary_does_not_depend_on_the_order_of_rows():
    expected = summarize(WINS)
    assert summarize(WINS[::-1]) == expected


def test_runs_of_equal_time_are_matched_by_their_evaluations():
    rows = run("uniform", FALLING, seed=0, every=10) + run("uniform", FALLING, seed=1, every=12)
    found = curve(by_seed(rows, "uniform"))
    assert found.steps == [0, 11, 22, 33, 44]
    assert found.mean == FALLING


def test_a_curve_has_mean_and_range_and_is_nan_where_a_seed_is():
    rows = run("uniform", [2.0, 1.0, math.nan], seed=0) + run("uniform", [2.0, 0.5, 0.1], seed=1)
    found = curve(by_seed(rows, "uniform"))
    assert (found.mean[:2], found.low[:2], found.high[:2]) == ([2, 0.75], [2, 0.5], [2, 1])
    assert all(map(math.isnan, (found.mean[2], found.low[2], found.high[2])))
    assert all(map(math.isnan, curve(by_seed(rows, "uniform"), "test_perplexity").mean))


def test_a_whole_run_is_a_lower_bound_where_the_target_is_not_reached():
    def made(steps, seconds, mean):
        return Curve(steps, seconds, mean, mean, mean)

    base = made([0, 10, 20], [0, 1, 2], [3.0, 2.0, 1.0])
    own = made([0, 10, 20], [0, 4, 8], [3.0, 2.5, 2.0])
    assert to_target(own, base, 1.0) == (None, None)
    assert to_target(own, base, 1.0, whole=True) == (1.0, 4.0)
    beside = made([0, 10, 20], [0, 2, 4], [3.0, 2.0, 1.0])
    assert to_target(own, base, 1.0, beside=beside, whole=True) == (1.0, 2.0)
    assert to_target(own, base, 2.0, beside=beside) == (2.0, 4.0)
