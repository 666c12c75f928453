"""What is kept of each example, in files: the ranks of a machine hold it once and draw the same."""

import copy
import errno
import functools
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from parts import frozen
from ranks import on_ranks
from salience import (
    ArgumentError,
    ImportanceLoader,
    ImportanceSampler,
    StateError,
    UsageError,
    memory,
)
from salience.checkpoint import Packed
from salience.scores import Uniform
from salience.sources import whole
from test_ranks import GLOBAL, Case, N, check_forced, check_same, train

CASES = [
    Case("history"),
    Case("history", "multinomial"),
    Case("history", presample=3.0),
    Case("history", n=10_000),  # a tree with levels
    Case("auto"),
    Case("auto", "multinomial"),
    Case("auto", trust=True),
    Case("auto", mode="focused", trust=True, deferred=True),
    Case("uniform"),
    Case("auto", workers=2),
    Case("history", workers=2, deferred=True),
    Case("history", slots=True),
    Case("auto", deferred=True),
    Case("history", "multinomial", deferred=True, slots=True),
]
STEPS = 30


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on ranks runs here too, and changes these."""
    monkeypatch.setattr(whole, "FOUND", whole.FOUND)


def train_in(rank: int, folder: str, case: Case, *args: Any) -> Any:
    whole.FOUND = 24  # points are found in several turns
    return train(rank, case._replace(memory=folder), *args)


def train_all(rank: int, folder: str) -> dict[Case, Any]:
    return {case: train_in(rank, folder, case, STEPS) for case in CASES}


@functools.cache
def alone(case: Case, steps: int) -> Any:
    return train(0, case, steps)


@functools.cache
def trained(world: int, folder: str) -> list[dict[Case, Any]]:
    return on_ranks(world, train_all, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("memory"))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_that_share_draw_as_one_process(case: Case, world: int, folder: str) -> None:
    many = [results[case] for results in trained(world, folder)]
    check_same(alone(case, STEPS), many)
    check_forced(case, many)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("case", [Case("history"), Case("auto", trust=True)], ids=str)
def test_without_ranks_files_change_no_draw(case: Case, tmp_path: Path) -> None:
    one, filed = alone(case, STEPS), train(0, case._replace(memory=str(tmp_path)), STEPS)
    assert filed.rows == one.rows
    assert frozen(filed.state["loader"]) == frozen(one.state["loader"])


# ------------------------------------------------------------------------------ slow and fast ranks


class Loop:
    """Steps without a model, so that nothing but losses keeps the ranks together."""

    def __init__(self, folder: str | None, scheme: str = "multinomial", deferred: bool = True):
        world = dist.get_world_size() if dist.is_initialized() else 1
        self.loader = ImportanceLoader(
            TensorDataset(torch.arange(N)),
            GLOBAL // world,
            score="history",
            draw="systematic" if scheme == "pools" else scheme,
            presample=8 if scheme == "pools" else None,
            memory=folder,
        )
        self.loader.deferred = deferred
        self.sampler, self.step = self.loader._sampler, 0

    def go(self, steps: int) -> list[Any]:
        rows: list[Any] = []
        while len(rows) < steps:
            for (indices,) in self.loader:
                self.loader.mean((indices * 7919 + self.step * 1361).remainder(101).float())
                self.step += 1
                rows.append((indices.tolist(), self.loader.weights.tolist()))
                if len(rows) == steps:
                    break
        return rows


def slowly(method: Any, seconds: float = 0.02) -> Any:
    def slow(*args: Any) -> Any:
        time.sleep(seconds)
        return method(*args)

    return slow


def loop(rank: int, folder: str | None, scheme: str, slow: int, found: int = 24) -> list[Any]:
    whole.FOUND = found
    loop = Loop(folder, scheme)
    loop.sampler.connect()
    if rank == slow and rank == 0:  # in the middle of writing
        loop.sampler._score.update = slowly(loop.sampler._score.update)  # type: ignore[method-assign]
    elif rank == slow and scheme == "pools":  # in the middle of reading
        loop.sampler._score.score = slowly(loop.sampler._score.score)  # type: ignore[method-assign]
    elif rank == slow:
        tree = loop.sampler.source._tree  # type: ignore[union-attr]
        tree.mass = slowly(tree.mass)
    return loop.go(60)


@pytest.mark.parametrize("scheme", ["systematic", "multinomial", "pools"])
@pytest.mark.parametrize("slow", [0, 1], ids=["writer", "reader"])
def test_nobody_reads_what_is_being_written(scheme: str, slow: int, tmp_path: Path) -> None:
    one = loop(0, None, scheme, -1)
    many = on_ranks(3, loop, str(tmp_path), scheme, slow)
    for step, (indices, weights) in enumerate(one):
        assert [i for rows in many for i in rows[step][0]] == indices
        assert [w for rows in many for w in rows[step][1]] == pytest.approx(weights)


def test_learning_a_lot_does_not_touch_a_draw_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "CHUNK", 10)
    one = loop(0, None, "systematic", -1)
    many = on_ranks(2, loop_in_chunks, str(tmp_path))
    assert [a[0] + b[0] for a, b in zip(*many, strict=True)] == [row[0] for row in one]


def loop_in_chunks(rank: int, folder: str) -> list[Any]:
    whole.CHUNK = 10
    return loop(rank, folder, "systematic", -1, found=12)


@pytest.mark.parametrize("who", [0, 1])
def test_metrics_scores_and_states_on_one_rank_alone(who: int, tmp_path: Path) -> None:
    one = Loop(None, deferred=False).go(30)
    many = on_ranks(2, looking, who, str(tmp_path))
    assert [a[0] + b[0] for a, b in zip(*many, strict=True)] == [row[0] for row in one]


def looking(rank: int, who: int, folder: str) -> list[Any]:
    memory.TIMEOUT = 20.0
    loop, rows = Loop(folder, deferred=False), []
    for step in range(30):
        rows += loop.go(1)
        if rank == who and step % 3 == 0:
            assert loop.loader.metrics()["mean_loss"] > 0
            assert len(loop.loader.recent()["losses"]) == min(step + 1, 64) * GLOBAL
        if rank == who and step % 3 == 1:
            assert len(loop.loader.scores()) == N
        if rank == who and step % 3 == 2:
            assert ("elsewhere" in loop.loader.state_dict()) == (rank > 0)
    return rows


def test_the_writer_alone_knows_all_scores_at_once(tmp_path: Path) -> None:
    many = on_ranks(2, last_scores, str(tmp_path))
    assert torch.equal(many[0].nan_to_num(-1), last_scores(0, None).nan_to_num(-1))


def last_scores(rank: int, folder: str | None) -> Any:  # noqa: ARG001
    loop = Loop(folder, deferred=False)
    loop.go(7)
    return loop.loader.scores()


# ----------------------------------------------------------------------------------------- states


@pytest.mark.parametrize(
    "case", [Case("history"), Case("auto", deferred=True, mode="focused", trust=True)], ids=str
)
def test_states_move_between_numbers_of_ranks_and_memories(case: Case, tmp_path: Path) -> None:
    one, folder = alone(case, 60), str(tmp_path)
    first = on_ranks(2, train_in, folder, case, 23)
    assert frozen(first[0].state["loader"]) == frozen(train(0, case, 23).state["loader"])
    rest = on_ranks(3, train_in, folder, case, 37, first[0].state)
    check_same(one, rest, first=23)
    check_forced(case, [*first, *rest])
    check_same(one, on_ranks(2, train, case, 37, first[0].state), first=23)


@pytest.mark.parametrize("scheme", ["systematic", "multinomial"])
def test_a_state_that_is_loaded_while_others_draw(scheme: str, tmp_path: Path) -> None:
    assert on_ranks(3, back_and_forth, str(tmp_path), scheme) == ["ok"] * 3


def back_and_forth(rank: int, folder: str, scheme: str) -> str:
    memory.TIMEOUT = 10.0
    whole.FOUND = 12  # a draw is under way most of the time
    loop = Loop(folder, scheme, deferred=scheme == "multinomial")  # late: ranks are less together
    loop.go(5)
    states: list[Any] = [None] * 3
    dist.all_gather_object(states, loop.loader.state_dict())
    loop.loader.load_state_dict(states[0])
    step = loop.step
    expected = loop.go(24)
    tree = loop.sampler.source._tree  # type: ignore[union-attr]
    if rank == 0:  # the others are there long before
        tree.sum_up = slowly(tree.sum_up, 0.1)
    if rank == 1:  # still reads
        tree.mass = slowly(tree.mass)
    for _ in range(2):
        loop.loader.load_state_dict(states[0])
        dist.barrier()  # loading is over for all
        loop.step = step
        assert loop.go(24) == expected
    loop.loader.load_state_dict(states[0])
    loop.step = step
    rows = loop.go(3)
    damaged = copy.deepcopy(states[0])
    damaged["source"]["scores"] = torch.rand(N, dtype=torch.float64)
    damaged["source"]["queue"] = [torch.ones(1), torch.ones(2)]
    with pytest.raises(StateError, match="damaged"):
        loop.loader.load_state_dict(damaged)
    if scheme == "systematic":  # else the break in go() has learned the late losses sooner
        assert rows + loop.go(21) == expected
    with pytest.raises(StateError, match=r"shares the memory of rank 0.*on rank 0"):
        loop.loader.load_state_dict(states[1])
    return "ok"


# ------------------------------------------------------------------------------- what can go wrong


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (0, r"rank 1 has waited 1 s for rank 0, which writes, at turn 6 of the memory"),
        (1, r"rank 0 has waited 1 s for rank 1 at turn 7 of the memory they share: it has ended"),
    ],
)
def test_a_rank_that_ends_is_named(gone: int, message: str, tmp_path: Path) -> None:
    found = on_ranks(2, leave, gone, str(tmp_path))
    assert found[gone] == "gone"
    assert re.search(message, found[1 - gone]), found


def leave(rank: int, gone: int, folder: str) -> str:
    memory.TIMEOUT = 1.0
    loop = Loop(folder, deferred=False)
    loop.go(6)
    loop.loader.metrics()  # what was sent has come
    if rank == gone:
        time.sleep(3)
        return "gone"
    loop.sampler._exchange = None
    try:
        loop.sampler.draw()
        loop.sampler.draw()
    except UsageError as error:
        return str(error)
    return "nothing was wrong"


def test_files_that_lie_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    old = tmp_path / "salience-old"
    old.write_bytes(b"\xff" * 100_000)
    many = on_ranks(2, loop, str(tmp_path), "systematic", -1)
    assert [a[0] + b[0] for a, b in zip(*many, strict=True)] == [
        row[0] for row in loop(0, None, "systematic", -1)
    ]
    assert os.listdir(tmp_path) == ["salience-old"]
    assert old.read_bytes() == b"\xff" * 100_000


def test_a_run_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import os, sys; from salience import ImportanceSampler; "
        "s = ImportanceSampler(1000, 8, score='history', memory=sys.argv[1]); "
        "s.draw(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == []


def test_two_loaders_in_one_folder_stay_apart(tmp_path: Path) -> None:
    many = on_ranks(2, two, str(tmp_path))
    for which in range(2):
        rows = [many[0][which][s][0] + many[1][which][s][0] for s in range(30)]
        assert rows == [row[0] for row in two(0, None)[which]]


def two(rank: int, folder: str | None) -> list[Any]:  # noqa: ARG001
    loops, rows = (Loop(folder, "systematic"), Loop(folder)), ([], [])
    for _ in range(30):
        for loop, out in zip(loops, rows, strict=True):
            out.extend(loop.go(1))
    return list(rows)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("file", r"rank 0: memory '.*taken' cannot hold .* MB \(.*\): give a folder on a local"),
        ("room", r"rank 0: memory '.*' cannot hold 0\.0 MB \(No space left.*with enough room"),
        ("apart", r"rank 1 cannot open the memory of rank 0 .*: give a folder that both see"),
        ("some", r"the ranks differ in memory \(rank by rank: True, False\)"),
    ],
)
def test_a_problem_of_one_rank_is_told_on_all(what: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for text in on_ranks(2, problem, what, str(tmp_path)):
        assert re.search(message, text), text
    assert os.listdir(tmp_path) == ["taken"]


def problem(rank: int, what: str, folder: str) -> str:
    if what == "room":
        memory._reserve = no_room  # type: ignore[assignment]
    if what == "apart" and rank:
        memory._open = no_file  # type: ignore[assignment]
    given = {"file": f"{folder}/taken", "some": None if rank else folder}.get(what, folder)
    try:
        Loop(given).go(1)
    except (ArgumentError, UsageError) as error:
        return str(error)
    return "nothing was wrong"


def no_room(*args: Any) -> None:  # noqa: ARG001
    raise OSError(errno.ENOSPC, "No space left on device")


def no_file(*args: Any) -> None:  # noqa: ARG001
    raise FileNotFoundError("no such file")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "approx"}, r"memory='here' does not go with score 'approx': use score='auto'"),
        ({"score": Uniform()}, r"does not go with score <"),
        ({"memory": 3}, r"memory must be a folder or None; got 3"),
    ],
)
def test_what_memory_does_not_go_with(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ImportanceSampler(10, 2, **{"memory": "here", **options})
    assert not Path("here").exists()


def test_shared_memory_is_not_copied_and_does_not_grow(tmp_path: Path) -> None:
    assert on_ranks(2, copied, str(tmp_path)) == ["ok", "ok"]


def copied(rank: int, folder: str) -> str:  # noqa: ARG001
    loop = Loop(folder)
    pickle.loads(pickle.dumps(loop.loader))  # before the first draw there is nothing to share
    new = Loop(None)
    assert frozen(loop.loader.state_dict()) == frozen(new.loader.state_dict())
    Packed(loop.loader).state_dict()
    loop.go(1)
    with pytest.raises(UsageError, match=r"checkpoint may save that of any rank.* on rank 0"):
        Packed(loop.loader).state_dict()
    with pytest.raises(UsageError, match="cannot be copied"):
        copy.deepcopy(loop.loader)
    with pytest.raises(UsageError, match="cannot grow"):
        loop.sampler.extend(2 * N)
    return "ok"


# ---------------------------------------------------------------------------------- without ranks


def test_without_ranks_it_grows_and_is_copied(tmp_path: Path) -> None:
    rows = []
    for folder in (None, tmp_path):
        sampler = ImportanceSampler(100, 8, score="history", memory=folder)
        found = [step_of(sampler) for _ in range(20)]
        sampler.extend(20_000)
        found += [step_of(sampler) for _ in range(20)]
        other = copy.deepcopy(sampler)
        found += [step_of(sampler) for _ in range(20)]
        assert found[-20:] == [step_of(other) for _ in range(20)]
        rows.append(found)
    assert rows[0] == rows[1]


def step_of(sampler: ImportanceSampler) -> Any:
    draw = sampler.draw()
    sampler.update(draw, (draw.indices % 7).float())
    return draw.indices.tolist(), draw.weights.tolist()


def test_states_begin_and_load_without_ranks(tmp_path: Path) -> None:
    plain, filed = (ImportanceSampler(99, 8, score="history", memory=m) for m in (None, tmp_path))
    assert frozen(filed.state_dict()) == frozen(plain.state_dict())
    for _ in range(10):
        step_of(plain)
    new = ImportanceSampler(99, 8, score="history", memory=str(tmp_path))
    assert torch.isnan(new.scores()).all()
    new.load_state_dict(plain.state_dict())
    assert [step_of(new) for _ in range(9)] == [step_of(plain) for _ in range(9)]


def test_shards_keep_files_of_their_own(tmp_path: Path) -> None:
    plain, filed = (on_ranks(2, shards, folder) for folder in (None, str(tmp_path)))
    assert plain == filed


def shards(rank: int, folder: str | None) -> Any:  # noqa: ARG001
    sampler = ImportanceSampler(101, 8, score="history", shard=True, memory=folder)
    return [step_of(sampler) for _ in range(20)]


# ------------------------------------------------------------------------------------ what it saves


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="counts pages as Linux does"
)
def test_readers_hold_next_to_nothing(tmp_path: Path) -> None:
    n = 2_000_000
    arrays = 21 * n  # bytes: a float32 and two columns of float64 with their sums
    shared, private = (on_ranks(3, private_bytes, n, f) for f in (str(tmp_path), None))
    assert all(taken > 0.9 * arrays for taken in private), private
    assert all(taken < 0.2 * arrays for taken in shared[1:]), shared


def private_bytes(rank: int, n: int, folder: str | None) -> int:  # noqa: ARG001
    """What a sampler adds to the pages that only this process has."""
    warm = ImportanceSampler(1000, 64, score="history")
    for _ in range(3):
        step_of(warm)
    before = pages()
    sampler = ImportanceSampler(n, 64, score="history", memory=folder)
    made = pages() - before
    for _ in range(100):
        step_of(sampler)
    sampler.scores(torch.arange(0, n, 97))  # every page is looked at
    dist.barrier()
    taken = pages() - before
    dist.barrier()
    return max(made, taken)


def pages() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * sum(int(kb) for kb in re.findall(r"^Private_\w+: +(\d+) kB", text, re.M))


def test_arrays_of_all_kinds_are_alike(tmp_path: Path) -> None:
    for storage in (memory.PRIVATE, memory.Files(tmp_path), memory.BLANK):
        array = storage.array(5, np.float32, np.nan)
        assert array.dtype == np.float32
        assert np.isnan(array).all()
        assert array.flags.writeable == storage.writable
        assert not storage.array(3, np.int64).any()
