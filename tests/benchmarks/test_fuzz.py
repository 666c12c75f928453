"""The fuzzer: a short run of every target, and failures that it has to see."""

import gzip
import io
import json
import os
import pickle
import signal
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import fuzz
import pytest
import torch
from fuzz_inputs import applied, edit_of, gzipped, stored_zip
from fuzz_targets import TARGETS

from salience.errors import SalienceError

# A checkpoint has a previous one, and a live page leaves out what it cannot read.
NEVER_REFUSED = {name for name in TARGETS if name.startswith(("checkpoint files", "watched"))}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflows of what damaged files say
def test_every_reader_refuses_or_takes(name: str) -> None:
    found = fuzz.fuzz(TARGETS[name](), seed=1, inputs=200, seconds=1)
    assert found["failures"] == []
    assert found["taken"] > 0
    assert found["refused"] > 0 or name in NEVER_REFUSED
    assert found["inputs"] == found["taken"] + found["refused"]


# What the fuzzer has found: each ended in an error of torch, numpy or Python.
DAMAGED: dict[str, list[Any]] = {
    "idx": [gzipped(b"\x00\x00\x08\x02" + bytes(8)), gzipped(b"\x00\x00\x08\x00")],
    "runs.jsonl": [
        b'{"task": "t", "method": "uniform", "seed": 0, "step": 1%s, "seconds": 1, "train_loss": 1,'
        b' "train_max_loss": 1, "test_loss": 1, "test_error": 0%s}\n' % damage
        for damage in ((b"0" * 400, b""), (b"", b', "budget": null'), (b"", b', "budget": 1e999'))
    ],
    "config.json": [b"[]", b"[" * 100_000],
    "run state": [b"", b"PK\x03\x04", b"cos\nsystem\n(S'true'\ntR."],
    "sampler state, history": [
        [1, [[["settings"], "swapped", 0]]],
        [1, [[["source", "changed", 0], "one", 5]]],  # an index beyond the dataset
        [1, [[["source", "changed", 0], "dtype", 1]]],
        [1, [[["source", "scores"], "fill", 7]]],  # infinite
        [2, [[["outstanding", 0, "indices"], "meta", 0]]],
        [0, [[["skipped"], "replaced", 13]]],  # 10^400
        [1, [[["number"], "moved", 3]]],
    ],
    "sampler state, auto": [
        [1, [[["smoothing", "steps"], "moved", 3]]],
        [0, [[["source", "off", "size"], "moved", 4]]],
        [2, [[["source", "off", "at"], "replaced", 8]]],
        [0, [[["source", "off", "key"], "replaced", 10]]],
        [0, [[["score", "steps", 0], "moved", 5]]],
    ],
    "sampler state, record": [
        [1, [[["step"], "moved", 5]]],  # beyond four bytes
        [2, [[["record", "steps"], "replaced", 5]]],
        [2, [[["record", "visits"], "fill", 2]]],
        [2, [[["record", "mean"], "fill", 6]]],
    ],
    "loss history": [
        b"",
        b"PK\x05\x06" + bytes(18),
        stored_zip([("loss.npy", b"\x93NUMPY\x01\x00")]),
    ],
    "sampler state, approx": [
        [0, [[["score", "next"], "replaced", 25]]],
        [2, [[["score", "counts"], "fill", 4]]],
        [2, [[["score", "optimizer", "state", 0, "exp_avg"], "shape", 1]]],
    ],
    "loader state, pools": [[5, [[["outstanding", 0, "probabilities"], "one", 44112]]]],  # 0
    "loader state, history": [
        [1, [[["loader", "epoch"], "replaced", 13]]],
        [1, [[["loader", "done"], "moved", 4]]],  # an epoch that never ends
        [3, [[["outstanding", 0, "pool"], "replaced", 3]]],
        [3, [[["outstanding", 0, "weights"], "shape", 0]]],
        [3, [[["outstanding", 0, "scale"], "replaced", 24]]],
    ],
}


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for name, inputs in DAMAGED.items() for given in inputs]
)
def test_what_was_found_is_refused(name: str, given: Any) -> None:
    with pytest.raises(SalienceError):
        TARGETS[name]().run(given)


HUGE = b"1" + b"0" * 400  # beyond every float
ROW = b'{"task": "t", "method": "auto", "seed": %s, "step": 1, "seconds": %s, "test_loss": %s}\n'
WATCHED: dict[str, list[bytes]] = {
    "watched rows": [
        ROW % (b"0", b"1", HUGE),
        ROW % (b"0", b"1e308", b"1") + ROW % (b"1", b"1e308", b"1"),
        ROW % (b"0", b"1", b"1e999") + ROW % (b"1", b"1", b"-1e999"),
        b"".join(
            b'{"task": "t", "method": "auto", "seed": 0, "step": %d, "seconds": 1, '
            b'"sampler": {"mode": "on", "gain": %s}}\n' % (step, HUGE)
            for step in (1, 2)
        ),
    ],
    "watched config": [
        b'{"methods": ["uniform"], "seeds": [0], "evaluations": %s, "budgets": [1]}' % count
        for count in (HUGE, b"1e999")
    ]
    + [b'{"methods": ["uniform"], "seeds": [0], "evaluations": 1, "budgets": [%s]}' % HUGE],
    "watched log": [b'{"step": 1, "sampler": {"mode": "on", "gain": %s}}\n' % HUGE],
}


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for name, inputs in WATCHED.items() for given in inputs]
)
def test_what_was_found_is_shown_without_an_error(name: str, given: bytes) -> None:
    TARGETS[name]().run(given)


def test_settings_of_the_optimizer_are_not_taken_from_a_state() -> None:
    path = ["score", "optimizer", "param_groups", 0, "maximize"]
    TARGETS["sampler state, approx"]().run([2, [[path, "replaced", 24]]])


class Made:
    """A target of the tests'."""

    def __init__(self, run: Callable[[bytes], None]) -> None:
        self.run, self.kept = run, []

    def make(self, rng: Random) -> bytes:
        return rng.randbytes(4)

    def keep(self, given: bytes) -> None:
        self.kept.append(given)


def apart(run: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setitem(TARGETS, "made", lambda: Made(run))
    return fuzz.apart("made", seed=3, inputs=300, seconds=20, limit=0.2)


def raising(error: BaseException) -> Callable[[bytes], None]:
    def run(given: bytes) -> None:
        if given[0] == 7:
            raise error

    return run


def at_seven(do: Callable[[], Any]) -> Callable[[bytes], None]:
    def run(given: bytes) -> None:
        if given[0] == 7:
            do()

    return run


def test_other_errors_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    found = apart(raising(KeyError("x")), monkeypatch)
    assert found["failed"] > 0
    assert len(found["failures"]) == 1, "one of each kind"
    assert fuzz.as_input(found["failures"][0]["input"])[0] == 7
    refused = apart(raising(SalienceError("no")), monkeypatch)
    assert (refused["failed"], refused["refused"]) == (0, found["failed"])


@pytest.mark.parametrize(
    "do",
    [
        lambda: pickle.loads(pickle.dumps(print)),
        lambda: pickle.Unpickler(io.BytesIO()),
        lambda: os.system("true"),
        lambda: torch.empty(3 << 30, dtype=torch.uint8),
    ],
    ids=["unpickled", "unpickler", "program", "memory"],
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_no_reader_may_do_is_a_failure(
    do: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert apart(at_seven(do), monkeypatch)["failed"] > 0


def test_crashes_and_hangs_are_failures_with_their_input(monkeypatch: pytest.MonkeyPatch) -> None:
    crashed = apart(at_seven(lambda: os.kill(os.getpid(), signal.SIGKILL)), monkeypatch)
    hung = apart(at_seven(lambda: time.sleep(60)), monkeypatch)
    for found, why in ((crashed, "exit code -9"), (hung, "took more than 0.2 s")):
        [failure] = found["failures"]
        assert why in failure["error"]
        assert fuzz.as_input(failure["input"])[0] == 7


def test_inputs_follow_from_the_seed() -> None:
    def inputs(seed: int) -> list[Any]:
        target, rng = TARGETS["checkpoint"](), Random(seed)
        return [target.make(rng) for _ in range(50)]

    assert inputs(1) == inputs(1) != inputs(2)


def test_edits_leave_the_state_as_it_is() -> None:
    state = {"a": [torch.zeros(3), {"b": 1}], "c": (1.5, "x")}
    before, rng = json.dumps(state, default=str), Random(0)
    edits = [edit_of(rng, state) for _ in range(500)]
    changed = sum(json.dumps(applied(state, [edit]), default=str) != before for edit in edits)
    assert changed > 400
    assert json.dumps(state, default=str) == before


def test_made_archives_are_valid() -> None:
    content = bytes(range(256)) * 300
    assert gzip.decompress(gzipped(content)) == content
    assert gzip.decompress(gzipped(b"")) == b""
    with zipfile.ZipFile(io.BytesIO(stored_zip([("a", b"x"), ("b", b"yy")]))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"a": b"x", "b": b"yy"}


def test_rows_and_their_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows.jsonl"
    options = ["--targets", "idx,text", "--inputs", "900", "--rows", str(rows)]
    monkeypatch.setattr("sys.argv", ["fuzz", *options])
    assert fuzz.main() == 0
    found = fuzz.read_rows(rows)
    assert [row["target"] for row in found] == ["idx", "text"]
    assert sum(row["inputs"] for row in found) == 1800
    assert fuzz.main() == 0, "all inputs are there already"
    assert fuzz.read_rows(rows) == found
    assert "| all | 1,800 |" in fuzz.table(found)
