"""What was written is read back: from event files, a store of MLflow, a run directory of wandb."""

import json
import math
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from parts import cross_entropy, frozen, make_dataset
from salience import ArgumentError, ImportanceLoader
from salience.integrations import trackers
from salience.integrations.trackers import log_mlflow, log_tensorboard, log_wandb

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*distutils Version classes are deprecated.*"),
    pytest.mark.filterwarnings("ignore:.*filesystem tracking backend.*:FutureWarning"),
]

N, BATCH, EVERY = 22, 4, 5
STEPS = 18  # three epochs of six
SCALARS = {
    *("mean_loss", "variance_reduction", "effective_sample_size", "unique_fraction"),
    *("tracking", "active", "skipped_losses", "scoring_fraction"),
}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from make_dataset(48)


@pytest.fixture(autouse=True)
def _nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The working directory stays empty."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    yield
    assert list((tmp_path / "cwd").iterdir()) == []


def make(score: str = "history", **options: Any) -> tuple[ImportanceLoader, nn.Module]:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    if score == "loss":
        options |= {"model": model, "loss": cross_entropy}
    return ImportanceLoader(make_dataset(N), BATCH, score=score, k=1, **options), model


def train(loader: ImportanceLoader, model: nn.Module, log: Any, epochs: int = 3) -> dict[int, Any]:
    """Trains, calls ``log(step)`` at every step, and returns what there was to log at each."""
    optimizer, step, seen = torch.optim.SGD(model.parameters(), 0.1), 0, {}
    for _ in range(epochs):
        for x, y in loader:
            loader.mean(F.cross_entropy(model(x), y, reduction="none")).backward()
            optimizer.step()
            optimizer.zero_grad()
            log(step)
            scores = loader.scores() if loader._sampler.by_index else loader.recent()["scores"]
            seen[step] = SimpleNamespace(
                metrics={k: v for k, v in loader.metrics().items() if math.isfinite(v)},
                scores=scores[~scores.isnan()],
                weights=loader.recent()["weights"],
            )
            step += 1
    return seen


def same(name: str, found: float, expected: float) -> bool:
    """The share of the time moves on between two looks at it."""
    return name == "scoring_fraction" or found == pytest.approx(expected, rel=1e-6)


# ------------------------------------------------------------------------------------ TensorBoard


def events(directory: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory), size_guidance={"histograms": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


@pytest.mark.parametrize("score", ["history", "uniform", "loss", "auto"])
def test_tensorboard(score: str, tmp_path: Path, auto_turns_on: None) -> None:  # noqa: ARG001
    from torch.utils.tensorboard import SummaryWriter

    loader, model = make(score)
    with SummaryWriter(tmp_path / "runs") as writer:
        seen = train(loader, model, lambda s: log_tensorboard(writer, loader, s, every=EVERY))
    written = events(tmp_path / "runs")
    assert {*written.Tags()["scalars"]} == {f"importance/{name}" for name in SCALARS}
    for name in SCALARS:
        rows = {row.step: row.value for row in written.Scalars(f"importance/{name}")}
        expected = {
            s: seen[s].metrics[name] for s in range(0, STEPS, EVERY) if name in seen[s].metrics
        }
        assert rows.keys() == expected.keys()
        assert all(same(name, rows[s], expected[s]) for s in rows), name
    for name in ("scores", "weights"):
        rows = {row.step: row.histogram_value for row in written.Histograms(f"importance/{name}")}
        assert [*rows] == [0, 5, 10, 15]
        for step, histogram in rows.items():
            values = getattr(seen[step], name).double()
            assert histogram.num == len(values) > 0
            assert histogram.sum == pytest.approx(float(values.sum()))
            assert (histogram.min, histogram.max) == pytest.approx(
                (float(values.min()), float(values.max()))
            )
    if score in ("history", "auto"):  # not only ones
        assert rows[15].max > rows[15].min


def test_tensorboard_on_a_stream(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    model = nn.Linear(6, 3)
    pools = DataLoader(Stream(), batch_size=8)
    loader = ImportanceLoader.from_loader(pools, 4, score="loss", model=model, loss=cross_entropy)
    with SummaryWriter(tmp_path / "runs") as writer:
        for step, (x, y) in enumerate(loader):
            loader.mean(F.cross_entropy(model(x), y, reduction="none")).backward()
            log_tensorboard(writer, loader, step, every=2, prefix="train/sampler")
    written = events(tmp_path / "runs")
    assert [row.step for row in written.Scalars("train/sampler/mean_loss")] == [0, 2, 4]
    assert [row.step for row in written.Histograms("train/sampler/scores")] == [0, 2, 4]


def test_a_histogram_shows_examples_of_the_whole_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "SHOWN", 4)
    loader, _ = make()
    loader._sampler.update(torch.arange(N), torch.arange(N).float())
    found = trackers._histograms(loader, "a")["a/scores"]
    assert found.tolist() == [0, 5, 11, 16]


# ----------------------------------------------------------------------------------------- MLflow


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    yield mlflow
    mlflow.set_tracking_uri(before)


@pytest.mark.parametrize("named", [False, True])
def test_mlflow(named: bool, mlflow: Any) -> None:
    loader, model = make()
    with mlflow.start_run() as run:
        options = {"run_id": run.info.run_id} if named else {}
        if named:
            mlflow.end_run()
        seen = train(loader, model, lambda s: log_mlflow(loader, s, every=EVERY, **options))
        assert (mlflow.active_run() is None) == named  # no run of our own was begun
    client = mlflow.MlflowClient()
    assert {*client.get_run(run.info.run_id).data.metrics} == {f"importance/{n}" for n in SCALARS}
    for name in SCALARS:
        history = client.get_metric_history(run.info.run_id, f"importance/{name}")
        rows = {row.step: row.value for row in history}
        assert rows.keys() == {s for s in (0, 5, 10, 15) if name in seen[s].metrics}
        assert all(same(name, rows[s], seen[s].metrics[name]) for s in rows), name


# --------------------------------------------------------------------------------------- wandb


def records(data: bytes) -> Iterator[bytes]:
    """Of a .wandb file: blocks of 32 kB with chunks, each with checksum, length and kind."""
    at, parts = 7, b""  # after the name of the format
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if at + 7 + length > len(data):
            return  # the rest is not written yet
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # all of a record, or its last part
            yield parts
            parts = b""


def wandb_rows(directory: Path) -> list[dict[str, Any]]:
    """The history of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = directory.glob("wandb/offline-run-*/*.wandb")
    deadline, found = time.monotonic() + 60, []
    while not any(each.HasField("exit") for each in found):  # another process writes it
        assert time.monotonic() < deadline, "the file of the run has no end"
        time.sleep(0.05)
        found = [Record.FromString(each) for each in records(file.read_bytes())]
    return [
        {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in r.history.item
        }
        for r in found
        if r.HasField("history")
    ]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    run = wandb.init(
        mode="offline",
        dir=tmp_path,
        project="test",
        settings=wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off"),
    )
    yield run
    run.finish()


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("theirs", ["none", "by step", "one a step", "two a step", "one in three"])
def test_wandb_beside_logs_of_the_user(theirs: str, first: bool, run: Any, tmp_path: Path) -> None:
    """Theirs advance the run's own counter, or name a step; nothing of either is dropped."""
    loader, model = make()
    logged = range(0, 0 if theirs == "none" else STEPS, 3 if theirs == "one in three" else 1)

    def log(step: int) -> None:
        if first:
            log_wandb(run, loader, step, every=EVERY)
        if step in logged:
            run.log({"loss": step}, **({"step": step} if theirs == "by step" else {}))
        if theirs == "two a step":
            run.log({"accuracy": step})
        if not first:
            log_wandb(run, loader, step, every=EVERY)

    seen = train(loader, model, log)
    run.finish()
    rows = wandb_rows(tmp_path)
    assert [row["loss"] for row in rows if "loss" in row] == [*logged]
    ours = [row for row in rows if "importance/step" in row]
    assert [row["importance/step"] for row in ours] == [0, 5, 10, 15]
    for row in ours:
        now = seen[row["importance/step"]]
        names = {"step", *now.metrics} | {f"{h}/bins" for h in ("scores", "weights")}
        assert {f"importance/{name}" for name in names} <= {*row}
        for name, value in now.metrics.items():
            assert same(name, row[f"importance/{name}"], value)
        for name in ("scores", "weights"):
            values = getattr(now, name)
            bins, counts = (row[f"importance/{name}/{part}"] for part in ("bins", "values"))
            assert sum(counts) == len(values)
            if values.max() > values.min():
                ends = [float(values.min()), float(values.max())]
                assert [bins[0], bins[-1]] == pytest.approx(ends, rel=1e-5)


# --------------------------------------------------------------------------- when, and by whom


class Writer:
    """Counts what it is asked to write."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        assert math.isfinite(value), name
        self.steps.append(step)

    def add_histogram(self, name: str, values: Any, step: int) -> None:
        assert len(values), (name, step)


def test_before_the_first_step_only_what_is_known_is_written() -> None:
    loader, _ = make()
    writer = Writer()
    log_tensorboard(writer, loader, 0)
    assert writer.steps == [0, 0, 0]  # active, skipped_losses, scoring_fraction


def test_between_the_steps_that_are_written_nothing_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader, _ = make()
    asked = []
    for name in ("metrics", "scores", "recent"):
        original = getattr(ImportanceLoader, name)
        spy = lambda *a, original=original, name=name: (asked.append(name), original(*a))[1]  # noqa: E731
        monkeypatch.setattr(ImportanceLoader, name, spy)
    for step in range(1, 100):
        log_tensorboard(None, loader, step)
        log_mlflow(loader, step)
        log_wandb(None, loader, step)
    assert asked == []
    log_tensorboard(Writer(), loader, 100)
    assert sorted(asked) == ["metrics", "recent", "scores"]


@pytest.mark.parametrize("score", ["history", "auto", "approx", "uniform", "loss"])
def test_logging_changes_neither_draws_nor_training(score: str, auto_turns_on: None) -> None:  # noqa: ARG001
    ends = []
    for every in (1, 10**9):
        loader, model = make(score)
        log = lambda step: log_tensorboard(Writer(), loader, step, every=every)  # noqa: B023, E731
        train(loader, model, log)
        ends.append(frozen([loader.state_dict(), [p.detach() for p in model.parameters()]]))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("every", [0, -1, 2.5, True, None])
def test_every_is_checked(every: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"every must be a whole number >= 1; got {every}"):
        log_tensorboard(Writer(), make()[0], 0, every=every)


RANKS = """
import sys, torch, torch.distributed as dist
from torch.utils.data import TensorDataset
from salience import ImportanceLoader
from salience.integrations.trackers import log_tensorboard

class Writer:
    written = 0
    def add_scalar(self, *args): self.written += 1
    add_histogram = add_scalar

rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
loader = ImportanceLoader(TensorDataset(torch.arange(8)), 4, seed=rank, score="history")
writer = Writer()
log_tensorboard(writer, loader, 0)
print(rank, writer.written)
dist.destroy_process_group()
"""


def test_only_rank_0_writes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RANKS]
    ranks = [
        subprocess.Popen(
            [*command, str(r), str(tmp_path / "meet")], stdout=subprocess.PIPE, text=True
        )
        for r in range(2)
    ]
    assert [rank.communicate(timeout=60)[0].split()[-2:] for rank in ranks] == [
        ["0", "3"],
        ["1", "0"],
    ]


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("mlflow", lambda loader: log_mlflow(loader, 0)),
        ("wandb", lambda loader: log_wandb(None, loader, 0)),
    ],
)
def test_a_missing_extra_is_named(name: str, call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Missing:
        def find_spec(self, wanted: str, *_: Any) -> None:
            if wanted == name:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(
        ModuleNotFoundError, match=rf"trackers needs {name}: pip .*salience\[{name}\]"
    ):
        call(make()[0])


def test_importing_loads_no_tracker() -> None:
    program = (
        "import sys, salience.integrations.trackers; "
        "assert not {'mlflow', 'wandb', 'tensorboard'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
