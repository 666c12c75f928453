"""The harness itself, without any framework: it sees what it is meant to see."""

from collections.abc import Callable

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


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_of_the_plain_loop_are_caught(
    mutant: Callable[[pytest.MonkeyPatch], None],
    ahead: int,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> Trace:
        trace, model = watch(monkeypatch), Watched()
        plain_loop(make_loader(num_workers=workers), model, sgd(model), ahead=ahead)
        return trace.finish(model)

    expected = run()
    matters(expected)
    assert_same(run(), expected)
    assert_caught(mutant, run, expected, monkeypatch)
