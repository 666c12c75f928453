"""skorch: an estimator that draws its training examples by importance."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, final

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import Subset

from salience.batches.labels import find_labels
from salience.errors import ArgumentError, StateError
from salience.integrations._shared import check_fingerprint, extra, fingerprint
from salience.loader import ImportanceLoader
from salience.scores import NEED_MODEL

with extra("skorch"):
    from skorch.dataset import unpack_data
    from skorch.utils import to_numpy

if TYPE_CHECKING:
    from skorch import NeuralNet
else:
    NeuralNet = object

__all__ = ["ImportanceNet"]


class ImportanceNet(NeuralNet):
    """A mixin for skorch's nets; it comes first.

    ::

        class Net(ImportanceNet, NeuralNetClassifier):
            pass

        net = Net(Module, max_epochs=20, lr=0.1)
        net.fit(X, y)
        GridSearchCV(net, {"iterator_train__k": [0, 0.5, 1]}).fit(X, y)

    The options of ``ImportanceLoader`` are those of ``iterator_train``: ``iterator_train__score``,
    ``iterator_train__k`` and so on. Scores that need the model get the net's own module and
    criterion. ``net.importance_.loader`` is the loader of the last fit.

    ``fit`` begins anew; ``partial_fit`` and ``warm_start`` keep what is known about the examples
    when the dataset has the same size and targets. ``save_params(f_importance=...)`` and
    ``Checkpoint(f_importance=...)`` save it, and copies and pickles of a net keep it.
    """

    drawing_ = False  # whether the next training iterator is that of a fit

    def __init__(self, *args: Any, iterator_train: Any = ImportanceLoader, **options: Any) -> None:
        super().__init__(*args, iterator_train=iterator_train, **options)

    def initialize(self) -> Any:
        """Initializes all components, and forgets what was known about examples."""
        self.importance_ = _Importance(self)
        return super().initialize()

    def set_params(self, **params: Any) -> Any:
        """As ever, and options of the training iterator after the net was initialized as well."""
        if getattr(self, "initialized_", False):
            for name in [name for name in params if name.startswith("iterator_train__")]:
                setattr(self, name, params.pop(name))  # used when the next fit begins
                self._params_to_validate.add(name)
        return super().set_params(**params)

    def trim_for_prediction(self) -> None:
        super().trim_for_prediction()
        self.importance_ = _Importance(self)

    # ------------------------------------------------------------------------------------ training

    def fit_loop(self, *args: Any, **options: Any) -> Any:
        self.drawing_ = True
        try:
            return super().fit_loop(*args, **options)
        finally:
            self.drawing_ = False

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """For a fit, the loader; elsewhere every example once, in order."""
        if not training or self.iterator_train is not ImportanceLoader:
            return super().get_iterator(dataset, training=training)
        if not self.drawing_:  # forward(X, training=True)
            return super().get_iterator(dataset, training=False)
        self.drawing_ = False
        return self.importance_.begin(dataset)

    def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False) -> Any:  # noqa: N803
        """In training, the weighted mean; else what the criterion gives."""
        loader = self.importance_.loader
        if loader is None or not training:
            # One number stays what it is; a criterion may also give one per example.
            return super().get_loss(y_pred, y_true, X=X, training=training).mean()
        return loader.mean(self.per_example(y_pred, y_true, X))

    def per_example(self, y_pred: Any, y_true: Any, X: Any = None) -> Any:  # noqa: N803
        """One loss per example, from the net's criterion."""
        with _unreduced(self.criterion_):
            return super().get_loss(y_pred, y_true, X=X, training=True)


@contextmanager
def _unreduced(criterion: Any) -> Iterator[None]:
    """Let ``criterion`` return one loss per example."""
    if not hasattr(criterion, "reduction"):  # mean() refuses a single number
        yield
        return
    reduction = criterion.reduction
    if reduction not in ("mean", "none"):
        raise ArgumentError(
            f"the criterion has reduction={reduction!r}: use 'mean', so that the weighted mean "
            f"takes the place of the mean"
        )
    criterion.reduction = "none"
    try:
        yield
    finally:
        criterion.reduction = reduction


# ---------------------------------------------------------------------------------------- sampler


@final
class _Importance:
    """What a net knows about its examples: skorch saves and loads it like a module."""

    def __init__(self, net: Any) -> None:
        self._net = net
        self.loader: ImportanceLoader | None = None
        self._targets: int | None = None  # a checksum
        self._saved: dict[str, Any] | None = None  # for the next fit
        self._strict = False

    def begin(self, dataset: Any) -> ImportanceLoader:
        """The loader of a fit, which goes on where the last one was if the dataset is the same."""
        loader, targets = ImportanceLoader(dataset, **self._options(dataset)), _checksum(dataset)
        state = self.state_dict()
        if state and self._strict:
            self._resume(loader, targets, state)
        elif state and state["targets"] == targets and state["size"] == len(dataset):
            with suppress(StateError):  # other options: set_params was called
                loader.load_state_dict(state["loader"])
        self.loader, self._targets, self._saved, self._strict = loader, targets, None, False
        return loader

    def _resume(self, loader: ImportanceLoader, targets: Any, state: dict[str, Any]) -> None:
        """From a file, all or nothing."""
        if state["targets"] != targets:
            raise StateError(
                "the sampler that was loaded belongs to examples with other targets than those of "
                "this fit: fit on the same data, or load the parameters without f_importance"
            )
        check_fingerprint(
            state["fingerprint"], fingerprint(self._parameters()), "the file of f_importance"
        )
        loader.load_state_dict(state["loader"])

    def _options(self, dataset: Any) -> dict[str, Any]:
        net = self._net
        options = {"batch_size": net.batch_size, **net.get_params_for("iterator_train")}
        if options["batch_size"] == -1:
            options["batch_size"] = len(dataset)
        score = options.get("score", "auto")
        if score in ("auto", "approx"):
            options.setdefault("labels", _labels(dataset))
        if score in NEED_MODEL:
            options.setdefault("model", net.module_)
            options.setdefault("loss", self._losses)
        return options

    def _losses(self, model: nn.Module, batch: Any) -> Tensor:
        """For scores that need the model: the losses of the net's own criterion."""
        net, (x, y) = self._net, unpack_data(batch)
        own, net.module_ = net.module_, model  # some scores watch it
        try:
            losses: Tensor = net.per_example(net.infer(x), y, x)
        finally:
            net.module_ = own
        return losses

    def _parameters(self) -> list[Tensor]:
        modules = [getattr(self._net, f"{name}_") for name in self._net._modules]
        return [parameter for module in modules for parameter in module.parameters()]

    @property
    def epoch(self) -> int:
        """Epochs that are done; after ``load_params`` those of the file."""
        if self._saved is not None:
            return int(self._saved["loader"]["loader"]["epoch"])
        return 0 if self.loader is None else self.loader.epoch

    @property
    def batch(self) -> int:
        """The number of the batch being trained on, from 1; after a resume it goes on counting."""
        return 0 if self.loader is None else self.loader._handed

    def state_dict(self) -> dict[str, Any]:
        if self._saved is not None or self.loader is None:
            return self._saved or {}
        return {
            "loader": self.loader.state_dict(),
            "size": len(self.loader.dataset),
            "targets": self._targets,
            "fingerprint": fingerprint(self._parameters()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Kept until the next fit, when all other files are loaded too."""
        if not state:  # of a net that was not trained
            self.loader = self._saved = None
            return
        self._saved = tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, state)
        self._strict = True

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold no examples."""
        return {**self.__dict__, "loader": None, "_saved": self.state_dict() or None}


# ------------------------------------------------------------------------------------------ targets


class _Carried:
    def __init__(self, targets: Any) -> None:
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)


def _targets(dataset: Any) -> Any:
    """All targets as an array, without loading an example; None where they are not known."""
    if isinstance(dataset, Subset):
        whole = _targets(dataset.dataset)
        return None if whole is None else whole[list(dataset.indices)]
    targets = getattr(dataset, "y", None)
    if targets is None:
        targets = find_labels(dataset)
    with suppress(TypeError, ValueError):  # neither an array nor anything like one
        return np.ascontiguousarray(to_numpy(targets))
    return None


def _labels(dataset: Any) -> Tensor | None:
    """The class of each example, for scores that use it."""
    targets = _targets(dataset)
    if targets is None or len(targets) != len(dataset):
        return None
    return find_labels(_Carried(targets))


def _checksum(dataset: Any) -> int | None:
    targets = _targets(dataset)
    if targets is None or targets.dtype.kind not in "biufSU":
        return None
    return zlib.crc32(targets.tobytes())
