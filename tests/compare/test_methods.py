"""Methods by name: how they are written, refused, and that each of them trains."""

from dataclasses import replace

import pytest
import torch

from salience import ArgumentError
from salience.compare import Run
from salience.compare.digits import digits_task
from salience.compare.methods import METHOD_NAMES, OnlineSelection, make_method, parse_methods


def test_the_baseline_comes_first_and_specs_carry_options():
    methods = parse_methods("loss:k=1:presample=4:draw=multinomial, history:smoothing=0.1")
    assert [m.name for m in methods] == [
        "uniform",
        "loss:k=1:presample=4:draw=multinomial",
        "history:smoothing=0.1",
    ]
    assert methods[1].k == 1.0
    assert methods[1].options == {"score": "loss", "presample": 4.0, "draw": "multinomial"}
    assert methods[2].options == {"score": "history", "smoothing": 0.1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("magic", r"method must be one of auto, .*; got 'magic'"),
        (" , ", r"at least one of"),
        ("loss,loss", r"'loss' is named twice"),
        ("loss:k", r"setting 'k': write option=value"),
        ("loss:colour=red", r"setting 'colour=red'"),
        ("loss:k=big", r"k must be a number; got 'big'"),
        ("online-selection:k=1", r"setting 'k=1': write option=value with one of pressure"),
        ("with-replacement:k=1", r"takes no settings: leave out 'k=1'"),
    ],
)
def test_bad_methods(text, message):
    with pytest.raises(ArgumentError, match=message):
        parse_methods(text)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_trains(name):
    run = Run(replace(digits_task(), probe=50), make_method(name), 0, steps=3)
    run.advance(3)
    assert run.evaluate()["step"] == 3


def test_online_selection_draws_by_rank_of_fresh_losses():
    task = replace(digits_task(), probe=50)
    model = task.model()
    score = OnlineSelection(task, model, pressure=100.0)
    every = len(task.train) // task.batch_size // 2
    for step in range(every):
        changed = score.update(torch.tensor([step]), torch.tensor([0.0]))
        assert len(changed) == (len(task.train) if step == every - 1 else 0)
    model.eval()
    with torch.no_grad():
        losses = task.batch_losses(model, task.train[:])
    scores = score.score(torch.arange(len(task.train)), None)
    assert scores[losses.argmax()] == 1.0
    assert float(scores.max() / scores.min()) == pytest.approx(100, rel=0.01)
    assert (scores[losses.argsort(descending=True)].diff() < 0).all()


def test_online_selection_takes_the_pressure_of_its_spec():
    task = replace(digits_task(), probe=50)
    method = make_method("online-selection:pressure=4")
    assert method.k == 0
    score = method.score(task, task.model())
    for _ in range(len(task.train) // task.batch_size // 2):
        score.update(torch.tensor([0]), torch.tensor([0.0]))
    scores = score.score(torch.arange(len(task.train)), None)
    assert float(scores.max() / scores.min()) == pytest.approx(4, rel=0.01)
    for pressure in ("0.5", "nan", "inf"):
        with pytest.raises(ArgumentError, match=f"pressure must be at least 1; got {pressure}"):
            make_method(f"online-selection:pressure={pressure}").score(task, task.model())
