"""Packed runs: text and back, and what is refused."""

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from salience.compare.directory import RunFile
from salience.errors import ArgumentError
from salience.paper import packed
from salience.paper.measures import Trace
from salience.paper.packed import Kept, Pack
from salience.paper.targets import TARGETS

HERE = {"commit": "abc", "versions": {"torch": "2"}, "hardware": {"cores": 2}}
THERE = {**HERE, "commit": "def"}


def trace(method: str, seed: int, loss: float = 0.1) -> Trace:
    """Five evaluations: at this scale a run has four steps."""
    rows: list[Any] = [
        {
            "task": "mnist",
            "method": method,
            "seed": seed,
            "step": i,
            "seconds": 0.1 * i,
            "train_loss": loss,
            "train_max_loss": math.inf,
            "test_error": 1 / 3,
        }
        for i in range(5)
    ]
    return Trace(
        rows, [{"tracking": math.nan}, *({"tracking": -math.inf, "n": [i]} for i in "abcd")]
    )


def pack(*runs: tuple[str, int], environment: Any = HERE, **changed: Any) -> Pack:
    kept = {run: Kept(trace(*run), environment) for run in runs}
    return replace(Pack("mnist", "tiny", 0.0002, {"fig1b": 2}, kept), **changed)


LOSS = TARGETS["fig1b"].studies[0].methods["k=0.5"]


def test_text_and_back_is_exact() -> None:
    before = pack((LOSS, 0), ("uniform", 1), ("uniform", 0))
    after = packed.from_bytes(packed.to_bytes(before))
    assert repr(after.runs["uniform", 0]) == repr(before.runs["uniform", 0])  # nan and infinity too
    assert (after.study, after.model, after.scale) == ("mnist", "tiny", 0.0002)
    assert after.seeds == {"fig1b": 2}
    assert [*after.runs] == [(LOSS, 0), ("uniform", 0), ("uniform", 1)]


def test_the_same_runs_give_the_same_bytes() -> None:
    one = pack(("uniform", 0), ("uniform", 1), (LOSS, 0))
    other = pack((LOSS, 0), ("uniform", 1), ("uniform", 0))
    assert packed.to_bytes(one) == packed.to_bytes(other)
    assert packed.to_bytes(packed.from_bytes(packed.to_bytes(one))) == packed.to_bytes(one)
    assert packed.to_bytes(one)[4:8] == bytes(4)  # no time


def test_runs_keep_the_environment_in_which_they_were_made() -> None:
    old, new = pack(("uniform", 0)), pack(("uniform", 0), ("uniform", 1), environment=THERE)
    whole = packed.from_bytes(packed.to_bytes(packed.merge(old, new)))
    assert {key: kept.environment["commit"] for key, kept in whole.runs.items()} == {
        ("uniform", 0): "abc",
        ("uniform", 1): "def",
    }


def test_seeds_of_targets_are_the_most_that_were_wanted() -> None:
    whole = packed.merge(pack(), pack(seeds={"table1": 3, "fig1b": 1}))
    assert whole.seeds == {"fig1b": 2, "table1": 3}


def test_different_runs_are_not_mixed() -> None:
    other = pack(("uniform", 0))
    other.runs["uniform", 0] = Kept(trace("uniform", 0, loss=0.2), HERE)
    with pytest.raises(ArgumentError, match="two different runs of uniform with seed 0: delete mn"):
        packed.merge(pack(("uniform", 0)), other)
    with pytest.raises(
        ArgumentError, match=r"scale 0\.0002 cannot be packed with .* scale 1: choose"
    ):
        packed.merge(pack(), pack(scale=1.0))


def test_unpacked_runs_are_finished_and_leave_others_alone(tmp_path: Path) -> None:
    place = tmp_path / "runs" / "mnist-tiny-4-steps-4-points"
    mine = RunFile(place, LOSS, 0)
    mine.rows, mine.finished = [], True
    mine.save(None)
    half = RunFile(place, "uniform", 0)
    half.rows = trace("uniform", 0).rows[:2]
    half.save({"step": 1})
    found = pack((LOSS, 0), ("uniform", 0))
    assert packed.unpack(found, tmp_path) == 1
    assert RunFile(place, LOSS, 0).rows == []
    file = RunFile(place, "uniform", 0)
    assert (file.finished, file.state) == (True, None)
    assert repr(Trace(file.rows, file.observed)) == repr(found.runs["uniform", 0].trace)
    assert packed.unpack(found, tmp_path) == 0


Change = Callable[[dict[str, Any], dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda head, _: head.update(format=2), "format 2, not 1"),
        (
            lambda head, _: head.update(study="../../x"),
            "study '../../x' is not one of fig1a, mnist",
        ),
        (lambda head, _: head.update(model="../x"), "model must be one of .*; got '../x'"),
        (lambda head, _: head.update(scale=0), "scale must be above 0"),
        (lambda head, _: head.update(scale="1"), "no file of packed runs"),
        (lambda head, _: head.update(seeds={"fig9": 1}), "seeds {'fig9': 1}"),
        # Found by fuzz: too many for the memory, and none.
        (lambda head, _: head.update(seeds={"fig1b": 10**12}), "seeds {'fig1b': 1000000000000}"),
        (lambda head, _: head.update(seeds={"fig1b": 0}), "seeds {'fig1b': 0}"),
        (lambda head, _: head["environments"][0].update(commit=1), "an environment has a commit"),
        (lambda head, _: head["environments"][0].update(versions="1"), "an environment has a com"),
        (
            lambda head, _: head["environments"][0].update(hardware={"cores": math.inf}),
            "is damaged",
        ),
        (lambda head, _: head.pop("environments"), "no file of packed runs .*environments"),
        (lambda _, run: run.update(method="../x"), "a run of '../x' with seed 0"),
        (lambda _, run: run.update(seed="0"), "a run of 'uniform' with seed '0'"),
        (lambda _, run: run.update(seed=1), "rows of another run than uniform with seed 1"),
        (lambda _, run: run.update(environment=7), "no file of packed runs"),
        (lambda _, run: run["rows"].pop(), "4 rows, not 5"),
        (lambda _, run: run["rows"][2].update(train_loss="x"), "train_loss.* must be numbers"),
        (lambda _, run: run.update(observed=["a"] * 5), "observed is not a list of names"),
        (lambda _, run: run.pop("observed"), "no file of packed runs .*observed"),
    ],
)
def test_other_content_is_refused_in_one_sentence(change: Change, why: str, tmp_path: Path) -> None:
    lines = gzip.decompress(packed.to_bytes(pack(("uniform", 0)))).decode().splitlines()
    head, run = map(json.loads, lines)
    change(head, run)
    path = tmp_path / "mnist.jsonl.gz"
    path.write_bytes(gzip.compress(f"{json.dumps(head)}\n{json.dumps(run)}\n".encode()))
    with pytest.raises(ArgumentError, match=why) as refused:
        packed.read(path)
    assert str(refused.value).startswith(f"{path} ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"text", packed.to_bytes(pack(("uniform", 0)))[:-20], gzip.compress(b"[[[\n")],
    ids=["empty", "text", "cut", "nonsense"],  # the same on all workers: gzip writes the time
)
def test_damaged_files_are_refused_in_one_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mnist.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=r"is damaged .*: get it again, or delete it"):
        packed.read(path)
    with pytest.raises(ArgumentError, match=r"cannot read .*No such file"):
        packed.read(tmp_path / "other")
