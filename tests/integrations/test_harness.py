"""The harness itself, without any framework: it sees what it is meant to see."""

from collections.abc import Callable
from typing import Any

import pytest
from harness import (
    MUTANTS,
    Trace,
    Watched,
    assert_caught,
    assert_same,
    make_loader,
    matters,
    plain_loop,
    sgd,
    watch,
)


def run(
    monkeypatch: pytest.MonkeyPatch,
    ahead: int,
    *,
    by_hand: bool,
    deferred: bool | None = None,
    **options: Any,
) -> Trace:
    trace, model, loader = watch(monkeypatch), Watched(), make_loader(**options)
    loader.deferred = deferred
    plain_loop(loader, model, sgd(model), ahead=ahead, by_hand=by_hand)
    return trace.finish(model)


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("deferred", [None, True])
@pytest.mark.parametrize("score", ["history", "auto", "uniform"])
@pytest.mark.usefixtures("auto_turns_on")
def test_a_loop_over_the_loader_is_one_over_the_draws_of_its_sampler(
    score: str, deferred: bool | None, workers: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"score": score, "deferred": deferred, "num_workers": workers}
    expected = run(monkeypatch, ahead, by_hand=True, **options)
    if score != "uniform":
        matters(expected)
    assert_same(run(monkeypatch, ahead, by_hand=False, **options), expected)


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_of_the_plain_loop_are_caught(
    mutant: Callable[[pytest.MonkeyPatch], None],
    ahead: int,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"num_workers": workers}
    expected = run(monkeypatch, ahead, by_hand=True, **options)
    again = lambda: run(monkeypatch, ahead, by_hand=False, **options)  # noqa: E731
    assert_caught(mutant, again, expected, monkeypatch)
