"""Every source goes on from its state, wherever that was taken."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from parts import force_auto, frozen
from salience.scores import History
from salience.smoothing import Adaptive, Constant, Fading
from salience.sources import (
    AutoSource,
    ByScore,
    Choice,
    EvenIntervals,
    Passes,
    Pool,
    Shuffled,
    Source,
    Strata,
    WholeDataset,
    even,
)
from salience.sources.permutation import STORED
from salience.trust import Discounted, Trust

BATCH = 8
LARGE = STORED + 3  # orders beyond are computed, not stored
Parts = tuple[Source, History, torch.Generator, list[Any]]


def parts(n: int, seed: int) -> tuple[torch.Generator, History, Any]:
    smoothing = Adaptive()
    return torch.Generator().manual_seed(seed), History(n, decay=0.5), smoothing


def shuffled(n: int, seed: int) -> Parts:
    generator, score, smoothing = parts(n, seed)
    return Shuffled(Passes(n, generator)), score, generator, [smoothing]


def stratified(n: int, seed: int) -> Parts:
    generator, score, smoothing = parts(n, seed)
    # Which example stands where in a stratum is drawn once, from the seed of the run.
    strata = Strata(torch.arange(n) % 30, BATCH, torch.Generator().manual_seed(4))
    return Shuffled(Passes(n, generator, strata)), score, generator, [smoothing]


def whole(scheme: Any) -> Callable[[int, int], Parts]:
    def make(n: int, seed: int) -> Parts:
        generator, score, smoothing = parts(n, seed)
        source = WholeDataset(n, score, smoothing, 0.5, scheme, generator)
        return source, score, generator, [smoothing]

    return make


def pool(n: int, seed: int) -> Parts:
    generator, score, smoothing = parts(n, seed)
    choice = Choice(smoothing, 0.5, "systematic", generator)
    pool = Pool(3 * BATCH, BATCH, Passes(n, generator), score, choice)
    return pool, score, generator, [smoothing]


def even_intervals(scheme: Any) -> Callable[[int, int], Parts]:
    def make(n: int, seed: int) -> Parts:
        generator, score, smoothing = parts(n, seed)
        source = EvenIntervals(n, score, ByScore(smoothing, 0.5), scheme, generator)
        return source, score, generator, [smoothing]

    return make


def auto_source(n: int, seed: int) -> Parts:
    """With the user's smoothing: no trust."""
    generator, score, smoothing = parts(n, seed)
    on = EvenIntervals(n, score, ByScore(smoothing, 0.5), "systematic", generator)
    off = Shuffled(Passes(n, generator))
    source = AutoSource(n, BATCH, score, smoothing, off, on)
    return source, score, generator, [smoothing]


def trusting_auto(n: int, seed: int) -> Parts:
    generator, score, _ = parts(n, seed)
    smoothing = Fading()
    trust = Trust(smoothing, torch.arange(n) % 30)
    rule = ByScore(smoothing, 0.5)
    on = EvenIntervals(n, Discounted(score, trust), rule, "systematic", generator)
    off = Shuffled(Passes(n, generator))
    source = AutoSource(n, BATCH, score, smoothing, off, on, smoothing, trust)
    return source, score, generator, [smoothing]


SOURCES: dict[str, Callable[[int, int], Parts]] = {
    "shuffled": shuffled,
    "stratified": stratified,
    "whole dataset, systematic": whole("systematic"),
    "whole dataset, multinomial": whole("multinomial"),
    "pool": pool,
    "even intervals": even_intervals("systematic"),
    "even intervals, multinomial": even_intervals("multinomial"),
    "auto": auto_source,
    "auto, focused": trusting_auto,
    "auto, focused, trust": trusting_auto,
}


def force(name: str, every: int = 4) -> None:
    force_auto("focused", trust="trust" in name, every=every)


def check_forced(name: str, source: Any) -> None:
    if isinstance(source, AutoSource):
        assert source.mode == "focused"
        assert (source.trust is not None and source.trust.active) == ("trust" in name)


def step(made: Parts, number: int) -> Any:
    source, score, _, (smoothing,) = made
    draw = source.draw(BATCH, number)
    losses = ((draw.indices * 7919 % 101).float() / 20) ** 2 / (1 + number / 10)
    distinct = draw.indices.unique()
    score.update(distinct, ((distinct * 7919 % 101).float() / 20) ** 2 / (1 + number / 10))
    smoothing.update(float(losses.mean()))
    source.update(distinct)
    if number % 17 == 16:
        source.new_epoch()
    return frozen(draw.state_dict())


def states(made: Parts) -> dict[str, Any]:
    source, score, generator, (smoothing,) = made
    return {
        "source": source.state_dict(),
        "score": score.state_dict(),
        "smoothing": smoothing.state_dict(),
        "rng": generator.get_state(),
    }


def load(made: Parts, state: dict[str, Any]) -> None:
    source, score, generator, (smoothing,) = made
    score.load_state_dict(state["score"])
    smoothing.load_state_dict(state["smoothing"])
    generator.set_state(state["rng"])
    source.load_state_dict(state["source"])


def check(make: Callable[[int, int], Parts], n: int, cuts: tuple[int, ...], steps: int) -> Source:
    """The source after these steps, once others have gone on from its states."""
    one = make(n, 1)
    saved, rows = {}, []
    for number in range(steps):
        if number in cuts:
            saved[number] = states(one)
        rows.append(step(one, number))
    for number, state in saved.items():
        twin = make(n, 2)
        step(twin, 0)  # not a fresh one: whatever it held is gone
        load(twin, state)
        assert [step(twin, later) for later in range(number, steps)] == rows[number:]
    return one[0]


@pytest.mark.parametrize("name", SOURCES)
def test_draws_go_on_from_the_state(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(even, "SLICE", 90)  # several to a sweep
    force(name)
    check_forced(name, check(SOURCES[name], 203, (0, 1, 3, 4, 12, 17, 40, 59), 60))


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("state", ["off", "on"])
def test_a_dataset_that_grows_goes_on_from_the_state(
    name: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the pass under way is still over the old examples."""
    monkeypatch.setattr(even, "SLICE", 90)
    if state == "on":
        force(name)
    else:
        force_auto("off", trust="trust" in name, every=4)
    sizes, cuts = {9: 230, 12: 301}, (9, 10, 12, 13, 14, 30, 59)
    one = SOURCES[name](203, 1)
    saved, rows, n = {}, [], 203
    for number in range(60):
        if number in sizes:
            n = sizes[number]
            grow(one, n)
        if number in cuts:
            saved[number] = n, states(one)
        rows.append(step(one, number))
    assert not one[1].score(torch.arange(203, 301), None).isnan().all()  # new ones were visited
    if state == "on":
        check_forced(name, one[0])
    for number, (size, state_dict) in saved.items():
        twin = SOURCES[name](size, 2)
        load(twin, state_dict)
        for later in range(number, 60):
            if later in sizes and later > number:
                grow(twin, sizes[later])
            assert step(twin, later) == rows[later]


def grow(made: Parts, n: int) -> None:
    source, score, _, _ = made
    score.extend(n)
    source.extend(n, torch.arange(n) % 30)


@pytest.mark.parametrize(
    "name", ["shuffled", "stratified", "pool", "even intervals", "auto, focused"]
)
def test_beyond_the_orders_that_are_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(even, "SLICE", 5000)
    force(name)
    check_forced(name, check(SOURCES[name], LARGE, (0, 3, 9), 12))


@pytest.mark.parametrize("name", SOURCES)
def test_a_state_is_not_changed_by_later_steps(name: str) -> None:
    force(name)
    made = SOURCES[name](203, 1)
    for number in range(5):
        step(made, number)
    state = states(made)
    kept = frozen(state)
    for number in range(5, 40):
        step(made, number)
    assert frozen(state) == kept
    load(made, state)
    for number in range(5, 10):
        step(made, number)
    assert frozen(state) == kept


def test_constant_smoothing_has_no_state() -> None:
    assert Constant(0.5).state_dict() == {}
