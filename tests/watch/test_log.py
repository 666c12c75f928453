"""The log of a training of one's own: what it writes, and that it costs no waiting."""

import json
import math

import pytest
import torch
from torch.utils.data import TensorDataset

from salience import ArgumentError, ImportanceLoader, UsageError
from salience.watch import Log
from salience.watch import log as module


def lines(directory):
    return [json.loads(each) for each in (directory / "log.jsonl").read_text().splitlines()]


def test_a_line_has_the_means_of_its_steps(tmp_path):
    with Log(tmp_path / "a" / "b", steps=7, every=3) as log:
        for place in range(7):
            log.step(train_loss=torch.tensor(float(place)), rate=0.5)
        log.add(test_loss=2)
    first, *rows, end = lines(tmp_path / "a" / "b")
    assert (first["log"], first["steps"], first["first"]) == (1, 7, 0)
    assert [(row["step"], row["values"]) for row in rows] == [
        (3, {"train_loss": 1.0, "rate": 0.5}),
        (6, {"train_loss": 4.0, "rate": 0.5}),
        (7, {"train_loss": 6.0, "rate": 0.5}),
        (7, {"test_loss": 2.0}),
    ]
    assert (end["end"], end["step"]) == (True, 7)


def test_a_value_that_is_told_now_and_then_is_its_own_mean(tmp_path):
    with Log(tmp_path, every=4) as log:
        log.step(loss=1.0, rare=7.0)
        for _ in range(3):
            log.step(loss=3.0)
    assert lines(tmp_path)[1]["values"] == {"loss": 2.5, "rare": 7.0}


def test_what_is_not_finite_is_null(tmp_path):
    with Log(tmp_path, every=1) as log:
        log.step(loss=torch.tensor(math.nan))
        log.step(loss=math.inf)
    assert [row["values"] for row in lines(tmp_path)[1:3]] == [{"loss": None}] * 2


def test_a_tensor_is_kept_as_it_was_and_without_its_graph(tmp_path):
    weight = torch.ones((), requires_grad=True)
    with Log(tmp_path, every=2) as log:
        loss = weight * 2
        log.step(loss=loss)
        with torch.no_grad():
            loss.mul_(100)
        assert not log._sums["loss"].requires_grad
        log.step(loss=torch.full((1, 1), 4.0))
    assert lines(tmp_path)[1]["values"] == {"loss": 3.0}


def test_nothing_is_read_back_between_lines(tmp_path, monkeypatch):
    """On an accelerator each reading would wait for it."""
    read = []
    original = torch.Tensor.__float__
    monkeypatch.setattr(
        torch.Tensor, "__float__", lambda tensor: read.append(1) or original(tensor), raising=False
    )
    monkeypatch.setattr(torch.Tensor, "item", lambda _: pytest.fail("a tensor was read"))
    log = Log(tmp_path, every=5)
    for _ in range(4):
        log.step(loss=torch.ones(()))
    assert read == []
    log.step(loss=torch.ones(()))
    assert read
    assert [line.get("step") for line in lines(tmp_path)] == [None, 5]


def test_slow_steps_do_not_wait_for_others(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    log = Log(tmp_path, every=1000)
    log.step(loss=1.0)
    assert len(lines(tmp_path)) == 1
    now[0] += 6
    log.step(loss=3.0)
    assert lines(tmp_path)[1] == {"step": 2, "seconds": 6.0, "values": {"loss": 2.0}}


def test_with_a_loader_a_line_has_its_train_loss_and_what_it_does(tmp_path):
    loader = ImportanceLoader(TensorDataset(torch.arange(64.0)), 16, score="history")
    with Log(tmp_path, loader, every=2) as log:
        for (x,) in loader:
            loader.mean(x + 1.0)
            log.step()
        log.add(test_loss=1.0)
    rows = lines(tmp_path)[1:-1]
    assert [row["step"] for row in rows] == [2, 4, 4]
    metrics = loader.metrics()
    assert rows[1]["values"] == {"train_loss": pytest.approx(metrics["mean_loss"])}
    assert rows[2]["values"] == {"test_loss": 1.0}
    assert [row.get("sampler") for row in rows] == [{"mode": "on", "active": True}, None, None]


def test_auto_tells_its_mode_and_why(tmp_path):
    loader = ImportanceLoader(TensorDataset(torch.arange(64.0)), 16)
    with Log(tmp_path, loader, every=2) as log:
        for (x,) in loader:
            loader.mean(x + 1.0)
            log.step()
    told = loader.decision()
    sampler = lines(tmp_path)[1]["sampler"]
    assert (sampler["mode"], sampler["active"]) == ("off", False)
    assert sampler["why"] == told["why"] == "too few passes to decide"


def test_a_training_that_fails_has_no_end(tmp_path):
    def fails():
        with Log(tmp_path, every=1) as log:
            log.step(loss=1.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert [*lines(tmp_path)[-1]] == ["step", "seconds", "values"]


def test_a_resumed_training_continues_the_log(tmp_path):
    with Log(tmp_path, every=1) as log:
        log.step(loss=1.0)
    with Log(tmp_path, every=1, first_step=1) as log:
        log.step(loss=1.0)
    found = lines(tmp_path)
    assert [row["step"] for row in found if "values" in row] == [1, 2]
    assert [row["first"] for row in found if "log" in row] == [0, 1]


@pytest.mark.parametrize(
    ("value", "shown"),
    [("low", "'low'"), (None, "None"), (torch.ones(2), r"a tensor of shape \[2\]"), ([1], "1")],
)
def test_what_is_no_number_is_refused_by_its_name(tmp_path, value, shown):
    with pytest.raises(ArgumentError, match=rf"^loss must be a number.*{shown}"):
        Log(tmp_path).step(loss=value)


@pytest.mark.parametrize(
    "options", [{"every": 0}, {"steps": 0}, {"first_step": -1}, {"every": 2.5}]
)
def test_bad_options_are_refused(tmp_path, options):
    (name,) = options
    with pytest.raises(ArgumentError, match=name):
        Log(tmp_path, **options)


def test_a_closed_log_and_a_place_that_cannot_be_written_are_told(tmp_path):
    log = Log(tmp_path)
    log.close()
    log.close()
    with pytest.raises(UsageError, match="closed"):
        log.step()
    with pytest.raises(ArgumentError, match="choose another directory"):
        Log(tmp_path / "log.jsonl" / "below")
