"""Every ready-made measure against a slow and obviously right computation; and those of a task."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from salience.compare import measures
from salience.compare.measures import READY, Measure, Tally, describe, measures_of, read_measures
from salience.errors import ArgumentError

LEVELS = st.integers(0, 6)  # few, so that there are ties
SIGNED = st.integers(-3, 3)


def computed(name, outputs, targets):
    """Over batches of three, as an evaluation does it."""
    tally = Tally([READY[name]])
    for x, y in zip(outputs.split(3), targets.split(3), strict=True):
        tally.add(torch.zeros(len(x)), x, y)
    return tally.values()[name]


@st.composite
def scored(draw):
    """Scores with ties, and both classes."""
    positive = draw(st.lists(LEVELS, min_size=1, max_size=12))
    negative = draw(st.lists(LEVELS, min_size=1, max_size=12))
    pairs = draw(st.permutations([(s, 1) for s in positive] + [(s, 0) for s in negative]))
    return [score for score, _ in pairs], [target for _, target in pairs]


@given(scored())
@settings(deadline=None)
def test_auc_is_the_share_of_pairs_in_order(drawn):
    scores, targets = drawn
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for (a, t), (b, u) in itertools.product(zip(scores, targets, strict=True), repeat=2)
        if t > u
    ]
    expected = sum(pairs) / len(pairs)
    x, y = torch.tensor(scores).float(), torch.tensor(targets)
    assert computed("auc", x, y) == pytest.approx(expected, abs=1e-15)
    assert computed("auc", x[:, None], y.float()) == pytest.approx(expected, abs=1e-15)
    assert computed("auc", torch.stack([-x, x], 1), y) == pytest.approx(expected, abs=1e-15)


@given(scored())
@settings(deadline=None)
def test_average_precision_adds_up_over_thresholds(drawn):
    scores, targets = drawn
    recall, expected = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = [t for s, t in zip(scores, targets, strict=True) if s >= threshold]
        reached = sum(chosen) / sum(targets)
        expected += (reached - recall) * sum(chosen) / len(chosen)
        recall = reached
    found = computed("average_precision", torch.tensor(scores).float(), torch.tensor(targets))
    assert found == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.tuples(SIGNED, SIGNED), min_size=2, max_size=15))
@settings(deadline=None)
def test_regression_measures(pairs):
    x, y = (torch.tensor(each).float() for each in zip(*pairs, strict=True))
    wrong = [a - b for a, b in pairs]
    assert computed("mae", x, y) == pytest.approx(sum(map(abs, wrong)) / len(wrong))
    squares = sum(each**2 for each in wrong)
    assert computed("rmse", x[:, None], y) == pytest.approx(math.sqrt(squares / len(wrong)))
    mean = sum(b for _, b in pairs) / len(pairs)
    around = sum((b - mean) ** 2 for _, b in pairs)
    if len({b for _, b in pairs}) == 1:
        with pytest.raises(ArgumentError, match="targets that vary"):
            computed("r2", x, y)
        return
    assert computed("r2", x, y) == pytest.approx(1 - squares / around, rel=1e-9, abs=1e-9)
    both = computed("r2", torch.stack([x, y], 1), torch.stack([y, y], 1))
    assert both == pytest.approx(((1 - squares / around) + 1) / 2, rel=1e-9, abs=1e-9)


@given(st.lists(st.lists(LEVELS, min_size=7, max_size=7), min_size=1, max_size=6), st.randoms())
@settings(deadline=None)
def test_classification_errors(rows, random):
    targets = [random.randrange(7) for _ in rows]
    x, y = torch.tensor(rows).float(), torch.tensor(targets)
    wrong = [row.index(max(row)) != t for row, t in zip(rows, targets, strict=True)]
    assert computed("error", x, y) == pytest.approx(sum(wrong) / len(rows))
    assert computed("accuracy", x, y) == pytest.approx(1 - sum(wrong) / len(rows))
    missed = [
        sum(row[t] <= other for place, other in enumerate(row) if place != t) >= 5
        for row, t in zip(rows, targets, strict=True)
    ]
    assert computed("top5_error", x, y) == pytest.approx(sum(missed) / len(rows))


def test_the_error_of_single_logits_and_of_sequences():
    assert (
        computed("error", torch.tensor([-1.0, 2.0, 3.0, -4.0]), torch.tensor([0, 1, 0, 1])) == 0.5
    )
    x = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[3.0, 3.0], [2.0, 4.0]]])  # [2, classes, 2]
    assert computed("error", x, torch.tensor([[1, 0], [0, 0]])) == 0.25


@given(st.lists(st.tuples(LEVELS, st.integers(0, 3)), min_size=1, max_size=5))
@settings(deadline=None, max_examples=50)
def test_ndcg_is_the_mean_over_the_orders_of_equal_items(items):
    gain = lambda order: sum(  # noqa: E731
        (2 ** items[item][1] - 1) / math.log2(2 + rank) for rank, item in enumerate(order)
    )
    orders = [*itertools.permutations(range(len(items)))]
    allowed = [
        order
        for order in orders
        if all(items[a][0] >= items[b][0] for a, b in itertools.pairwise(order))
    ]
    most = max(map(gain, orders))
    expected = sum(map(gain, allowed)) / len(allowed) / most if most else 1.0
    x, y = (torch.tensor([each]).float() for each in zip(*items, strict=True))
    assert computed("ndcg", x, y) == pytest.approx(expected)


@given(
    st.lists(st.lists(st.tuples(LEVELS, LEVELS), min_size=4, max_size=4), min_size=1, max_size=7)
)
@settings(deadline=None)
def test_pairwise_accuracy_counts_pairs_within_a_list(lists):
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for items in lists
        for (a, t), (b, u) in itertools.product(items, repeat=2)
        if t > u
    ]
    x, y = torch.tensor(lists).float().unbind(-1)
    if pairs:
        assert computed("pairwise_accuracy", x, y) == pytest.approx(sum(pairs) / len(pairs))
    else:
        with pytest.raises(ArgumentError, match="relevances that differ"):
            computed("pairwise_accuracy", x, y)


def test_perplexity_is_of_the_losses():
    tally = Tally([measures.perplexity])
    tally.add(torch.tensor([1.0, 2.0]))
    tally.add(torch.tensor([6.0]))
    assert tally.values() == {"loss": 3.0, "perplexity": pytest.approx(math.exp(3))}
    assert not tally.needs_outputs


def test_every_ready_made_measure_is_tested_here():
    here = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in here for name in READY)
    assert {n for n, m in READY.items() if m.better == "higher"} == {
        *("accuracy", "auc", "average_precision", "r2", "ndcg", "pairwise_accuracy"),
    }


# ------------------------------------------------------------------------------ what is refused


def test_a_single_class_is_refused():
    with pytest.raises(ArgumentError, match="auc needs targets of both classes; all 4 are of one"):
        computed("auc", torch.rand(4), torch.zeros(4))


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ArgumentError, match=r"same shape; got \[3, 2\] and \[3\]"):
        computed("mae", torch.rand(4, 2), torch.rand(4))


# ---------------------------------------------------------------------------------- of a task


def test_the_first_metric_is_primary_and_the_loss_where_there_is_none():
    own = lambda x, y: (x - y).abs()  # noqa: E731
    found = measures_of({"f1": own, "auc": measures.auc}, wrong=own)
    assert [(each.name, each.better) for each in found] == [
        *(("f1", "higher"), ("auc", "higher"), ("error", "lower")),
    ]
    assert measures_of(["mae", "rmse"], None) == (measures.mae, measures.rmse)
    assert measures_of({"gap": measures.mae}, None)[0].name == "gap"
    assert [each.name for each in measures_of(None, None)] == ["loss"]


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        (["aux"], "no ready-made metric 'aux': take one of error, accuracy"),
        ({"own": len}, "whether a lower or a higher 'own' is better is not known: write Measure"),
        ({"a b": len}, "cannot be called 'a b'"),
        ({"loss": len}, "cannot be called 'loss'"),
        ({"auc": 3}, "metric 'auc' must be a function"),
    ],
)
def test_metrics_that_are_none(metrics, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        measures_of(metrics, None)


def test_a_function_may_give_one_number_or_one_per_example():
    x, y = torch.arange(7.0), torch.zeros(7)
    for compute in (lambda x, y: (x - y).abs(), lambda x, y: float((x - y).abs().mean())):
        tally = Tally([Measure("own", "own", compute=compute)])
        for part in x.split(3):
            tally.add(part, part, y[: len(part)])
        assert tally.values()["own"] == pytest.approx(3)
    tally = Tally([Measure("own", "own", compute=lambda x, _: x[:2])])
    tally.add(x, x, y)
    with pytest.raises(ArgumentError, match=r"metric 'own' must give one number.*got \[2\]"):
        tally.values()
    tally = Tally([Measure("own", "own", of="examples", compute=lambda x, _: x.mean())])
    with pytest.raises(ArgumentError, match=r"one value per example, a tensor of shape \[7\]"):
        tally.add(x, x, y)


def test_batches_of_other_shapes_are_refused_for_the_whole_set_only():
    whole, each = (
        Tally([Measure("own", "own", of=of, compute=lambda x, _: x.sum(1))])
        for of in ("set", "examples")
    )
    for width in (2, 3):
        whole.add(torch.ones(2), torch.ones(2, width), torch.ones(2))
        each.add(torch.ones(2), torch.ones(2, width), torch.ones(2))
    assert each.values()["own"] == 2.5
    with pytest.raises(ArgumentError, match=r"examples of \[2\] and \[3\].*of='examples'"):
        whole.values()
    with pytest.raises(ArgumentError, match="outputs that are a tensor; got dict"):
        whole.add(torch.ones(2), {"logits": torch.ones(2, 2)}, torch.ones(2))


# ------------------------------------------------------------------------------- written down


def test_measures_are_written_and_read_back():
    written = describe(measures_of(["auc", "error"], None), ("test", "validation"))
    assert written["primary"] == "test_auc"
    assert written["measures"]["test_auc"] == {"label": "AUC", "better": "higher", "unit": ""}
    row = dict.fromkeys(["test_loss", "test_auc", "test_error", "validation_auc"], 0.5)
    found, primary = read_measures(written, row)
    assert primary == "test_auc"
    assert [*found] == ["test_loss", "test_auc", "test_error", "validation_auc"]
    assert (found["test_error"].unit, found["test_auc"].better) == ("%", "higher")
    assert found["validation_auc"].name == "auc"


@pytest.mark.parametrize("name", ["error", "perplexity", "loss"])
def test_older_directories_have_an_error_or_a_perplexity(name):
    found, primary = read_measures({}, {"test_loss": 1.0, f"test_{name}": 0.5})
    assert primary == f"test_{name}"
    assert found[primary].better == "lower"
    assert found[primary].unit == ("%" if name == "error" else "")
