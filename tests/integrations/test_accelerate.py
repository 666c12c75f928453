"""Accelerate's loop against a plain loop: the same examples, weights and parameters."""

import pickle
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from accelerate.parallelism_config import ParallelismConfig
from accelerate_parts import fresh_state, made, train  # noqa: F401
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
from streams import make_stream, plain_stream_loop
from torch.utils.data import DataLoader

from salience import ArgumentError, UsageError
from salience.integrations import accelerate as ours
from salience.integrations.accelerate import prepare

pytestmark = [pytest.mark.usefixtures("fresh_state")]

Patch = pytest.MonkeyPatch


def with_accelerate(patch: Patch, accumulate: int = 1, **options: Any) -> Trace:
    trace = watch(patch)
    parts = made(accumulate, **options)
    train(parts)
    return trace.finish(parts.model)


def by_hand(patch: Patch, accumulate: int = 1, **options: Any) -> Trace:
    trace, model = watch(patch), Watched()
    # accelerator.backward divides by the batches per update, the remainder's too
    plain_loop(
        make_loader(**options),
        model,
        sgd(model),
        accumulate=accumulate,
        scale=lambda *_: 1 / accumulate,
    )
    return trace.finish(model)


# ------------------------------------------------------------------------------- the same training


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("score", ["history", "uniform", "auto"])
@pytest.mark.usefixtures("auto_turns_on")
def test_training_is_that_of_a_plain_loop(
    score: str, accumulate: int, workers: int, monkeypatch: Patch
) -> None:
    options = {"score": score, "num_workers": workers}
    expected = by_hand(monkeypatch, accumulate, **options)
    if score != "uniform":
        matters(expected)
    assert_same(with_accelerate(monkeypatch, accumulate, **options), expected)


def test_slots_are_not_needed(monkeypatch: Patch) -> None:
    found = with_accelerate(monkeypatch, 4, slots=False)
    assert_same(found, by_hand(monkeypatch, 4))


def test_accumulation_makes_an_update_at_the_end_of_each_epoch() -> None:
    parts = made(accumulate=4)
    train(parts)
    assert parts.updates == [4, 6, 10, 12, 16, 18]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    expected = by_hand(monkeypatch, accumulate=4)
    assert_caught(mutant, lambda: with_accelerate(monkeypatch, 4), expected, monkeypatch)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_uniform_equals_stock_accelerate(accumulate: int, monkeypatch: Patch) -> None:
    trace = watch(monkeypatch)
    parts = made(accumulate, score="uniform")
    train(parts)
    trace.finish(parts.model)
    accelerator = Accelerator(gradient_accumulation_steps=accumulate)
    model, losses = Watched(), []
    stock = DataLoader(Examples(), batch_sampler=Replay(trace.ids))
    model, optimizer, loader = accelerator.prepare(model, sgd(model), stock)
    for _ in range(EPOCHS):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                losses.append(loss.item())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    assert model.seen == trace.ids
    assert len(trace.ids[STEPS - 1]) < BATCH
    assert losses == pytest.approx([sum(each) / len(each) for each in trace.losses], abs=1e-6)
    for mine, theirs in zip(trace.parameters, model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf.*")
def test_bf16_compile_a_scheduler_and_workers_together(monkeypatch: Patch) -> None:
    trace = watch(monkeypatch)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4)
    model = Watched()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    compiled, optimizer, scheduler = accelerator.prepare(torch.compile(model), optimizer, scheduler)
    loader = prepare(accelerator, make_loader(num_workers=2))
    for _ in range(2):
        for x, y, slots in loader:
            with accelerator.accumulate(compiled):
                losses = F.cross_entropy(compiled(x), y, reduction="none")
                accelerator.backward(loader.mean(losses, slots))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    trace.finish(model)
    matters(trace)
    assert [len(ids) for ids in trace.ids] == [len(losses) for losses in trace.losses]
    assert scheduler.get_last_lr() == [pytest.approx(0.1 * 0.9**4)]
    torch._dynamo.reset()


# ------------------------------------------------------------------------------------- evaluation


def test_evaluation_beside_changes_nothing(monkeypatch: Patch) -> None:
    """After each batch, the last one too: the remainder is that of the validation loader."""
    trace, parts = watch(monkeypatch), made(accumulate=4)
    accelerator = parts.accelerator
    validation = accelerator.prepare(DataLoader(Examples(), batch_size=BATCH))
    state = accelerator.gradient_state

    def evaluate() -> None:
        parts.model.eval()
        found = [accelerator.gather_for_metrics(x[:, 0]) for x, _ in validation]
        assert torch.cat(found).tolist() == list(range(N))
        assert state.active_dataloader is parts.loader
        parts.model.train()

    train(parts, after_batch=evaluate)
    assert not state.in_dataloader
    assert_same(trace.finish(parts.model), by_hand(monkeypatch, 4))
    assert parts.loader.loader._sampler.step == EPOCHS * STEPS


def test_gathering_what_was_trained_on_drops_nothing() -> None:
    """Five full batches of 22 examples: a remainder of two would cut the last one."""
    parts = made(steps_per_epoch=5)
    for x, _, _ in parts.loader:
        assert len(parts.accelerator.gather_for_metrics(x)) == len(x) == BATCH
        parts.loader.skip()


def test_an_epoch_that_is_left_is_not_the_active_one() -> None:
    parts = made()
    for _ in parts.loader:
        assert parts.accelerator.gradient_state.active_dataloader is parts.loader
        break
    assert not parts.accelerator.gradient_state.in_dataloader


# ------------------------------------------------------------------------------------- the wrapper


def test_what_it_delegates() -> None:
    parts = made()
    loader = parts.loader
    train(parts)
    assert len(loader) == STEPS
    assert (loader.epoch, loader.batch_size) == (EPOCHS, BATCH)
    assert loader.metrics()["mean_loss"] == loader.loader.metrics()["mean_loss"]
    assert isinstance(loader.dataset, Examples)
    assert set(loader.state_dict()) == set(loader.loader.state_dict())
    with pytest.raises(AttributeError, match="nonsense"):
        _ = loader.nonsense
    with pytest.raises(AttributeError, match="_nonsense"):
        _ = loader._nonsense


@pytest.mark.parametrize("done", [0, 2, STEPS])
def test_it_pickles(done: int) -> None:
    parts = made()
    batches = iter(parts.loader)
    for x, _, slots in islice(batches, done):
        parts.loader.mean(x[:, 1] ** 2, slots)
    copy = pickle.loads(pickle.dumps(parts.loader))
    rest = [x.tolist() for x, *_ in (batches if done < STEPS else parts.loader)]
    assert [x.tolist() for x, *_ in copy] == rest


def test_nothing_keeps_it_alive() -> None:
    parts = made()
    kept = weakref.ref(parts.loader.loader)
    del parts
    assert kept() is None


@pytest.mark.parametrize("placement", [True, False])
def test_batches_are_moved_to_the_device(placement: bool, monkeypatch: Patch) -> None:
    accelerator, moved = Accelerator(device_placement=placement), []

    def move(batch: Any, device: Any, **options: Any) -> Any:
        moved.append((device, options))
        return batch

    monkeypatch.setattr(ours, "send_to_device", move)
    next(iter(prepare(accelerator, make_loader())))
    assert moved == ([(accelerator.device, {"non_blocking": True})] if placement else [])


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_stream_is_read_one_batch_ahead(accumulate: int, monkeypatch: Patch) -> None:
    trace, model = watch(monkeypatch), Watched()
    plain_stream_loop(model, accumulate)
    expected = trace.finish(model)
    matters(expected)
    assert_same(with_accelerate(monkeypatch, accumulate, make=make_stream), expected)


def test_a_stream_without_slots_is_refused() -> None:
    with pytest.raises(ArgumentError, match="slots=True"):
        prepare(Accelerator(), make_stream(Watched(), slots=False))


# --------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "config", [{}, {"split_batches": True}, {"dispatch_batches": True}], ids=str
)
def test_views_are_refused(config: dict[str, Any]) -> None:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(**config))
    with pytest.raises(ArgumentError, match="pass the ImportanceLoader itself"):
        prepare(accelerator, make_loader().as_dataloader())  # type: ignore[arg-type]


def test_inner_parts_are_refused() -> None:
    inner = make_loader()._source._loader  # type: ignore[attr-defined]
    for part in (inner, DataLoader(inner.dataset, batch_sampler=inner.batch_sampler)):
        with pytest.raises(ArgumentError, match="pass the ImportanceLoader itself"):
            prepare(Accelerator(), part)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="got list"):
        prepare(Accelerator(), [])  # type: ignore[arg-type]


def test_preparing_twice_is_refused() -> None:
    accelerator, loader = Accelerator(), make_loader()
    prepared = prepare(accelerator, loader)
    with pytest.raises(UsageError, match="use it as it is"):
        prepare(accelerator, prepared)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="prepared before"):
        prepare(accelerator, loader)
    assert accelerator.prepare(prepared) is prepared  # accelerate's own leaves it alone
    assert len(accelerator._custom_objects) == 1


@pytest.mark.parametrize("name", ["tp_size", "cp_size", "sp_size"])
def test_ranks_that_share_examples_are_refused(name: str, monkeypatch: Patch) -> None:
    accelerator, sizes = Accelerator(), {"tp_size": 1, "cp_size": 1, "sp_size": 1, name: 2}
    config = property(lambda _: ParallelismConfig(**sizes))
    monkeypatch.setattr(Accelerator, "parallelism_config", config)
    with pytest.raises(UsageError, match=f"{name}=2 gives several ranks the same examples"):
        prepare(accelerator, make_loader())
    sizes[name] = 1
    prepare(accelerator, make_loader())


@pytest.mark.parametrize("of_stream", [False, True])
def test_skip_first_batches_is_refused(of_stream: bool) -> None:
    accelerator = Accelerator()
    loader = prepare(accelerator, make_stream(Watched()) if of_stream else make_loader())
    for skip in (skip_first_batches, accelerator.skip_first_batches):
        with pytest.raises(UsageError, match=r"load_state\(\) continues"):
            skip(loader, 2)


# ------------------------------------------------------------------ what accelerate.prepare() makes


def test_accelerate_passes_the_loader_through(monkeypatch: Patch) -> None:
    accelerator, loader = Accelerator(), make_loader()
    assert accelerator.prepare(loader) is loader
    found = with_accelerate(monkeypatch, prepared=False)
    assert_same(found, by_hand(monkeypatch))


def test_accelerate_alone_makes_no_update_at_the_end_of_an_epoch() -> None:
    """Why there is a prepare() of ours."""
    parts = made(accumulate=4, prepared=False)
    train(parts)
    assert parts.updates == [4, 8, 12, 16]


@pytest.mark.parametrize("dispatch", [False, True])
def test_accelerate_may_prepare_a_view_with_slots(dispatch: bool, monkeypatch: Patch) -> None:
    """It reads one batch ahead: exact with slots, refused without."""
    config = DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator, trace = Accelerator(dataloader_config=config), watch(monkeypatch)
    model, source = Watched(), make_loader()
    model, optimizer, view = accelerator.prepare(model, sgd(model), source.as_dataloader())
    for _ in range(EPOCHS):
        for x, y, slots in view:
            loss = source.mean(F.cross_entropy(model(x), y, reduction="none"), slots)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    trace.finish(model)
    expected, net = watch(monkeypatch), Watched()
    plain_stream_loop(net, loader=make_loader())
    matters(expected.finish(net))
    assert_same(trace, expected)
    assert trace.ids != by_hand(monkeypatch).ids  # the look-ahead matters
    source = make_loader(slots=False)
    view = accelerator.prepare(source.as_dataloader())
    x, y = next(iter(view))
    with pytest.raises(UsageError, match="slots=True"):
        source.mean(F.cross_entropy(model(x), y, reduction="none"))


@pytest.mark.parametrize("options", [{"num_processes": 2}, {"split_batches": True}], ids=str)
def test_accelerate_itself_fails_to_split_a_view(options: dict[str, Any]) -> None:
    """Loud, though without our remedy."""
    Accelerator()
    given = {"num_processes": 1, "process_index": 0, **options}
    with pytest.raises((TypeError, ValueError)):
        next(iter(prepare_data_loader(make_loader().as_dataloader(), **given)))


def test_what_accelerate_makes_of_inner_parts_cannot_be_weighed() -> None:
    source = make_loader(slots=False)
    inner = Accelerator().prepare(source._source._loader)  # type: ignore[attr-defined]
    x, _ = next(iter(inner))
    with pytest.raises(UsageError, match="iterate over the loader first"):
        source.mean(x[:, 1] ** 2)


def test_skip_first_batches_fails_for_a_loader_that_we_did_not_prepare() -> None:
    """Loud, though without our remedy."""
    Accelerator()
    with pytest.raises(AttributeError, match="sampler"):
        skip_first_batches(make_loader(), 2)
    with pytest.raises(ValueError, match="prefetch_factor"):
        skip_first_batches(make_stream(Watched()), 2)
