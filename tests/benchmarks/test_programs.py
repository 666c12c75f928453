"""Random programs of calls: some hundred, and mistakes that they have to see."""

from collections.abc import Callable
from typing import Any

import numpy as np
import programs
import pytest
import torch
from reference import WrongError

from salience import functional, learning, smoothing
from salience.sources import passes, whole


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_programs_agree_with_the_reference(first: int) -> None:
    found = programs.part(first + 10_000, 100)
    assert found["failures"] == []


def test_a_program_with_workers() -> None:
    number = 10_399
    assert programs.make(number).workers == 1
    assert programs.run(number)[1] is None


def problems(count: int = 60) -> list[str]:
    found = [programs.run(number)[1] for number in range(count)]
    return [each for each in found if each is not None]


def wrapped(change: Callable[[Any], Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **named: change(original(*args, **named))


def by_a_little(value: Any) -> Any:
    return value * (1 + 1e-6)


@pytest.mark.parametrize(
    ("where", "name", "change"),
    [
        (functional, "shard_weights", by_a_little),
        (smoothing.Adaptive, "constant", by_a_little),
        (whole.SumTree, "total", by_a_little),
        (smoothing.RunningMean, "floored", by_a_little),
        (learning, "distinct", lambda pair: (pair[0], pair[1] * 1.001)),
        (passes.Passes, "take", lambda indices: torch.cat([indices[:1], indices[:-1]])),
    ],
    ids=["weights", "smoothing", "total", "floor", "history", "pass"],
)
def test_mistakes_are_seen(
    where: Any, name: str, change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrapped(change, getattr(where, name)))
    assert any("WrongError" in each for each in problems())


def test_a_forgotten_part_of_a_state_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole.WholeDataset, "_initial", 7.0)
    assert problems()


def test_differences_are_told() -> None:
    programs.same([1.0, np.nan], [1.0, np.nan], "x")
    for other in ([1.0, 1.0], [1.0 + 1e-11, np.nan], [1.0]):
        with pytest.raises(WrongError, match="x"):
            programs.same(other, [1.0, np.nan], "x")
