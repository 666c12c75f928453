"""The accelerator path, forced on the host: nothing reads a value that lives with the model."""

import math
from collections import Counter
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from parts import cross_entropy, needs
from salience import ImportanceLoader, LossError, feedback
from salience.presets import NAMES
from salience.scores import NEED_MODEL

# Every one of these makes the host wait for the accelerator's queue.
WAITS = [
    "item",
    "tolist",
    "cpu",
    "numpy",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__array__",
    "nonzero",
    "masked_select",
    "unique",
    "unique_consecutive",
    "is_nonzero",
    "equal",
    "allclose",
    "__contains__",
]


class Resident(Tensor):
    """A tensor that lives with the model, and everything computed from it; counts waits."""

    waits: ClassVar[Counter[str]] = Counter()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in WAITS or cls._copies_to_host(name, args, kwargs) or cls._masks(name, args):
            cls.waits[name] += 1
        return super().__torch_function__(func, types, args, kwargs or {})

    @staticmethod
    def _copies_to_host(name: str, args: Any, kwargs: Any) -> bool:
        """``to("cpu")``; a device object is the model's own place, wherever that is."""
        if name != "to" or not isinstance(args[0], Resident):
            return False
        return "cpu" in [v for v in (*args[1:], *(kwargs or {}).values()) if isinstance(v, str)]

    @staticmethod
    def _masks(name: str, args: Any) -> bool:
        """Indexing by a boolean mask has to count it first."""
        return name in ("__getitem__", "__setitem__") and any(
            isinstance(part, Tensor) and part.dtype == torch.bool
            for part in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )


def moved(model: nn.Module) -> nn.Module:
    """``model`` on the stand-in device."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            resident = nn.Parameter(parameter.detach().clone().as_subclass(Resident))
            setattr(module, name, resident)
    return model


@pytest.fixture
def resident_model(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A model on a stand-in device: its values reach the host only by ``Transfer``."""
    moved(model)

    def start_copy(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().as_subclass(Tensor)

    monkeypatch.setattr(feedback, "_start_copy", start_copy)
    Resident.waits.clear()
    return model


def run(loader: ImportanceLoader, model: nn.Module) -> int:
    steps = 0
    for x, y, *slots in loader:
        losses = cross_entropy(model, (x, y))
        assert isinstance(losses, Resident)
        mean = loader.mean(losses, *slots)
        assert isinstance(mean, Resident)
        mean.backward()
        steps += 1
    return steps


def make(score: str, dataset: TensorDataset, model: nn.Module, **options: Any) -> ImportanceLoader:
    return ImportanceLoader(dataset, 8, score=score, **needs(score, model), **options)


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("on_bad_loss", ["raise", "skip"])
@pytest.mark.parametrize("score", NAMES)
def test_no_step_waits_for_the_model(
    score: str, on_bad_loss: Any, slots: bool, dataset: TensorDataset, resident_model: nn.Module
) -> None:
    loader = make(score, dataset, resident_model, on_bad_loss=on_bad_loss, slots=slots)
    loader.deferred = True
    assert run(loader, resident_model) == 5
    assert not Resident.waits
    assert math.isfinite(loader.metrics()["mean_loss"])
    assert loader._sampler.step == 5


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("focus", ["ordered", "closeness"])
@pytest.mark.parametrize("score", ["uniform", "history", "loss"])
def test_no_focus_waits_for_the_model(
    score: str, focus: str, slots: bool, dataset: TensorDataset, resident_model: nn.Module
) -> None:
    options: Any = {"on_bad_loss": "skip", "slots": slots, "focus": focus}
    loader = make(score, dataset, resident_model, **options)
    loader.deferred = True
    assert run(loader, resident_model) + run(loader, resident_model) == 10
    assert not Resident.waits
    assert loader._sampler.step == 10
    assert math.isfinite(loader.metrics()["mean_loss"])


@pytest.mark.parametrize(
    ("score", "reference"), [("loss", None), ("loss", torch.rand(40)), ("upper_bound", None)]
)
def test_no_proxy_waits_for_the_model(
    score: str, reference: Any, dataset: TensorDataset, resident_model: nn.Module
) -> None:
    proxy = moved(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)))
    before = proxy[0].weight.detach().clone()
    loader = make(score, dataset, resident_model, proxy=proxy, reference=reference)
    loader.deferred = True
    Resident.waits.clear()
    assert run(loader, resident_model) == 5
    assert not Resident.waits
    assert not torch.equal(proxy[0].weight, before)


@pytest.mark.parametrize("name", ["cross_entropy", "criterion"])
@pytest.mark.parametrize("score", [*NEED_MODEL])
def test_no_form_of_the_loss_waits(
    score: str, name: str, dataset: TensorDataset, resident_model: nn.Module
) -> None:
    loss = cross_entropy if name == "cross_entropy" else nn.CrossEntropyLoss(reduction="none")
    loader = ImportanceLoader(dataset, 8, score=score, model=resident_model, loss=loss)
    loader.deferred = True
    run(loader, resident_model)
    assert not Resident.waits


def test_the_count_sees_waiting(dataset: TensorDataset, resident_model: nn.Module) -> None:
    """Without the deferred path the very same loop reads values: the counter works."""
    loader = make("loss", dataset, resident_model)
    run(loader, resident_model)
    assert Resident.waits
    for read in (
        lambda t: t.item(),
        lambda t: t.tolist(),
        lambda t: t.cpu(),
        lambda t: t.detach().numpy(),
        lambda t: bool(t > 0),
        lambda t: t.to("cpu"),
        lambda t: t.reshape(1)[t.reshape(1) > 0],
    ):
        Resident.waits.clear()
        read(torch.ones(()).as_subclass(Resident))
        assert Resident.waits


@pytest.mark.parametrize("score", ["history", "approx", "loss"])
def test_losses_are_processed_at_the_next_step(
    score: str, dataset: TensorDataset, model: nn.Module
) -> None:
    loader = make(score, dataset, model)
    loader.deferred = True
    iterator = iter(loader)
    for step in range(4):
        next(iterator)
        assert loader._sampler.step == max(0, step - 1)
        losses = torch.full((8,), float(step))
        loader.mean(losses)
        losses += 100  # what the user does to them afterwards does not matter
        assert loader._sampler.step == step
    loader.state_dict()
    assert loader._sampler.step == 3  # saving changes nothing
    next(iterator)
    loader.mean(torch.zeros(8))
    assert loader._sampler.step == 4
    loader.metrics()
    assert loader._sampler._learning.window._steps[-1][1].tolist() == [3.0] * 8


def test_the_end_of_an_epoch_leaves_nothing_behind(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8)
    loader.deferred = True
    for _ in loader:
        loader.mean(torch.ones(8))
    assert loader._sampler.step == 5


def test_a_bad_loss_is_reported_one_step_later(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8)
    loader.deferred = True
    iterator = iter(loader)
    next(iterator)
    bad = int(loader.indices[2])
    losses = torch.ones(8)
    losses[2] = math.inf
    loader.mean(losses)
    next(iterator)
    with pytest.raises(LossError, match=rf"step 1 example {bad}: inf"):
        loader.mean(torch.ones(8))
    loader.mean(torch.ones(8))  # reported once, and this batch still waited
    next(iterator)
    loader.mean(torch.ones(8))
    assert loader._sampler.step == 1
    assert loader._sampler.score.score(torch.tensor([bad]), None).isnan().all()


def test_skipping_needs_no_look_at_the_values(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8, on_bad_loss="skip")
    loader.deferred = True
    iterator = iter(loader)
    next(iterator)
    losses = torch.ones(8, requires_grad=True)
    scale = torch.tensor([math.nan] + [1.0] * 7)
    mean = loader.mean(losses * scale)
    assert float(mean.detach()) == pytest.approx(7 / 8)
    next(iterator)
    loader.mean(torch.ones(8))
    assert loader.metrics()["skipped_losses"] == 1
