"""What each name means."""

from typing import Any

import pytest
import torch
from torch import nn

from parts import needs
from salience import Constant, ImportanceSampler
from salience.presets import NAMES
from salience.recency import Recency
from salience.scores import NEED_MODEL, Approx, History, Uniform
from salience.smoothing import Adaptive, Fading
from salience.sources import AutoSource, EvenIntervals, Pool, Shuffled, WholeDataset

N, BATCH = 60, 6
PARTS: dict[str, tuple[type, type, type]] = {
    "auto": (Recency, Fading, AutoSource),
    "uniform": (Uniform, Constant, Shuffled),
    "history": (History, Adaptive, WholeDataset),
    "approx": (Approx, Adaptive, WholeDataset),
    **{name: (made, Adaptive, Pool) for name, made in NEED_MODEL.items()},
}


def make(name: str, **options: Any) -> ImportanceSampler:
    return ImportanceSampler(N, BATCH, score=name, **needs(name, nn.Linear(6, 3)), **options)


def test_every_name_is_here() -> None:
    assert set(PARTS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_score_smoothing_and_source(name: str) -> None:
    sampler = make(name)
    found = (type(sampler.score), type(sampler._smoothing), type(sampler.source))
    assert found == PARTS[name]
    assert sampler.score_name == name
    assert sampler.active == (name not in ("auto", "uniform"))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "uniform"])
def test_presample_is_the_pool_in_batches(name: str) -> None:
    source = make(name, presample=3).source
    pool = source._on if isinstance(source, AutoSource) else source
    assert isinstance(pool, Pool)
    assert len(pool.candidates()) == 3 * BATCH


def test_the_default_pool_of_scores_that_need_the_model_is_two_batches() -> None:
    assert len(make("loss").candidates()) == 2 * BATCH
    small = ImportanceSampler(7, 6, score="loss", **needs("loss", nn.Linear(6, 3)))
    assert len(small.candidates()) == 7


@pytest.mark.parametrize("name", [name for name in NAMES if name != "uniform"])
def test_smoothing_is_the_users(name: str) -> None:
    assert repr(make(name, smoothing=0.25)._smoothing) == "Constant(0.25)"
    own = Adaptive(0.1)
    assert make(name, smoothing=own)._smoothing is own


def test_auto_visits_at_even_intervals_and_stratifies_many_classes() -> None:
    source = make("auto").source
    assert isinstance(source._on, EvenIntervals)
    assert source._off._passes._strata is None
    assert source.trust is not None
    for options in ({"presample": 3}, {"smoothing": 0.1}):  # shuffled passes or focused, no more
        assert make("auto", **options).source.trust is None
    few, many = torch.arange(N) % BATCH, torch.arange(N) % (BATCH + 1)
    assert make("auto", labels=few).source._off._passes._strata is None
    assert make("auto", labels=many).source._off._passes._strata is not None


class Own:
    """A score of the user's own."""

    unit = "loss"

    def __init__(self, by_index: bool) -> None:
        self.by_index = by_index

    def score(self, indices: Any, batch: Any) -> Any:  # noqa: ARG002
        return torch.ones(len(indices))

    def update(self, indices: Any, losses: Any) -> Any:  # noqa: ARG002
        return indices

    def state_dict(self) -> Any:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


@pytest.mark.parametrize(("by_index", "source"), [(True, WholeDataset), (False, Pool)])
def test_a_score_of_the_users_own(by_index: bool, source: type) -> None:
    sampler = ImportanceSampler(N, BATCH, score=Own(by_index))
    assert type(sampler.source) is source
    assert sampler.score_name == "Own"
