"""What users would choose instead: each rule on numbers for which it is known by hand."""

import math
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from salience.compare import Run, Task
from salience.compare.digits import digits_task
from salience.compare.methods import RIVALS, make_method
from salience.compare.rivals import InfoBatch, SelectiveBackprop, Training
from salience.errors import ArgumentError


def numbers(n=40, batch_size=8):
    """Example i is the number i; the loss of a batch is whatever the number is."""
    data = TensorDataset(torch.arange(float(n)).unsqueeze(1), torch.zeros(n))
    loss = lambda output, _: output.flatten()  # noqa: E731
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.0)  # noqa: E731
    return Task("numbers", data, data, nn.Identity, sgd, loss, None, batch_size)


def training(task, *, seed=0, budget=1.0, done=lambda: 0.0):
    return Training(task, task.model(), seed, budget, done)


# -------------------------------------------------------------------------------------- infobatch


def one_pass(rival, steps, loss=lambda x: x):
    """Indices and weights of the next steps, whose losses are functions of the number."""
    indices, weights = [], []
    for x, _ in islice(iter(rival), steps):
        losses = loss(x.flatten()).requires_grad_()
        (weight,) = torch.autograd.grad(rival.mean(losses), losses)
        indices += rival.indices.tolist()
        weights += (weight * len(losses)).tolist()
    return indices, weights


def test_infobatch_leaves_out_half_of_what_is_below_the_mean_and_doubles_the_rest():
    rival = InfoBatch(training(numbers(800)))
    first, ones = one_pass(rival, 100)
    assert sorted(first) == [*range(800)]
    assert ones == [1.0] * 800
    second, weights = one_pass(rival, 70)  # about 600 remain of which 560 are seen now
    assert len(set(second)) == 560
    for index, weight in zip(second, weights, strict=True):
        assert weight == (2.0 if index < 399.5 else 1.0)  # losses are 0 .. 799
    easy = sum(index < 399.5 for index in rival.state_dict()["order"].tolist())
    assert 150 < easy < 250  # 200 expected, five standard deviations
    hard = [i for i in rival.state_dict()["order"].tolist() if i >= 400]
    assert sorted(hard) == [*range(400, 800)]


def test_infobatch_sees_everything_without_weights_in_the_last_eighth():
    share = 0.0
    rival = InfoBatch(training(numbers(80), done=lambda: share))
    one_pass(rival, 10)
    _, weights = one_pass(rival, 3)  # in the middle of a pass
    assert 2.0 in weights
    share = 0.875
    indices, weights = one_pass(rival, 10)
    assert sorted(indices) == [*range(80)]
    assert weights == [1.0] * 80


def test_infobatch_goes_on_when_a_pass_does_not_fill_a_batch():
    rival = InfoBatch(training(numbers(8, 8)))
    one_pass(rival, 1)
    losses = lambda x: (x == 7).float()  # noqa: E731 - seven below the mean, one above
    one_pass(rival, 1, losses)
    indices, _ = one_pass(rival, 20, losses)
    assert indices.count(7) > 1.5 * indices.count(0)


# ------------------------------------------------------------------------- ordered and closeness


@pytest.mark.parametrize("name", ["ordered", "closeness"])
def test_losses_of_ordinary_shuffled_passes_are_weighed(name):
    task = replace(digits_task(), probe=10)
    uniform, run = (Run(task, make_method(each), 2) for each in ("uniform", name))
    for _ in range(3):
        uniform.advance(1)
        run.advance(1)
        assert torch.equal(uniform.loader.indices, run.loader.indices)
    differ = uniform.evaluate()["train_loss"] != run.evaluate()["train_loss"]
    assert differ == (name == "closeness")  # accuracy is below 80 %, so ordered takes the mean


# ----------------------------------------------------------------------------- selective backprop


def test_selective_backprop_keeps_by_the_share_of_recent_losses_below():
    rival = SelectiveBackprop(training(numbers(64, 64)), window=4)
    assert rival._share_below(torch.tensor([3.0, 1.0])).tolist() == [1.0, 0.5]
    assert rival._share_below(torch.tensor([2.0, 4.0])).tolist() == [0.5, 1.0]
    assert rival._share_below(torch.tensor([0.0])).tolist() == [0.25]  # 3 is forgotten
    assert sorted(rival.state_dict()["recent"].tolist()) == [0.0, 1.0, 2.0, 4.0]


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_selective_backprop_trains_on_large_losses_more_often(beta):
    rival = SelectiveBackprop(training(numbers(1024, 32)), beta=beta)
    batches = iter(rival)
    seen = torch.zeros(1024)
    for _ in range(320):
        x, _ = next(batches)
        assert x.flatten().tolist() == rival.indices.tolist()
        seen += torch.bincount(rival.indices, minlength=1024)
    # Candidates are as many as passes x 1024; of them (i / N)^beta is kept, 1 / (1 + beta) in all.
    quarters = seen.view(4, 256).sum(1) / seen.sum()
    ends = torch.arange(5) / 4
    expected = (ends ** (1 + beta)).diff()
    assert quarters.tolist() == pytest.approx(expected.tolist(), abs=0.02)
    assert float(rival.mean(torch.tensor([1.0, 3.0]))) == 2.0


# ---------------------------------------------------------------------------------- random subset


def test_random_subset_sees_a_fixed_part_as_often_as_uniform_sees_all():
    task, method = numbers(320, 8), make_method("random-subset")
    parts = []
    for seed in (1, 1, 2):
        loader = method.loader(task, task.model(), seed, 0.25)  # 80 examples, ten batches
        passes = [
            sorted(x for b, _ in _weighed(loader) for x in b.flatten().tolist()) for _ in "ab"
        ]
        assert passes[0] == passes[1]
        assert len({*passes[0]}) == len(passes[0]) == 80
        parts.append(passes[0])
    assert parts[0] == parts[1] != parts[2]


def _weighed(loader):
    for batch in loader:
        loader.mean(torch.ones(len(batch[0])))
        yield batch


def test_random_subset_with_the_whole_budget_is_uniform():
    task = replace(digits_task(), probe=50)
    rows = []
    for name in ("uniform", "random-subset"):
        run = Run(task, make_method(name), 0, steps=12, budget=1.0)
        run.advance(12)
        rows.append({**run.evaluate(), "method": "", "seconds": 0})
    assert rows[0] == rows[1]


def test_a_subset_smaller_than_a_batch_is_refused():
    with pytest.raises(ArgumentError, match="leaves random-subset 4 of 40 examples, fewer than"):
        make_method("random-subset").loader(numbers(), nn.Identity(), 0, 0.1)


# ----------------------------------------------------------------------------------------- states


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("steps", [1, 9, 22, 29])
def test_a_run_goes_on_exactly_from_its_state(name, steps, tmp_path):
    task = replace(digits_task(), probe=100)  # 11 steps a pass

    def made():
        return Run(task, make_method(name), 3, steps=34, budget=0.5)

    whole, before, after = made(), made(), made()
    whole.advance(34)
    before.advance(steps)
    torch.save(before.state_dict(), tmp_path / "state.pt")
    after.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    after.advance(34 - steps)
    assert {**after.evaluate(), "seconds": 0} == {**whole.evaluate(), "seconds": 0}
    assert math.isfinite(whole.evaluate()["train_loss"])
