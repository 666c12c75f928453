"""Keras on torch: what the model sees, and how it is weighed."""

import keras_parts  # isort: skip (chooses the backend)

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from operator import mul
from typing import Any

import keras
import pytest
import torch
import torch.nn.functional as F
from harness import (
    BATCH,
    CLASSES,
    EPOCHS,
    FEATURES,
    MUTANTS,
    STEPS,
    Examples,
    N,
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
from keras_parts import LOSS, finish, fit, make_model, watched
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from salience import ArgumentError, ImportanceLoader, LossError, UsageError
from salience.integrations.keras import importance

pytestmark = [  # keras' own, when it saves its variables
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
]


def plain(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Trace:
    trace, model = watch(monkeypatch), Watched()
    plain_loop(make_loader(**options), model, sgd(model))
    return trace.finish(model)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [*keras_parts.KINDS])
def test_the_same_as_a_plain_loop(kind: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(monkeypatch, num_workers=workers)
    matters(expected)
    trace = fit(monkeypatch, kind, loader=make_loader(num_workers=workers))
    assert_same(trace, expected, 1e-5)


@pytest.mark.parametrize("score", ["history", "auto"])
@pytest.mark.usefixtures("auto_turns_on")
def test_loaders_without_slots_of_their_own(score: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(monkeypatch, score=score)
    matters(expected)
    assert_same(fit(monkeypatch, loader=make_loader(score=score, slots=False)), expected, 1e-5)
    model, loader = make_model(), make_loader(score=score)
    importance(model, loader)
    trace = watch(monkeypatch)
    model.fit(loader.as_dataloader(), epochs=EPOCHS, verbose=0)
    assert_same(finish(trace, model), expected, 1e-5)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(monkeypatch)
    assert_caught(mutant, lambda: fit(monkeypatch), expected, monkeypatch, tolerance=1e-5)


def test_losses_one_step_late_as_on_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, net, loader = watch(monkeypatch), Watched(), make_loader()
    loader.deferred = True
    plain_loop(loader, net, sgd(net))
    expected = trace.finish(net)
    matters(expected)
    late = make_loader()
    late.deferred = True
    assert_same(fit(monkeypatch, loader=late), expected, 1e-5)
    assert expected.ids != fit(monkeypatch).ids
    several = make_loader(TwoTargets(True))
    several.deferred = True
    trace = fit(monkeypatch, model=two_outputs(True), loader=several)
    assert len(trace.ids) == several._sampler.step == EPOCHS * STEPS


@pytest.mark.parametrize("workers", [0, 2])
def test_accumulation_with_a_remainder(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras averages four batches, across epochs: 18 batches are four updates, and two wait."""
    trace, net, loader = watch(monkeypatch), Watched(), make_loader(num_workers=workers)
    optimizer, done = sgd(net), 0
    for _ in range(EPOCHS):
        for x, y, slots in loader:
            losses = F.cross_entropy(net(x), y, reduction="none")
            (loader.mean(losses, slots) / 4).backward()
            done += 1
            if done % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    expected = trace.finish(net)
    matters(expected)
    model = make_model(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=4)
    )
    loader = make_loader(num_workers=workers)
    assert_same(fit(monkeypatch, model=model, loader=loader), expected, 1e-5)
    assert int(model.optimizer.iterations) == 4


# ------------------------------------------------------- the same as stock keras, under uniform


def replay(model: Any, batches: list[list[int]], data: Any = None, **options: Any) -> Any:
    """Stock keras on a recorded order, epoch by epoch; all its logs."""
    data, logs = Examples() if data is None else data, dict[str, list[float]]()
    for epoch in range(EPOCHS):
        order = batches[epoch * STEPS : (epoch + 1) * STEPS]
        history = model.fit(
            DataLoader(data, batch_sampler=order),
            shuffle=False,
            epochs=epoch + 1,
            initial_epoch=epoch,
            verbose=0,
            **options,
        )
        for name, values in history.history.items():
            logs.setdefault(name, []).extend(values)
    return logs


def compare_with_stock(
    make: Callable[[], Any], data: Any = None, stock: Any = None, **options: Any
) -> Any:
    """Uniform draws; then stock keras on the same batches. ``stock``: the dataset it needs."""
    model, loader = make(), make_loader(data, score="uniform")
    importance(model, loader)
    logs = model.fit(loader, epochs=EPOCHS, verbose=0, **options).history
    options.pop("class_weight", None)
    twin = make()
    expected = replay(twin, watched(model), data if stock is None else stock, **options)
    assert len(watched(model)[STEPS - 1]) == N % BATCH  # a short last batch
    assert watched(twin) == watched(model)
    assert logs.keys() == expected.keys()
    for name, values in logs.items():
        assert values == pytest.approx(expected[name], abs=1e-6), name
    for mine, theirs in zip(model.variables, twin.variables, strict=True):
        torch.testing.assert_close(mine.value, theirs.value, rtol=1e-6, atol=1e-6)
    return model


@pytest.mark.parametrize("kind", [*keras_parts.KINDS])
def test_the_same_as_stock(kind: str) -> None:
    compare_with_stock(
        lambda: make_model(kind, metrics=["accuracy"]),
        validation_data=DataLoader(Examples(15), batch_size=4),
    )


def test_regularisers() -> None:
    def make() -> Any:
        model = make_model()
        model.layers[1].kernel_regularizer = keras.regularizers.L2(0.05)
        model.layers[2].activity_regularizer = keras.regularizers.L1(0.01)
        return model

    model = compare_with_stock(make)
    assert len(model.losses) > 0
    bare = compare_with_stock(make_model)
    assert not torch.allclose(bare.layers[1].kernel.value, model.layers[1].kernel.value)


CLASS_WEIGHT = {0: 3.0, 2: 0.5}


class Weighted(Examples):
    """(x, y, weight)."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = weights

    def __getitem__(self, i: int) -> Any:
        return self.x[i], self.y[i], self.weights[i]


OF_CLASSES = Weighted(torch.tensor([CLASS_WEIGHT.get(int(y), 1.0) for y in Examples().y]))
OF_USER = Weighted(torch.linspace(0, 2, N))


def test_class_weights_are_those_of_stock() -> None:
    """Stock keras takes them for arrays only; as weights of the examples for a DataLoader."""
    make = lambda: make_model(metrics=["accuracy"], weighted_metrics=["accuracy"])  # noqa: E731
    compare_with_stock(make, class_weight=CLASS_WEIGHT, stock=OF_CLASSES)
    arrays, loader = make(), make_loader(score="uniform")
    model = make()
    importance(model, loader)
    model.fit(loader, verbose=0, class_weight=CLASS_WEIGHT)
    order = [i for batch in watched(model) for i in batch]
    x, y = Examples().x[order].numpy(), Examples().y[order].numpy()
    arrays.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, class_weight=CLASS_WEIGHT)
    for mine, theirs in zip(model.variables, arrays.variables, strict=True):
        torch.testing.assert_close(mine.value, theirs.value, rtol=1e-6, atol=1e-6)


def test_the_users_own_weights() -> None:
    make = lambda: make_model(metrics=["accuracy"], weighted_metrics=["accuracy"])  # noqa: E731
    compare_with_stock(make, OF_USER)
    both = Weighted(OF_CLASSES.weights * OF_USER.weights)
    compare_with_stock(make, OF_USER, stock=both, class_weight=CLASS_WEIGHT)


@pytest.mark.parametrize("one_hot", [False, True])
def test_weights_are_part_of_the_loss_that_is_scored(
    one_hot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Examples()
    if one_hot:
        data.y = F.one_hot(data.y, CLASSES).float()
    loss = keras.losses.CategoricalCrossentropy(from_logits=True) if one_hot else LOSS
    model, loader = make_model(loss=loss), make_loader(data)
    trace = fit(monkeypatch, model=model, loader=loader, epochs=1, class_weight=CLASS_WEIGHT)
    net = Watched()
    ids = trace.ids[0]
    y = Examples().y[ids]
    expected = F.cross_entropy(net(Examples().x[ids]), y, reduction="none")
    expected = expected * torch.tensor([3.0, 1.0, 0.5])[y]
    assert trace.losses[0] == pytest.approx(expected.tolist(), abs=1e-6)


# ------------------------------------------------------------------------------- several outputs


class TwoTargets(Examples):
    """(x, (class, number)), or a mapping of both."""

    def __init__(self, names: bool) -> None:
        super().__init__()
        self.names = names

    def __getitem__(self, i: int) -> Any:
        y = {"kind": self.y[i], "size": self.x[i, 1:3]}
        return self.x[i], y if self.names else (y["kind"], y["size"])


def two_outputs(names: bool, loss_weights: bool = True) -> Any:
    x = first = keras.Input((FEATURES,))
    for layer in keras_parts.layers()[:2]:
        x = layer(x)
    outputs = {
        "kind": keras.layers.Dense(3, name="kind"),
        "size": keras.layers.Dense(2, name="size"),
    }
    made = {name: layer(x) for name, layer in outputs.items()}
    model = keras.Model(first, made if names else list(made.values()))
    for i, variable in enumerate(model.trainable_variables):
        generator = torch.Generator().manual_seed(i)
        variable.assign(torch.randn(variable.shape, generator=generator) / 3)
    losses: Any = {"kind": LOSS, "size": "mse"}
    weights: Any = {"kind": 0.7, "size": 2.0}
    model.compile(
        optimizer=keras.optimizers.SGD(0.05),
        loss=losses if names else [*losses.values()],
        loss_weights=(weights if names else [*weights.values()]) if loss_weights else None,
        metrics={"kind": ["accuracy"], "size": ["mae"]} if names else [["accuracy"], ["mae"]],
    )
    return model


@pytest.mark.parametrize("loss_weights", [False, True])
@pytest.mark.parametrize("names", [False, True])
def test_several_outputs(names: bool, loss_weights: bool) -> None:
    model = compare_with_stock(lambda: two_outputs(names, loss_weights), TwoTargets(names))
    assert {"loss", "kind_loss", "size_loss", "kind_accuracy", "size_mae"} <= {
        *model.history.history
    }


def test_losses_of_several_outputs_are_added_for_each_example(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, loader = two_outputs(True), make_loader(TwoTargets(True))
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    trace = fit(monkeypatch, model=model, loader=loader, epochs=1)
    data, ids = Examples(), trace.ids[0]
    out = twin(data.x[ids])
    expected = 0.7 * F.cross_entropy(out["kind"], data.y[ids], reduction="none")
    expected = expected + 2.0 * ((out["size"] - data.x[ids, 1:3]) ** 2).mean(1)
    assert trace.losses[0] == pytest.approx(expected.tolist(), abs=1e-5)
    logs = model.history.history
    for name in ("loss", "kind_loss", "size_loss"):
        assert len(logs[name]) == 1
    total = 0.7 * logs["kind_loss"][0] + 2.0 * logs["size_loss"][0]
    assert logs["loss"][0] == pytest.approx(total, abs=1e-5)  # both weighted with the draws


# -------------------------------------------------------------------------- masks, ignored steps


class Sequences(Examples):
    """(tokens, a class per token), of unequal lengths; the first token is the example's number."""

    def __init__(self, padding: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.tokens = torch.randint(1, 5, (N, 6), generator=generator)
        self.labels = self.tokens % CLASSES
        for i in range(N):
            self.tokens[i, 1 + i % 5 :] = 0
            self.labels[i, 1 + i % 5 :] = padding
        self.tokens[:, 0] = torch.arange(N) + 1

    def __getitem__(self, i: int) -> Any:
        return self.tokens[i], self.labels[i]


class WatchTokens(keras_parts.Watch):
    def call(self, x: Any, training: bool | None = None) -> Any:
        if training:
            self.note(x - 1)
        return x


def tagger(masked: bool) -> Any:
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int64"),
            WatchTokens(),
            keras.layers.Embedding(N + 1, 4, mask_zero=masked),
            keras.layers.Dense(CLASSES),
        ]
    )
    for i, variable in enumerate(model.trainable_variables):
        generator = torch.Generator().manual_seed(i)
        variable.assign(torch.randn(variable.shape, generator=generator))
    ignored = None if masked else -1
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignored)
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss=loss)
    return model


@pytest.mark.parametrize("masked", [True, False])
def test_masked_and_ignored_steps(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Sequences(padding=0 if masked else -1)
    compare_with_stock(lambda: tagger(masked), data)
    model = tagger(masked)
    trace = fit(monkeypatch, model=model, loader=make_loader(data))
    matters(trace)


# ------------------------------------------------------------------------------- left as it was


def snapshot(loader: ImportanceLoader) -> str:
    return str(loader.state_dict())


def test_everything_else_is_stock() -> None:
    model, twin, loader = make_model(), make_model(), make_loader()
    importance(model, loader)
    before = snapshot(loader)
    x, y = Examples().x, Examples().y
    data = DataLoader(TensorDataset(x, y, torch.arange(N)), batch_size=BATCH)  # whole weights
    for each in (model, twin):
        each.fit(data, epochs=2, verbose=0, shuffle=False)
        each.fit(x.numpy(), y.numpy(), verbose=0, shuffle=False, class_weight=CLASS_WEIGHT)
        each.train_on_batch(x[:5], y[:5], sample_weight=torch.arange(5))
        each.test_on_batch(x[:5], y[:5])
    assert model.evaluate(data, verbose=0) == twin.evaluate(data, verbose=0)
    assert torch.equal(
        torch.tensor(model.predict(x.numpy(), verbose=0)),
        torch.tensor(twin.predict(x.numpy(), verbose=0)),
    )
    for mine, theirs in zip(model.variables, twin.variables, strict=True):
        assert torch.equal(mine.value, theirs.value)
    assert snapshot(loader) == before


def test_evaluation_in_between_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataLoader(Examples(15), batch_size=4)

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, *_: Any, **__: Any) -> None:
            if batch == 2:
                self.model.evaluate(data, verbose=0)
                self.model.predict(Examples().x.numpy(), verbose=0)
                self.model.train()

    expected = fit(monkeypatch)
    trace = fit(monkeypatch, validation_data=data, callbacks=[Evaluate()])
    assert_same(trace, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_building_changes_neither_step_nor_random_numbers(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras takes a batch to build the metrics and the loss; the second fit takes none."""
    expected = fit(monkeypatch, loader=make_loader(num_workers=workers))
    seen = []

    class Begin(keras.callbacks.Callback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            seen.append((loader._sampler.step, loader.epoch, loader._done))

    model, loader = make_model(metrics=["accuracy"]), make_loader(num_workers=workers)
    importance(model, loader)
    trace = watch(monkeypatch)
    for epoch in range(EPOCHS):
        model.fit(loader, initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=[Begin()])
        model.compile(  # all is built again; the optimizer stays
            optimizer=model.optimizer, loss=LOSS, metrics=["accuracy"]
        )
    assert seen[0] == (0, 0, 0)
    assert_same(finish(trace, model), expected)


def test_history_and_callbacks() -> None:
    loader, model = make_loader(), make_model(metrics=["accuracy"])
    importance(model, loader)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=100)
    history = model.fit(
        loader,
        epochs=5,
        verbose=0,
        validation_data=(Examples().x, Examples().y),
        callbacks=stop,
    )
    assert history is model.history
    assert len(history.history["val_accuracy"]) == 2
    assert {*history.history} == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert history.params["steps"] == STEPS


def test_the_loss_of_an_epoch_is_the_mean_over_its_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, loader = make_model(), make_loader(score="auto")  # the last batch of an epoch is short
    trace = fit(monkeypatch, model=model, loader=loader, epochs=2)
    sizes = [len(batch) for batch in trace.ids]
    assert len({*sizes}) == 2
    sums = [sum(map(mul, *pair)) for pair in zip(trace.weights, trace.losses, strict=True)]
    expected = [sum(sums[:STEPS]) / N, sum(sums[STEPS:]) / sum(sizes[STEPS:])]
    assert model.history.history["loss"] == pytest.approx(expected, abs=1e-5)


def test_a_fit_of_the_users_own_and_positional_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(keras_parts.Subclassed):
        def fit(self, *args: Any, **options: Any) -> Any:
            return super().fit(*args, **options)

    expected = fit(monkeypatch, "subclassed")
    model, loader = keras_parts.start(Own()), make_loader()
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=LOSS)
    importance(model, loader)
    trace = watch(monkeypatch)
    model.fit(loader, None, None, EPOCHS, 0)
    assert_same(finish(trace, model), expected)


def test_called_again_with_another_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fit(monkeypatch)
    model, first, second = make_model(), make_loader(seed=9), make_loader()
    importance(model, first)
    before = snapshot(first)
    trace = fit(monkeypatch, model=model, loader=second)
    assert_same(trace, expected)
    assert snapshot(first) == before
    with pytest.raises(UsageError, match="another ImportanceLoader"):
        model.fit(first, verbose=0)


def test_compiled_again_with_another_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loader = make_model(), make_loader()
    importance(model, loader)
    model.fit(loader, verbose=0)
    model.compile(optimizer="sgd", loss=lambda y, p: 3 * LOSS.call(y, p))
    twin = start_from(model)
    trace = watch(monkeypatch)
    model.fit(loader, verbose=0)
    ids = watched(model)[STEPS]
    out = twin(Examples().x[ids])
    expected = 3 * F.cross_entropy(out, Examples().y[ids], reduction="none")
    assert trace.losses[0] == pytest.approx(expected.tolist(), abs=1e-5)


def start_from(model: Any) -> Any:
    twin = keras_parts.sequential()
    twin.set_weights(model.get_weights())
    return twin


def test_a_fit_that_is_stopped_begins_a_new_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, *_: Any, **__: Any) -> None:
            self.model.stop_training = batch == 2

    model, loader = make_model(), make_loader(score="uniform")
    fit(monkeypatch, model=model, loader=loader, callbacks=[Stop()])
    assert len(watched(model)) == 3
    model.fit(loader, verbose=0)
    assert sorted(i for batch in watched(model)[3:] for i in batch) == list(range(N))


def test_scores_that_need_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()

    def losses(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0], training=False), batch[1], reduction="none")

    loader = make_loader(score="loss", model=model, loss=losses)
    trace = fit(monkeypatch, model=model, loader=loader)
    assert len(trace.ids) == EPOCHS * STEPS
    matters(trace)


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")  # as with any stream
def test_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(Examples())

    def losses(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0], training=False), batch[1], reduction="none")

    pools = DataLoader(Stream(), batch_size=8)
    loader = ImportanceLoader.from_loader(pools, BATCH, model=model, loss=losses)
    trace = fit(monkeypatch, model=model, loader=loader, epochs=2)
    assert len(trace.ids) == len(trace.weights) == 2 * 3


# ----------------------------------------------------------------------- all of it at the same time


@pytest.mark.filterwarnings(  # torch's own, while it compiles
    "ignore:The .grad attribute of a Tensor that is not a leaf",
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning",
)
def test_bf16_compiled_scheduled_with_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        schedule = keras.optimizers.schedules.CosineDecay(0.1, EPOCHS * STEPS)
        model = make_model(optimizer=keras.optimizers.SGD(schedule), jit_compile=True)
        assert model.jit_compile
        counters.clear()
        trace = fit(monkeypatch, model=model, loader=make_loader(num_workers=2))
    finally:
        keras.config.set_dtype_policy("float32")
    matters(trace)
    assert len(trace.ids) == len(trace.weights) == EPOCHS * STEPS
    assert counters["frames"]["ok"] > 0
    assert model.layers[1].compute_dtype == "bfloat16"
    assert model.history.history["loss"][-1] < model.history.history["loss"][0]


# ------------------------------------------------------------------------------------- refused


def test_refused() -> None:
    loader = make_loader()
    with pytest.raises(UsageError, match="compile"):
        importance(keras_parts.sequential(), loader)
    with pytest.raises(ArgumentError, match="ImportanceLoader"):
        importance(make_model(), DataLoader(Examples()))  # type: ignore[arg-type]

    class Own(keras.Sequential):
        def compute_loss(self, *args: Any, **options: Any) -> Any:
            return super().compute_loss(*args, **options)

    own = Own([keras.layers.Dense(1)])
    own.compile(loss="mse")
    with pytest.raises(ArgumentError, match="compute_loss of its own"):
        importance(own, loader)
    model = make_model()
    importance(model, loader)
    with pytest.raises(ArgumentError, match="steps_per_epoch=3"):
        model.fit(loader, steps_per_epoch=3)


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight"])
def test_reductions_that_are_not_a_mean_are_refused(reduction: str) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model, loader = make_model(loss=loss), make_loader()
    importance(model, loader)
    with pytest.raises(ArgumentError, match=reduction):
        model.fit(loader, verbose=0)


def test_a_loss_that_is_one_number_is_refused() -> None:
    model = make_model(loss=lambda y, p: keras.ops.mean(LOSS.call(y, p)))
    loader = make_loader()
    importance(model, loader)
    with pytest.raises(LossError, match="one per example"):
        model.fit(loader, verbose=0)


def test_other_batches_are_refused() -> None:
    loader = make_loader(collate_fn=lambda rows: {"x": torch.stack([x for x, _ in rows])})
    model = make_model()
    importance(model, loader)
    with pytest.raises(ArgumentError, match=r"\(x, y\)"):
        model.fit(loader, verbose=0)
    several, two = two_outputs(True), make_loader(TwoTargets(True))
    importance(several, two)
    with pytest.raises(ArgumentError, match="one output"):
        several.fit(two, verbose=0, class_weight={0: 2.0})


def test_a_train_step_that_weighs_nothing_is_refused() -> None:
    class Own(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return {"loss": LOSS(data[1], self(data[0])).detach()}

    model, loader = Own(keras_parts.layers()), make_loader()
    model.compile(loss=LOSS, optimizer="sgd")
    importance(model, loader)
    with pytest.raises(UsageError, match=r"never called self\.compute_loss"):
        model.fit(loader, verbose=0)


def test_a_backend_that_is_not_installed_names_the_remedy() -> None:
    if importlib.util.find_spec("tensorflow") is not None:
        pytest.skip("tensorflow is installed")
    run = subprocess.run(
        [sys.executable, "-c", "import salience.integrations.keras"],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "keras looks for tensorflow: set the environment variable KERAS_BACKEND" in run.stderr


def test_other_backends_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(UsageError, match=r"keras runs on jax: set .* KERAS_BACKEND=torch"):
        importance(make_model(), make_loader())
