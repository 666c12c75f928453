"""History and the LSTM approximation: what they remember and what they predict."""

from typing import Any

import pytest
import torch
from torch import Tensor

from salience import ImportanceSampler
from salience.errors import ArgumentError
from salience.scores import Uniform
from salience.scores.approx import (
    EAGER,
    EVERY,
    HIDDEN,
    LENGTH,
    Approx,
    LossPredictor,
    LossRecord,
)
from salience.scores.history import History


def test_history_is_the_last_observed_loss_and_nan_before_it() -> None:
    score = History(4)
    score.update(torch.tensor([2, 0]), torch.tensor([0.5, 0.0]))
    score.update(torch.tensor([2]), torch.tensor([0.25]))
    assert score.score(torch.tensor([2, 0]), None).tolist() == [0.25, 0.0]
    assert score.score(torch.tensor([1, 3]), None).isnan().all()


def test_a_running_mean_weighs_the_last_loss_by_what_does_not_decay() -> None:
    score = History(4, decay=0.75)
    assert score.score(torch.arange(4), None).isnan().all()
    score.update(torch.tensor([0, 2]), torch.tensor([1.0, 4.0]))
    score.update(torch.tensor([2, 3]), torch.tensor([0.0, 2.0]))
    found = score.score(torch.arange(4), None)
    assert found[[0, 2, 3]].tolist() == [1.0, 3.0, 2.0]
    assert found[1].isnan()


def test_the_presets_choose_the_decay() -> None:
    history, auto = (ImportanceSampler(4, 2, score=name).score for name in ("history", "auto"))
    for score, expected in ((history, 2.0), (auto, 0.8 * 1.0 + 0.2 * 2.0)):
        score.update(torch.tensor([1]), torch.tensor([1.0]))
        score.update(torch.tensor([1]), torch.tensor([2.0]))
        assert float(score.score(torch.tensor([1]), None)) == pytest.approx(expected)


def test_repeated_indices_count_as_one_observation_with_their_mean_loss() -> None:
    sampler = ImportanceSampler(5, 4, score="history")
    sampler.update(torch.tensor([3, 3, 1, 3]), torch.tensor([1.0, 2.0, 7.0, 6.0]))
    assert sampler.score.score(torch.tensor([3, 1]), None).tolist() == [3.0, 7.0]
    approx = ImportanceSampler(5, 4, score="approx")
    approx.update(torch.tensor([3, 3, 1, 3]), torch.tensor([1.0, 2.0, 7.0, 6.0]))
    record = approx.score._record
    assert record.counts.tolist() == [0, 1, 0, 1, 0]
    assert record.losses[:, 0].tolist() == [0, 7, 0, 3, 0]


def test_the_record_keeps_the_last_ten_losses_oldest_first() -> None:
    record = LossRecord(3)
    for step in range(13):
        record.append(torch.tensor([1]), torch.tensor([float(step)]))
    record.append(torch.tensor([0, 2]), torch.tensor([0.0, 5.0]))
    assert record.losses[1].tolist() == [float(step) for step in range(3, 13)]
    assert record.counts.tolist() == [1, LENGTH, 1]
    assert record.losses[2].tolist() == [5.0] + [0.0] * 9


def by_hand(model: LossPredictor, history: list[float], label: int | None) -> Tensor:
    """The paper's predictor for one example: only real losses go through the LSTM."""
    hidden = torch.zeros(HIDDEN)
    if history:
        _, (h, _) = model.lstm(torch.tensor(history).view(1, -1, 1))
        hidden = h.flatten()
    parts = [hidden] if label is None else [hidden, model.embedding.weight[label]]
    return model.linear(torch.cat(parts))[0]


@pytest.mark.parametrize("labelled", [True, False])
def test_the_predictor_sees_the_history_and_the_class_and_no_padding(labelled: bool) -> None:
    labels = torch.tensor([2, 0, 1, 1]) if labelled else None
    score = Approx(4, labels, seed=3)
    histories: list[list[float]] = [[], [0.0], [0.3, 0.0, 0.7], [float(i) for i in range(10)]]
    for i, history in enumerate(histories):
        for loss in history:
            score._record.append(torch.tensor([i]), torch.tensor([loss]))
    with torch.no_grad():
        predicted = score.predict(torch.arange(4))
        expected = [
            by_hand(score._model, history, int(labels[i]) if labels is not None else None)
            for i, history in enumerate(histories)
        ]
    torch.testing.assert_close(predicted, torch.stack(expected))
    assert (score.score(torch.arange(4), None) == predicted.clamp(min=0)).all()


def test_a_true_loss_of_zero_is_not_padding() -> None:
    score = Approx(2, None)
    score._record.append(torch.tensor([0]), torch.tensor([0.0]))
    with torch.no_grad():
        first, second = score.predict(torch.arange(2))
    assert float(first) != float(second)


def test_sizes_are_the_papers() -> None:
    model = LossPredictor(classes=10)
    assert (LENGTH, model.lstm.input_size, model.lstm.hidden_size) == (10, 1, 32)
    assert tuple(model.embedding.weight.shape) == (10, 32)
    assert tuple(model.linear.weight.shape) == (1, 64)


def test_classes_begin_alike() -> None:
    """Else those that have not come up yet would be drawn for nothing but their first value."""
    labels = torch.arange(2000)
    scores = Approx(2000, labels).score(labels, None)
    assert float(scores.max() - scores.min()) < 0.1


def test_one_update_is_one_adam_step_on_the_squared_error_of_the_old_history() -> None:
    labels = torch.tensor([0, 1, 0, 1])
    score, twin = Approx(4, labels, seed=1), Approx(4, labels, seed=1)
    optimizer = torch.optim.Adam(twin._model.parameters(), lr=1e-3)
    history: list[list[float]] = [[], [], [], []]
    for batch, losses in (([0, 1], [1.0, 2.0]), ([1, 3], [1.5, 0.0]), ([0, 1], [0.2, 0.4])):
        predicted = torch.stack([by_hand(twin._model, history[i], int(labels[i])) for i in batch])
        optimizer.zero_grad()
        (predicted - torch.tensor(losses)).square().mean().backward()
        for parameter in twin._model.parameters():  # empty histories: no gradient is a zero one
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        for i, loss in zip(batch, losses, strict=True):
            history[i].append(loss)
        score.update(torch.tensor(batch), torch.tensor(losses))
    for ours, theirs in zip(score._model.parameters(), twin._model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_after_the_first_updates_one_in_several_trains() -> None:
    score = Approx(4, every=3)
    trained = []
    for update in range(EAGER + 7):
        before = score._model.linear.bias.clone()
        score.update(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))
        if not torch.equal(before, score._model.linear.bias):
            trained.append(update)
    later = [update for update in range(EAGER, EAGER + 7) if update % 3 == 0]
    assert trained == [*range(EAGER), *later]


@pytest.mark.parametrize(("presample", "every"), [(None, EVERY), (2, 1)])
def test_with_pools_it_trains_at_every_step_as_the_paper_does(presample: Any, every: int) -> None:
    sampler = ImportanceSampler(64, 8, score="approx", presample=presample)
    assert sampler.score._every == every


def test_it_learns_to_tell_classes_apart_before_seeing_the_examples() -> None:
    labels = torch.arange(400) % 2
    score = Approx(400, labels, learning_rate=1e-2)
    seen = torch.arange(200)
    for step in range(60):
        at = seen[torch.randperm(200, generator=torch.Generator().manual_seed(step))[:64]]
        score.update(at, 0.2 + 2.0 * labels[at])
    unseen = torch.arange(200, 400)
    easy, hard = score.score(unseen, None)[::2], score.score(unseen, None)[1::2]
    assert float(easy.max()) < float(hard.min())


def test_predictions_of_the_whole_dataset_are_refreshed_in_turn() -> None:
    n = 300
    sampler = ImportanceSampler(n, 10, score="approx", smoothing=0.1)
    for _ in range(5):  # 5 x 64 others: everything once since the last change of the model
        indices, _ = sampler.draw()
        sampler.update(indices, torch.rand(10))
    sampler.score._optimizer.param_groups[0]["lr"] = 0.0
    for _ in range(5):
        indices, _ = sampler.draw()
        sampler.update(indices, torch.rand(10))
    kept = torch.from_numpy(sampler.source._tree.column(0).copy())
    torch.testing.assert_close(kept.float(), sampler.score.score(torch.arange(n), None))


def test_its_making_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    Approx(10, torch.zeros(10, dtype=torch.int64), seed=7)
    assert torch.equal(before, torch.get_rng_state())


def test_it_works_within_autocast() -> None:
    sampler = ImportanceSampler(20, 4, score="approx")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        indices, _ = sampler.draw()
        sampler.update(indices, torch.rand(4))
        sampler.draw()


def test_making_it_does_not_run_the_lstm(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start nobody has a history: 10^6 examples took seconds."""

    def run(*_: Any) -> None:
        raise AssertionError("the LSTM ran")

    monkeypatch.setattr(torch.nn.LSTM, "forward", run)
    sampler = ImportanceSampler(200_000, 8, score="approx", labels=torch.arange(200_000) % 10)
    assert len(sampler.draw()) == 8


# ---------------------------------------------------------------------------------------- growing


def test_history_knows_nothing_of_new_examples() -> None:
    score = History(2, decay=0.5)
    score.update(torch.arange(2), torch.tensor([1.0, 2.0]))
    score.extend(4)
    assert score.score(torch.arange(2), None).tolist() == [1.0, 2.0]
    assert score.score(torch.arange(2, 4), None).isnan().all()
    score.update(torch.tensor([1, 3]), torch.tensor([4.0, 5.0]))
    assert score.score(torch.tensor([1, 3]), None).tolist() == [3.0, 5.0]


@pytest.mark.parametrize("labelled", [True, False])
def test_approx_that_has_grown_goes_on_as_a_new_one_with_its_state(labelled: bool) -> None:
    labels = torch.arange(90) % 3 if labelled else None
    grown = Approx(40, None if labels is None else labels[:40], seed=1)
    losses = torch.rand(90, generator=torch.Generator().manual_seed(0))
    grown.update(torch.arange(40), losses[:40])
    known = grown.score(torch.arange(40), None)
    grown.extend(90, None if labels is None else labels[40:])
    assert torch.equal(grown.score(torch.arange(90), None)[:40], known)
    new = Approx(90, labels, seed=2)
    new.load_state_dict(grown.state_dict())
    for step in range(5):
        some = torch.arange(step, 90, 7)
        assert torch.equal(grown.update(some, losses[some]), new.update(some, losses[some]))
        assert torch.equal(grown.score(torch.arange(90), None), new.score(torch.arange(90), None))


def test_new_examples_of_approx_have_no_history_and_their_class() -> None:
    score = Approx(4, torch.tensor([0, 1, 2, 1]))
    score.update(torch.arange(4), torch.rand(4))
    score.extend(6, torch.tensor([2, 0]))
    assert score._record.counts.tolist() == [1, 1, 1, 1, 0, 0]
    expected = torch.stack([by_hand(score._model, [], label) for label in (2, 0)])
    torch.testing.assert_close(score.predict(torch.tensor([4, 5])), expected)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "labels must be given for the 2 new examples, as for the first; got none"),
        (torch.tensor([0]), r"new examples, as for the first; got shape \[1\]"),
        (torch.tensor([0, 3]), "among the 3 classes that 'approx' began with; got classes 0 to 3"),
        (torch.tensor([-1, 0]), "among the 3 classes"),
    ],
)
def test_classes_that_approx_does_not_know_are_refused(labels: Any, message: str) -> None:
    score = Approx(3, torch.tensor([0, 1, 2]))
    with pytest.raises(ArgumentError, match=message):
        score.extend(5, labels)
    assert len(score.update(torch.arange(3), torch.rand(3))) == 6  # nothing has changed


def test_approx_keeps_its_classes_in_few_bytes() -> None:
    labels = torch.arange(300)
    score = Approx(300, labels)
    assert score._labels.dtype == torch.int16
    labels[:] = 0  # the caller's
    assert score._labels.tolist() == list(range(300))


def test_uniform_grows_too() -> None:
    score = Uniform()
    score.extend(9)
    assert score.score(torch.arange(9), None).tolist() == [1.0] * 9


def test_losses_are_read_only_where_somebody_has_one() -> None:
    record = LossRecord(3)
    assert record.rows(torch.tensor([2, 0]))[0].shape == (2, 0)
    record.append(torch.tensor([1]), torch.tensor([0.5]))
    assert record.rows(torch.tensor([2, 0]))[0].shape == (2, 0)
    losses, counts = record.rows(torch.tensor([2, 1]))
    assert losses[:, 0].tolist() == [0.0, 0.5]
    assert counts.tolist() == [0, 1]
