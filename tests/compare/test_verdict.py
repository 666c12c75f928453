"""Verdicts on made-up rows whose truth is known, against a computation from the raw rows.

The computation here is written from the documentation, and shares nothing with the package.
"""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.made_up import FALLING, directory, run
from salience.compare.paired import paired, resolution
from salience.compare.reading import read_comparison
from salience.compare.report.words import outcome, sentences
from salience.compare.summary import summarize
from salience.compare.verdict import verdict

T_95 = {2: 12.706204736, 3: 4.302652730, 4: 3.182446305, 5: 2.776445105}  # by the number of seeds
SLOW = [2.0, 1.5, 1.0, 0.7, 0.6]
SOON = [2.0, 0.5, 0.12, 0.1, 0.1]
BETTER, ALIKE, WORSE = [0.010, 0.013, 0.011], [0.021, 0.018, 0.020], [0.041, 0.037, 0.040]
BASE = [0.020, 0.019, 0.021]


def curves(method, losses, errors, *, cost=0.1, wobble=0.02, **more):
    """Runs of several seeds: train losses that differ a little, test values that end at errors."""
    rows = []
    for seed, error in enumerate(errors):
        factor = 1 + wobble * (seed - 1)
        scaled = [losses[0], *(factor * loss for loss in losses[1:])]
        one = run(method, scaled, seed=seed, cost=cost * (1 + 0.001 * seed), **more)
        for row in one:
            row["test_error"] = error + 0.0501 * 2.0 ** -(row["step"] / 4)  # falls to it
        rows += one
    return rows


def column(rows, method, name):
    """[seeds, evaluations] of one method."""
    seeds = sorted({row["seed"] for row in rows})
    return np.array(
        [[r[name] for r in rows if (r["method"], r["seed"]) == (method, s)] for s in seeds]
    )


def by_hand(rows, measure="test_error"):
    """The difference in equal time with its interval, and the time ratio, from raw rows."""
    own, base = (column(rows, name, measure) for name in ("history", "uniform"))
    seconds, limit = column(rows, "history", "seconds"), column(rows, "uniform", "seconds")
    place = np.flatnonzero(seconds.mean(0) <= 1.03 * limit[:, -1].mean())[-1]
    each = own[:, place] - base[:, -1]
    half = T_95[len(each)] * each.std(ddof=1) / math.sqrt(len(each))
    losses, theirs = (column(rows, n, "train_loss").mean(0) for n in ("history", "uniform"))
    target = theirs[-1]
    at, goal = (np.flatnonzero(curve <= target) for curve in (losses, theirs))
    ratio = None
    if len(at) and len(goal):
        steps = column(rows, "history", "step")[0]
        cost = seconds.mean(0)[at[0]] / limit.mean(0)[at[0]]
        ratio = cost * steps[at[0]] / steps[goal[0]]
    return each.mean(), each.mean() - half, each.mean() + half, ratio


CASES = {
    # what is true: train curve, test errors, seconds of a step, category, pace
    "faster and better": (SOON, BETTER, 0.11, "pays", "sooner"),
    "faster": (SOON, ALIKE, 0.11, "sooner", "sooner"),
    "better at the same pace": (FALLING, BETTER, 0.1, "better test", "same"),
    "slower": ([2.0, 1.2, 0.6, 0.3, 0.12], ALIKE, 0.3, "does not pay", "later"),
    "clock noise only": (FALLING, ALIKE, 0.09, "no difference", "same"),
    "equal": (FALLING, ALIKE, 0.1, "no difference", "same"),
    "better train, worse test": (SOON, WORSE, 0.1, "does not pay", "sooner"),
    "never reached": (SLOW, ALIKE, 0.1, "does not pay", "never"),
    "never reached, better test": (SLOW, BETTER, 0.1, "better test", "never"),
}


def made(case):
    losses, errors, cost, *_ = CASES[case]
    return curves("uniform", FALLING, BASE) + curves("history", losses, errors, cost=cost)


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_is_what_the_raw_rows_say(tmp_path, case):
    rows, (*_, category, pace) = made(case), CASES[case]
    found = read_comparison(directory(tmp_path, rows))
    mean, low, high, ratio = by_hand(rows)
    pair = found.summary["methods"]["history"]["differences"]["equal_time"]
    assert (pair["mean"], pair["low"], pair["high"]) == pytest.approx((mean, low, high))
    assert found.summary["methods"]["history"]["time_to_target_ratio"] == pytest.approx(ratio)
    said = verdict("history", found.summary)
    assert (said.category, said.pace) == (category, pace)
    assert said.test == ("better" if high < 0 else "worse" if low > 0 else "none")
    text = outcome(found)
    shown = f"({100 * mean:+.2f} points, 95% interval {100 * low:+.2f} to {100 * high:+.2f})"
    assert shown in text
    if ratio is not None and pace in ("sooner", "later"):
        assert f"in {100 * ratio:.0f}% of the time of uniform" in text


@pytest.mark.parametrize("case", CASES)
def test_only_what_is_true_is_praised(tmp_path, case):
    found = read_comparison(directory(tmp_path, made(case)))
    text, category = outcome(found), CASES[case][3]
    assert ("pays" in text) == (category in ("pays", "better test"))
    if category in ("no difference", "does not pay") and CASES[case][4] != "sooner":
        assert not re.search("faster|sooner", text), text
    if case == "better train, worse test":
        assert text.startswith("history does not pay: it reaches the train loss at which uniform")
        assert "sooner, in 50% of the time of uniform" in text
        assert "but its test error in equal time is higher: 3.9" in text
    if case == "clock noise only":
        assert "in 90% of the time of uniform" in text
        assert "no difference" in text or "the clock's doing" in text


def test_the_clock_is_not_believed_however_steady(tmp_path):
    """As many steps, and each exactly a tenth cheaper in every seed."""
    rows = curves("uniform", FALLING, BASE, wobble=0) + curves(
        "history", FALLING, ALIKE, cost=0.09, wobble=0
    )
    fine = [row | {"step": 10 * row["step"]} for row in rows]
    found = read_comparison(directory(tmp_path, fine))
    assert verdict("history", found.summary).pace == "same"
    assert "faster" not in outcome(found)
    assert "sooner" not in outcome(found)


def test_fewer_examples_in_a_step_are_a_reason_for_cheaper_ones():
    rows = curves("uniform", FALLING * 8, BASE, wobble=0, every=2)
    other = curves("history", FALLING * 8, ALIKE, cost=0.05, wobble=0, every=2)
    same = summarize(rows + other)
    halved = [row | {"examples": row["examples"] // 2} for row in other]
    assert verdict("history", same).pace == "same"
    assert summarize(rows + halved)["methods"]["history"]["examples_ratio"] == 0.5


def test_identical_runs_are_never_faster(tmp_path):
    rows = curves("uniform", FALLING, BASE) + curves("history", FALLING, BASE, cost=0.05)
    for row in rows[len(rows) // 2 :]:
        row["sampler"] = {"gain": 1.0}  # that one of them tells more is no difference
    found = read_comparison(directory(tmp_path, rows))
    assert outcome(found) == "There is no difference: history trained exactly as uniform."
    assert sentences(found) == ["history trained exactly as uniform: no difference."]


def test_one_seed_has_no_verdict(tmp_path):
    rows = [row for row in made("faster and better") if row["seed"] == 0]
    found = read_comparison(directory(tmp_path, rows))
    assert verdict("history", found.summary).category == "one seed"
    text = outcome(found)
    assert text.startswith("One seed gives no verdict, so add some with --seeds 3 --resume: ")
    assert "history is 1.03% against 2.00%" in text
    assert not re.search("pays|faster|sooner|interval", text)


@pytest.mark.parametrize(
    ("values", "category", "word"),
    [([0.95, 0.96, 0.94], "pays", ""), ([0.70, 0.71, 0.69], "does not pay", "lower")],
)
def test_where_higher_is_better(tmp_path, values, category, word):
    rows = [
        *(row for seed in range(3) for row in run("uniform", FALLING, seed=seed)),
        *(row for seed in range(3) for row in run("history", SOON, seed=seed)),
    ]
    for row in rows:
        own = values[row["seed"]] if row["method"] == "history" else 0.85 + row["seed"] / 99
        row.pop("test_error")
        row["test_auc"] = own - 0.4 * 2.0 ** -(row["step"] / 3)
    auc = {"test_auc": {"label": "AUC", "better": "higher", "unit": ""}}
    found = read_comparison(directory(tmp_path, rows, measures=auc, primary="test_auc"))
    mean, low, high, _ = by_hand(rows, "test_auc")
    pair = found.summary["methods"]["history"]["differences"]["equal_time"]
    assert (pair["mean"], pair["low"], pair["high"]) == pytest.approx((mean, low, high))
    assert verdict("history", found.summary).category == category
    text = outcome(found)
    assert f"({mean:+.3f}, 95% interval {low:+.3f} to {high:+.3f})" in text
    assert "points" not in text
    assert f"its test AUC in equal time is {word}: " in text or not word


def test_losses_that_are_not_finite_are_told_and_not_ranked(tmp_path):
    broken = curves("history", [2.0, math.nan, math.nan, math.nan, math.nan], BETTER)
    for row in broken[1:]:
        row["test_error"] = math.nan
    rows = curves("uniform", FALLING, BASE) + broken
    found = read_comparison(directory(tmp_path, rows))
    assert verdict("history", found.summary).category == "unknown"
    assert outcome(found) == "No method ended at a finite test error."
    also = rows + curves("auto", SOON, BETTER)
    text = outcome(read_comparison(directory(tmp_path, also)))
    assert text.startswith("auto pays: ")
    assert "history did not end at a finite test result." in text


def test_a_worse_class_or_best_point_is_never_passed_over(tmp_path):
    rows = made("faster and better")
    for row in rows:
        worst = {"uniform": 0.10, "history": 0.30}[row["method"]]
        row["test_error_worst"] = worst + 0.01 * row["seed"] ** 2 + 0.001 * row["step"]
    text = outcome(read_comparison(directory(tmp_path, rows)))
    assert text.startswith("history has mixed results: ")
    assert "but the error of the worst class is 35.67% against 15.67%" in text
    equal = made("faster")
    for row in equal:
        row["test_error"] -= 0.017 if row["method"] == "uniform" and row["step"] == 20 else 0.0
    text = outcome(read_comparison(directory(tmp_path, equal)))
    assert text.startswith("history does not pay: it reaches the train loss")
    assert "but at the best point of each run the test error is 1.97% against 0.46%" in text


def test_several_methods_are_told_in_one_more_sentence(tmp_path):
    rows = made("faster and better") + curves("loss", SLOW, WORSE) + curves("auto", FALLING, BASE)
    text = outcome(read_comparison(directory(tmp_path, rows)))
    assert text.startswith("history pays: ")
    assert "loss did not pay; auto trained exactly as the baseline." in text
    rows = curves("uniform", FALLING, BASE) + curves("loss", SLOW, WORSE)
    rows += curves("history", SLOW, [0.05, 0.06, 0.055])
    text = outcome(read_comparison(directory(tmp_path, rows)))
    assert text.startswith(
        "No method pays. loss came closest: in equal time the test error of loss"
    )
    assert "history did not pay." in text


# ---------------------------------------------------------------------------------- the reasons


def told(tmp_path, decision, case="equal", say=outcome, **config):
    rows = made(case)
    for row in rows:
        row["method"] = row["method"].replace("history", "auto")
        if row["method"] == "auto":
            row["sampler"] = {"mode": "off", "gain": 1.05, "saved": 1.02, **decision}
    return say(read_comparison(directory(tmp_path, rows, **config)))


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("too few passes to decide", "auto stayed off: too few passes to decide (1.3 passes over"),
        ("the network memorises", "Try augmentation"),
        ("losses are too even", "nothing to choose"),
        ("almost nothing is left to learn", "a harder task"),
        ("the validation loss has risen", "overfits"),
    ],
)
def test_it_is_told_why_auto_stayed_off(tmp_path, why, advice):
    text = told(tmp_path, {"why": why, "turned_on": None}, train_examples=2000)
    assert text.count(f"auto stayed off: {why}") == 1
    assert advice in text
    decision = {"why": why, "turned_on": None}
    (sentence,) = told(tmp_path / "again", decision, say=sentences, train_examples=2000)
    assert sentence.count(f"auto stayed off: {why}") == 1


def test_it_is_told_when_and_why_auto_turned_on(tmp_path):
    rows = made("faster and better")
    turned = {"draw": 10, "mode": "focused", "gain": 1.4, "doubt": 0.0}
    for row in rows:
        if row["method"] == "history" and row["seed"]:
            at = turned | {"draw": 10 * row["seed"]}
            row["sampler"] = {"mode": "focused", "turned_on": at if row["step"] > 20 else None}
        elif row["method"] == "history":
            row["sampler"] = {"mode": "off", "turned_on": None, "why": "losses are too even"}
    (sentence,) = sentences(read_comparison(directory(tmp_path, rows)))
    assert (
        "history turned on at step 10 to 20 in 2 of 3 seeds: the gain of draws by loss was 1.40."
    ) in sentence


def test_other_reasons(tmp_path):
    slow = made("slower")
    text = outcome(read_comparison(directory(tmp_path / "a", slow)))
    assert "A step costs 3.00 times one of uniform and 100% of the steps are needed." in text
    for row in slow:
        row["method"] = row["method"].replace("history", "loss:k=1")
        row["seconds"] /= 100
    text = outcome(read_comparison(directory(tmp_path / "b", slow)))
    assert "Try auto or history, whose scores cost nothing." in text
    even = made("equal")
    for row in even:
        row["loss_gain"] = 1.04
    (sentence,) = sentences(read_comparison(directory(tmp_path / "c", even, train_examples=2000)))
    assert "Losses are too even: draws by loss would need 1.04 times fewer examples" in sentence
    assert "The training has 1.3 passes over the data, too few" in sentence
    alone = outcome(read_comparison(directory(tmp_path / "d", made("equal"))))
    assert alone.endswith(
        "more than 0.29 points would show; --seeds 10 --resume adds seeds and shows less."
    )


def test_an_unknown_decision_is_shown_as_nothing(tmp_path):
    for sampler in ("off", None, 3, [], {"mode": 3}, {"mode": "off", "why": "<b>", "turned_on": 4}):
        rows = made("equal")
        for row in rows:
            row["sampler"] = sampler
        found = read_comparison(directory(tmp_path, rows))
        assert outcome(found)
        assert sentences(found)


# --------------------------------------------------------------------------------- the numbers


@given(
    st.lists(st.integers(0, 40), min_size=4, max_size=12),
    st.integers(20, 4000),
)
def test_errors_that_come_in_steps_are_not_known_more_finely(counts, examples):
    values = [count / examples for count in counts]
    rows = [[dict(run("a", [1.0], test_error=value)[0]) for value in values]]
    fine = resolution(rows, "test_error")
    if len({*counts}) < 2:
        assert fine == 0
        return
    assert fine * examples == pytest.approx(round(fine * examples), abs=1e-6)
    found = paired([values[0]] * 2, [values[0] - fine] * 2, fine=fine)
    assert found["low"] < 0 < found["high"]  # two seeds that differ by one step are no evidence


def interval_by_hand(rows):
    """Of the time ratio: Student's of the logarithms of single seeds, around that of the means."""
    logs, roughs = [], []
    steps = column(rows, "uniform", "step")[0]
    for seed in range(3):
        own, base = (column(rows, n, "train_loss")[seed] for n in ("history", "uniform"))
        times, theirs = (column(rows, n, "seconds")[seed] for n in ("history", "uniform"))
        at, goal = (np.flatnonzero(losses <= base[-1])[0] for losses in (own, base))
        logs.append(math.log(times[at] / theirs[at] * steps[at] / steps[goal]))
        parts = [(steps[i] - steps[i - 1]) / steps[i] for i in (at, goal)]
        roughs.append(math.sqrt((parts[0] ** 2 + parts[1] ** 2) / 12))
    half = T_95[3] * max(np.std(logs, ddof=1), np.mean(roughs)) / math.sqrt(3)
    ratio = by_hand(rows)[3]
    return [ratio * math.exp(-half), ratio * math.exp(half)]


@pytest.mark.parametrize("wobble", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("cost", [0.08, 0.11, 0.3])
def test_the_interval_of_the_time_ratio(wobble, cost):
    rows = curves("uniform", FALLING, BASE, wobble=0.01)
    rows += curves("history", SOON, ALIKE, cost=cost, wobble=wobble)
    found = summarize(rows)["methods"]["history"]["time_to_target_range"]
    assert found == pytest.approx(interval_by_hand(rows))
