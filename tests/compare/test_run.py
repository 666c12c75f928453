"""One training run: reproducible, undisturbed by others, and measured as the contract says."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from salience.compare import Method, Row, Run, Task
from salience.compare.digits import digits_task
from salience.compare.measures import worst_class
from salience.compare.methods import make_method
from salience.compare.task import SCHEDULES, onecycle
from salience.errors import ArgumentError

ABSENT = ("budget", "test_perplexity", "test_error_rare", "sampler")
FIELDS = [name for name in Row.__annotations__ if name not in ABSENT]
UNIFORM, HISTORY = make_method("uniform"), make_method("history")


def test_both_methods_start_from_the_same_weights():
    task = digits_task()
    first, second = Run(task, UNIFORM, seed=3).evaluate(), Run(task, HISTORY, seed=3).evaluate()
    assert first["train_loss"] == second["train_loss"]
    assert first["train_loss"] != Run(task, UNIFORM, seed=4).evaluate()["train_loss"]


def test_a_run_is_the_same_alone_and_interleaved():
    task = digits_task()
    alone = Run(task, HISTORY, seed=1)
    alone.advance(20)
    before = torch.get_rng_state()
    other, run = Run(task, UNIFORM, 1), Run(task, HISTORY, 1)
    for _ in range(4):
        other.advance(5)
        run.evaluate()
        run.advance(5)
    assert torch.equal(torch.get_rng_state(), before)
    assert {**alone.evaluate(), "seconds": None} == {**run.evaluate(), "seconds": None}


def test_rows_come_evenly_and_count_examples_and_training_time_only():
    task = digits_task()
    rows = []
    run = Run(task, UNIFORM, 0, steps=50)
    for block in range(5):
        run.advance_to(block / 4)
        rows.append(run.evaluate())
    assert [row["step"] for row in rows] == [0, 12, 25, 38, 50]
    assert [row["examples"] for row in rows] == [task.batch_size * row["step"] for row in rows]
    assert rows[0]["seconds"] == 0
    assert all(a["seconds"] < b["seconds"] for a, b in pairwise(rows))


class Plain(Dataset):
    """Any dataset, not only tensors."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([float(index)]), index % 2


def linear_task(train, batch_size):
    loss = nn.CrossEntropyLoss(reduction="none")
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.01)  # noqa: E731
    wrong = lambda output, target: output.argmax(1) != target  # noqa: E731
    return Task("lines", train, train, lambda: nn.Linear(1, 2), sgd, loss, wrong, batch_size)


def test_any_dataset_and_model_can_be_a_task():
    run = Run(linear_task(Plain(), 4), Method("mine", k=1.0, options={"score": "history"}), seed=0)
    run.advance(5)
    row = run.evaluate()
    assert (row["task"], row["method"], row["examples"]) == ("lines", "mine", 20)
    assert [*row] == FIELDS


def test_rare_targets_have_an_error_of_their_own():
    task = replace(linear_task(Plain(), 4), rare=lambda y: y == 1)
    run = Run(task, Method("mine", k=1.0, options={"score": "uniform"}), seed=0)
    run.advance(3)
    row = run.evaluate()
    x, y = torch.arange(10.0)[:, None], torch.arange(10) % 2
    with torch.no_grad():
        wrong = (run.model(x).argmax(1) != y).double()
    assert row["test_error"] == pytest.approx(float(wrong.mean()))
    assert row["test_error_rare"] == pytest.approx(float(wrong[1::2].mean()))
    assert row["test_error_rare"] != row["test_error"]


def test_the_worst_class_is_the_one_with_the_highest_error():
    wrong = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    assert worst_class(wrong, torch.tensor([7, 7, -1, -1, -1, 0])) == pytest.approx(2 / 3)
    assert worst_class(wrong, torch.tensor([True, True, False, True, True, True])) == 1.0
    assert worst_class(wrong, torch.rand(6)) is None, "no classes"
    assert worst_class(wrong, torch.zeros(6, 2).long()) is None, "several targets"
    run = Run(linear_task(Plain(), 4), UNIFORM, seed=0)
    run.advance(3)
    x, y = torch.arange(10.0)[:, None], torch.arange(10) % 2
    with torch.no_grad():
        errors = (run.model(x).argmax(1) != y).double()
    worst = max(float(errors[0::2].mean()), float(errors[1::2].mean()))
    assert run.evaluate()["test_error_worst"] == pytest.approx(worst)


def test_a_batch_larger_than_the_training_set_is_refused():
    data = TensorDataset(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="batch_size 4 is larger"):
        Run(linear_task(data, 4), UNIFORM, seed=0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_scale_the_learning_rate(name):
    task = replace(digits_task(), schedule=SCHEDULES[name])
    run = Run(task, UNIFORM, 0, steps=10)
    rates = []
    for _ in range(10):
        run.advance(1)
        rates.append(run.optimizer.param_groups[0]["lr"])
    expected = [1e-3 * SCHEDULES[name](step / 10) for step in range(10)]
    assert rates == pytest.approx(expected)
    assert {"constant": rates[-1] == 1e-3, "stepped": rates[6:8] == [1e-3, 1e-4]}.get(name, True)


def test_onecycle_warms_up_and_falls_to_nothing():
    assert onecycle(0) == pytest.approx(0.04)
    assert onecycle(0.15) == pytest.approx(0.52)
    assert onecycle(0.3) == 1
    assert onecycle(0.65) == pytest.approx(0.5)
    assert onecycle(1) == pytest.approx(0)


@pytest.mark.parametrize("seed", range(5))
def test_no_seed_trains_on_the_probe_first(seed):
    run = Run(replace(digits_task(), probe=200), UNIFORM, seed)
    probe = {run.train_index(place) for place in range(200)}
    run.advance(1)
    first = set(run.loader.indices.tolist())
    # By chance 18 of 128 are in a probe of 200 out of 1,437, and 40 are six deviations away.
    assert len(first & probe) < 40
