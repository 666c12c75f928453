"""The loader as users hold it."""

import collections
import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from parts import cross_entropy, needs
from salience import ImportanceLoader, UsageError
from salience.presets import NAMES
from salience.scores import NEED_MODEL


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class Encoding(collections.UserDict[str, Any]):
    """Like the batches of Hugging Face tokenizers: a mapping that is not a dict."""

    def __init__(self, data: dict[str, Any], n_sequences: int = 1) -> None:
        super().__init__(data)
        self.n_sequences = n_sequences


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("score", NAMES)
def test_the_two_line_change_trains(
    score: str, workers: int, dataset: TensorDataset, model: nn.Module
) -> None:
    loader = ImportanceLoader(dataset, 8, score=score, num_workers=workers, **needs(score, model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.clone() for p in model.parameters()]
    for epoch in range(2):
        assert loader.epoch == epoch
        steps = 0
        for x, y in loader:
            torch.testing.assert_close(x, dataset.tensors[0][loader.indices])
            assert y.tolist() == dataset.tensors[1][loader.indices].tolist()
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
            mean = loader.mean(losses)
            torch.testing.assert_close(mean, (losses * loader.weights).mean())
            mean.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
        assert steps == len(loader) == 5
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    metrics = loader.metrics()
    assert set(metrics) >= {
        "mean_loss",
        "variance_reduction",
        "effective_sample_size",
        "unique_fraction",
        "tracking",
        "scoring_fraction",
        "active",
    }
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values())
    assert metrics["active"] == float(score not in ("uniform", "auto"))  # auto waits for a pass
    assert 0 < metrics["unique_fraction"] <= 1
    assert 0 <= metrics["scoring_fraction"] <= 1


def test_uniform_is_an_ordinary_shuffled_epoch() -> None:
    data = TensorDataset(torch.arange(10).float())
    loader = ImportanceLoader(data, 4, score="uniform")
    epochs = []
    for _ in range(3):
        batches = [x for (x,) in loader]
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert loader.weights.tolist() == [1, 1]
        epochs.append(torch.cat(batches).tolist())
        assert sorted(epochs[-1]) == list(range(10))
    assert epochs[0] != epochs[1] != epochs[2]
    dropping = ImportanceLoader(data, 4, score="uniform", drop_last=True)
    assert len(dropping) == 2
    for _ in range(2):
        seen = torch.cat([x for (x,) in dropping]).tolist()
        assert len(seen) == len(set(seen)) == 8


def test_a_uniform_mean_is_bitwise_the_mean() -> None:
    loader = ImportanceLoader(TensorDataset(torch.zeros(8)), 8, score="uniform")
    next(iter(loader))
    losses = torch.rand(8)
    assert float(loader.mean(losses)) == float(losses.mean())


def test_a_uniform_epoch_begins_anew_after_an_abandoned_one() -> None:
    loader = ImportanceLoader(TensorDataset(torch.arange(10).float()), 3, score="uniform")
    for (_,) in loader:
        loader.mean(torch.ones(3))
        break
    assert loader.epoch == 0
    assert sorted(torch.cat([x for (x,) in loader]).tolist()) == list(range(10))
    assert loader.epoch == 2


def test_steps_per_epoch() -> None:
    data = TensorDataset(torch.arange(10).float())
    loader = ImportanceLoader(data, 5, score="uniform", steps_per_epoch=3)
    assert len(loader) == 3
    seen = torch.cat([x for _ in range(2) for (x,) in loader]).tolist()
    assert sorted(seen) == sorted([*range(10), *range(10), *range(10)])
    assert len(list(ImportanceLoader(data, 5, steps_per_epoch=7))) == 7


@pytest.mark.parametrize(("drop_last", "steps"), [(False, 4), (True, 3)])
def test_importance_batches_are_all_full(drop_last: bool, steps: int) -> None:
    data = TensorDataset(torch.zeros(10))
    loader = ImportanceLoader(data, 3, score="history", drop_last=drop_last)
    assert [len(x) for (x,) in loader] == [3] * steps


COLLATES: dict[str, Any] = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "dict": lambda x, y: {"x": x, "y": y, "name": "constant", "count": 3, "none": None},
    "nested": lambda x, y: {"in": (x, [x, {"deep": y}]), "y": y},
    "named tuple": lambda x, y: Pair(x, y),
    "encoding": lambda x, y: Encoding({"x": x, "y": y}, n_sequences=7),
    "ordered": lambda x, y: collections.OrderedDict(x=x, y=y),
    "array": lambda x, y: (x, y, np.arange(len(x))),
    "strings": lambda x, y: (x, y, [f"text {int(label)}" for label in y]),
    "ragged": lambda x, y: (x, y, [torch.ones(int(label) + 1) for label in y]),
}


def parts(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, collections.abc.Mapping):
        return (batch["in"][0] if "in" in batch else batch["x"]), batch["y"]
    return batch[0], batch[1]


@pytest.mark.parametrize("score", ["uniform", "history", "loss"])
@pytest.mark.parametrize("kind", COLLATES)
def test_any_collate(kind: str, score: str, dataset: TensorDataset, model: nn.Module) -> None:
    def collate(rows: list[tuple[Tensor, Tensor]]) -> Any:
        return COLLATES[kind](*(torch.stack(column) for column in zip(*rows, strict=True)))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model, parts(batch))

    loader = ImportanceLoader(dataset, 8, score=score, model=model, loss=loss, collate_fn=collate)
    for batch in loader:
        x, y = parts(batch)
        expected = COLLATES[kind](
            dataset.tensors[0][loader.indices], dataset.tensors[1][loader.indices]
        )
        assert type(batch) is type(expected)
        torch.testing.assert_close(x, parts(expected)[0])
        if kind == "strings":
            assert list(batch[2]) == expected[2]
        if kind == "ragged":
            assert [len(t) for t in batch[2]] == [len(t) for t in expected[2]]
        if kind == "nested":
            assert batch["in"][1][1]["deep"].tolist() == y.tolist()
        if kind == "encoding":
            assert batch.n_sequences == 7
        if kind == "dict":
            assert (batch["name"], batch["count"], batch["none"]) == ("constant", 3, None)
        loader.mean(cross_entropy(model, (x, y)))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_tensor_dataset_yields_what_dataloader_would(workers: int) -> None:
    tensors = (torch.rand(12, 3), torch.arange(12), torch.rand(12, 2, 2).double())
    loader = ImportanceLoader(TensorDataset(*tensors), 4, num_workers=workers)
    for batch in loader:
        rows = TensorDataset(*(tensor[loader.indices] for tensor in tensors))
        (expected,) = DataLoader(rows, batch_size=4)
        assert type(batch) is type(expected)
        for ours, theirs in zip(batch, expected, strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)


class ByLists(Dataset[Any]):
    """Answers whole lists of indices, as datasets with ``__getitems__`` do."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> int:
        raise AssertionError("one at a time")

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def test_getitems_is_used() -> None:
    loader = ImportanceLoader(ByLists(), 6)
    for batch in loader:
        assert batch.tolist() == loader.indices.tolist()
        loader.mean(torch.ones(6))


@pytest.mark.parametrize("score", ["history", "loss"])
@pytest.mark.parametrize("persistent", [False, True])
def test_weights_travel_with_batches_drawn_ahead(
    score: str, persistent: bool, dataset: TensorDataset, model: nn.Module
) -> None:
    loader = ImportanceLoader(
        dataset,
        8,
        score=score,
        num_workers=2,
        prefetch_factor=3,
        persistent_workers=persistent,
        **needs(score, model),
    )
    for epoch in range(3):
        for step, (x, y) in enumerate(loader):
            torch.testing.assert_close(x, dataset.tensors[0][loader.indices])
            if epoch == 0 and score == "history" and step < 5:
                # All five were drawn before any loss was known.
                assert loader.weights.tolist() == [1.0] * 8
            loader.mean(torch.rand(len(y)) * 5)
            if epoch == 1 and step == 2:
                break  # abandoned, with batches still on their way


def test_two_iterations_at_once_are_refused(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8)
    first = iter(loader)
    next(first)
    loader.mean(torch.ones(8))
    second = iter(loader)
    next(second)
    loader.mean(torch.ones(8))
    with pytest.raises(UsageError, match=r"another iteration .* has begun: use one at a time"):
        next(first)
    next(second)  # the newer one goes on


def test_losses_over_time_are_averaged(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8, k=1, smoothing=0.1)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
        losses = torch.rand(8, 5, 2, requires_grad=True)
        mean = loader.mean(losses)
        torch.testing.assert_close(mean, (losses.mean((1, 2)) * loader.weights).mean())
    assert loader._sampler.score.score(loader.indices, None).tolist() == pytest.approx(
        losses.detach().mean((1, 2)).tolist(), rel=0.5
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("score", ["uniform", "history"])
def test_half_precision_losses_are_averaged_in_float32(score: str, dtype: torch.dtype) -> None:
    loader = ImportanceLoader(TensorDataset(torch.zeros(16)), 4, score=score, smoothing=0.2)
    for _ in loader:
        losses = torch.rand(4).to(dtype).requires_grad_()
        mean = loader.mean(losses)
        assert mean.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        mean.backward()
        assert losses.grad is not None


def test_autocast_training(dataset: TensorDataset) -> None:
    net = nn.Linear(6, 3)
    loader = ImportanceLoader(dataset, 8, score="approx")
    for x, y in loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = nn.functional.cross_entropy(net(x), y, reduction="none")
            loader.mean(losses).backward()
    assert net.weight.grad is not None


def test_never_calling_mean_is_told_once(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 4, score="history", steps_per_epoch=50)
    with pytest.warns(UserWarning, match=r"not passed to mean") as caught:
        for _ in loader:
            pass
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(loader))
        for _ in ImportanceLoader(dataset, 4, score="uniform", steps_per_epoch=50):
            pass


def test_before_any_batch(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8)
    for call in (lambda: loader.indices, lambda: loader.weights):
        with pytest.raises(UsageError, match="iterate over the loader first"):
            call()
    assert math.isnan(loader.metrics()["mean_loss"])


def test_skipping_bad_losses(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8, on_bad_loss="skip", smoothing=0.5)
    iterator = iter(loader)
    next(iterator)
    loader.mean(torch.full((8,), 1.5))
    next(iterator)
    losses = torch.tensor([1.0, math.nan, 1.0, math.inf, 1.0, -1.0, 1.0, 1.0], requires_grad=True)
    good = torch.tensor([0, 2, 4, 6, 7])
    kept = loader._sampler.score.score(loader.indices[[1, 3, 5]], None)
    mean = loader.mean(losses)
    torch.testing.assert_close(mean, loader.weights[good].sum() / 8)
    mean.backward()
    assert losses.grad[[1, 3, 5]].tolist() == [0, 0, 0]
    torch.testing.assert_close(losses.grad[good], loader.weights[good] / 8)
    assert loader.metrics()["skipped_losses"] == 3
    after = loader._sampler.score.score(loader.indices[[1, 3, 5]], None)
    torch.testing.assert_close(after, kept, equal_nan=True)
    next(iterator)
    loader.mean(torch.full((8,), math.nan))
    assert loader.metrics()["skipped_losses"] == 11
    assert math.isfinite(loader.metrics()["mean_loss"])


class Stream(IterableDataset[Any]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Any:
        yield from zip(self.x, self.y, strict=True)


@pytest.mark.parametrize("score", [*NEED_MODEL])
def test_from_loader_chooses_from_a_stream(
    score: str, dataset: TensorDataset, model: nn.Module
) -> None:
    pools = DataLoader(Stream(*dataset.tensors), batch_size=16, drop_last=True)
    loader = ImportanceLoader.from_loader(
        pools, 4, score=score, model=model, loss=nn.CrossEntropyLoss(reduction="none")
    )
    steps = 0
    for x, y in loader:
        pool = slice(16 * steps, 16 * steps + 16)
        torch.testing.assert_close(x, dataset.tensors[0][pool][loader.indices])
        loader.mean(cross_entropy(model, (x, y))).backward()
        steps += 1
    assert steps == 2
    state = loader.state_dict()
    loader.load_state_dict(state)


def test_a_short_last_pool_gives_a_short_batch(dataset: TensorDataset, model: nn.Module) -> None:
    pools = DataLoader(dataset, batch_size=18)  # 18, 18 and 4 examples
    loader = ImportanceLoader.from_loader(pools, 9, model=model, loss=cross_entropy)
    sizes = []
    for x, y in loader:
        loader.mean(cross_entropy(model, (x, y))).backward()
        sizes.append(len(x))
    assert sizes == [9, 9, 4]


def test_from_loader_has_the_length_of_the_pools(dataset: TensorDataset, model: nn.Module) -> None:
    pools = DataLoader(dataset, batch_size=16)
    assert len(ImportanceLoader.from_loader(pools, 4, model=model, loss=cross_entropy)) == 3
    stream = (pool for pool in pools)
    endless = ImportanceLoader.from_loader(stream, 4, model=model, loss=cross_entropy)
    with pytest.raises(TypeError, match="no length"):
        len(endless)


@pytest.mark.parametrize("score", [*NEED_MODEL])
def test_a_score_of_the_users_own(score: str, dataset: TensorDataset, model: nn.Module) -> None:
    made = NEED_MODEL[score](model, cross_entropy)
    loader = ImportanceLoader(dataset, 8, score=made)
    for x, y in loader:
        loader.mean(cross_entropy(model, (x, y)))
    assert loader.metrics()["active"] == 1.0


def test_hard_examples_are_drawn_more_often_and_weigh_less() -> None:
    n = 200
    hardness = torch.linspace(0.01, 2, n)
    data = TensorDataset(hardness)
    loader = ImportanceLoader(data, 20, score="history", steps_per_epoch=300, k=0.5)
    counts = torch.zeros(n)
    for (losses,) in loader:
        loader.mean(losses)
        counts += loader.indices.bincount(minlength=n)
        order = losses.argsort()
        assert (loader.weights[order].diff() <= 1e-6).all() or loader._sampler.step < 40
    expected = hardness + hardness.mean() / 2
    ratio = counts[n // 2 :].sum() / counts[: n // 2].sum()
    assert float(ratio) == pytest.approx(
        float(expected[n // 2 :].sum() / expected[: n // 2].sum()), rel=0.1
    )
    assert loader.metrics()["tracking"] == pytest.approx(1, abs=0.02)
    assert loader.metrics()["mean_loss"] == pytest.approx(float(hardness.mean()), rel=0.1)
    v = n * float((hardness**2).sum() / hardness.sum() ** 2)
    assert loader.metrics()["variance_reduction"] == pytest.approx(v, rel=0.05)


def test_indices_and_weights_are_copies(dataset: TensorDataset) -> None:
    """They aliased an internal buffer: halving them changed later means."""
    for score in ("uniform", "history"):
        loader = ImportanceLoader(dataset, 8, score=score)
        for _ in loader:
            expected = float(loader.weights.mean())
            weights, indices = loader.weights, loader.indices
            weights *= 0.5
            indices.zero_()
            assert float(loader.mean(torch.ones(8))) == pytest.approx(expected)
        assert loader.weights.max() > 0.5


@pytest.mark.parametrize("score", ["uniform", "history"])
def test_a_compiled_step_has_few_graphs(score: str, dataset: TensorDataset) -> None:
    """``mean`` was traced into some twenty."""
    loader, net = ImportanceLoader(dataset, 8, score=score), nn.Linear(6, 3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        return loader.mean(nn.functional.cross_entropy(net(x), y, reduction="none"))

    batches = iter(loader)
    x, y = next(batches)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its internals
        torch._dynamo.reset()
        assert torch._dynamo.explain(step)(x, y).graph_count <= 3
        compiled = torch.compile(step, backend="eager")
        for x, y in batches:
            found = compiled(x, y)
            torch.testing.assert_close(found, step(x, y))  # again: weighed, not recorded
    assert loader._sampler.step == 5
    torch._dynamo.reset()


def test_a_view_refuses_to_draw_in_a_worker_process(dataset: TensorDataset) -> None:
    view = ImportanceLoader(dataset, 8).as_dataloader()
    with pytest.raises(UsageError, match=r"worker 0 of 1.*give num_workers to ImportanceLoader"):
        next(iter(DataLoader(view.dataset, batch_size=None, num_workers=1)))


def test_the_last_draw_is_that_of_the_batch_last_yielded(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8, score="history")
    with pytest.raises(UsageError, match="no batch has been yielded yet"):
        _ = loader.last_draw
    for number, (x, y) in enumerate(loader):
        draw = loader.last_draw
        assert draw.number == number
        torch.testing.assert_close(x, dataset.tensors[0][draw.indices])
        assert draw.weights.tolist() == loader.weights.tolist()
        draw.weights.zero_()
        assert loader.weights.sum() > 0, "a copy"
        loader.mean(x.sum(1).abs() + y)
