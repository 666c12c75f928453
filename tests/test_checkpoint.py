"""Checkpoints come back exactly; no kill, full disk or damaged file loses the earlier one."""

import errno
import io
import itertools
import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from salience import ArgumentError, ImportanceLoader, StateError, checkpoint
from salience.checkpoint import archive, files
from salience.checkpoint.tree import BITS, PLAIN
from test_replay import CASES, Case, Training

STATE = {
    "model": {"w": torch.arange(40.0).reshape(5, 8), "b": torch.ones(3)},
    "note": "x",
    1: (2.5,),
}


def frozen(tree: Any) -> Any:
    """Equal if and only if bitwise so, types included."""
    if isinstance(tree, dict):
        extra = frozen(getattr(tree, "_metadata", None))
        return type(tree), [(type(k), k, frozen(v)) for k, v in tree.items()], extra
    if isinstance(tree, list | tuple):
        return type(tree), [frozen(value) for value in tree]
    if isinstance(tree, Tensor):
        bits = tree.detach().resolve_conj().contiguous().view(-1).view(torch.uint8).numpy()
        return "tensor", tree.dtype, tree.shape, bits.tobytes()
    if isinstance(tree, np.ndarray | np.generic):
        return type(tree), tree.dtype, tree.shape, tree.tobytes()
    return type(tree), tree.hex() if isinstance(tree, float) else tree


def returned(state: Any, path: Path) -> Any:
    checkpoint.save(path, state, step=0)
    return checkpoint.load(path).state


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "last.ckpt"


# -------------------------------------------------------------------------------------- round trip


def tensors(name: str) -> st.SearchStrategy[Tensor]:
    """Any bits, in any shape."""

    dtype = getattr(torch, name)

    def make(shape: list[int], seed: int) -> Tensor:
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        size, most = int(np.prod(shape)) * dtype.itemsize, 2 if name == "bool" else 256
        bits = np.random.default_rng(seed).integers(0, most, size).astype(np.uint8)
        return torch.from_numpy(bits).view(dtype).reshape(shape)

    return st.builds(make, st.lists(st.integers(0, 4), max_size=3), st.integers(0, 2**32))


ANY_TENSOR = st.sampled_from(sorted(set(BITS) - {"complex32"})).flatmap(tensors)
LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), ANY_TENSOR),
    st.integers(-(2**200), 2**200),
    st.text(st.characters(categories=["Cs", "Ll"])),
    st.sampled_from(PLAIN).flatmap(tensors).map(Tensor.numpy),
    st.sampled_from([np.float32(1.5), np.int64(-3), np.bool_(True), np.float64("nan")]),
)
KEYS = st.one_of(st.text(), st.integers(-(2**70), 2**70))
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4).map(OrderedDict),
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(state=STATES)
def test_states_come_back_exactly(state: Any, tmp_path: Path) -> None:
    assert frozen(returned(state, tmp_path / "a")) == frozen(state)


def test_floats_keep_their_bits(path: Path) -> None:
    bits = ["7ff8000000000000", "fff8000000000000", "7ff8000000000123", "7ff0000000000000"]
    bits += ["fff0000000000000", "8000000000000000", "0000000000000001", "3fb999999999999a"]
    floats = [struct.unpack(">d", bytes.fromhex(each))[0] for each in bits]
    assert [struct.pack(">d", each).hex() for each in returned(floats, path)] == bits


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", sorted(BITS))
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (7,), (2, 3, 4)])
def test_every_dtype(name: str, shape: tuple[int, ...], path: Path) -> None:
    dtype = getattr(torch, name)
    bits = torch.randint(0, 2, (int(np.prod(shape)) * dtype.itemsize,), dtype=torch.uint8)
    tensor = bits.view(dtype).view(shape)
    assert frozen(returned(tensor, path)) == frozen(tensor)


def test_the_dtypes_that_torch_computes_with_are_there() -> None:
    common = {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8}
    common |= {torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64}
    assert {str(dtype).removeprefix("torch.") for dtype in common} <= set(BITS)


LAYOUTS = {
    "transposed": torch.arange(600).reshape(20, 30).t(),
    "every second": torch.arange(999.0)[::2],
    "expanded": torch.arange(5).expand(70, 5),
    "permuted": torch.arange(2 * 3 * 200).reshape(2, 3, 200).permute(2, 0, 1),
    "channels last": torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last),
    "conjugate": torch.randn(300, dtype=torch.complex64).conj(),
    "negative": torch.randn(300, dtype=torch.complex64).conj().imag,
    "parameter": nn.Parameter(torch.randn(4, 100)),
    "one wide row": torch.arange(4000).reshape(1, 2, 2000)[:, :, ::2],
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("piece", [16, 100 * 8, 8 * 2**20])
def test_layouts_in_pieces(
    name: str, piece: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "PIECE", piece)
    tensor = LAYOUTS[name]
    sizes = [part.nbytes for part in archive._pieces(tensor.detach())]
    assert max(sizes) <= piece
    assert sum(sizes) == tensor.nbytes
    found = returned(tensor, path)
    assert torch.equal(found, tensor)
    assert type(found) is Tensor
    assert not found.requires_grad


def test_tensors_own_their_memory(path: Path) -> None:
    shared = torch.zeros(6)
    state = {"a": shared, "b": shared, "part": torch.zeros(1000)[:3], "n": np.zeros(2)}
    found = returned(state, path)
    found["a"] += 1
    found["n"] += 1
    assert shared.sum() == 0 == found["b"].sum()
    assert found["part"].untyped_storage().nbytes() == 12
    assert checkpoint.load(path).state["a"].sum() == 0


def test_what_torch_puts_into_states(path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 3])
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state |= {"schedule": schedule.state_dict(), "rng": torch.get_rng_state()}
    state |= {"random": random.Random(3).getstate(), "numpy": np.random.RandomState(3).get_state()}
    found = returned(state, path)
    assert frozen(found) == frozen(state)
    assert found["model"]._metadata["1"] == {"version": 2}
    assert type(found["schedule"]["milestones"]) is Counter
    for part, name in ((model, "model"), (optimizer, "optimizer"), (schedule, "schedule")):
        part.load_state_dict(found[name])


def test_numpy_arrays_of_any_stride(path: Path) -> None:
    fixed = np.arange(4)
    fixed.flags.writeable = False
    state = [np.arange(9)[::-1], np.arange(12).reshape(3, 4).T, fixed, np.array(5.0)]
    assert frozen(returned(state, path)) == frozen(state)


@pytest.mark.usefixtures("auto_turns_on")
@pytest.mark.parametrize(("score", "presample"), CASES)
def test_every_preset_resumes_exactly_from_a_file(
    score: str, presample: float | None, path: Path
) -> None:
    case, steps = Case(score, presample), 4
    whole = Training(case)
    whole.go()
    run = Training(case)
    run.go(steps=steps)
    parts = ("model", "optimizer", "loader")
    state = {name: getattr(run, name).state_dict() for name in parts}
    checkpoint.save(path, state, step=steps)
    found = checkpoint.load(path)
    assert frozen(found.state) == frozen(state)
    resumed = Training(case)
    resumed.load(found.state)
    resumed.go()
    assert resumed.rows == whole.rows[found.step :]
    assert resumed.parameters() == whole.parameters()


# ---------------------------------------------------------------------------------------- refusals

RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)
REFUSED = {
    'state["optimizer"]["x"] is a set': {"optimizer": {"x": {1}}},
    "state[3][1] is a bytes": {3: [0, b"x"]},
    'state["a"] has the key None': {"a": {None: 1}},
    'state["a"] has the key True': {"a": {True: 1}},
    'state["a"] is a dtype': {"a": torch.float32},
    "state is a Size": torch.Size([1]),
    "sparse_coo": [torch.eye(3).to_sparse()],
    "on meta": [torch.empty(3, device="meta")],
    "state[0] is a ndarray of dtype object": [np.array([None])],
    "state[0] is a ndarray of dtype >f4": [np.zeros(2, ">f4")],
    "state[0] is a MaskedArray": [np.ma.zeros(2)],
    "contains itself": RECURSIVE,
    "._metadata": OrderedDict(a=1),
}
REFUSED["._metadata"]._metadata = {"x": object()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_saved_is_named_before_anything_is_written(what: str, path: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        checkpoint.save(path, REFUSED[what], step=1)
    assert what in str(caught.value)
    assert names(path.parent) == []


@pytest.mark.parametrize("step", [-1, 1.5, True, None, "3"])
def test_steps_are_whole_numbers(step: Any, path: Path) -> None:
    with pytest.raises(ArgumentError, match="step must be"):
        checkpoint.save(path, {}, step=step)
    checkpoint.save(path, {}, step=np.int64(7))
    assert checkpoint.load(path).step == 7


def test_nothing_is_there(path: Path) -> None:
    assert not checkpoint.exists(path)
    with pytest.raises(StateError, match=r"last.ckpt does not exist; .*previous does not exist"):
        checkpoint.load(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is a directory"):
        checkpoint.save(tmp_path, {}, step=1)
    with pytest.raises(StateError, match="cannot be read"):
        checkpoint.load(tmp_path)


# ------------------------------------------------------------------------------ last and previous


def test_the_previous_one_is_kept(path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.save(str(path), {"at": step}, step=step)
    assert names(path.parent) == ["last.ckpt", "last.ckpt.previous"]
    assert checkpoint.load(path) == checkpoint.Checkpoint(3, {"at": 3}, path)
    path.unlink()
    assert checkpoint.exists(path)
    with pytest.warns(UserWarning, match=r"loaded step 2 from .*previous: .*does not exist"):
        found = checkpoint.load(path)
    assert found == checkpoint.Checkpoint(2, {"at": 2}, path.with_name("last.ckpt.previous"))


def test_the_previous_one_is_not_given_up_for_a_damaged_one(path: Path) -> None:
    for step in (1, 2):
        checkpoint.save(path, STATE, step=step)
    path.write_bytes(path.read_bytes()[:-1])
    checkpoint.save(path, STATE, step=3)
    assert archive.header(path.with_name("last.ckpt.previous")).step == 1


def test_folders_are_made(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a" / "b" / "c", {}, step=1)
    assert checkpoint.load(tmp_path / "a" / "b" / "c").step == 1


def test_a_file_system_without_hard_links(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    for step in (1, 2, 3):
        checkpoint.save(path, {}, step=step)
    assert names(path.parent) == ["last.ckpt", "last.ckpt.previous"]
    assert [archive.header(path.with_name(name)).step for name in names(path.parent)] == [3, 2]


def test_files_get_the_usual_permissions(path: Path) -> None:
    checkpoint.save(path, {}, step=1)
    (path.parent / "other").touch()
    assert path.stat().st_mode == (path.parent / "other").stat().st_mode


def test_a_file_that_may_not_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No silent step back: the user can change permissions. (Root may read everything.)"""
    for step in (1, 2):
        checkpoint.save(path, {}, step=step)
    usual = io.open

    def refuse(name: Any, *args: Any, **kwargs: Any) -> Any:
        if Path(name) == path:
            raise PermissionError(errno.EACCES, "denied")
        return usual(name, *args, **kwargs)

    monkeypatch.setattr(io, "open", refuse)
    with pytest.raises(StateError, match="may not be read"):
        checkpoint.load(path)


def test_a_later_version_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(path, {}, step=1)
    with monkeypatch.context() as later:
        later.setattr(archive, "VERSION", 2)
        checkpoint.save(path, {}, step=2)
    with pytest.raises(StateError, match="has version 2, this release reads 1"):
        checkpoint.load(path)
    path.replace(path.with_name("last.ckpt.previous"))
    checkpoint.save(path, {}, step=3)
    assert checkpoint.load(path).step == 3


def test_progress(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "PIECE", 400)
    monkeypatch.setattr(archive, "SYNC", 1000)
    state = {"a": torch.zeros(250), "b": torch.zeros(10, 10).t(), "c": 1}
    seen: list[list[tuple[int, int]]] = [[], []]
    checkpoint.save(path, state, step=1, progress=lambda *at: seen[0].append(at))
    checkpoint.load(path, progress=lambda *at: seen[1].append(at))
    assert seen[0] == seen[1] == [(400, 1400), (800, 1400), (1000, 1400), (1400, 1400)]


@pytest.mark.parametrize("error", [KeyError, ValueError, KeyboardInterrupt])
def test_an_error_in_progress_is_the_users(error: type[BaseException], path: Path) -> None:
    def interrupt(*_: int) -> None:
        raise error("mine")

    checkpoint.save(path, STATE, step=1)
    with pytest.raises(error, match="mine"):
        checkpoint.save(path, STATE, step=2, progress=interrupt)
    assert names(path.parent) == ["last.ckpt"]
    with pytest.raises(error, match="mine"):
        checkpoint.load(path, progress=interrupt)
    assert checkpoint.load(path).step == 1


# ------------------------------------------------------------------------------------------ damage


def outcome(path: Path, whole: Any) -> str:
    """A damaged file is refused, unless the damage changes nothing of what is read."""
    try:
        found = checkpoint.load(path)
    except StateError:
        return "refused"
    assert frozen(found.state) == whole
    assert found.step == 5
    return "unchanged"


def test_every_truncation_is_refused(path: Path) -> None:
    checkpoint.save(path, STATE, step=5)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert outcome(path, None) == "refused"


def test_every_flipped_bit_is_refused_or_changes_nothing(path: Path) -> None:
    checkpoint.save(path, STATE, step=5)
    content, whole = path.read_bytes(), frozen(STATE)
    seen = Counter()
    for place in range(len(content)):
        for bit in (place % 8, (place + 3) % 8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            seen[outcome(path, whole)] += 1
    assert seen["refused"] > 3 * seen["unchanged"]  # dates and the like


def test_flipped_bits_of_values_are_all_refused(path: Path) -> None:
    tensor = torch.arange(50, dtype=torch.int64)
    checkpoint.save(path, {"a": tensor}, step=5)
    content = path.read_bytes()
    start = content.index(tensor.numpy().tobytes())
    for place in range(start, start + tensor.nbytes):
        damaged = bytearray(content)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(StateError, match="Bad CRC-32"):
            checkpoint.load(path)


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


def torch_file() -> bytes:
    file = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, file)
    return file.getvalue()


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return file.getvalue()


def made_up(state: Any = None, tensors: Any = (), members: Any = None, **index: Any) -> bytes:
    """A file with a right checksum whose content is invented."""
    index = {"format": "salience-checkpoint", "version": 1, "step": 1, "token": None, **index}
    text = json.dumps({**index, "state": state, "tensors": tensors}).encode()
    return zipped({"checkpoint.json": text, **(members or {})})


ONE = [["float32", [2]]]
NPY = archive.Spec("float32", (2,)).npy_header + bytes(8)
FOREIGN = {
    "empty": b"",
    "text": b"hello" * 100,
    "zeros": bytes(5000),
    "pickle": pickle.dumps({"a": 1}),
    "torch.save": torch_file(),
    "npz": npz(),
    "empty zip": zipped({}),
    "compressed": zipped({"checkpoint.json": b" " * 9999}, zipfile.ZIP_DEFLATED),
    "no JSON": zipped({"checkpoint.json": b"\xff\xfe"}),
    "deep JSON": zipped({"checkpoint.json": b"[" * 100_000}),
    "a list": zipped({"checkpoint.json": b"[]"}),
    "another format": made_up(format="other"),
    "no step": made_up(step=None),
    "step is a float": made_up(step=1.0),
    "token is a number": made_up(token=3),
    "missing member": made_up({"tensor": 0}, ONE),
    "more members": made_up(members={"../../etc/passwd": b"x"}),
    "huge shape": made_up({"tensor": 0}, [["float32", [2**40]]], {"0.npy": NPY}),
    "overflowing shape": made_up({"tensor": 0}, [["float32", [2**63, 2**63]]], {"0.npy": NPY}),
    "huge and empty": made_up(
        {"tensor": 0},
        [["float32", [0, 2**62, 2**62]]],
        {"0.npy": archive.Spec("float32", (0, 2**62, 2**62)).npy_header},
    ),
    "negative shape": made_up({"tensor": 0}, [["float32", [-1, -2]]], {"0.npy": NPY}),
    "shape of floats": made_up({"tensor": 0}, [["float32", [2.0]]], {"0.npy": NPY}),
    "many dimensions": made_up({"tensor": 0}, [["float32", [1] * 70 + [2]]], {"0.npy": NPY}),
    "no dtype": made_up({"tensor": 0}, [["load", [2]]], {"0.npy": NPY}),
    "another header": made_up({"tensor": 0}, ONE, {"0.npy": NPY.replace(b"<f4", b"|O4")}),
    "one tensor twice": made_up({"list": [{"tensor": 0}, {"tensor": 0}]}, ONE, {"0.npy": NPY}),
    "unknown kind": made_up({"object": "os.system"}),
    "no kind": made_up([1, 2]),
    "two kinds": made_up({"list": [], "tuple": []}),
    "list as key": made_up({"dict": [[{"list": []}, 1]]}),
    "metadata of a dict": made_up({"dict": [], "metadata": 1}),
    "no float": made_up({"float": "xyz"}),
}


def test_made_up_files_can_be_right(path: Path) -> None:
    """Else the next test would show little."""
    path.write_bytes(made_up({"tensor": 0}, ONE, {"0.npy": NPY}))
    assert torch.equal(checkpoint.load(path).state, torch.zeros(2))


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files_are_refused_and_the_previous_one_is_loaded(kind: str, path: Path) -> None:
    path.write_bytes(FOREIGN[kind])
    with pytest.raises(StateError, match="is incomplete, damaged or no checkpoint"):
        checkpoint.load(path)
    path.unlink()
    for step in (1, 2):
        checkpoint.save(path, STATE, step=step)
    path.write_bytes(FOREIGN[kind])
    with pytest.warns(
        UserWarning, match="loaded step 1 from .*previous: .*last.ckpt is incomplete"
    ):
        assert frozen(checkpoint.load(path).state) == frozen(STATE)


def test_two_saves_at_one_step_leave_two_to_choose_from(path: Path) -> None:
    for _ in range(2):
        checkpoint.save(path, STATE, step=1)
    content = path.read_bytes()
    start = content.index(STATE["model"]["w"].numpy().tobytes())
    path.write_bytes(content[:start] + b"\1" + content[start + 1 :])  # a quick look is not enough
    with pytest.warns(UserWarning, match="Bad CRC-32"):
        assert frozen(checkpoint.load(path).state) == frozen(STATE)


def test_no_memory_for_what_a_file_only_claims(path: Path) -> None:
    """A ZIP directory of petabytes: refused, whatever the reader tries."""
    checkpoint.save(path, STATE, step=1)
    content = bytearray(path.read_bytes())
    end = content.rindex(b"PK\5\6")
    for value in (2**31, 2**32 - 2):
        content[end + 12 : end + 16] = value.to_bytes(4, "little")  # size of the directory
        path.write_bytes(content)
        with pytest.raises(StateError):
            checkpoint.load(path)


def test_numpy_opens_them(path: Path) -> None:
    state = {"a": torch.arange(6).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    state |= {"c": torch.tensor(1.5), "d": torch.zeros(0, 2), "e": torch.tensor([True])}
    checkpoint.save(path, state, step=1)
    with np.load(path, allow_pickle=False) as found:
        assert found["0"].tolist() == state["a"].tolist()
        assert found["1"].dtype == np.uint16
        assert found["1"].tobytes() == state["b"].view(torch.int16).numpy().tobytes()
        assert (found["2"], found["3"].shape, found["4"].tolist()) == (1.5, (0, 2), [True])
        assert json.loads(found["checkpoint.json"])["step"] == 1


def test_nothing_is_pickled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = ImportanceLoader(torch.utils.data.TensorDataset(torch.zeros(8)), 4, score="approx")
    state, used = {"loader": loader.state_dict(), **STATE}, []
    for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler"):
        monkeypatch.setattr(pickle, name, lambda *_, **__: used.append(1))
    for name in ("load", "save"):
        monkeypatch.setattr(torch, name, lambda *_, **__: used.append(1))
    assert frozen(returned(state, path)) == frozen(state)
    path.write_bytes(FOREIGN["pickle"])
    with pytest.raises(StateError):
        checkpoint.load(path)
    assert not used
    source = "".join(each.read_text() for each in Path(files.__file__).parent.glob("*.py"))
    assert "import pickle" not in source
    assert "torch.load" not in source


# ------------------------------------------------------------------------- errors while saving


class Full(io.FileIO):
    """A file on a disk that has room for so many bytes."""

    room = 0

    def write(self, data: Any) -> int:
        if len(memoryview(data).cast("B")) > Full.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        Full.room -= len(memoryview(data).cast("B"))
        return super().write(data)


@pytest.mark.parametrize("room", [0, 10, 300, 700, 1000, 1300, 1500])
def test_a_full_disk(room: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        checkpoint.save(path, STATE, step=step)
    before = {name: (path.parent / name).read_bytes() for name in names(path.parent)}
    usual = io.open

    def limited(name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return Full(name, mode) if mode == "xb" else usual(name, mode, *args, **kwargs)

    with monkeypatch.context() as full:
        full.setattr(io, "open", limited)
        Full.room = room
        with pytest.raises(OSError, match="No space left") as caught:
            checkpoint.save(path, {**STATE, "more": torch.zeros(200)}, step=3)
    assert caught.value.errno == errno.ENOSPC
    assert "untouched" in caught.value.__notes__[0]
    assert {name: (path.parent / name).read_bytes() for name in names(path.parent)} == before
    checkpoint.save(path, STATE, step=4)
    assert checkpoint.load(path).step == 4


CALLS = [("fsync", 1), ("fsync", 2), ("replace", 1), ("replace", 2), ("link", 1)]


@pytest.mark.parametrize(("name", "which"), CALLS)
def test_a_call_that_fails(
    name: str, which: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        checkpoint.save(path, STATE, step=step)
    count, usual = itertools.count(1), getattr(os, name)

    def fail(*args: Any, **kwargs: Any) -> Any:
        if next(count) == which:
            raise OSError(errno.EIO, "broken")
        return usual(*args, **kwargs)

    with monkeypatch.context() as broken:
        broken.setattr(os, name, fail)
        if name == "link":  # there is another way
            checkpoint.save(path, STATE, step=3)
        else:
            with pytest.raises(OSError, match="broken"):
                checkpoint.save(path, STATE, step=3)
    assert checkpoint.load(path).step in ((2,) if which == 1 and name != "link" else (3,))
    assert frozen(checkpoint.load(path).state) == frozen(STATE)
    checkpoint.save(path, STATE, step=4)
    assert names(path.parent) == ["last.ckpt", "last.ckpt.previous"]


def test_files_are_on_the_disk_before_they_are_renamed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    fsync, replace = os.fsync, os.replace

    def seen_fsync(descriptor: int) -> None:
        target = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        calls.append(("sync", target.suffix, target.stat().st_size if target.is_file() else None))
        fsync(descriptor)

    def seen_replace(source: Any, target: Any) -> None:
        calls.append(("rename", Path(target).name))
        replace(source, target)

    checkpoint.save(path, STATE, step=1)
    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "replace", seen_replace)
    checkpoint.save(path, STATE, step=2)
    size = path.stat().st_size
    renames = [("rename", "last.ckpt"), ("rename", "last.ckpt.previous")]
    assert calls == [("sync", ".part", size), *renames, ("sync", "", None)]


# ------------------------------------------------------------------------------------------ kills

KILLS = '''
import json, os, shutil, signal, sys, warnings
from pathlib import Path
import torch
from salience import checkpoint
from salience.checkpoint import archive

torch.set_num_threads(1)
folder = Path(sys.argv[1])
OURS = str(Path(checkpoint.__file__).parent / sys.argv[2])
os.fsync = lambda descriptor: None  # of no consequence here, and slow


def killed(save, at):
    """Run ``save`` in a child that is killed before its line number ``at``; None: not reached."""
    child = os.fork()
    if not child:
        count = 0

        def trace(frame, event, _):
            nonlocal count
            if not frame.f_code.co_filename.startswith(OURS):
                return None
            count += event == "line"
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            save()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def fresh(name):
    made = folder / name
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    return made


def state(step):
    return {"w": torch.full((30,), float(step))}


warnings.simplefilter("ignore")
'''


def run_kills(program: str, folder: Path, lines_of: str = "files.py") -> Any:
    command = [sys.executable, "-c", KILLS + program, str(folder), lines_of]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child at every line")
@pytest.mark.parametrize("damaged", ["nothing", "last", "previous"])
@pytest.mark.parametrize("links", [True, False])
def test_killed_at_every_line(damaged: str, links: bool, tmp_path: Path) -> None:
    program = f"""
damaged, links = {damaged!r}, {links}
if not links:
    def refuse(*_):
        raise PermissionError("no links")
    os.link = refuse
steps, at = [], 1
while True:
    path = fresh("run") / "last.ckpt"
    for step in (1, 2):
        checkpoint.save(path, state(step), step=step)
    if damaged != "nothing":
        target = path if damaged == "last" else path.with_name("last.ckpt.previous")
        content = bytearray(target.read_bytes())
        values = state(2 if damaged == "last" else 1)["w"].numpy().tobytes()
        content[content.index(values)] ^= 1
        target.write_bytes(content)
    if not killed(lambda: checkpoint.save(path, state(3), step=3), at):
        break
    found = checkpoint.load(path)
    assert torch.equal(found.state["w"], state(found.step)["w"])
    steps.append(found.step)
    checkpoint.save(path, state(4), step=4)
    assert checkpoint.load(path).step == 4
    left = sorted(each.name for each in path.parent.iterdir())
    assert left == ["last.ckpt", "last.ckpt.previous"], left
    at += 1
print(json.dumps(steps))
"""
    steps = run_kills(program, tmp_path, "" if links and damaged == "nothing" else "files.py")
    assert len(steps) > 50
    assert steps == sorted(steps)
    assert set(steps) == {1 if damaged == "last" else 2, 3}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills children")
def test_files_that_belong_together_killed_at_every_line(tmp_path: Path) -> None:
    program = """
steps, at = [], 1
while True:
    made = fresh("run")
    paths = [made / name for name in ("a", "b")]
    save = lambda step: checkpoint.save_together({path: state(step) for path in paths}, step=step)
    for step in (1, 2):
        save(step)
    if not killed(lambda: save(3), at):
        break
    found = checkpoint.load_together(*paths)
    assert len({each.step for each in found}) == 1
    assert all(torch.equal(each.state["w"], state(each.step)["w"]) for each in found)
    steps.append(found[0].step)
    at += 1
print(json.dumps(steps))
"""
    steps = run_kills(program, tmp_path)
    assert steps == sorted(steps)
    assert len(steps) > 80
    assert set(steps) == {2, 3}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills children")
def test_killed_again_and_again(tmp_path: Path) -> None:
    """Each run resumes, saves at some later step, and is killed between the files, or anywhere."""
    program = """
import random
choose = random.Random(3)
made = fresh("run")
paths = [made / name for name in ("a", "b", "c")]


def save(step, value):
    states = {path: {"w": torch.full((30,), float(value))} for path in paths}
    checkpoint.save_together(states, step=step)


save(0, 0)
at = next(n for n in range(0, 10**6, 10) if not killed(lambda: save(0, 0), n + 1))
reached = 0
for value in range(1, 250):
    found = checkpoint.load_together(*paths)
    assert len({each.step for each in found}) == 1
    assert len({float(each.state["w"][0]) for each in found}) == 1, "two runs are mixed"
    reached = max(reached, found[0].step)
    line = choose.randrange(at // 2, at) if value % 4 else 10**9
    killed(lambda: save(found[0].step + choose.randrange(3), value), line)
print(json.dumps(reached))
"""
    assert run_kills(program, tmp_path) > 50


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_are_not(path: Path) -> None:
    checkpoint.save(path, {}, step=1)
    with files._temporary(path) as alive:
        dead = path.with_name("last.ckpt.123-0123abcd.part")
        others = [path.with_name("last.ckpt.mine.part"), path.with_name("other.1-0123abcd.part")]
        for each in (dead, *others):
            each.touch()
        checkpoint.save(path, {}, step=2)
        expected = ["last.ckpt", "last.ckpt.previous", Path(alive.name).name]
        assert names(path.parent) == sorted([*expected, *(each.name for each in others)])
    assert not Path(alive.name).exists()


# ------------------------------------------------------------------------------------ many files


def history(folder: Path, saves: int, order: tuple[str, ...]) -> tuple[Path, ...]:
    """Files after so many single saves, in turns, at steps 0, 10, 20, ..."""
    for count in range(saves):
        step, which = divmod(count, len(order))
        name = order[which]
        checkpoint.save(folder / name, {"of": name, "at": 10 * step}, step=10 * step)
    return tuple(folder / name for name in order)


@pytest.mark.parametrize("order", [("a", "b"), ("a", "b", "c")])
@pytest.mark.parametrize("saves", range(2, 13))
@pytest.mark.filterwarnings("ignore:loaded step")
def test_files_are_never_paired_across_steps(
    order: tuple[str, ...], saves: int, tmp_path: Path
) -> None:
    if saves < len(order):
        pytest.skip("not every file exists")
    paths = history(tmp_path, saves, order)
    step = 10 * (saves // len(order) - 1)
    for chosen in itertools.permutations(paths):
        found = checkpoint.load_together(*chosen)
        assert [each.step for each in found] == [step] * len(order)
        assert [each.state for each in found] == [{"of": p.name, "at": step} for p in chosen]


@pytest.mark.filterwarnings("ignore:loaded step")
@pytest.mark.parametrize("damaged", list(itertools.product([False, True], repeat=4)))
def test_the_newest_step_that_is_whole_in_all_files(
    damaged: tuple[bool, ...], tmp_path: Path
) -> None:
    paths = history(tmp_path, 4, ("a", "b"))
    copies = [path.with_name(path.name + end) for path in paths for end in ("", ".previous")]
    for copy, broken in zip(copies, damaged, strict=True):
        if broken:
            content = copy.read_bytes()
            copy.write_bytes(content.replace(b'"at"', b'"it"'))
    a10, a0, b10, b0 = (not broken for broken in damaged)
    expected = 10 if a10 and b10 else 0 if a0 and b0 else None
    if expected is None:
        with pytest.raises(StateError, match="there is no checkpoint to load"):
            checkpoint.load_together(*paths)
    else:
        assert [each.step for each in checkpoint.load_together(*paths)] == [expected] * 2


def test_files_without_a_common_step(tmp_path: Path) -> None:
    for name, steps in (("a", (1, 2)), ("b", (3, 4))):
        for step in steps:
            checkpoint.save(tmp_path / name, {}, step=step)
    with pytest.raises(StateError, match=r"no step is whole in all files \(steps 2 and 1; 4 and 3"):
        checkpoint.load_together(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ArgumentError):
        checkpoint.load_together()


def test_a_new_run_in_an_old_folder(tmp_path: Path) -> None:
    """What was saved last counts, not the highest step."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for step in (800, 900, 10):
        checkpoint.save_together(dict.fromkeys(paths, step), step=step)
        assert [each.step for each in checkpoint.load_together(*paths)] == [step, step]


def test_the_same_step_of_two_runs_is_not_mixed(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for run in (1, 2):
        checkpoint.save_together({a: run, b: run}, step=5)
        if run == 1:
            shutil.copy(b, tmp_path / "b of run 1")
    shutil.copy(tmp_path / "b of run 1", b)  # as if the second run had been killed in between
    with pytest.warns(UserWarning, match="loaded step 5"):
        assert [each.state for each in checkpoint.load_together(a, b)] == [1, 1]


def test_what_a_killed_save_began_is_undone_first(tmp_path: Path) -> None:
    """Else the step that all files have would be given up for one that only some have."""
    a, b = tmp_path / "a", tmp_path / "b"
    for step in (1, 2):
        checkpoint.save_together({a: step, b: step}, step=step)
    os.link(a, tmp_path / "a.kept")  # killed here
    os.replace(tmp_path / "b.previous", b)  # and this file was damaged since
    checkpoint.save_together({a: 3, b: 3}, step=3)
    assert archive.header(tmp_path / "a.previous").step == 1
    assert names(tmp_path) == ["a", "a.previous", "b", "b.previous"]


def test_a_file_cannot_belong_to_itself(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="named twice"):
        checkpoint.save_together({tmp_path / "a": 1, str(tmp_path / "a"): 2}, step=1)


def test_a_refused_state_leaves_all_files_alone(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is a set"):
        checkpoint.save_together({tmp_path / "a": 1, tmp_path / "b": {2}}, step=1)
    assert names(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_memory_beside_the_state_is_constant(tmp_path: Path) -> None:
    program = """
import sys, resource, torch
from salience import checkpoint
path = sys.argv[1]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
checkpoint.save(path, {"a": torch.ones(10)}, step=0)
checkpoint.load(path)
state = {"a": torch.ones(50_000_000), "b": torch.ones(5_000, 10_000).t()}
before = peak()
checkpoint.save(path, state, step=1)
saving = peak() - before
del state
checkpoint.load(path)  # takes the place of the state
print(saving, peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x")],
        check=True,
        capture_output=True,
        text=True,
    )
    saving, loading = map(int, done.stdout.split())
    # Of 400 MB. The second is the peak of both, so it cannot be held to less.
    assert saving < 100e6
    assert loading < 100e6
