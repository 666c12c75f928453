"""Tasks as users write them: any batch, device, precision, schedule and start, all resumable."""

import gc
import multiprocessing
import random
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, StepLR
from torch.utils.data import Dataset, TensorDataset

from parts import frozen
from salience.compare import Run, Task
from salience.compare import measures as ready
from salience.compare.methods import make_method
from salience.compare.task import cosine, find_device
from salience.errors import ArgumentError

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + X[:, 1] > 0).long()
PLAIN = TensorDataset(X, Y)


def linear():
    return nn.Linear(4, 2)


def task(**changes):
    made = Task("t", PLAIN, PLAIN, linear, loss=F.cross_entropy, batch_size=8)
    return replace(made, **changes)


def rows_of(made, method="history", steps=6):
    run = Run(made, make_method(method), 0, steps=steps)
    run.advance(steps)
    return {**run.evaluate(), "seconds": 0.0}


def near(row):
    """But for rounding, whose order may differ."""
    return {k: pytest.approx(v, rel=1e-5) if type(v) is float else v for k, v in row.items()}


# ---------------------------------------------------------------------- batches of any nesting


class As(Dataset):
    """The same examples in another nesting."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return self.make(X[index], Y[index])


class Halves(nn.Module):
    """The same network, called by the halves of its input."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, a, b):
        return self.inner(torch.cat([a, b], 1))


class Named(Halves):
    """As those of transformers: keyword arguments, and more than logits in return."""

    def forward(self, a, b=None, labels=None):
        assert labels is None, "the loss is computed here"
        return SimpleNamespace(logits=super().forward(a, b), more=a)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


NESTINGS = {
    "(x1, x2, y)": (lambda x, y: (x[:2], x[2:], y), Halves, {}),
    "named tuple": (Pair, linear, {}),
    "dict": (lambda x, y: {"labels": y, "a": x[:2], "b": x[2:]}, Named, {}),
    "outputs": (
        lambda x, y: {"in": {"x": x}, "out": [y]},
        linear,
        {"outputs": lambda model, batch: (model(batch["in"]["x"]), batch["out"][0])},
    ),
    "losses": (
        lambda x, y: ((x, y), "same"),
        linear,
        {
            "loss": None,
            "losses": lambda m, b: F.cross_entropy(m(b[0][0]), b[0][1], reduction="none"),
            "outputs": lambda model, batch: (model(batch[0][0]), batch[0][1]),
        },
    ),
}


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("method", ["auto", "loss", "infobatch", "online-selection"])
def test_the_same_examples_in_any_nesting_give_the_same_rows(nesting, method):
    make, model, more = NESTINGS[nesting]
    plain = task(metrics=["auc", "error"])
    other = replace(plain, train=As(make), test=As(make), model=model, **more)
    assert rows_of(other, method) == near(rows_of(plain, method))


def test_selective_backprop_takes_dicts_and_resumes_with_them():
    make, model, _ = NESTINGS["dict"]
    made = task(train=As(make), test=As(make), model=model)
    assert rows_of(made, "selective-backprop") == near(rows_of(task(), "selective-backprop"))
    run = Run(made, make_method("selective-backprop"), 0, steps=6)
    run.advance(3)
    again = Run(made, make_method("selective-backprop"), 0, steps=6)
    again.load_state_dict(run.state_dict())
    again.advance(3)
    assert {**again.evaluate(), "seconds": 0.0} == rows_of(made, "selective-backprop")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda x, _: x, "is a Tensor: which part is the target is not known; give outputs="),
        (lambda x, y: {"x": x, "z": y}, "is a dict with 'x', 'z': which part is the target"),
        (lambda x, _: (x,), "is a list of 1"),
    ],
)
def test_batches_without_a_known_target_are_refused(make, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        rows_of(task(train=As(make)), steps=1)


def test_losses_over_a_sequence_are_averaged():
    made = task(loss=lambda o, y: torch.stack([F.cross_entropy(o, y, reduction="none")] * 3, 1))
    assert rows_of(made) == near(rows_of(task()))


def test_criteria_that_would_take_the_mean_do_not():
    assert rows_of(task(loss=nn.CrossEntropyLoss(reduction="none"))) == rows_of(task())
    with pytest.raises(ArgumentError, match="reduction='mean'"):
        rows_of(task(loss=nn.CrossEntropyLoss()))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"loss": None}, "task 't' has no loss: give loss="),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"workers": -1}, "workers at least 0; got 8 and -1"),
        ({"schedule": "cosinus"}, "schedule must be one of constant, stepped, cosine, onecycle"),
        ({"amp": "half"}, "amp must be None, 'bf16' or 'fp16'; got 'half'"),
        ({"device": "gpu"}, "device must be 'cpu', 'cuda' or 'auto'; got 'gpu'"),
        ({"metrics": ["f7"]}, "no ready-made metric 'f7'"),
        ({"outputs": lambda model, _: model(X)}, "outputs must return .outputs, targets."),
    ],
)
def test_what_cannot_be_a_task_is_refused(changes, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        rows_of(task(**changes))


# ----------------------------------------------------------------------------------- measures


def test_rows_have_every_measure_of_both_sets():
    made = task(metrics={"auc": ready.auc, "f1": lambda *_: 0.5}, validation=PLAIN)
    row = rows_of(replace(made, wrong=lambda o, y: o.argmax(1) != y))
    wanted = [
        f"{prefix}_{name}"
        for prefix in ("test", "validation")
        for name in ("loss", "auc", "f1", "error", "error_worst")
    ]
    assert [name for name in row if name.startswith(("test", "validation"))] == wanted
    assert row["test_auc"] == row["validation_auc"]


def test_without_metrics_the_loss_is_what_it_is_tested_by():
    row = rows_of(task(loss=lambda o, y: (o[:, 0] - y) ** 2))
    assert [name for name in row if name.startswith("test")] == ["test_loss"]
    assert task().measures == (ready.LOSS,)


def test_auto_is_told_of_the_validation_set(monkeypatch):
    told = []
    run = Run(task(validation=PLAIN), make_method("auto"), 0)
    monkeypatch.setattr(run.loader, "validation", told.append)
    assert [run.evaluate()["validation_loss"]] == told


# ------------------------------------------------------------- device, precision, rates, start


def test_devices_by_name():
    assert find_device("cpu") == torch.device("cpu")
    there = torch.cuda.is_available() or torch.backends.mps.is_available()
    assert (find_device("auto").type == "cpu") == (not there)
    if not torch.cuda.is_available():
        with pytest.raises(ArgumentError, match="device 'cuda' is not available here"):
            find_device("cuda")


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_reduced_precision_is_near_and_the_scaler_scales(amp):
    reduced, full = Run(task(amp=amp), make_method("history"), 0), rows_of(task())
    reduced.advance(6)
    row = reduced.evaluate()
    assert row["train_loss"] == pytest.approx(full["train_loss"], rel=0.02)
    assert row["train_loss"] != full["train_loss"]
    assert (reduced.scaler.get_scale() > 1) == (amp == "fp16")
    assert reduced.model.weight.dtype == torch.float32


SCHEDULERS = {
    "name": ("cosine", lambda i: cosine(i / 6)),
    "function": (lambda done: 1 - done / 2, lambda i: 1 - i / 12),
    "scheduler": (lambda optimizer: StepLR(optimizer, 2, 0.5), lambda i: 0.5 ** (i // 2)),
    "lambda": (
        lambda optimizer: LambdaLR(optimizer, lambda i: 1 / (i + 1)),
        lambda i: 1 / (i + 1),
    ),
    "steps": (
        lambda optimizer, steps: CosineAnnealingLR(optimizer, steps),
        lambda i: cosine(i / 6),
    ),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_every_kind_of_schedule_and_its_state(kind):
    schedule, expected = SCHEDULERS[kind]
    made = task(schedule=schedule)
    run, rates = Run(made, make_method("uniform"), 0, steps=6), []
    run.optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
    run.advance(4)
    again = Run(made, make_method("uniform"), 0, steps=6)
    again.load_state_dict(run.state_dict())
    again.optimizer.register_step_pre_hook(lambda o, *_: rates.append(o.param_groups[0]["lr"]))
    again.advance(2)
    assert rates == pytest.approx([1e-3 * expected(i) for i in range(6)])
    assert {**again.evaluate(), "seconds": 0.0} == rows_of(made, "uniform")


def test_schedules_that_are_none():
    run = lambda schedule, **length: Run(  # noqa: E731
        task(schedule=schedule), make_method("uniform"), 0, **length
    )
    with pytest.raises(ArgumentError, match=r"makes a torch scheduler .* it returned str"):
        run(lambda _: "cosine", steps=5)
    with pytest.raises(ArgumentError, match="needs a number of steps: give --steps"):
        run(lambda optimizer, steps: OneCycleLR(optimizer, 0.1, steps), seconds=5)


def test_a_checkpoint_is_where_every_run_starts(tmp_path):
    trained = linear()
    torch.save(trained.state_dict(), tmp_path / "weights.pt")
    torch.save({"epoch": 3, "state_dict": trained.state_dict()}, tmp_path / "nested.pt")
    for checkpoint in (
        *(tmp_path / "weights.pt", str(tmp_path / "nested.pt"), trained, trained.state_dict()),
    ):
        model = Run(task(checkpoint=checkpoint), make_method("uniform"), 5).model
        assert torch.equal(model.weight, trained.weight)
        assert model.weight is not trained.weight


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda path: None, r"there is no checkpoint .*weights.pt"),  # noqa: ARG005
        (lambda path: path.write_text("weights"), "no weights that can be read safely"),
        (lambda path: torch.save(linear(), path), "can be read safely .UnpicklingError."),
        (lambda path: torch.save([1, 2], path), "must be a state dict .* it is a list"),
        (
            lambda path: torch.save(nn.Linear(4, 3).state_dict(), path),
            "does not fit the model .size mismatch for weight: .*: start from weights of the same",
        ),
        (
            lambda path: torch.save({"other": X}, path),
            'does not fit the model .Missing key.s. in state_dict: "weight", "bias"',
        ),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(made, sentence, tmp_path):
    made(tmp_path / "weights.pt")
    with pytest.raises(ArgumentError, match=sentence) as refusal:
        Run(task(checkpoint=tmp_path / "weights.pt"), make_method("uniform"), 0)
    assert "\n" not in str(refusal.value)


# ------------------------------------------------------- random numbers, workers and resuming


class Noisy(Dataset):
    """Augmentation that reads every generator there is."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        noise = torch.rand(()) + random.random() + np.random.rand()  # noqa: NPY002
        return X[index] + noise, Y[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_augmented_runs_resume_bitwise_and_do_not_disturb_each_other(workers):
    made = task(train=Noisy(), workers=workers, amp="fp16", schedule=lambda o: StepLR(o, 2))
    outside = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    whole = Run(made, make_method("history"), 3, steps=9)
    whole.advance(9)
    expected = {**whole.evaluate(), "seconds": 0.0}
    first, other = (Run(made, make_method(name), 3, steps=9) for name in ("history", "uniform"))
    first.advance(4)
    first.evaluate()
    random.random()
    other.advance(2)
    resumed = Run(made, make_method("history"), 3, steps=9)
    resumed.load_state_dict(first.state_dict())
    resumed.advance(5)
    assert {**resumed.evaluate(), "seconds": 0.0} == expected
    assert frozen(resumed.model.state_dict()) == frozen(whole.model.state_dict())
    assert torch.equal(outside[0], torch.get_rng_state())
    random.setstate(outside[1])


def test_workers_end_with_their_run():
    """In a reference cycle they would be left to the collector, which waits for each of them."""
    run = Run(task(train=Noisy(), workers=2), make_method("auto"), 0)
    run.advance(2)
    run.evaluate()
    gc.disable()
    try:
        began, there = time.monotonic(), len(multiprocessing.active_children())
        del run
        left = len(multiprocessing.active_children())
    finally:
        gc.enable()
    assert there >= 2
    assert left == there - 2
    assert time.monotonic() - began < 4, "the collector's patience is five seconds"


def test_a_run_with_all_of_it_is_saved_safely(tmp_path):
    made = task(train=Noisy(), amp="fp16", schedule=lambda o: StepLR(o, 2), validation=PLAIN)
    run = Run(made, make_method("auto"), 0, steps=6)
    run.advance(3)
    run.evaluate()
    torch.save(run.state_dict(), tmp_path / "run.pt")
    again = Run(made, make_method("auto"), 0, steps=6)
    again.load_state_dict(torch.load(tmp_path / "run.pt", weights_only=True))
    run.advance(3)
    again.advance(3)
    assert {**run.evaluate(), "seconds": 0.0} == {**again.evaluate(), "seconds": 0.0}


def test_evaluations_see_the_same_augmentation_each_time():
    run = Run(task(train=Noisy()), make_method("uniform"), 0)
    assert run.evaluate() == run.evaluate()
