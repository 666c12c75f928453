"""Statistics of runs, by hand."""

import math

import pytest
from small_runs import row, trace

from salience.paper import measures, table1
from salience.paper.measures import Arrival, Trace


def test_spearman_by_hand() -> None:
    assert measures.ranks([10, 30, 20, 20]).tolist() == [1, 4, 2.5, 2.5]
    # ranks 1 2.5 2.5 4 and 1 3 2 4: 4.5 / sqrt(4.5 x 5)
    assert measures.spearman([1, 2, 2, 3], [1, 9, 4, 16]) == pytest.approx(math.sqrt(0.9))
    x = [0.3, -1.0, 5.0, 2.0]
    assert measures.spearman(x, [math.exp(value) for value in x]) == pytest.approx(1)
    assert measures.spearman(x, [-(value**3) for value in x]) == pytest.approx(-1)
    assert math.isnan(measures.spearman(x, [1.0] * 4))


def test_moving_average_by_hand() -> None:
    mean, std = measures.moving([1, 2, 6, 3, 4], 3)
    assert mean == pytest.approx([1.5, 3, 11 / 3, 13 / 3, 3.5])
    assert std[1] == pytest.approx(math.sqrt(7))  # of 1, 2, 6
    assert std[0] == pytest.approx(math.sqrt(0.5))
    assert measures.moving([1, 2, 6], 1) == ([1, 2, 6], [0, 0, 0])
    mean, _ = measures.moving([0, 1, 2, 3, 4, 5], 4)
    assert mean[3] == 2.5  # 1, 2, 3, 4: four values, not five


def test_intervals_by_hand() -> None:
    mean, half, n = measures.interval([1.0, 2.0, 3.0])
    assert (mean, n) == (2.0, 3)
    assert half == pytest.approx(4.303 / math.sqrt(3))
    assert measures.interval([5.0]).half == math.inf
    # 1.984 is Student's quantile for 99; the sample has standard deviation 1.0050.
    many = measures.interval([-1.0, 1.0] * 50)
    assert many.half == pytest.approx(1.984 * 1.00504 / 10, rel=1e-3)
    r, half, _ = measures.correlation_interval(0.5, 103)
    assert r - half == pytest.approx(math.tanh(math.atanh(0.5) - 0.196))


def test_the_stage_is_the_nearest_evaluation() -> None:
    assert measures.nearest([0, 2, 5, 9], 3.4) == 1
    assert measures.nearest([0, 2, 5, 9], 3.6) == 2
    rows = [row(step, 1.0, test_error=0.5) for step in (0, 10, 30, 60, 100)]
    seen = [{"test_error": step / 1000} for step in (0, 10, 30, 60, 100)]
    assert [table1._at_stage("cifar10", Trace(rows, seen), i) for i in range(3)] == [
        (30, 0.03),
        (60, 0.06),
        (100, 0.1),  # 90 is nearer to 100 than to 60
    ]


def traced(losses: list[float], pace: float = 1.0, seed: int = 0) -> Trace:
    """Evaluations every ten steps, at ``pace`` seconds a step."""
    return trace([row(10 * i, loss, 10 * i * pace, seed) for i, loss in enumerate(losses)])


def test_arrivals_by_hand() -> None:
    base = [traced([3, 2, 1.0, 0.9, 0.5]), traced([3, 2, 1.0, 0.7, 0.5], seed=1)]
    own = [traced([3, 0.4, 0.3, 0.2, 0.1], 2.0), traced([3, 2, 2, 2, 2], 2.0, seed=1)]
    steps = measures.arrivals(own, base, "steps")
    assert steps == [Arrival(0.25, True), Arrival(1.0, False)]
    seconds = measures.arrivals(own, base, "time")
    assert seconds == [Arrival(0.5, True), Arrival(2.0, False)]  # twice the cost of a step
    assert measures.arrivals(base, base, "time")[0] == Arrival(1.0, True)


def test_time_is_compared_with_the_same_seed() -> None:
    # The machine was busy during the second.
    base = [traced([3, 1, 0.5], 1.0), traced([3, 1, 0.5], 3.0, seed=1)]
    own = [traced([3, 0.5, 0.5], 1.0), traced([3, 0.5, 0.5], 3.0, seed=1)]
    assert measures.arrivals(own, base, "time") == [Arrival(0.5, True)] * 2


def test_a_slow_spell_later_on_credits_nobody() -> None:
    late = [row(0, 3, 0), row(10, 2, 10), row(20, 1, 110)]  # the machine stalls after step 10
    own = [row(0, 3, 0), row(10, 0.5, 20), row(20, 0.4, 200)]
    ((ratio, _),) = measures.arrivals([trace(own)], [trace(late)], "time")
    assert ratio == 1.0  # half the steps at twice the cost, not 20 / 110


def test_nothing_to_reach_where_the_baseline_did_not_improve() -> None:
    base = [traced([1.0, 2.0, 3.0])]
    ((ratio, reached),) = measures.arrivals([traced([1.0, 0.1, 0.1])], base, "steps")
    assert math.isnan(ratio)
    assert not reached


def test_the_first_part_of_a_run() -> None:
    part = measures.until(traced([5, 4, 3, 2, 1, 1, 1, 1, 1, 1, 1]), 0.7)
    assert [r["step"] for r in part.rows] == [0, 10, 20, 30, 40, 50, 60, 70]
    assert len(part.observed) == 8
