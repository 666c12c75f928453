"""What is fuzzed: every reader of files, and every state that is loaded.

A target makes inputs and runs one. What a reader refuses it refuses with a ``SalienceError``;
everything else that comes out of ``run`` is a failure. What it takes is used: rows are summed up,
states are drawn from.
"""

import atexit
import gzip
import io
import json
import os
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch
from fuzz_inputs import applied, edit_of, gzipped, mutated, mutated_json, stored_zip
from torch.utils.data import TensorDataset

from salience import ImportanceLoader, ImportanceSampler, LossHistory, checkpoint
from salience.checkpoint import archive
from salience.compare import directory, reading
from salience.compare.report import page
from salience.errors import SalienceError
from salience.insight.sources import read_source
from salience.paper import packed, pages
from salience.paper import targets as paper_targets
from salience.paper.data.cifar10 import read_records
from salience.paper.data.mnist import read_idx
from salience.paper.data.ptb import Words, read_sentences
from salience.paper.measures import Trace
from salience.watch.log import FILE
from salience.watch.view import View

__all__ = ["TARGETS", "Target", "scratch"]

N, BATCH = 12, 4  # examples of the states
CORPUS = 256  # inputs that are kept beside the seeds, each with an outcome of its own
SHM = "/dev/shm" if os.path.isdir("/dev/shm") else None  # files that never reach a disk


@cache
def scratch() -> Path:
    """A folder for files that are read; made by the process that begins, and removed by it."""
    folder, maker = Path(tempfile.mkdtemp(dir=SHM, prefix="salience-fuzz-")), os.getpid()
    atexit.register(lambda: os.getpid() == maker and shutil.rmtree(folder, ignore_errors=True))
    return folder


class Target(Protocol):
    """Makes inputs (bytes, or plain values) and runs them."""

    def make(self, rng: Random) -> Any:
        """The next input."""
        ...

    def run(self, given: Any) -> None:
        """Raises ``SalienceError`` for what is refused."""
        ...

    def keep(self, given: Any) -> None:
        """An input whose outcome was new: others are made from it."""
        ...


# ------------------------------------------------------------------------------------------- bytes


class Bytes:
    """Files as bytes: changed bytes and, where there is a ``wrapped`` form, changed content."""

    def __init__(
        self,
        read: Callable[[bytes], None],
        seeds: list[bytes],
        words: tuple[bytes, ...] = (b"\n",),
        structured: Callable[[Random, bytes], bytes] | None = None,
    ) -> None:
        self._read, self._seeds, self._words = read, list(seeds), words
        self._structured, self._first = structured, len(seeds)

    def make(self, rng: Random) -> bytes:
        seed = rng.choice(self._seeds)
        if self._structured is not None and rng.random() < 0.6:
            try:
                return self._structured(rng, rng.choice(self._seeds[: self._first]))
            except (ValueError, RecursionError, OverflowError):
                pass  # a value that the writer itself does not take
        return mutated(rng, seed, rng.choice(self._seeds), self._words)

    def run(self, given: bytes) -> None:
        self._read(given)

    def keep(self, given: bytes) -> None:
        if len(self._seeds) < self._first + CORPUS:
            self._seeds.append(given)


class Held:
    """A file in memory, with the part of ``pathlib.Path`` that readers use."""

    def __init__(self, name: str, content: bytes | None) -> None:
        self.name, self._content = name, content

    def __str__(self) -> str:
        return self.name

    def exists(self) -> bool:
        return self._content is not None

    def is_file(self) -> bool:
        return self.exists()

    def with_name(self, name: str) -> "Held":
        return Held(name, None)

    def read_bytes(self) -> bytes:
        if self._content is None:
            raise FileNotFoundError(2, "No such file or directory", self.name)
        return self._content

    def open(self, encoding: str) -> io.TextIOWrapper:
        return io.TextIOWrapper(io.BytesIO(self.read_bytes()), encoding)

    def read_text(self, encoding: str) -> str:
        return self.open(encoding).read()


class Folder:
    """A run directory in memory."""

    def __init__(self, **files: bytes) -> None:
        self._files = {name.replace("__", "."): content for name, content in files.items()}

    def __str__(self) -> str:
        return "runs"

    def is_dir(self) -> bool:
        return True

    def __truediv__(self, name: str) -> Held:
        return Held(name, self._files.get(name))


def _idx() -> Target:
    def header(*shape: int) -> bytes:
        sizes = b"".join(size.to_bytes(4, "big") for size in shape)
        return b"\x00\x00\x08" + bytes([len(shape)]) + sizes

    plain = [header(2, 3, 4) + bytes(range(24)), header(5) + b"\x01\x02\x03\x04\x05", header()]
    plain.append(header(0, 28, 28))
    seeds = [gzip.compress(each, mtime=0) for each in plain]

    def structured(rng: Random, _: bytes) -> bytes:
        return gzipped(mutated(rng, rng.choice(plain), rng.choice(plain), (b"\x00\x00\x08\x03",)))

    return Bytes(lambda raw: _used(read_idx(Held("input", raw))), seeds, (b"\x1f\x8b",), structured)


def _used(tensor: torch.Tensor) -> None:
    assert tensor.dtype == torch.uint8
    tensor.sum(dtype=torch.int64)


def _cifar10() -> Target:
    # Real files, for numpy reads them itself; in memory.
    path = scratch() / "records.bin"
    record = bytes([7]) + bytes(range(256)) * 12

    def read(raw: bytes) -> None:
        path.write_bytes(raw)
        images, labels = read_records([path])
        assert images.shape[1:] == (3, 32, 32)
        assert 0 <= int(labels.min()) <= int(labels.max()) <= 9

    def structured(rng: Random, seed: bytes) -> bytes:
        raw = bytearray(seed * rng.randrange(1, 4))
        for at in range(0, len(raw), len(record)):
            raw[at] = rng.choice((0, 5, 9, 10, 255))
        return bytes(raw)

    return Bytes(read, [record, record * 2], (record[:40],), structured)


def _text() -> Target:
    seeds = [b" the cat sat\n on the mat\n", "\u00e9t\u00e9 \u2028 x\n".encode(), b"a\r\nb\rc\n\n"]

    def read(raw: bytes) -> None:
        sentences = read_sentences(Held("input", raw))
        words = Words(sentences, ("<pad>", *sorted({w for s in sentences for w in s})))
        assert len(words) == sum(map(len, sentences))
        assert int(words[len(words) - 1][1]) == words.vocabulary.index("<eos>")

    return Bytes(read, seeds, (b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"<eos>", b"<pad>", b"\x1a"))


# ------------------------------------------------------------------------------- run directories


def _row(method: str, seed: int, step: int, loss: float, **more: Any) -> dict[str, Any]:
    row = {"task": "digits", "method": method, "k": 0.5, "seed": seed, "step": step}
    row |= {"seconds": step / 10, "examples": 64 * step, "train_loss": loss}
    return row | {"train_max_loss": 9 * loss, "test_loss": loss, "test_error": 0.02, **more}


def _lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


ROWS = _lines(*(_row(m, 0, s, 2 / (1 + s)) for m in ("uniform", "history") for s in (0, 10, 20)))
SEEDS = _lines(
    *(_row(m, i, s, 1 / (1 + s)) for m in ("uniform", "a") for i in (0, 1) for s in (0, 5))
)
BUDGETS = _lines(
    *(_row(m, 0, s, 0.5, budget=b) for m in ("uniform", "auto") for b in (0.5, 1) for s in (0, 5))
)
CONFIG = json.dumps({"methods": ["uniform", "history"], "seeds": [0], "steps": 20}).encode()
MEASURES = {"test_error": {"label": "test error", "better": "lower", "unit": "%"}}
MEASURED = json.dumps(
    {"methods": ["uniform"], "measures": MEASURES, "primary": "test_error"}
).encode()
PLANNED = json.dumps(
    {"methods": ["uniform", "auto"], "seeds": [0], "evaluations": 4, "budgets": [0.5, 1]}
).encode()
MODE = {"mode": "focused", "why": "gain 1.4", "gain": 1.4}
MODES = _lines(*(_row("auto", 0, s, 0.5, sampler=MODE) for s in (0, 5, 10)))
HARDEST = json.dumps(
    {
        "methods": {
            "uniform": [{"index": 3, "loss": 2.5, "history": [3, 2.5], "image": [[[0, 255]]]}],
            "history": [{"index": 4, "loss": None, "text": "a b", "image": None}],
        }
    }
).encode()


def _edited_lines(rng: Random, seed: bytes) -> bytes:
    lines = seed.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = mutated_json(rng, lines[at])
    return b"\n".join(lines) + b"\n"


def _edited_json(rng: Random, seed: bytes) -> bytes:
    return mutated_json(rng, seed)


def _comparison(**files: bytes) -> reading.Comparison:
    whole = {"config__json": CONFIG, "runs__jsonl": ROWS, "hardest__json": HARDEST}
    return reading.read_comparison(Folder(**(whole | {"summary__json": b"{}"} | files)))


JSON_WORDS = (
    b'"',
    b"{",
    b"}",
    b"[" * 30,
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"\\ud800",
    b"null",
    b"\n",
)


def _runs() -> Target:
    def read(raw: bytes) -> None:
        _comparison(runs__jsonl=raw, config__json=b"{}")

    return Bytes(read, [ROWS, SEEDS, BUDGETS], JSON_WORDS, _edited_lines)


def _config() -> Target:
    def read(raw: bytes) -> None:
        with suppress(SalienceError):
            directory.read_config(Folder(config__json=raw))
        _comparison(config__json=raw)

    return Bytes(read, [CONFIG, MEASURED, b"{}"], JSON_WORDS, _edited_json)


def _hardest() -> Target:
    def read(raw: bytes) -> None:
        _comparison(hardest__json=raw)

    return Bytes(read, [HARDEST], JSON_WORDS, _edited_json)


def _report(name: str, seeds: list[bytes]) -> Target:
    """The whole report of what is taken, but for its pictures."""

    def read(raw: bytes) -> None:
        found = _comparison(**{name.replace(".", "__"): raw})
        page.html(found)
        page.markdown(found)

    return Bytes(read, seeds, JSON_WORDS, _edited_json if name.endswith("json") else _edited_lines)


def _run_state() -> Target:
    """``state/METHOD-SEED.pt`` of a comparison."""
    (scratch() / "state" / "uniform-0.pt").unlink(missing_ok=True)
    made = directory.RunFile(scratch(), "uniform", 0)
    made.rows, made.curves = [_row("uniform", 0, 0, 1.0)], [torch.rand(3)]
    made.save({"model": {"w": torch.rand(2, 2)}, "step": 3})
    seed = made.path.read_bytes()

    def read(raw: bytes) -> None:
        made.path.write_bytes(raw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of protocols
            found = directory.RunFile(scratch(), "uniform", 0)
        assert isinstance(found.rows, list)

    words = (
        b"PK\x03\x04",
        b"PK\x01\x02",
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02c",
        b"R.",
        b"b.",
    )
    return Bytes(read, [seed], words)


def _watched(name: str, seeds: list[bytes], **others: bytes) -> Target:
    """The live page of a directory, which leaves out what it cannot read."""
    folder = Path(tempfile.mkdtemp(dir=scratch()))
    for other, content in others.items():
        (folder / other.replace("__", ".")).write_bytes(content)

    def read(raw: bytes) -> None:
        (folder / name).write_bytes(raw)
        answer = View(folder).answer(0)
        assert answer is not None
        json.loads(answer)

    return Bytes(read, seeds, JSON_WORDS, _edited_lines)


def _watched_rows() -> Target:
    return _watched("runs.jsonl", [ROWS, SEEDS, BUDGETS, MODES], config__json=PLANNED)


def _watched_config() -> Target:
    return _watched("config.json", [PLANNED, MEASURED], runs__jsonl=BUDGETS)


def _watched_log() -> Target:
    lines = [
        {"log": 1, "steps": 100},
        {"step": 10, "seconds": 0.5, "values": {"train_loss": 0.5, "test_loss": None}},
        {"step": 20, "seconds": 1.0, "values": {"train_loss": 0.4}, "sampler": MODE},
        {"log": 1, "steps": 100, "first": 20},
        {"step": 30, "seconds": 1.5, "values": {"lr": 0.1}, "sampler": {**MODE, "mode": "off"}},
        {"end": True},
    ]
    return _watched(FILE, [_lines(*lines), _lines(*lines[:2])])


def _packed_runs() -> Target:
    """Runs of the paper, as they are kept in results/paper/runs."""
    study = paper_targets.TARGETS["fig1b"].studies[0]
    runs = {}
    for method in study.methods.values():
        rows = [_row(method, 0, step, 1 / (1 + step)) for step in range(5)]
        trace = Trace(rows, [{"tracking": 0.5 * each} for each in range(5)])
        runs[method, 0] = packed.Kept(trace, {"commit": "abc", "versions": {}, "hardware": {}})
    found = packed.Pack(study.name, "tiny", 0.0002, {"fig1b": 1}, runs)
    seed = packed.to_bytes(found)

    def read(raw: bytes) -> None:
        found = packed.from_bytes(raw)
        assert repr(packed.from_bytes(packed.to_bytes(found))) == repr(found)
        pages.complete({found.study: found})

    def structured(rng: Random, seed: bytes) -> bytes:
        return gzipped(_edited_lines(rng, gzip.decompress(seed)))

    return Bytes(read, [seed], (b"\x1f\x8b",), structured)


# ------------------------------------------------------------------------------------ checkpoints


def _sample_states() -> list[Any]:
    deep: Any = 1
    for _ in range(20):
        deep = {"a": [deep]}
    return [
        {"model": {"w": torch.arange(6.0).view(2, 3)}, "step": 3, "lr": 0.1, "name": "x"},
        {"a": [1, (2, None)], 3: torch.zeros(0, 4), "b": torch.tensor(1.5, dtype=torch.bfloat16)},
        {"deep": deep, "big": 10**30, "nan": float("nan")},
        ImportanceSampler(N, BATCH, score="history").state_dict(),
    ]


def _checkpoint() -> Target:
    """An archive in memory: the code that reads files, and packed states."""
    return Bytes(_read_archive, *_archives())


def _read_archive(raw: bytes) -> None:
    archive.unpack(raw)


def _archives() -> tuple[list[bytes], tuple[bytes, ...], Callable[[Random, bytes], bytes]]:
    seeds = [archive.pack(state) for state in _sample_states()]
    contents = {seed: _members(seed) for seed in seeds}

    def structured(rng: Random, seed: bytes) -> bytes:
        members = list(contents[seed])
        at = rng.randrange(len(members)) if rng.random() < 0.4 else 0
        name, content = members[at]
        if name == archive.INDEX and rng.random() < 0.8:
            members[at] = name, mutated_json(rng, content)
        else:
            members[at] = name, mutated(rng, content, content, (b"\x93NUMPY", b"'descr'"))
        if rng.random() < 0.1:
            members.append(rng.choice((members[at], ("../x", b"x"), ("7.npy", b""))))
        return stored_zip(members)

    return seeds, (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"0.npy"), structured


def _members(raw: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(raw)) as opened:
        return [(name, opened.read(name)) for name in opened.namelist()]


def _checkpoint_files() -> Target:
    """``load`` of a file, whose previous one is whole or damaged as well."""
    path, seeds = scratch() / "last.ckpt", _archives()
    path.with_name("last.ckpt.previous").write_bytes(archive.pack({"before": 1}))

    def read(raw: bytes) -> None:
        path.write_bytes(raw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the previous one was loaded
            found = checkpoint.load(path)
        assert found.path == path or found.state == {"before": 1}

    return Bytes(read, *seeds)


def _loss_history() -> Target:
    """What ``loader.history().save`` writes."""
    path, sampler = scratch() / "history.npz", ImportanceSampler(N, BATCH, record=True)
    for _ in range(4):
        draw = sampler.draw()
        sampler.update(draw, _losses(draw.indices))
    sampler.history().save(path)
    seed = path.read_bytes()
    members = _members(seed)

    def read(raw: bytes) -> None:
        path.write_bytes(raw)
        found = LossHistory.load(path)
        found.columns()
        found.places("hardest")

    def structured(rng: Random, _: bytes) -> bytes:
        changed = list(members)
        at = rng.randrange(len(changed))
        name, content = changed[at]
        words = (b"\x93NUMPY", b"'|O'", b"'<f8'", b"'<i8'", b"(12,)", b"(99999999999,)", b"()")
        changed[at] = name, mutated(rng, content, rng.choice(changed)[1], words)
        if rng.random() < 0.1:
            del changed[at]
        return stored_zip(changed)

    return Bytes(read, [seed], (b"PK\x03\x04", b"PK\x01\x02", b"loss.npy"), structured)


def _insight() -> Target:
    """A checkpoint of torch, as ``salience insight`` reads it."""
    path, sampler = scratch() / "state.pt", ImportanceSampler(N, BATCH, record=True)
    for _ in range(4):
        draw = sampler.draw()
        sampler.update(draw, _losses(draw.indices))
    torch.save({"loader": sampler.state_dict(), "step": 4}, path)
    seed = path.read_bytes()

    def read(raw: bytes) -> None:
        path.write_bytes(raw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of protocols
            read_source(path).history.columns()

    return Bytes(read, [seed], (b"PK\x03\x04", b"PK\x01\x02", b"\x80\x02c", b"R.", b"b."))


# ----------------------------------------------------------------------------------------- states


class States:
    """``load_state_dict`` with changed states; what it takes is drawn from."""

    def __init__(self, make: Callable[[], Any], seeds: list[Any], use: Callable[[Any], None]):
        self._new, self._seeds, self._use = make, seeds, use
        self._kept: list[Any] = []
        self._loaded = make()

    def make(self, rng: Random) -> Any:
        if self._kept and rng.random() < 0.3:
            place, edits = rng.choice(self._kept)
        else:
            place, edits = rng.randrange(len(self._seeds)), []
        edits = [*edits, edit_of(rng, self._seeds[place])]
        if rng.random() < 0.3:
            edits.append(edit_of(rng, self._seeds[place]))
        return [place, edits[:4]]

    def run(self, given: Any) -> None:
        place, edits = given
        taker = self._loaded
        taker.load_state_dict(applied(self._seeds[place], edits))
        # It was taken, so it can be used; whatever comes of that, the next one begins anew.
        self._loaded = self._new()
        self._use(taker)

    def keep(self, given: Any) -> None:
        if len(self._kept) < CORPUS:
            self._kept.append(given)


def _losses(indices: torch.Tensor) -> torch.Tensor:
    return (indices.float() * 0.7).sin().abs() + 0.1


def _use_sampler(sampler: Any) -> None:
    for _ in range(4):
        draw = sampler.draw()
        assert int(draw.indices.min()) >= 0
        assert int(draw.indices.max()) < N
        assert draw.weights.isfinite().all()
        sampler.update(draw, _losses(draw.indices))
    sampler.metrics()
    sampler.state_dict()


def _use_loader(loader: Any) -> None:
    """The rest of the epoch, and one more."""
    for _ in range(2):
        for steps, (x,) in enumerate(loader):
            loader.mean(_losses(x))
            if steps == 4:  # a state may say that an epoch is longer
                break
    loader.metrics()
    loader.state_dict()


def _sampler_seeds(make: Callable[[], Any]) -> list[Any]:
    sampler = make()
    seeds = [sampler.state_dict()]
    for step in range(8):
        draw = sampler.draw()
        if step != 5:  # one is still outstanding
            sampler.update(draw, _losses(draw.indices))
        if step in (2, 7):
            seeds.append(sampler.state_dict())
    return seeds


def _sampler(**options: Any) -> Callable[[], Target]:
    def make() -> Any:
        return ImportanceSampler(N, BATCH, **options)

    return lambda: States(make, _sampler_seeds(make), _use_sampler)


def _loader(deferred: bool = False, **options: Any) -> Callable[[], Target]:
    data = TensorDataset(torch.arange(N))

    def make() -> Any:
        loader = ImportanceLoader(data, BATCH, **options)
        loader.deferred = deferred or None
        return loader

    def seeds() -> list[Any]:
        loader, found = make(), []
        found.append(loader.state_dict())
        for _ in range(2):
            for (x,) in loader:
                found.append(loader.state_dict())
                loader.mean(_losses(x))
                found.append(loader.state_dict())
        return found

    return lambda: States(make, seeds(), _use_loader)


class Told:
    """What ``LossHistory.from_state`` finds in a state."""

    def load_state_dict(self, state: Any) -> None:
        found = LossHistory.from_state({"step": 8, "loader": state})
        found.columns()
        found.places("hardest")


def _history_of(**options: Any) -> Callable[[], Target]:
    seeds = _sampler_seeds(lambda: ImportanceSampler(N, BATCH, **options))
    return lambda: States(Told, seeds, lambda _: None)


class First(torch.nn.Module):
    """A model for scores that need one."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _losses(x) * self.w


def _pools() -> Target:
    model = First()
    options = {"score": "loss", "model": model, "loss": lambda model, batch: model(batch[0])}
    return _loader(**options)()


TARGETS: dict[str, Callable[[], Target]] = {
    "idx": _idx,
    "cifar10": _cifar10,
    "text": _text,
    "runs.jsonl": _runs,
    "config.json": _config,
    "hardest.json": _hardest,
    "report of runs.jsonl": lambda: _report("runs.jsonl", [ROWS, SEEDS, BUDGETS, ROWS + MODES]),
    "report of config.json": lambda: _report("config.json", [CONFIG, MEASURED, PLANNED]),
    "report of hardest.json": lambda: _report("hardest.json", [HARDEST]),
    "run state": _run_state,
    "watched rows": _watched_rows,
    "watched config": _watched_config,
    "watched log": _watched_log,
    "packed runs": _packed_runs,
    "checkpoint": _checkpoint,
    "checkpoint files": _checkpoint_files,
    "loss history": _loss_history,
    "insight, torch": _insight,
    "insight, state with a record": _history_of(score="uniform", record=True),
    "insight, state of auto": _history_of(score="auto"),
    "sampler state, history": _sampler(score="history"),
    "sampler state, record": _sampler(score="uniform", record=True),
    "sampler state, auto": _sampler(score="auto"),
    "sampler state, uniform": _sampler(score="uniform", focus="closeness"),
    "sampler state, approx": _sampler(score="approx", labels=[i % 3 for i in range(N)]),
    "loader state, history": _loader(score="history", focus="ordered", slots=False),
    "loader state, auto, late": _loader(deferred=True, score="auto"),
    "loader state, pools": _pools,
}
