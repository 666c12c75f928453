"""Keras 3 on torch: ``fit`` as users know it, on examples that are drawn by importance."""

import inspect
import io
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from salience.errors import ArgumentError, StateError, UsageError
from salience.feedback import outside_graphs, per_example
from salience.generators import seeded
from salience.integrations._shared import extra
from salience.loader import ImportanceLoader, _unchanged, _View

BACKENDS = ("tensorflow", "jax", "openvino")
REMEDY = "set the environment variable KERAS_BACKEND=torch before keras is imported"

try:
    with extra("keras"):
        import keras
        from keras.src.losses.loss import apply_mask, squeeze_or_expand_to_same_rank
        from keras.src.saving.keras_saveable import KerasSaveable
        from keras.src.trainers.compile_utils import CompileLoss
except ModuleNotFoundError as error:
    if error.name in BACKENDS:
        raise ModuleNotFoundError(f"keras looks for {error.name}: {REMEDY}") from error
    raise

__all__ = ["importance"]

SLOTS, WEIGHTS = "salience_slot", "weights"  # what travels as keras' sample_weight
PARAMETERS = [*inspect.signature(keras.Model.fit).parameters][1:]  # without self
MEANS = ("sum_over_batch_size", "mean", "none", None)


def importance(model: Any, loader: ImportanceLoader) -> None:
    """Let ``model.fit(loader, ...)`` draw by importance; call it after ``compile``.

    ::

        loader = ImportanceLoader(dataset, batch_size=128)  # was DataLoader(..., shuffle=True)
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
        importance(model, loader)
        model.fit(loader, epochs=10, validation_data=validation)

    Everything else that the model does stays as it is: ``fit`` on other data, ``evaluate``,
    ``predict``, ``train_on_batch``. Weight files and ``.keras`` files hold the sampler as well;
    ``load_weights`` restores both. Called again, the new loader takes the place of the old one.
    """
    if keras.backend.backend() != "torch":
        raise UsageError(f"keras runs on {keras.backend.backend()}: {REMEDY}")
    if not isinstance(loader, ImportanceLoader):
        raise ArgumentError(f"loader must be an ImportanceLoader; got {type(loader).__name__}")
    if not getattr(model, "compiled", False) or model._compile_loss is None:
        raise UsageError("the model has no loss yet: call model.compile(loss=...) first")
    if type(model).compute_loss is not keras.Model.compute_loss:
        raise ArgumentError(
            f"{type(model).__name__} has a compute_loss of its own, whose losses per example are "
            f"not known: pass the loss to compile(loss=...) instead"
        )
    training = _Training(model, loader)
    model.fit, model.compute_loss = training.fit, training.compute_loss
    model.compute_metrics = training.compute_metrics
    # Keras loads attributes in the order of their names: this one before "optimizer".
    model.importance_sampler = _Saved(training)


@final
class _Training:
    """What ``importance`` adds to one model."""

    def __init__(self, model: Any, loader: ImportanceLoader) -> None:
        self.model, self.loader = model, loader
        kind = type(model)
        self._fit = kind.fit.__get__(model)
        self._compute_loss = kind.compute_loss.__get__(model)
        self._compute_metrics = kind.compute_metrics.__get__(model)
        self._losses: tuple[Any, _PerExample] | None = None
        self._class_weights: Tensor | None = None
        self.epoch = 0  # as keras counts
        self.shift: int | None = None  # by which the loader counts differently
        self.resume_at: int | None = None  # epoch of the state that was loaded during fit
        self.handed = self.weighed = 0  # batches of this epoch

    # ----------------------------------------------------------------- in place of keras' methods

    def fit(self, x: Any = None, *args: Any, **options: Any) -> Any:
        """``Model.fit``; on the loader, with draws by importance."""
        given = _loader_in(x)
        if given is None:
            return self._fit(x, *args, **options)
        if given is not self.loader:
            raise UsageError(
                "fit got another ImportanceLoader than importance(model, loader): "
                "call importance again, with the loader to train on"
            )
        asked = {**dict(zip(PARAMETERS, (x, *args), strict=False)), **options}
        if asked.get("steps_per_epoch") is not None and _has_length(self.loader):
            raise ArgumentError(
                f"steps_per_epoch={asked['steps_per_epoch']} cannot be given to fit: "
                f"give it to the ImportanceLoader"
            )
        self._class_weights = _table(asked.pop("class_weight", None))
        self.epoch, self.resume_at = asked.get("initial_epoch", 0), None
        asked["x"], asked["shuffle"] = self._batches(), False
        asked["callbacks"] = self._with_ours(asked.get("callbacks"))
        with warnings.catch_warnings():  # undoes what _Batches may ignore
            return self._fit(**asked)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """``Model.compute_loss``; for batches of the loader, the weighted mean."""
        if not _is_ours(sample_weight):
            return self._compute_loss(x, y, y_pred, sample_weight, training=training)
        weights = self._weights(y, sample_weight)
        if not training:  # the model is being built
            return self._compute_loss(x, y, y_pred, weights, training=training)
        return self._weigh(y, y_pred, weights, sample_weight[SLOTS])

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """``Model.compute_metrics``, without the slots."""
        if _is_ours(sample_weight):
            sample_weight = self._weights(y, sample_weight)
        return self._compute_metrics(x, y, y_pred, sample_weight)

    # ------------------------------------------------------------------------------------- losses

    @outside_graphs
    def _weigh(self, y: Any, y_pred: Any, weights: Any, slots: Tensor) -> Any:
        losses = self._per_example()
        loss = self.loader.mean(losses(y, y_pred, weights), slots)
        self.weighed += 1
        for tracker, part in zip(self.model._compile_loss.metrics, losses.metrics, strict=True):
            # The same examples again: weighed and not recorded.
            tracker.update_state(self.loader.mean(part.values, slots), sample_weight=len(slots))
        more = [keras.ops.sum(each) for each in self.model.losses]  # regularisers, add_loss
        return keras.ops.sum([loss, *more]) if more else loss

    def _per_example(self) -> "_PerExample":
        """The losses of ``compile``, which may have been called again."""
        theirs = self.model._compile_loss
        if self._losses is None or self._losses[0] is not theirs:
            ours = _PerExample(
                theirs._user_loss, theirs._user_loss_weights, output_names=theirs.output_names
            )
            self._losses = theirs, ours
        return self._losses[1]

    def _weights(self, y: Any, sample_weight: dict[str, Any]) -> Any:
        """The user's own weights: those of the batch, times those of the classes."""
        own = sample_weight.get(WEIGHTS)
        if self._class_weights is None:
            return own
        if keras.tree.is_nested(y):
            raise ArgumentError(
                f"class_weight needs a model with one output; got {len(keras.tree.flatten(y))} "
                f"outputs: let the dataset yield (x, y, weights) instead"
            )
        of_classes = _look_up(self._class_weights, y)
        if own is None:
            return of_classes
        return own * of_classes.reshape(-1, *[1] * (own.ndim - 1))

    # ----------------------------------------------------------------------------- data and epochs

    def _batches(self) -> DataLoader[Any]:
        kind = _SizedBatches if _has_length(self.loader) else _Batches
        return DataLoader(
            kind(self),
            batch_size=None,
            collate_fn=_unchanged,
            generator=seeded(0),
        )

    def _with_ours(self, callbacks: Any) -> Any:
        """The user's callbacks, and after them ours."""
        if isinstance(callbacks, keras.callbacks.CallbackList):
            raise ArgumentError("callbacks must be a list here; got a CallbackList: pass its items")
        return [*(keras.tree.flatten(callbacks) if callbacks else []), _Follow(self)]

    # -------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        state = self.loader.state_dict()
        epoch = None if self.shift is None else self.shift + state["loader"]["epoch"]
        return {"loader": state, "epoch": epoch}

    def build_optimizer(self) -> None:
        """Else keras would leave it as it is, with a warning, and momenta would be lost."""
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        try:
            self.loader.load_state_dict(state["loader"])
        except StateError as error:
            raise StateError(
                f"{error}; to load the weights alone, load them before importance(model, loader)"
            ) from error
        self.resume_at = state["epoch"]


# ----------------------------------------------------------------------------- losses per example


class _Part:
    """Stands where keras keeps the mean of one output's loss."""

    values: Tensor

    def update_state(self, values: Tensor, **_: Any) -> None:
        self.values = values.detach()


class _PerExample(CompileLoss):
    """The losses of ``compile``, summed over outputs and not over examples: [B]."""

    _flat_losses: Any
    _parts: list[_Part]

    def build(self, y_true: Any, y_pred: Any) -> None:
        super().build(y_true, y_pred)
        for each in self._flat_losses:
            if each.loss.reduction not in MEANS:
                raise ArgumentError(
                    f"the loss {each.name} has reduction={each.loss.reduction!r}: "
                    f"use 'sum_over_batch_size', so that there is one loss per example"
                )
        self._parts = [_Part() for _ in self._flat_losses if len(self._flat_losses) > 1]
        self._flat_losses = [
            each._replace(loss=partial(_values, each.loss)) for each in self._flat_losses
        ]

    @property
    def metrics(self) -> list[_Part]:
        return self._parts


def _values(loss: Any, y_true: Any, y_pred: Any, weights: Any = None) -> Tensor:
    """[B]: whose mean ``loss`` would have returned, with its mask and the user's weights."""
    mask = getattr(y_pred, "_keras_mask", None)
    convert = partial(keras.ops.convert_to_tensor, dtype=loss.dtype)
    y_true, y_pred = keras.tree.map_structure(convert, (y_true, y_pred))
    values = loss.call(y_true, y_pred)
    more = getattr(values, "_keras_mask", None)  # ignore_class
    mask = more if mask is None else mask if more is None else mask & more
    if weights is not None:
        weights = convert(weights)
    weights = apply_mask(weights, mask, dtype=values.dtype, reduction="mean")
    if weights is not None:
        values, weights = squeeze_or_expand_to_same_rank(values, weights)
        values = values * weights
    return per_example(values, len(keras.tree.flatten(y_pred)[0]))


def _table(class_weight: Mapping[int, float] | None) -> Tensor | None:
    """The weight of each class, and at the end 1 for all others."""
    if not class_weight:
        return None
    table = torch.ones(max(class_weight) + 2, device="cpu")
    for each, weight in class_weight.items():
        table[each] = weight
    return table


def _look_up(table: Tensor, y: Tensor) -> Tensor:
    """One weight per example; y holds class numbers or one-hot rows."""
    if y.ndim > 1:
        y = y.squeeze(-1) if y.shape[-1] == 1 else y.argmax(-1)
    y, others = y.round().long(), len(table) - 1
    table = table.to(y.device, non_blocking=True)
    return table[torch.where((y >= 0) & (y < others), y, others)]


# -------------------------------------------------------------------------------- data and epochs


class _Batches(IterableDataset[Any]):
    """The batches of a loader as keras wants them: (x, y, what we need with them)."""

    def __init__(self, training: _Training) -> None:
        self._training = training

    def __iter__(self) -> Iterator[Any]:
        training, loader, number = self._training, self._training.loader, 0
        for number, batch in enumerate(loader, 1):
            training.handed += 1
            if number == 1:
                training.shift = training.epoch - loader.epoch
            yield _as_keras(batch, loader)
        if _has_length(loader) and number < len(loader):
            # The rest of an epoch that was resumed; keras has no other word for its end.
            warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)


class _SizedBatches(_Batches):
    def __len__(self) -> int:
        return len(self._training.loader)


def _as_keras(batch: Any, loader: ImportanceLoader) -> tuple[Any, Any, dict[str, Any]]:
    if isinstance(batch, list | tuple):
        parts = list(batch)
        slots = parts.pop() if loader._slots else loader._feedback.slots(loader._last())
        if len(parts) == 2:
            return (*parts, {SLOTS: slots})
        if len(parts) == 3:
            return (*parts[:2], {SLOTS: slots, WEIGHTS: parts[2]})
    raise ArgumentError(
        f"keras needs batches (x, y) or (x, y, weights); got {type(batch).__name__} of "
        f"{len(batch) - loader._slots}: change the dataset or the collate_fn"
    )


def _is_ours(sample_weight: Any) -> bool:
    return isinstance(sample_weight, dict) and SLOTS in sample_weight


def _loader_in(x: Any) -> ImportanceLoader | None:
    """The loader itself, or the one behind ``as_dataloader()``."""
    if isinstance(x, DataLoader) and isinstance(x.dataset, _View):
        return x.dataset._loader
    return x if isinstance(x, ImportanceLoader) else None


def _has_length(loader: ImportanceLoader) -> bool:
    try:
        return len(loader) >= 0
    except TypeError:  # a stream
        return False


class _Follow(keras.callbacks.Callback):
    """Tells which epoch it is, and where to go on after BackupAndRestore."""

    def __init__(self, training: _Training) -> None:
        super().__init__()
        self._training = training

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        if self._training.resume_at is not None:  # keras knows whole epochs only
            self.model._initial_epoch = self._training.resume_at

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        self._training.epoch = epoch
        self._training.handed = self._training.weighed = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        if self._training.handed and not self._training.weighed:
            raise UsageError(
                f"train_step of {type(self.model).__name__} never called self.compute_loss(x, y, "
                f"y_pred, sample_weight): call it once per batch, so that losses are weighed"
            )


@final
class _Saved(KerasSaveable):
    """The sampler in the file of the weights: keras finds it as an attribute of the model."""

    def __init__(self, training: _Training) -> None:
        self._training = training

    def _obj_type(self) -> str:
        return "Loss"  # keras knows a few kinds; this one has no variables of its own

    def save_own_variables(self, store: Any) -> None:
        buffer = io.BytesIO()
        torch.save(self._training.state_dict(), buffer)
        store["state"] = np.frombuffer(buffer.getvalue(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        if "state" in store.keys():  # noqa: SIM118
            self._training.build_optimizer()
            buffer = io.BytesIO(store["state"].tobytes())
            self._training.load_state_dict(torch.load(buffer, weights_only=True))
