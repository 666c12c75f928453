"""Error against budget, and the same error in less time: made-up rows whose truth is known."""

import math

import numpy as np
import pytest

from compare.made_up import run
from salience.compare.budgets import (
    budgets_of,
    reached_at,
    same_error,
    summarize_all,
    sweep,
)
from salience.compare.plan import budgets_from
from salience.compare.summary import summarize
from salience.errors import ArgumentError

SHARES = (0.25, 0.5, 0.75, 1.0)
UNIFORM = {0.25: 0.40, 0.5: 0.30, 0.75: 0.25, 1.0: 0.20}


def swept(method, errors, *, seed=0, cost=0.1, better=0.0):
    """A run of four steps at each budget that ends at its error; ``cost`` is that of a step."""
    rows = []
    for share, error in errors.items():
        for row in run(method, [2.0, 1.0, 0.5], seed=seed, cost=cost, every=round(40 * share)):
            end = error if row["step"] == 2 * round(40 * share) else error + 0.1
            rows.append({**row, "budget": share, "test_error": end - better})
    return rows


def share_of(method_errors, cost=0.1, seeds=(0,)):
    rows = [row for seed in seeds for row in swept("uniform", UNIFORM, seed=seed)]
    rows += [row for seed in seeds for row in swept("auto", method_errors, seed=seed, cost=cost)]
    return sweep(rows)["same_error"]["auto"]


def test_a_better_method_reaches_the_error_between_budgets():
    found = share_of({0.25: 0.30, 0.5: 0.10, 0.75: 0.1, 1.0: 0.1})
    # From 0.3 to 0.1 the target 0.2 is half-way, in log time between a quarter and a half.
    assert found["share"] == pytest.approx(math.sqrt(0.25 * 0.5))
    assert (found["at_most"], found["n"]) == (False, 1)
    assert (found["low"], found["high"], found["reached"]) == (None, None, None)  # one seed


def test_a_worse_method_never_reaches_it():
    found = share_of({0.25: 0.5, 0.5: 0.4, 0.75: 0.35, 1.0: 0.21})
    assert found["share"] is None
    several = share_of({0.25: 0.5, 0.5: 0.4, 0.75: 0.35, 1.0: 0.21}, seeds=(0, 1, 2))
    assert (several["share"], several["low"], several["high"]) == (None, None, None)
    assert several["reached"] == 0


def test_an_equal_method_needs_all_of_the_time():
    found = share_of(UNIFORM, seeds=(0, 1, 2))
    assert found["share"] == pytest.approx(1)
    assert (found["low"], found["high"]) == (pytest.approx(1), pytest.approx(1))
    assert found["reached"] == 1
    rows = swept("uniform", UNIFORM)
    assert sweep(rows)["same_error"]["uniform"]["share"] == pytest.approx(1)


def test_nothing_is_extrapolated_below_the_smallest_budget():
    found = share_of({0.25: 0.1, 0.5: 0.1, 0.75: 0.1, 1.0: 0.1})
    assert found["share"] == pytest.approx(0.25)
    assert found["at_most"]


def test_a_method_of_costlier_steps_takes_more_time_for_the_same_budget():
    found = share_of({0.25: 0.30, 0.5: 0.10, 0.75: 0.1, 1.0: 0.1}, cost=0.13)
    assert found["share"] == pytest.approx(1.3 * math.sqrt(0.25 * 0.5))
    assert share_of(UNIFORM, cost=0.13)["share"] == pytest.approx(1.3)


def test_the_first_crossing_counts_and_time_is_logarithmic():
    times = np.array([0.25, 0.5, 1.0])
    assert reached_at(times, np.array([0.4, 0.2, 0.3]), 0.2) == pytest.approx(0.5)
    assert reached_at(times, np.array([0.4, 0.3, 0.2]), 0.25) == pytest.approx(math.sqrt(0.5))
    assert reached_at(times, np.array([0.4, 0.3, 0.2]), 0.1) is None


@pytest.mark.parametrize("diverged", [math.inf, math.nan])
def test_after_a_training_that_diverged_the_next_budget_counts(diverged: float):
    times = np.array([0.25, 0.5, 1.0])
    assert reached_at(times, np.array([0.4, diverged, 0.2]), 0.3) == 1.0
    assert reached_at(times, np.array([diverged, 0.2, 0.1]), 0.3) == 0.5


def test_the_interval_comes_from_pairs_of_seeds():
    """Both runs of a seed are taken together: what they share does not widen the interval."""
    curve = np.array([0.40, 0.30, 0.25, 0.20])
    hard = np.array([0.0, 0.1, 0.2])[:, None]  # seeds differ much, methods always by the same
    base = curve + hard
    own = base - 0.05
    time = np.tile(np.array(SHARES), (3, 1))
    found = same_error(own, base[:, -1], time, time, np.array(SHARES))
    assert found["share"] == pytest.approx(0.75)
    assert (found["low"], found["high"]) == (pytest.approx(0.75), pytest.approx(0.75))
    alone = same_error(own[:, :] - hard, base[:, -1], time, time, np.array(SHARES))
    assert alone["high"] - alone["low"] > 0.1


def test_the_interval_is_the_same_every_time_and_open_where_some_do_not_reach_it():
    time = np.tile(np.array(SHARES), (2, 1))
    own = np.array([[0.4, 0.3, 0.2, 0.1], [0.4, 0.4, 0.4, 0.35]])
    target = np.array([0.2, 0.3])
    found = same_error(own, target, time, time, np.array(SHARES))
    assert found == same_error(own, target, time, time, np.array(SHARES))
    # Pairs (0, 0), (0, 1) and (1, 0), (1, 1): the last one does not reach its 0.3.
    assert found["reached"] == pytest.approx(0.75, abs=0.04)
    assert found["low"] == pytest.approx(0.75)
    assert found["high"] is None
    assert found["share"] == pytest.approx(
        math.exp(np.interp(-0.25, [-0.3, -0.225], np.log([0.75, 1])))
    )


def test_each_budget_has_its_end_its_best_and_the_differences_of_its_pairs():
    rows = [
        *swept("uniform", UNIFORM, seed=0),
        *swept("uniform", UNIFORM, seed=1),
        *swept("auto", UNIFORM, seed=0, better=0.02),
        *swept("auto", UNIFORM, seed=1, better=0.04),
    ]
    found = sweep(rows)
    assert (found["shares"], found["measure"]) == ([*SHARES], "test_error")
    for place, share in enumerate(SHARES):
        each = found["methods"]["auto"][place]
        assert each["budget"] == share
        assert each["time"] == pytest.approx(share)
        assert each["end"]["mean"] == pytest.approx(UNIFORM[share] - 0.03)
        assert each["best"]["mean"] == pytest.approx(UNIFORM[share] - 0.03)
        difference = each["differences"]["end"]
        assert difference["mean"] == pytest.approx(-0.03)
        half = 12.7062 * math.sqrt(0.0002) / math.sqrt(2)
        assert difference["high"] - difference["mean"] == pytest.approx(half, rel=1e-4)


def test_the_summary_is_that_of_the_whole_budget_and_has_the_sweep_beside_it():
    rows = swept("uniform", UNIFORM) + swept("auto", UNIFORM, better=0.01)
    summary = summarize_all(rows)
    whole = [row for row in rows if row["budget"] == 1]
    assert summary["budgets"] == sweep(rows)
    assert summary["methods"] == summarize(whole)["methods"]
    assert summary["methods"]["auto"]["final"]["step"] == 80
    assert summary["methods"]["auto"]["final"]["test_error"]["mean"] == pytest.approx(0.19)
    assert "budgets" not in summarize_all(whole)


def test_rows_without_a_budget_are_of_the_whole():
    old = [{k: v for k, v in row.items() if k != "budget"} for row in swept("uniform", {1.0: 0.2})]
    assert budgets_of(old) == [1.0]
    mixed = old + swept("uniform", {0.5: 0.3})
    assert sweep(mixed)["shares"] == [0.5, 1.0]
    assert summarize_all(mixed)["methods"] == summarize_all(old)["methods"]


@pytest.mark.parametrize("text", ["0", "0.5,1.5", "-1", "half", "", "0.5,,1", "nan"])
def test_budgets_out_of_range_are_refused(text):
    with pytest.raises(ArgumentError, match="budgets must be shares above 0 and at most 1"):
        budgets_from(text)


def test_budgets_are_sorted_and_end_with_the_whole():
    assert budgets_from("0.5,0.25") == (0.25, 0.5, 1.0)
    assert budgets_from("1") == (1.0,)


def test_a_measure_that_rises_gives_the_same_shares_as_one_that_falls():
    seeds = (0, 1, 2)
    rows = [row for seed in seeds for row in swept("uniform", UNIFORM, seed=seed)]
    ours = {0.25: 0.35, 0.5: 0.22, 0.75: 0.15, 1.0: 0.1}
    for seed in seeds:
        rows += swept("auto", ours, seed=seed, better=0.01 * seed)
    risen = [{**row, "test_auc": 1 - row["test_error"]} for row in rows]
    falls, rises = sweep(rows), sweep(risen, measure="test_auc", better="higher")
    assert rises["measure"] == "test_auc"
    for name in ("uniform", "auto"):
        assert rises["same_error"][name] == pytest.approx(falls["same_error"][name])
        for own, other in zip(rises["methods"][name], falls["methods"][name], strict=True):
            assert own["best"]["mean"] == pytest.approx(1 - other["best"]["mean"])
            for key in ("end", "best", "equal_time"):
                mean = other["differences"][key]["mean"]
                assert own["differences"][key]["mean"] == pytest.approx(-mean)
