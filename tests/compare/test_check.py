"""The first look at a task: what is wrong is refused with one sentence, before anything else."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from salience.compare import Task
from salience.compare.check import Checked, check_task, described
from salience.compare.digits import digits_task
from salience.compare.methods import make_method
from salience.errors import ArgumentError

METHODS = [make_method(name) for name in ("uniform", "history", "loss")]
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
DATA = TensorDataset(X, Y)


def task(**changes):
    made = Task("t", DATA, DATA, lambda: nn.Linear(3, 2), loss=F.cross_entropy, batch_size=8)
    return replace(made, **changes)


def test_a_sound_task_is_measured():
    found = check_task(digits_task(), METHODS)
    assert [*found.step_seconds] == ["uniform", "history", "loss"]
    assert all(seconds > 0 for seconds in (*found.step_seconds.values(), found.evaluation_seconds))
    assert found.examples == {"train": 1437, "test": 360}
    assert found.parameters == 38_282
    assert found.batch == "(float32 [128, 1, 8, 8], int64 [128])"
    assert {"train_loss", "test_loss", "test_error", "test_error_worst"} <= {*found.values}


def test_nothing_outside_is_changed():
    before = torch.get_rng_state()
    check_task(task(), METHODS[:1])
    assert torch.equal(torch.get_rng_state(), before)


def test_schedules_of_a_number_of_steps_need_one():
    made = task(schedule=lambda optimizer, steps: OneCycleLR(optimizer, 0.1, steps))
    check_task(made, METHODS[:1])
    with pytest.raises(ArgumentError, match="needs a number of steps: give --steps"):
        check_task(made, METHODS[:1], seconds=5.0)


def test_the_expected_time_adds_up():
    found = Checked({"uniform": 0.1, "loss": 0.2}, 3.0, {}, 0, "", {})
    # (100 x 0.1 + 11 x 3) + (100 x 0.2 + 11 x 3) = 96 for a seed
    assert found.expected_seconds(seeds=3, evaluations=10, steps=100) == pytest.approx(288)
    assert found.expected_seconds(seeds=3, evaluations=10, steps=100, jobs=2) == pytest.approx(192)
    half = found.expected_seconds(seeds=1, evaluations=10, steps=100, shares=(0.5, 1.0))
    assert half == pytest.approx(96 + 81)
    assert found.expected_seconds(seeds=2, evaluations=0, seconds=60) == pytest.approx(2 * 126)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class Broken(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return X[index], 1 // 0  # a division


def poor_model():
    raise OSError("no weights here")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train": Stream()}, "the train set of task 't' is a Stream without indices"),
        ({"validation": TensorDataset(X[:0], Y[:0])}, "the validation set of task 't' is empty"),
        ({"train": Broken()}, r"reading a training batch .* failed in test_check.py, line \d+ "),
        ({"train": Broken()}, r"\(`return X\[index\], 1 // 0  # a division`\): ZeroDivisionError"),
        ({"test": Broken()}, "evaluating task 't' failed in test_check.py"),
        ({"model": poor_model}, "the model or optimizer .*: OSError: no weights here"),
        ({"model": lambda: 3}, "must be a function that returns an nn.Module; it returned int"),
        (
            {"model": lambda: nn.Linear(4, 2)},
            r"the model or loss on a batch \(float32 \[8, 3\], int64 \[8\]\) failed: RuntimeError",
        ),
        (
            {"loss": lambda output, y: F.cross_entropy(output, y)},
            "one value per example; it gave a single number",
        ),
        ({"loss": lambda output, _: output[:3, 0] * 0}, "gave 3 values for a batch of 8 examples"),
        ({"loss": lambda output, _: -output.exp().sum(1)}, "8 of 8 examples .* negative or not"),
        ({"loss": lambda output, _: output.sum(1).square() / 0}, "not finite, such as inf"),
        ({"loss": lambda output, _: output.detach().exp().sum(1)}, "does not depend on the model"),
        (
            {"model": lambda: nn.Linear(3, 2).requires_grad_(False)},
            "does not depend on the model",
        ),
        (
            {"optimizer": lambda _: torch.optim.SGD([nn.Parameter(X)], lr=1)},
            "no weight of the optimizer gets a gradient",
        ),
        ({"loss": lambda output, _: (0 * output.sum(1)).sqrt()}, "the gradient of .* not finite"),
        ({"metrics": {"auc": lambda *_: float("nan")}}, "test_auc of task 't' is nan"),
        ({"metrics": {"auc": lambda o, _: o.nothing}}, "evaluating .* in test_check.py.*Attribute"),
        ({"batch_size": 50}, "batch_size 50 is larger"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(changes, sentence):
    with pytest.raises(ArgumentError, match=sentence) as refusal:
        check_task(task(**changes), METHODS[:1])
    assert "\n" not in str(refusal.value)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_targets_that_would_broadcast_are_refused():
    data = TensorDataset(X, X[:, 0])
    made = task(train=data, test=data, model=lambda: nn.Linear(3, 1), loss=F.mse_loss)
    with pytest.raises(ArgumentError, match=r"\[8, 1\] and targets of shape \[8\] broadcast"):
        check_task(made, METHODS[:1])
    whole = TensorDataset(X, X[:, :1])
    check_task(replace(made, train=whole, test=whole), METHODS[:1])


def test_batches_in_words():
    ids = torch.zeros(2, 5, dtype=torch.int64)
    assert described({"ids": ids, "more": [ids, "text"]}) == (
        "{ids: int64 [2, 5], more: (int64 [2, 5], str of 4)}"
    )
