"""Scores above a reference, and references from models that have not seen the examples."""

import copy
import itertools
import random
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from parts import cross_entropy, frozen, make_dataset, needs
from ranks import on_ranks
from salience import (
    ArgumentError,
    ImportanceLoader,
    ImportanceSampler,
    LossError,
    StateError,
    UsageError,
    cross_fit,
)
from salience.scores import Excess, History, Score

N = 40
REFERENCE = torch.linspace(0, 1.5, N)
SCORES = ["auto", "history", "loss"]


def steps(loader: ImportanceLoader, epochs: int = 1) -> list[Any]:
    """Losses that are known of each example."""
    rows = []
    for _ in range(epochs):
        for _ in loader:
            losses = (loader.indices % 7) / 3.0
            rows.append((loader.indices.tolist(), loader.weights.tolist()))
            loader.mean(losses)
    return rows


def test_the_excess_follows_the_equation() -> None:
    score = Excess(History(4), torch.tensor([0.5, 0.5, 0.5, -1.0]))
    assert isinstance(score, Score)
    score.update(torch.tensor([0, 1, 3]), torch.tensor([2.0, 0.25, 1.0]))
    found = score.score(torch.arange(4), None)
    assert found[[0, 1, 3]].tolist() == [1.5, 0.0, 2.0]
    assert found[2].isnan()
    assert score.from_losses(torch.tensor([3, 0]), torch.tensor([1.0, 0.0])).tolist() == [2.0, 0.0]


@pytest.mark.usefixtures("auto_turns_on")
@pytest.mark.parametrize("score", ["auto", "history"])
def test_recorded_losses_are_scored_above_the_reference(score: str, dataset: Any) -> None:
    loader = ImportanceLoader(dataset, 8, score=score, reference=REFERENCE)
    plain = ImportanceLoader(dataset, 8, score=score)
    steps(loader, 6), steps(plain, 6)
    losses = torch.arange(N) % 7 / 3.0
    expected = (losses - REFERENCE).clamp(min=0)
    found = loader.scores()
    seen = ~found.isnan()
    assert int(seen.sum()) > 30
    torch.testing.assert_close(found[seen], expected[seen])
    seen = ~plain.scores().isnan()
    torch.testing.assert_close(plain.scores()[seen], losses[seen])


@pytest.mark.parametrize("deferred", [None, True])
def test_the_current_loss_is_scored_above_the_reference(
    deferred: bool | None, dataset: TensorDataset, model: nn.Module
) -> None:
    model.eval()
    loader = ImportanceLoader(
        dataset,
        8,
        score="loss",
        reference=REFERENCE,
        model=model,
        loss=cross_entropy,
        smoothing=0.1,
    )
    loader.deferred = deferred
    for x, y in loader:
        draw, losses = loader.last_draw, cross_entropy(model, (x, y))
        expected = (losses.detach() - REFERENCE[draw.indices]).clamp(min=0)
        torch.testing.assert_close(draw.scores, expected)
        loader.mean(losses)


@pytest.mark.parametrize("score", SCORES)
def test_smoothing_follows_the_mean_excess(score: str, dataset: Any, model: nn.Module) -> None:
    """Not the mean loss, which may be many times larger; auto is off here, and draws uniform."""
    reference = torch.full((N,), 5.0)
    options = needs(score, model)
    loader = ImportanceLoader(dataset, 8, score=score, reference=reference, **options)
    for _ in loader:
        loader.mean(torch.full((len(loader.indices),), 5.5))
    assert loader.metrics()["mean_loss"] == pytest.approx(5.5, rel=0.2)
    mean = loader._sampler._smoothing._mean.value
    assert mean == pytest.approx(0.5, rel=0.2)


def test_an_excess_of_nothing_is_uniform(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8, score="history", reference=torch.full((N,), 9.0))
    for _, weights in steps(loader, 3)[10:]:
        assert weights == pytest.approx([1.0] * 8)


@pytest.mark.parametrize("score", ["auto", "history"])
def test_a_reference_of_zero_changes_nothing(score: str, dataset: TensorDataset) -> None:
    zero = ImportanceLoader(dataset, 8, score=score, reference=torch.zeros(N))
    assert steps(zero, 5) == steps(ImportanceLoader(dataset, 8, score=score), 5)


@pytest.mark.parametrize(
    "given",
    [
        REFERENCE.tolist(),
        REFERENCE.double().numpy(),
        dict(enumerate(REFERENCE.tolist())),
        {i: float(REFERENCE[i]) for i in reversed(range(N))},
    ],
)
def test_any_numbers_by_index_will_do(given: Any, dataset: TensorDataset) -> None:
    expected = steps(ImportanceLoader(dataset, 8, score="history", reference=REFERENCE), 3)
    assert steps(ImportanceLoader(dataset, 8, score="history", reference=given), 3) == expected


def test_the_users_own_tensor_may_change(dataset: TensorDataset) -> None:
    mine = REFERENCE.clone()
    loader = ImportanceLoader(dataset, 8, score="history", reference=mine)
    mine += 100
    assert steps(loader, 3) == steps(
        ImportanceLoader(dataset, 8, score="history", reference=REFERENCE), 3
    )


@pytest.mark.parametrize(
    ("reference", "score", "message"),
    [
        (torch.zeros(3), "auto", r"shape \[40\]; got \[3\]"),
        (torch.zeros(40, 1), "auto", r"shape \[40\]; got \[40, 1\]"),
        ([0.0] * 39 + [float("nan")], "history", r"reference\[39\] = nan"),
        ({0: 1.0}, "history", "no loss for example 1"),
        (REFERENCE, "uniform", "does not go with score 'uniform'"),
        (REFERENCE, "approx", "does not go with score 'approx'"),
        (REFERENCE, "upper_bound", "does not go with score 'upper_bound'"),
        (REFERENCE, History(N), "does not go with score <salience"),
    ],
)
def test_what_is_no_reference_is_refused(
    reference: Any, score: Any, message: str, dataset: TensorDataset
) -> None:
    with pytest.raises(ArgumentError, match=message):
        ImportanceLoader(dataset, 8, score=score, reference=reference)


def test_a_stream_has_no_reference(model: nn.Module) -> None:
    with pytest.raises(ArgumentError, match="which a stream does not have"):
        ImportanceSampler(None, 8, score="loss", model=model, loss=cross_entropy, reference=[1.0])


@pytest.mark.usefixtures("auto_turns_on")
@pytest.mark.parametrize("score", ["auto", "history"])
def test_states_continue_exactly(score: str, dataset: TensorDataset) -> None:
    whole = ImportanceLoader(dataset, 8, score=score, reference=REFERENCE)
    rows = steps(whole, 4)
    first = ImportanceLoader(dataset, 8, score=score, reference=REFERENCE)
    before = steps(first, 2)
    other = ImportanceLoader(dataset, 8, score=score, reference=REFERENCE)
    other.load_state_dict(first.state_dict())
    assert before + steps(other, 2) == rows
    assert frozen(other.state_dict()) == frozen(whole.state_dict())
    copied = copy.deepcopy(first)
    assert steps(copied, 2) == rows[len(before) :]


@pytest.mark.parametrize("other", [None, REFERENCE + 1])
def test_the_state_of_another_reference_is_refused(other: Any, dataset: TensorDataset) -> None:
    state = ImportanceLoader(dataset, 8, reference=REFERENCE).state_dict()
    with pytest.raises(StateError, match="state was saved with reference '40 losses, checksum"):
        ImportanceLoader(dataset, 8, reference=other).load_state_dict(state)


def test_a_reference_has_no_losses_for_new_examples(dataset: TensorDataset) -> None:
    x, y = dataset.tensors
    grown = TensorDataset(x, y)
    loader = ImportanceLoader(grown, 8, score="history", reference=REFERENCE)
    grown.tensors = (x.repeat(2, 1), y.repeat(2))
    with pytest.raises(UsageError, match="no losses for new examples"):
        loader.extend()


def on_a_shard(rank: int, shard: Any) -> tuple[list[int], list[float]]:
    dataset, reference = make_dataset(N), REFERENCE
    if shard == "own":
        part = [[*range(N)][: N // 2], [*range(N)][N // 2 :]][rank]
        dataset = TensorDataset(*(t[part] for t in dataset.tensors))
        reference = REFERENCE[part]
    loader = ImportanceLoader(dataset, 4, score="history", shard=shard, reference=reference)
    for _ in range(8):
        for _ in loader:
            loader.mean(torch.full((len(loader.indices),), 2.0))
    found = loader.scores()
    known = (~found.isnan()).nonzero().flatten()
    start = N // 2 * rank if shard == "own" else 0
    return (known + start).tolist(), found[known].tolist()


@pytest.mark.parametrize("shard", [True, "own"])
def test_shards_take_their_part_of_it(shard: Any) -> None:
    found = dict(
        itertools.chain(*(zip(*part, strict=True) for part in on_ranks(2, on_a_shard, shard)))
    )
    assert len(found) > 30
    for i, score in found.items():
        assert score == pytest.approx(max(0.0, 2.0 - float(REFERENCE[i])), rel=1e-5)


# ------------------------------------------------------------------------------------ cross_fit


class Mean(nn.Module):
    """Predicts one number, whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(len(x))


def squared(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]) ** 2


def test_no_example_is_judged_by_a_model_that_has_seen_it() -> None:
    """With one step of size 1/2 the model is the mean of its fold: an oracle without training."""
    y = torch.randn(30, dtype=torch.float64).float()
    dataset = TensorDataset(torch.zeros(30, 1), y)
    for folds in (2, 3):
        found = cross_fit(
            dataset,
            Mean,
            squared,
            folds=folds,
            epochs=1,
            batch_size=30,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
            seed=4,
            progress=False,
        )
        order = torch.randperm(30, generator=torch.Generator().manual_seed(4))
        parts = [set(part.tolist()) for part in order.tensor_split(folds)]
        for i in range(30):
            means = [y[sorted(part)].mean() for part in parts if i not in part]
            expected = sum(float((m - y[i]) ** 2) for m in means) / len(means)
            assert float(found[i]) == pytest.approx(expected, rel=1e-4)


def fit(seed: int = 0, **options: Any) -> Tensor:
    def make_model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))

    options = {"epochs": 2, "batch_size": 13, "progress": False, **options}
    return cross_fit(make_dataset(N), make_model, nn.functional.cross_entropy, seed=seed, **options)


def test_the_seed_decides_and_nothing_else_is_touched() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first = fit()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # noqa: NPY002
    torch.rand(3), random.random()
    assert torch.equal(fit(), first)
    assert not torch.equal(fit(seed=1), first)
    assert first.shape == (N,)
    assert first.dtype == torch.float32
    assert bool(first.isfinite().all())


class Augmented(Dataset[Any]):
    """Every example with random numbers of its own."""

    def __init__(self) -> None:
        self.rows = make_dataset(N)

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        x, y = self.rows[i]
        return x + torch.rand(()) + random.random() + float(np.random.rand()), y  # noqa: NPY002


@pytest.mark.parametrize("workers", [0, 2])
def test_random_examples_are_those_of_the_seed(workers: int) -> None:
    def run() -> Tensor:
        return cross_fit(
            Augmented(),
            lambda: nn.Linear(6, 3),
            nn.functional.cross_entropy,
            epochs=1,
            progress=False,
            num_workers=workers,
        )

    first = run()
    random.random()
    assert torch.equal(run(), first)


def test_wrong_labels_have_a_high_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 2, generator=generator)
    y = (x[:, 0] > 0).long()
    wrong = torch.rand(600, generator=generator) < 0.2
    dataset = TensorDataset(x, torch.where(wrong, 1 - y, y))
    found = cross_fit(
        dataset, lambda: nn.Linear(2, 2), nn.functional.cross_entropy, epochs=60, progress=False
    )
    assert float(found[wrong].mean()) > 2 * float(found[~wrong].mean())


def test_a_bar_is_shown_if_rich_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for rich
    without = fit(progress=False)
    assert capsys.readouterr().err == ""
    assert torch.equal(fit(progress=True), without)
    assert "cross-fitting" in capsys.readouterr().err
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert torch.equal(fit(progress=True), without)
    assert capsys.readouterr().err == ""


def test_the_bar_reaches_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress

    ends: list[Any] = []
    stop = Progress.stop
    monkeypatch.setattr(Progress, "stop", lambda bar: (ends.append(bar.tasks[0]), stop(bar))[1])
    for batch_size in (7, 20, 100):
        fit(progress=True, batch_size=batch_size, folds=3)
        assert ends[-1].completed == ends[-1].total


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 1}, "folds must be a whole number >= 2; got 1"),
        ({"folds": 50}, "40 examples cannot be cut into 50 folds"),
        ({"epochs": 0}, "epochs must be a whole number >= 1; got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number"),
    ],
)
def test_what_cannot_be_fitted_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        fit(**options)


def test_losses_that_are_no_numbers_are_refused() -> None:
    dataset = TensorDataset(torch.zeros(8, 1), torch.tensor([float("inf")] * 8))
    with pytest.raises(LossError, match="give example 0 the loss inf, and 7 more such"):
        cross_fit(
            dataset,
            Mean,
            lambda model, batch: (model(batch[0]) - batch[1]).abs(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
            progress=False,
        )
