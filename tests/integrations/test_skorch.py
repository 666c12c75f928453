"""skorch: what the net sees, how it is weighed, and what it keeps."""

import copy
import pickle
from collections.abc import Callable
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from harness import (
    BATCH,
    EPOCHS,
    MUTANTS,
    STEPS,
    Examples,
    N,
    Replay,
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
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import (
    BatchScoring,
    Callback,
    Checkpoint,
    EpochScoring,
    GradientNormClipping,
    LoadInitState,
    LRScheduler,
)
from skorch.dataset import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from salience import ArgumentError, ImportanceLoader, LossError, StateError
from salience.integrations.skorch import ImportanceNet, _labels
from test_docs import DOCS, blocks

ALL = EPOCHS * STEPS
PAGE = DOCS / "integrations" / "skorch.md"
DATA = Examples()
X, Y = DATA.x.numpy(), DATA.y.numpy()


class Net(ImportanceNet, NeuralNetClassifier):
    pass


def make(kind: Any = Net, **options: Any) -> Any:
    given = {
        "module": Watched,
        "criterion": nn.CrossEntropyLoss,
        "optimizer": torch.optim.SGD,
        "optimizer__momentum": 0.9,
        "lr": 0.1,
        "max_epochs": EPOCHS,
        "batch_size": BATCH,
        "train_split": None,
        "verbose": 0,
        **options,
    }
    if issubclass(kind, ImportanceNet):
        given = {"iterator_train__score": "history", "iterator_train__seed": 3, **given}
    return kind(**given)


def fit(monkeypatch: pytest.MonkeyPatch, net: Any = None, **options: Any) -> Trace:
    net, trace = make(**options) if net is None else net, watch(monkeypatch)
    net.fit(X, Y)
    watch(monkeypatch)  # nothing is added to this trace any more
    return trace.finish(net.module_)


def plain(monkeypatch: pytest.MonkeyPatch, dataset: Any = None, **options: Any) -> Trace:
    trace, model = watch(monkeypatch), Watched()
    plain_loop(make_loader(dataset, **options), model, sgd(model))
    return trace.finish(model)


# ------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_as_a_plain_loop(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(monkeypatch, num_workers=workers)
    matters(expected)
    assert_same(fit(monkeypatch, iterator_train__num_workers=workers), expected)


@pytest.mark.usefixtures("auto_turns_on")
@pytest.mark.parametrize("score", ["auto", "approx"])
def test_scores_that_use_the_classes(score: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(monkeypatch, score=score, labels=DATA.y)
    matters(expected)
    assert_same(fit(monkeypatch, iterator_train__score=score), expected)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_caught(mutant, lambda: fit(monkeypatch), plain(monkeypatch), monkeypatch)


@pytest.mark.parametrize("score", ["loss", "upper_bound", "gnorm"])
def test_scores_that_need_the_model(score: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They get the net's own module and criterion."""
    trace, model = watch(monkeypatch), Watched()
    loader = make_loader(score=score, model=model, loss=F.cross_entropy)
    plain_loop(loader, model, sgd(model))
    expected = trace.finish(model)
    matters(expected)
    assert_same(fit(monkeypatch, iterator_train__score=score), expected, 1e-6)


class Accumulating:
    """The recipe of skorch's documentation."""

    def get_loss(self, *args: Any, **options: Any) -> Any:
        return super().get_loss(*args, **options) / 4  # type: ignore[misc]

    def train_step(self, batch: Any, **fit_params: Any) -> Any:
        this: Any = self
        done = len(this.history[-1, "batches"])
        step = this.train_step_single(batch, **fit_params)
        if done % 4 == 0:
            this.optimizer_.step()
            this.optimizer_.zero_grad()
        return step


class AccumulatingNet(Accumulating, Net):
    pass


@pytest.mark.parametrize("workers", [0, 2])
def test_accumulation_with_a_remainder(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six batches an epoch: the gradients of the last two wait for the next epoch's fourth."""
    trace, model, loader = watch(monkeypatch), Watched(), make_loader(num_workers=workers)
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for number, (x, y, slots) in enumerate(loader, 1):
            losses = F.cross_entropy(model(x), y, reduction="none")
            (loader.mean(losses, slots) / 4).backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    expected = trace.finish(model)
    matters(expected)
    net = make(AccumulatingNet, iterator_train__num_workers=workers)
    assert_same(fit(monkeypatch, net), expected, 1e-6)


@pytest.mark.parametrize("workers", [0, 2])
def test_accumulation_with_a_step_at_the_end_of_each_epoch(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, model, loader = watch(monkeypatch), Watched(), make_loader(num_workers=workers)
    plain_loop(loader, model, sgd(model), accumulate=4, scale=lambda *_: 1 / 4)
    expected = trace.finish(model)
    matters(expected)
    net = make(of_the_page(), iterator_train__num_workers=workers)
    assert_same(fit(monkeypatch, net), expected, 1e-6)


class Softmax(Watched):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(1)


class OneNumber(Watched):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, :1]


class BinaryNet(ImportanceNet, NeuralNetBinaryClassifier):
    pass


class Regressor(ImportanceNet, NeuralNetRegressor):
    pass


KINDS: dict[str, Any] = {
    "cross entropy": (Net, NeuralNetClassifier, {}, Y),
    "the default, on probabilities": (
        Net,
        NeuralNetClassifier,
        {"module": Softmax, "criterion": nn.NLLLoss},
        Y,
    ),
    "binary": (
        BinaryNet,
        NeuralNetBinaryClassifier,
        {"module": OneNumber, "criterion": nn.BCEWithLogitsLoss},
        (Y > 0).astype("float32"),
    ),
    "regression": (
        Regressor,
        NeuralNetRegressor,
        {"module": OneNumber, "criterion": nn.MSELoss, "lr": 0.01},
        X[:, 1:2],
    ),
}


class Recorded:
    """A stock DataLoader on a recorded order."""

    def __init__(self, batches: list[list[int]], per_epoch: int) -> None:
        self.batches, self.per_epoch = batches, per_epoch

    def __call__(self, dataset: Any, **_: Any) -> Any:
        return DataLoader(dataset, batch_sampler=Replay(self.batches, self.per_epoch))


TRAIN, VALID = range(18), range(18, N)


def split(dataset: Any, *_: Any, **__: Any) -> Any:
    return Subset(dataset, TRAIN), Subset(dataset, VALID)


@pytest.mark.parametrize("kind", [*KINDS])
def test_the_same_as_stock_under_uniform(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, options, y = KINDS[kind]
    options = {**options, "train_split": split}
    net, trace = make(ours, iterator_train__score="uniform", **options), watch(monkeypatch)
    net.fit(X, y)
    trace.finish(net.module_)
    assert [len(batch) for batch in trace.ids[:5]] == [4, 4, 4, 4, 2]  # a short last batch
    stock = make(theirs, iterator_train=Recorded(trace.ids, per_epoch=5), **options)
    stock.fit(X, y)
    assert Trace().finish(stock.module_).ids == trace.ids
    for name in ("train_loss", "valid_loss"):
        assert net.history[:, name] == pytest.approx(stock.history[:, name], abs=1e-6)
        assert batches(net, name) == pytest.approx(batches(stock, name), abs=1e-6)
    for mine, other in zip(net.module_.parameters(), stock.module_.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)
    assert net.predict(X) == pytest.approx(stock.predict(X), abs=1e-5)
    assert net.criterion_.reduction == "mean"


def batches(net: Any, name: str) -> list[float]:
    rows = [row for epoch in net.history for row in epoch["batches"]]
    return [row[name] for row in rows if name in row]


def test_the_recorded_loss_is_that_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    net, trace = make(), watch(monkeypatch)
    net.fit(X, Y)
    pairs = zip(trace.weights, trace.losses, strict=True)
    means = [sum(map(mul, w, x)) / len(w) for w, x in pairs]
    assert batches(net, "train_loss") == pytest.approx(means, abs=1e-6)
    sizes = [len(w) for w in trace.weights]
    first = sum(map(mul, means[:STEPS], sizes[:STEPS])) / sum(sizes[:STEPS])
    assert net.history[0, "train_loss"] == pytest.approx(first, abs=1e-6)


def test_classes_are_found_in_the_targets() -> None:
    whole = Dataset(X, Y)
    part = Subset(whole, [3, 1, 8])
    for dataset, y in [(whole, Y), (part, Y[[3, 1, 8]]), (TensorDataset(DATA.x, DATA.y), Y)]:
        found = _labels(dataset)
        assert found is not None
        assert found.tolist() == y.tolist()
    assert _labels(Dataset(X, X[:, 1])) is None
    assert _labels(Dataset(X)) is None
    assert _labels(range(3)) is None
    odd = Dataset(X, Y)
    odd.y = Y[:5]
    assert _labels(odd) is None


def test_only_fits_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions come in order, in training mode too (dropout at prediction time)."""
    expected, net = fit(monkeypatch), make()

    class Predict(Callback):
        def on_epoch_end(self, net: Any, **_: Any) -> None:
            before = str(net.importance_.loader.state_dict())
            seen = len(net.module_.seen)
            net.forward(X, training=True)
            assert [i for batch in net.module_.seen[seen:] for i in batch] == list(range(N))
            del net.module_.seen[seen:]
            net.predict_proba(X)
            net.score(X, Y)
            assert str(net.importance_.loader.state_dict()) == before

    net.set_params(callbacks=[Predict()])
    assert_same(fit(monkeypatch, net), expected)


def test_validation_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part(Examples):
        def __len__(self) -> int:
            return len(TRAIN)

    expected = plain(monkeypatch, Part())
    scoring = EpochScoring("accuracy", name="train_acc", on_train=True, lower_is_better=False)
    callbacks = [scoring, BatchScoring("accuracy", name="batch_acc", on_train=True)]
    trace = fit(monkeypatch, train_split=split, callbacks=callbacks)
    assert_same(trace, expected)


def test_callbacks_together(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, model, loader = watch(monkeypatch), Watched(), make_loader()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(EPOCHS):
        for x, y, slots in loader:
            loader.mean(F.cross_entropy(model(x), y, reduction="none"), slots).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    expected = trace.finish(model)
    matters(expected)
    callbacks = [
        LRScheduler(policy=torch.optim.lr_scheduler.ExponentialLR, gamma=0.9, step_every="batch"),
        GradientNormClipping(0.3),
    ]
    assert_same(fit(monkeypatch, callbacks=callbacks), expected, 1e-6)


class Bf16Net(Net):
    def infer(self, x: Any, **fit_params: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().infer(x, **fit_params)


@pytest.mark.filterwarnings(  # torch's own, while it compiles
    "ignore:The .grad attribute of a Tensor that is not a leaf",
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning",
)
def test_bf16_compiled_scheduled_with_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = torch.optim.lr_scheduler.ExponentialLR
    net = make(
        Bf16Net,
        compile=True,
        iterator_train__num_workers=2,
        callbacks=[LRScheduler(policy=policy, gamma=0.99, step_every="batch")],
    )
    trace = watch(monkeypatch)
    net.fit(X, Y)
    trace.ids = net.module_._orig_mod.seen
    matters(trace)
    assert len(trace.ids) == len(trace.weights) == ALL
    losses = net.history[:, "train_loss"]
    assert losses[-1] < losses[0]


def test_lbfgs_weighs_a_batch_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    net = make(optimizer=torch.optim.LBFGS, optimizer__max_iter=3, max_epochs=2)
    del net.optimizer__momentum
    trace = watch(monkeypatch)
    net.fit(X, Y)
    assert len(trace.weights) > 2 * STEPS
    assert net.importance_.loader._sampler.step == 2 * STEPS


# -------------------------------------------------------------------------- what sklearn expects


def test_parameters_are_read_set_and_cloned() -> None:
    net = make(iterator_train__k=0.25)
    assert net.get_params()["iterator_train__k"] == 0.25
    assert net.get_params()["iterator_train"] is ImportanceLoader
    twin = clone(net)
    assert twin.get_params()["iterator_train__k"] == 0.25
    twin.set_params(iterator_train__k=1.0, iterator_train__score="uniform")
    assert "k=1)" in repr(twin.fit(X, Y).importance_.loader)
    twin.set_params(iterator_train__k=0.0)  # after it was initialized
    assert twin.get_params()["iterator_train__k"] == 0.0
    assert clone(twin).get_params()["iterator_train__k"] == 0.0
    assert "k=0)" in repr(twin.fit(X, Y).importance_.loader)
    assert "iterator_train__k" in {*twin.get_params()}


def test_grid_search_over_k_and_score() -> None:
    grid = {
        "iterator_train__k": [0.0, 1.0],
        "iterator_train__score": ["uniform", "history", "loss"],
    }
    search = GridSearchCV(make(max_epochs=2), grid, cv=2, error_score="raise")
    search.fit(X, Y)
    assert len({*search.cv_results_["mean_test_score"]}) > 1  # it makes a difference
    loader = search.best_estimator_.importance_.loader
    assert f"k={search.best_params_['iterator_train__k']:g})" in repr(loader)
    copied = pickle.loads(pickle.dumps(search))  # as with n_jobs
    assert copied.predict(X).tolist() == search.predict(X).tolist()


def test_a_plain_iterator_trains_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"iterator_train": [DataLoader, ImportanceLoader]}
    bare = make(max_epochs=1)
    del bare.iterator_train__score, bare.iterator_train__seed
    GridSearchCV(clone(bare), grid, cv=2, error_score="raise").fit(X, Y)
    net, stock = make(iterator_train=DataLoader), make(NeuralNetClassifier)
    del net.iterator_train__score, net.iterator_train__seed
    trace = watch(monkeypatch)
    net.fit(X, Y)
    stock.fit(X, Y)
    assert trace.weights == []
    for mine, other in zip(net.module_.parameters(), stock.module_.parameters(), strict=True):
        assert torch.equal(mine, other)


# ------------------------------------------------------------------------- fit, partial_fit, copies


def test_partial_fit_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, net, trace = fit(monkeypatch), make(), watch(monkeypatch)
    for _ in range(EPOCHS):
        net.partial_fit(X.copy(), Y.copy(), epochs=1)
    assert_same(trace.finish(net.module_), expected)
    assert net.importance_.epoch == EPOCHS


def test_partial_fit_on_other_data_begins_anew() -> None:
    for x, y in [(X[:20], Y[:20]), (X, np.roll(Y, 1))]:
        net = make().partial_fit(X, Y)
        net.partial_fit(x, y, epochs=1)
        assert net.importance_.loader.epoch == 1
    net.set_params(iterator_train__k=0.9).partial_fit(x, y, epochs=1)  # other options
    assert net.importance_.loader.epoch == 1
    net.partial_fit(x, y, epochs=1)
    assert net.importance_.loader.epoch == 2


def test_fit_begins_anew_unless_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    net = make()
    first, again = fit(monkeypatch, net), fit(monkeypatch, net)
    assert_same(again, first)
    warm = make(warm_start=True, max_epochs=1)
    trace = watch(monkeypatch)
    for _ in range(EPOCHS):
        warm.fit(X, Y)
    assert_same(trace.finish(warm.module_), first)


COPIES: list[Callable[[Any], Any]] = [
    copy.deepcopy,
    lambda net: pickle.loads(pickle.dumps(net)),
]


@pytest.mark.parametrize("copied", COPIES, ids=["deepcopy", "pickle"])
def test_copies_of_fitted_nets_go_on(copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fit(monkeypatch)
    net = make(max_epochs=2).fit(X, Y)
    twin = copied(net)
    assert len(pickle.dumps(twin.importance_.state_dict())) < 20_000
    assert twin.predict(X).tolist() == net.predict(X).tolist()
    assert twin.importance_.loader is None  # no examples in it
    trace = watch(monkeypatch)
    twin.partial_fit(X, Y, epochs=1)
    ids = Trace().finish(twin.module_).ids[2 * STEPS :]
    assert ids == expected.ids[2 * STEPS :]
    assert trace.weights == expected.weights[2 * STEPS :]
    for mine, other in zip(twin.module_.parameters(), expected.parameters, strict=True):
        assert torch.equal(mine, other)
    copied(twin).partial_fit(X[:20], Y[:20], epochs=1)  # other data
    twin.trim_for_prediction()
    assert twin.predict(X).shape == (N,)


# ----------------------------------------------------------------------------------------- files

FILES = ("params", "optimizer", "importance")


class Counted(torch.optim.SGD):
    """Counts the updates since the last one was made."""

    steps = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        Counted.steps = 0

    def step(self, *args: Any, **options: Any) -> Any:
        Counted.steps += 1
        return super().step(*args, **options)


class SaveAll(Callback):
    """After every batch."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.step = directory, 0
        self.updates: dict[int, int] = {}

    def on_batch_end(self, net: Any, training: bool = False, **_: Any) -> None:
        if training:
            self.step += 1
            self.updates[self.step] = Counted.steps
            net.save_params(**paths(self.directory, self.step))


def paths(directory: Path, step: int) -> dict[str, str]:
    return {f"f_{name}": str(directory / f"{step}.{name}") for name in FILES}


def of_the_page() -> Any:
    """The net of docs/integrations/skorch.md: a step at the end of each epoch as well."""
    (block,) = [b for b in blocks(PAGE, "py") if b.startswith("class AccumulatingNet(Net)")]
    names: dict[str, Any] = {"Net": Net, "__name__": "page"}
    exec(compile(block, str(PAGE), "exec"), names)
    return names["AccumulatingNet"]


# skorch saves no gradients: with accumulation, resume where none wait.
RESUMES: dict[Any, list[int]] = {
    Net: list(range(1, ALL + 1)),
    AccumulatingNet: [4, STEPS + 4, 2 * STEPS + 4],
    of_the_page(): [4, STEPS, STEPS + 4, 2 * STEPS, 2 * STEPS + 4, ALL],
}


@pytest.mark.parametrize("kind", [*RESUMES])
def test_resume_at_every_step(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = SaveAll(tmp_path)
    expected = fit(monkeypatch, make(kind, callbacks=[save], optimizer=Counted))
    matters(expected)
    updates = Counted.steps
    for step in RESUMES[kind]:
        net = make(kind, optimizer=Counted).initialize()
        net.load_params(**paths(tmp_path, step))
        assert net.importance_.epoch == step // STEPS
        trace = watch(monkeypatch)
        net.partial_fit(X, Y, epochs=EPOCHS - net.importance_.epoch)
        rest = Trace(expected.ids[step:], expected.weights[step:], [], expected.parameters)
        assert_same(trace.finish(net.module_), rest)
        assert save.updates[step] + Counted.steps == updates


class KillError(BaseException):
    """Stands for SIGKILL: nobody catches it."""


def checkpointed(directory: Path, **options: Any) -> Any:
    checkpoint = Checkpoint(monitor=None, dirname=str(directory), f_importance="importance.pt")
    return make(callbacks=[checkpoint, LoadInitState(checkpoint)], **options)


def test_checkpoint_and_load_init_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fit(monkeypatch)
    for done in range(1, EPOCHS):
        directory = tmp_path / str(done)
        checkpointed(directory, max_epochs=done).fit(X, Y)
        net, trace = checkpointed(directory, max_epochs=EPOCHS - done), watch(monkeypatch)
        net.fit(X, Y)
        at = done * STEPS
        rest = Trace(expected.ids[at:], expected.weights[at:], [], expected.parameters)
        assert_same(trace.finish(net.module_), rest)
        assert len(net.history) == EPOCHS


ORDER = ["criterion", "importance", "optimizer", "module", "history"]


@pytest.mark.parametrize("written", range(len(ORDER) + 1))
def test_a_kill_between_the_files_of_a_checkpoint(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model and sampler are of the same step, or nothing is resumed."""
    expected = fit(monkeypatch)
    names: list[str] = []
    with monkeypatch.context() as patch:
        save = Net.save_params

        def killed(self: Any, **files: Any) -> None:
            if len(names) == len(ORDER) + written:
                raise KillError
            names.extend(key[2:] for key in files if key.startswith("f_"))
            save(self, **files)

        patch.setattr(Net, "save_params", killed)
        with pytest.raises(KillError):
            checkpointed(tmp_path, max_epochs=2 + (written == len(ORDER))).fit(X, Y)
    assert names == (ORDER + ORDER)[: len(ORDER) + written]
    net, trace = checkpointed(tmp_path), watch(monkeypatch)
    if ORDER[written - 1] in ("importance", "optimizer"):
        with pytest.raises(StateError, match="saved with other parameters"):
            net.fit(X, Y)
        assert trace.weights == []
    else:
        done = 2 if written > 3 else 1
        net.set_params(max_epochs=EPOCHS - done).fit(X, Y)
        at = done * STEPS
        rest = Trace(expected.ids[at:], expected.weights[at:], [], expected.parameters)
        assert_same(trace.finish(net.module_), rest)


def test_load_best_restores_the_sampler_too(tmp_path: Path) -> None:
    best = Checkpoint(
        monitor=lambda net: len(net.history) == 2,
        dirname=str(tmp_path),
        f_importance="importance.pt",
        load_best=True,
    )
    net = make(callbacks=[best]).fit(X, Y)
    assert net.importance_.epoch == 2
    net.partial_fit(X, Y, epochs=0)
    assert net.importance_.loader.epoch == 2


def test_files_of_other_data_are_refused(tmp_path: Path) -> None:
    files = paths(tmp_path, 1)
    make(max_epochs=1).fit(X, Y).save_params(**files)
    for x, y, match in [(X, np.roll(Y, 1), "other targets"), (X[:20], Y[:20], "targets")]:
        net = make().initialize()
        net.load_params(**files)
        with pytest.raises(StateError, match=match):
            net.partial_fit(x, y)
    net = make(iterator_train__k=0.9).initialize()
    net.load_params(**files)
    with pytest.raises(StateError, match="k"):
        net.partial_fit(X, Y)
    del files["f_importance"]
    net = make(iterator_train__k=0.9).initialize()
    net.load_params(**files)
    net.partial_fit(X, Y)  # the parameters alone


def test_a_net_that_was_not_trained_saves_and_loads(tmp_path: Path) -> None:
    files = paths(tmp_path, 0)
    make().initialize().save_params(**files)
    net = make().initialize()
    net.load_params(**files)
    assert net.partial_fit(X, Y).importance_.epoch == EPOCHS
    net.load_params(**files)  # of one that was trained as well
    assert net.partial_fit(X, Y).importance_.epoch == EPOCHS


# --------------------------------------------------------------------------------------- refused


class Total(nn.Module):
    """A criterion of the user's own that gives a single number."""

    def forward(self, y_pred: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(y_pred, y)


class Each(nn.Module):
    """A criterion of the user's own that gives one loss per example."""

    def forward(self, y_pred: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(y_pred, y, reduction="none")


def test_criteria(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fit(monkeypatch)
    assert_same(fit(monkeypatch, criterion=Each), expected)
    assert_same(fit(monkeypatch, criterion__reduction="none"), expected)
    net = make(criterion=Each, train_split=split).fit(X, Y)  # and is averaged in validation
    assert len(net.history[:, "valid_loss"]) == EPOCHS
    with pytest.raises(ArgumentError, match="reduction='sum'"):
        make(criterion__reduction="sum").fit(X, Y)
    with pytest.raises(LossError, match="one per example"):
        make(criterion=Total).fit(X, Y)


def test_shuffle_is_refused() -> None:
    with pytest.raises(ArgumentError, match="shuffle cannot be given"):
        make(iterator_train__shuffle=True).fit(X, Y)


def test_the_whole_dataset_as_a_batch() -> None:
    net = make(batch_size=-1, max_epochs=1).fit(X, Y)
    assert net.importance_.loader.batch_size == N
