"""The paper's tasks on small data in place of the published sets."""

from dataclasses import replace

import pytest
import torch
from small_data import images, put_small_data

from salience.compare import Run
from salience.compare.methods import make_method
from salience.compare.task import constant, onecycle, stepped
from salience.errors import ArgumentError
from salience.paper import tasks


@pytest.fixture(autouse=True)
def _small_data(monkeypatch):
    put_small_data(monkeypatch)


SIZES = {
    "mnist": 1000,
    "cifar10": 10_000,
    "ptb": 180,
    "cifar10-plain": 1000,
    "cifar10-crops": 1000,
    "cifar10-finetune": 1000,
    "mnist-lenet": 1000,
    "mnist-wrong-labels": 1000,
    "mnist-wrong-labels-50": 1000,
    "mnist-random-labels": 1000,
    "mnist-long-tail": 250,
}


@pytest.mark.parametrize("name", tasks.TASK_NAMES)
def test_each_task(name):
    task = tasks.make_task(name, probe=7)
    batch = 64 if name == "mnist-lenet" else 128
    own = (task.name, len(task.train), task.probe, task.batch_size)
    assert own == (name, SIZES[name], 7, batch)
    schedules = {"cifar10": stepped, "cifar10-crops": onecycle, "mnist-lenet": tasks._early_drop}
    assert task.schedule is schedules.get(name, constant)
    assert (task.wrong is None) == (name == "ptb")
    x, y = task.collate(task.test.__getitems__([0, 1]))
    if name.startswith("mnist"):
        assert task.loss(task.model()(x), y).shape == (2,)


def test_lenet_as_ordered_sgd_was_tried_on_it():
    task = tasks.make_task("mnist-lenet")
    optimizer = task.optimizer(task.model().parameters())
    (group,) = optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.01, 0.9, 1e-4)
    assert [task.schedule(done) for done in (0, 0.199, 0.2, 1)] == [1, 1, 0.1, 0.1]
    assert tasks.STEPS["mnist-lenet"] * 64 == 50 * 60_000


def test_labels_are_changed_as_the_names_say():
    right = tasks.make_task("mnist").train.targets
    shares = [
        float((tasks.make_task(f"mnist-{kind}-labels").train.targets != right).float().mean())
        for kind in ("wrong", "random")
    ]
    half = tasks.make_task("mnist-wrong-labels-50").train.targets != right
    shares.append(float(half.float().mean()))
    assert shares == pytest.approx([0.18, 0.9, 0.45], abs=0.04)  # a tenth is right by chance
    rare = tasks.make_task("mnist-long-tail").rare(torch.arange(10))
    assert rare.nonzero().flatten().tolist() == [7, 8, 9]


def test_dropout_only_where_the_paper_has_it():
    kinds = {
        name: {type(layer).__name__ for layer in tasks.make_task(name).model()}
        for name in ("cifar10", "cifar10-plain")
    }
    assert "Dropout" in kinds["cifar10"]
    assert "Dropout" not in kinds["cifar10-plain"]


def test_crops_are_trained_on_and_the_images_themselves_evaluated():
    task = tasks.make_task("cifar10-crops", size="tiny")
    assert torch.equal(task.evaluated.images, images(True, None, 32).images)
    rows = []
    for _ in range(2):  # random numbers outside the run do not matter
        torch.rand(7)
        run = Run(task, make_method("uniform"), 0)
        run.advance(2)
        rows.append({**run.evaluate(), "seconds": 0})
    assert rows[0] == rows[1]


def test_fine_tuning_begins_with_a_network_that_knows_eight_classes():
    plain = tasks.make_task("cifar10-plain", size="tiny")
    seen = torch.zeros(10)

    def counted(output, target):
        seen.add_(torch.bincount(target, minlength=10))
        return plain.loss(output, target)

    counting = replace(plain, loss=counted)
    first, again = tasks.Pretrained(counting, 30), tasks.Pretrained(plain, 30)
    torch.manual_seed(1)
    model = first()
    torch.manual_seed(2)
    for ours, theirs in zip(model.parameters(), again().parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.grad is None
    assert seen[8:].tolist() == [0, 0]
    assert float(seen.sum()) == 30 * 128
    copy = first()
    assert float(seen.sum()) == 30 * 128, "trained once"
    next(copy.parameters()).data.zero_()
    assert next(model.parameters()).abs().sum() > 0, "copies are apart"


def test_examples_are_shown_as_pictures_and_text():
    shown = tasks.make_task("cifar10").show(1003)  # a copy of image 3
    assert torch.equal(shown, images(True, None, 32).images[3] / 255)
    assert tasks.make_task("ptb").show(1) == "a [b]"
    assert tasks.make_task("ptb").show(0) == "[a]"


def test_unknown_tasks_are_refused():
    with pytest.raises(ArgumentError, match=r"task must be one of mnist, .*; got 'minst'"):
        tasks.make_task("minst")
