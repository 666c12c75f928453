"""Differences seed by seed, and their intervals, computed by hand."""

import math

import pytest

from compare.made_up import FALLING, run
from salience.compare.paired import best_of, differences, paired, t_95, within
from salience.compare.summary import by_seed, summarize


@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (99, 1.9842)],
)
def test_t_is_that_of_the_tables(freedom, t):
    assert t_95(freedom) == pytest.approx(t, abs=1e-4)


def test_the_interval_of_three_seeds():
    found = paired([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])  # -1, -2, -3: mean -2, deviation 1
    half = 4.30265 / math.sqrt(3)
    assert found["mean"] == -2
    assert found["low"] == pytest.approx(-2 - half, abs=1e-4)
    assert found["high"] == pytest.approx(-2 + half, abs=1e-4)
    assert (found["n"], found["same"]) == (3, False)


@pytest.mark.parametrize(("ours", "theirs"), [([1.0], [2.0]), ([math.nan, 1], [1, 1])])
def test_no_interval_for_one_seed_and_for_what_is_not_finite(ours, theirs):
    found = paired(ours, theirs)
    assert (found["low"], found["high"]) == (None, None)


def errors_of(method, errors, *, cost=0.1, seed=0, worst=None, every=10):
    """A run with these test errors, evaluation by evaluation."""
    rows = run(method, FALLING[: len(errors)], seed=seed, cost=cost, every=every)
    extra = {} if worst is None else {"test_error_worst": worst}
    return [{**row, "test_error": error, **extra} for row, error in zip(rows, errors, strict=True)]


def found(rows, name="history"):
    return differences(by_seed(rows, name), by_seed(rows, "uniform"), "test_error")


def test_end_best_worst_class_and_train_of_pairs():
    rows = [
        *errors_of("uniform", [0.9, 0.2, 0.4], seed=0, worst=0.5),
        *errors_of("uniform", [0.9, 0.3, 0.3], seed=1, worst=0.7),
        *errors_of("history", [0.9, 0.3, 0.3], seed=1, worst=0.4),  # in another order
        *errors_of("history", [0.9, 0.1, 0.3], seed=0, worst=0.4),
    ]
    each = found(rows)
    assert each["end"]["mean"] == pytest.approx((-0.1 + 0.0) / 2)
    assert each["best"]["mean"] == pytest.approx((-0.1 + 0.0) / 2)
    assert each["worst"]["mean"] == pytest.approx((-0.1 - 0.3) / 2)
    assert each["train"]["mean"] == 0
    assert [each[name]["n"] for name in each] == [2] * 5
    assert not any(each[name]["same"] for name in each)


def test_equal_time_is_the_last_evaluation_within_the_baselines_time():
    rows = errors_of("uniform", [0.9, 0.5, 0.4, 0.3, 0.2]) + errors_of(
        "history", [0.9, 0.4, 0.3, 0.1, 0.0], cost=0.2
    )
    each = found(rows)
    assert each["equal_time"]["mean"] == pytest.approx(0.3 - 0.2)  # after 20 of 40 steps
    assert each["end"]["mean"] == pytest.approx(-0.2)
    assert each["end"]["low"] is None
    own, base = by_seed(rows, "history"), by_seed(rows, "uniform")
    assert (within(own, base), within(base, own)) == (2, 4)
    assert "worst" not in each


def test_a_clock_that_is_two_per_cent_off_in_the_mean_changes_nothing():
    rows = errors_of("uniform", [0.9, 0.5, 0.4], seed=0)
    rows += errors_of("uniform", [0.9, 0.5, 0.4], seed=1)
    rows += errors_of("history", [0.9, 0.4, 0.3], cost=0.112, seed=0)
    rows += errors_of("history", [0.9, 0.4, 0.3], cost=0.092, seed=1)
    assert found(rows)["equal_time"]["mean"] == pytest.approx(-0.1)


def test_identical_trainings_are_the_same_whatever_the_clock_said():
    rows = errors_of("uniform", [0.9, 0.5, 0.4]) + errors_of("auto", [0.9, 0.5, 0.4], cost=0.2)
    each = found(rows, "auto")
    assert all(each[name]["same"] for name in each)
    assert each["end"]["mean"] == 0
    once = errors_of("auto", [0.9, 0.5, 0.4], cost=0.2)
    once[1]["train_loss"] += 1e-9
    assert not found(errors_of("uniform", [0.9, 0.5, 0.4]) + once, "auto")["end"]["same"]


def test_seeds_that_only_one_of_them_has_do_not_count():
    rows = errors_of("uniform", [0.9, 0.4], seed=0) + errors_of("history", [0.9, 0.1], seed=1)
    assert found(rows) is None
    assert summarize(rows)["methods"]["history"]["differences"] is None


def test_where_higher_is_better_differences_keep_their_unit_and_the_best_is_the_highest():
    rows = [
        *errors_of("uniform", [0.5, 0.8, 0.6], seed=0),
        *errors_of("history", [0.5, 0.7, 0.9], seed=0),
    ]
    runs, base = by_seed(rows, "history"), by_seed(rows, "uniform")
    each = differences(runs, base, "test_error", "higher")
    assert each["end"]["mean"] == pytest.approx(0.3)
    assert each["best"]["mean"] == pytest.approx(0.9 - 0.8)
    assert differences(runs, base, "test_error")["best"]["mean"] == pytest.approx(0)
    summary = summarize(rows, measure="test_error", better="higher")
    assert summary["methods"]["history"]["best"]["mean"] == 0.9
    assert (summary["primary"], summary["better"]) == ("test_error", "higher")


@pytest.mark.parametrize(
    ("better", "validation", "chosen"),
    [
        ("lower", [0.3, 0.1, 0.2], 0.8),
        ("higher", [0.3, 0.1, 0.2], 0.5),
        ("higher", [math.nan, 0.1, 0.2], 0.6),
        ("lower", [math.nan] * 3, math.nan),
    ],
)
def test_the_best_point_is_chosen_by_the_validation_set(better, validation, chosen):
    rows = errors_of("uniform", [0.5, 0.8, 0.6])
    rows = [{**r, "validation_error": v} for r, v in zip(rows, validation, strict=True)]
    assert best_of(rows, "test_error", better) == pytest.approx(chosen, nan_ok=True)
