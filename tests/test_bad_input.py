"""Every public entry refuses what cannot work, in one sentence with the value and the remedy."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from parts import cross_entropy
from salience import (
    Adaptive,
    ArgumentError,
    Constant,
    ImportanceLoader,
    ImportanceSampler,
    LossError,
    SalienceError,
    UsageError,
)
from salience.scores import NEED_MODEL

DATA = TensorDataset(torch.zeros(20, 6), torch.arange(20) % 3)
NET = nn.Linear(6, 3)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield torch.zeros(6)


CASES: list[tuple[dict[str, Any], str]] = [
    ({"k": 1.5}, r"k must be .* <= 1 .*; got 1\.5"),
    ({"k": math.nan}, r"k must be .*; got nan"),
    ({"k": "big"}, r"k must be .*; got 'big'"),
    ({"smoothing": -0.5}, r"smoothing must be .*>= 0; got -0\.5"),
    ({"smoothing": math.nan}, r"smoothing must be .*; got nan"),
    ({"smoothing": math.inf}, r"smoothing must be .*; got inf"),
    ({"smoothing": "lots"}, r"smoothing must be 'adaptive', .*; got 'lots'"),
    ({"smoothing": True}, r"smoothing must be .*; got True"),
    ({"batch_size": 0}, r"batch_size must be a whole number >= 1; got 0"),
    ({"batch_size": None}, r"batch_size must be .*; got None"),
    ({"batch_size": 2.0}, r"batch_size must be .*; got 2\.0"),
    ({"presample": 0.5}, r"presample must be a number >= 1 .*or None; got 0\.5"),
    ({"presample": -1}, r"presample must be .*; got -1"),
    ({"presample": math.nan}, r"presample must be .*; got nan"),
    ({"presample": "two"}, r"presample must be .*; got 'two'"),
    ({"draw": "sorted"}, r"draw must be one of systematic, multinomial; got 'sorted'"),
    ({"score": "magic"}, r"score must be one of auto, .*; got 'magic'"),
    ({"score": 3}, r"score must be one of .* or an object with .*; got 3"),
    ({"labels": [1, 2, 3], "score": "approx"}, r"labels must have one entry per example; got 3"),
    ({"labels": [1, 2, 3]}, r"labels must have one entry per example; got 3"),
    ({"on_bad_loss": "hide"}, r"on_bad_loss must be one of raise, skip; got 'hide'"),
    ({"seed": "x"}, r"seed must be a whole number; got 'x'"),
    ({"steps_per_epoch": 0}, r"steps_per_epoch must be a whole number >= 1; got 0"),
    ({"steps_per_epoch": 1.5}, r"steps_per_epoch must be .*; got 1\.5"),
    ({"shuffle": True}, r"shuffle cannot be given"),
    ({"sampler": [0]}, r"sampler cannot be given"),
    ({"batch_sampler": [[0]]}, r"batch_sampler cannot be given"),
    ({"in_order": False, "num_workers": 1}, r"in_order=False is not supported"),
    ({"dataset": TensorDataset(torch.zeros(0))}, r"the dataset is empty \(0 examples\)"),
    ({"dataset": Endless()}, r"Endless has no length .*from_loader"),
]


@pytest.mark.parametrize(("options", "message"), CASES)
def test_the_loader_refuses(options: dict[str, Any], message: str) -> None:
    arguments = {"dataset": DATA, "batch_size": 4, **options}
    with pytest.raises(ArgumentError, match=message) as caught:
        ImportanceLoader(**arguments)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, SalienceError)


def test_an_unknown_option_is_named_by_dataloader() -> None:
    with pytest.raises(TypeError, match="num_wrokers"):
        ImportanceLoader(DATA, 4, num_wrokers=2)


@pytest.mark.parametrize("score", [*NEED_MODEL])
def test_a_score_that_needs_a_model_says_so(score: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{score}.*model"):
        ImportanceLoader(DATA, 4, score=score, loss=cross_entropy)
    with pytest.raises(ArgumentError, match=rf"{score}.*loss"):
        ImportanceLoader(DATA, 4, score=score, model=NET)


LOSSES = [
    (torch.tensor(1.0), r"one per example, got a single number.*reduction='none'.*whole batch"),
    (torch.ones(3), r"got shape \[3\] for a batch of 4: give one row per example, or .*slots"),
    (torch.ones(6), r"got shape \[6\] for a batch of 4: give one row per example"),
    (torch.ones(12), r"got shape \[12\] for a batch of 4: if .* flattened from \[4, 3\], pass"),
    (torch.ones(5, 2), r"got shape \[5, 2\] for a batch of 4"),
    (torch.ones(4, 0), r"losses are empty: got shape \[4, 0\]"),
    (torch.tensor([1, math.nan, 1, 1]), r"finite and >= 0; at step 1 example \d+: nan"),
    (torch.tensor([1, math.inf, 1, 1]), r"example \d+: inf"),
    (torch.tensor([1, 1, 1, -0.25]), r"example \d+: -0\.25"),
]


@pytest.mark.parametrize(("losses", "message"), LOSSES)
@pytest.mark.parametrize("score", ["uniform", "history"])
def test_losses_are_checked(losses: Any, message: str, score: str) -> None:
    loader = ImportanceLoader(DATA, 4, score=score)
    next(iter(loader))
    with pytest.raises(LossError, match=message):
        loader.mean(losses)
    sampler = ImportanceSampler(20, 4, score=score)
    with pytest.raises(LossError, match=message):
        sampler.update(sampler.draw().indices, losses)


def test_many_bad_losses_are_counted_not_listed() -> None:
    sampler = ImportanceSampler(20, 10)
    with pytest.raises(LossError, match=r"(example \d+: nan, ){4}example \d+: nan and 5 more"):
        sampler.update(sampler.draw().indices, torch.full((10,), math.nan))


INDICES = [
    ([0, 1, 2, 20], r"index 20 is out of range for a dataset of 20 examples"),
    ([0, -1, 2, 3], r"index -1 is out of range"),
    ([0.5, 1, 2, 3], r"indices must be whole numbers of shape \[batch\]; got torch.float32"),
    ([[0, 1], [2, 3]], r"got torch.int64 of shape \[2, 2\]"),
    ([True, False], r"got torch.bool"),
]


@pytest.mark.parametrize(("indices", "message"), INDICES)
def test_indices_are_checked(indices: Any, message: str) -> None:
    sampler = ImportanceSampler(20, 4)
    with pytest.raises(ArgumentError, match=message):
        sampler.update(torch.tensor(indices), torch.ones(4))


def test_draws_of_a_score_that_needs_examples_are_refused() -> None:
    sampler = ImportanceSampler(20, 4, score="loss", model=NET, loss=cross_entropy)
    with pytest.raises(UsageError, match=r"'loss' needs the examples.*ImportanceLoader"):
        sampler.draw()


def test_streams_need_a_score_that_needs_no_index() -> None:
    with pytest.raises(ArgumentError, match=r"'history' needs examples with an index"):
        ImportanceLoader.from_loader([], 4, score="history")


def test_a_pool_smaller_than_the_batch_is_refused() -> None:
    pools = [(torch.zeros(3, 6), torch.zeros(3, dtype=torch.int64))]
    loader = ImportanceLoader.from_loader(pools, 4, model=NET, loss=cross_entropy)
    with pytest.raises(ArgumentError, match=r"batch_size 4 is larger than the pool of 3 examples"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("collated", "message"),
    [
        ((torch.zeros(6, 8), torch.zeros(8)), r"batch\[0\] of shape \[6, 8\].*the 8 examples"),
        ({"x": torch.zeros(8, 6), "n": torch.tensor(1)}, r"batch\['n'\] of shape \[\]"),
        ((torch.zeros(8, 6), object()), r"batch\[1\] of type object"),
    ],
)
def test_pools_that_cannot_be_picked_from(collated: Any, message: str) -> None:
    loader = ImportanceLoader(
        DATA,
        4,
        score="loss",
        model=NET,
        loss=lambda model, _: model(torch.zeros(8, 6)).square().sum(1),
        collate_fn=lambda _: collated,
    )
    with pytest.raises(ArgumentError, match=message):
        next(iter(loader))
    with pytest.raises(ArgumentError, match="cannot tell how many"):
        next(iter(ImportanceLoader.from_loader([3], 1, model=NET, loss=cross_entropy)))


def test_a_bad_score_is_named() -> None:
    data = TensorDataset(torch.tensor([[0.0] * 6] * 19 + [[math.nan] * 6]), torch.zeros(20).long())
    options: dict[str, Any] = {"model": NET, "loss": cross_entropy, "presample": 5}
    with pytest.raises(LossError, match=r"score nan of example 19 \(pool of 20\) at step 1"):
        next(iter(ImportanceLoader(data, 4, score="loss", **options)))
    loader = ImportanceLoader(data, 4, score="loss", on_bad_loss="skip", **options)
    for x, y in loader:
        assert math.isfinite(float(loader.mean(cross_entropy(NET, (x, y)).detach())))


class Negative:
    by_index = True
    unit = "loss"

    def score(self, indices: Any, batch: Any) -> Any:  # noqa: ARG002
        return torch.where(indices == 7, -1.0, 1.0)

    def update(self, indices: Any, losses: Any) -> Any:  # noqa: ARG002
        return indices

    def state_dict(self) -> Any:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def test_a_score_of_the_users_own_is_checked() -> None:
    with pytest.raises(ArgumentError, match=r"finite and >= 0; scores\[7\] = -1"):
        ImportanceSampler(20, 4, score=Negative())
    sampler = ImportanceSampler(20, 4, score=Negative(), presample=5)
    with pytest.raises(ArgumentError, match=r"finite and >= 0; scores\[\d+\] = -1"):
        sampler.draw()


@pytest.mark.parametrize("make", [lambda: Adaptive(share=-1), lambda: Adaptive(decay=1.0)])
def test_smoothing_objects_check_their_arguments(make: Any) -> None:
    with pytest.raises(ArgumentError):
        make()
    with pytest.raises(ArgumentError):
        Constant(-1)
