"""Shared by the suites of keras: the harness' classifier, in keras."""

import os

os.environ["KERAS_BACKEND"] = "torch"

from typing import Any

import keras
import pytest
import torch
from harness import EPOCHS, FEATURES, Trace, Watched, make_loader, watch

from salience import ImportanceLoader
from salience.integrations.keras import importance

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Batches:
    """Not a list: keras would track it."""

    def __init__(self) -> None:
        self.ids: list[list[int]] = []


class Watch(keras.layers.Layer):
    """Notes which examples it is trained on, and drops their numbers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.batches = Batches()

    def call(self, x: Any, training: bool | None = None) -> Any:
        if training:
            self.note(x)
        return x[:, 1:]

    @torch.compiler.disable
    def note(self, x: Any) -> None:
        self.batches.ids.append(x[:, 0].long().tolist())


def layers() -> list[Any]:
    return [
        Watch(name="watch"),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dense(3),
    ]


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.all = layers()

    def call(self, x: Any, training: bool | None = None) -> Any:
        for i, layer in enumerate(self.all):
            x = layer(x, training=training) if i == 0 else layer(x)
        return x


def functional() -> Any:
    x = first = keras.Input((FEATURES,))
    for layer in layers():
        x = layer(x)
    return keras.Model(first, x)


def sequential() -> Any:
    return keras.Sequential([keras.Input((FEATURES,)), *layers()])


KINDS: dict[str, Any] = {
    "sequential": sequential,
    "functional": functional,
    "subclassed": Subclassed,
}


def transposed(value: torch.Tensor) -> torch.Tensor:
    return value.detach().T if value.ndim == 2 else value.detach()


def start(model: Any, seed: int = 0) -> Any:
    """The parameters that the harness' classifier begins with."""
    if not model.built:
        model(torch.zeros(1, FEATURES))
    pairs = zip(model.trainable_variables, Watched(seed).parameters(), strict=True)
    for variable, value in pairs:
        variable.assign(transposed(value))
    return model


def make_model(kind: str = "sequential", **options: Any) -> Any:
    model = start(KINDS[kind]())
    given = {"optimizer": keras.optimizers.SGD(0.1, momentum=0.9), "loss": LOSS, **options}
    model.compile(**given)
    return model


def watched(model: Any) -> Any:
    (layer,) = [each for each in model._flatten_layers() if isinstance(each, Watch)]
    return layer.batches.ids


def finish(trace: Trace, model: Any) -> Trace:
    trace.ids = [list(batch) for batch in watched(model)]
    trace.parameters = [transposed(v.value).clone() for v in model.trainable_variables]
    return trace


def fit(
    monkeypatch: pytest.MonkeyPatch,
    kind: str = "sequential",
    *,
    loader: ImportanceLoader | None = None,
    model: Any = None,
    **options: Any,
) -> Trace:
    """Three epochs of keras; what it did."""
    loader = make_loader() if loader is None else loader
    model = make_model(kind) if model is None else model
    importance(model, loader)
    trace = watch(monkeypatch)
    model.fit(loader, **{"epochs": EPOCHS, "verbose": 0, **options})
    watch(monkeypatch)  # nothing is added to this trace any more
    return finish(trace, model)
