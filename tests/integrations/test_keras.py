"""Keras on torch: what the model sees, and how it is weighed."""

import keras_parts  # isort: skip (chooses the backend)

from collections.abc import Callable
from typing import Any

import pytest
from harness import MUTANTS, Trace, Watched, assert_caught, assert_same, make_loader, matters
from harness import plain_loop, sgd, watch
from keras_parts import fit


def plain(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Trace:
    trace, model = watch(monkeypatch), Watched()
    plain_loop(make_loader(**options), model, sgd(model))
    return trace.finish(model)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("kind", [*keras_parts.KINDS])
def test_the_same_as_a_plain_loop(
    kind: str, slots: bool, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(monkeypatch, num_workers=workers)
    matters(expected)
    trace = fit(monkeypatch, kind, loader=make_loader(slots=slots, num_workers=workers))
    assert_same(trace, expected, 1e-5)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fit(monkeypatch)
    assert_caught(mutant, lambda: fit(monkeypatch), expected, monkeypatch)
