"""Factors in the loss: the equations against slow oracles, and what ``mean`` makes of them."""

import copy
import itertools
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from parts import cross_entropy, frozen, make_dataset, needs
from salience import (
    ArgumentError,
    Closeness,
    Draw,
    Focus,
    ImportanceLoader,
    ImportanceSampler,
    LossError,
    Ordered,
    StateError,
    UsageError,
    functional,
)
from salience.focus import NAMES
from salience.presets import NAMES as SCORES

losses_of = st.lists(st.floats(0, 50, width=32), min_size=1, max_size=24).map(torch.tensor)
shares = st.lists(st.floats(0, 1, width=32, allow_subnormal=False), min_size=1, max_size=24).map(
    torch.tensor
)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ordered`` leaves losses out at accuracies that a few steps reach."""
    monkeypatch.setattr(functional, "STAGES", ((0.6, 4), (0.2, 2)))


# ------------------------------------------------------------------------------- the equations


@given(losses_of, st.data())
def test_ordered_is_the_mean_of_the_largest(losses: Tensor, data: Any) -> None:
    q = data.draw(st.integers(1, len(losses)))
    factors = functional.ordered(losses, q)
    by_value = sorted(range(len(losses)), key=lambda i: (-float(losses[i]), i))
    expected = [len(losses) / q if i in by_value[:q] else 0.0 for i in range(len(losses))]
    assert factors.tolist() == pytest.approx(expected)
    assert int((factors > 0).sum()) == q
    assert float(factors.double().mean()) == pytest.approx(1, rel=1e-6)
    largest = sum(sorted(losses.tolist(), reverse=True)[:q]) / q
    assert float((factors * losses).mean()) == pytest.approx(largest, rel=1e-5, abs=1e-6)


def test_ordered_gives_the_gradient_of_the_mean_of_the_largest() -> None:
    """Every subset of q losses that could be the largest, by enumeration."""
    values = torch.tensor([0.3, 2.0, 0.1, 1.0], dtype=torch.float64)
    for order in itertools.permutations(range(4)):
        losses = values[list(order)]
        for q in (1, 2, 3, 4):
            best = max(itertools.combinations(range(4), q), key=lambda c: float(losses[[*c]].sum()))
            kept = functional.ordered(losses, q).nonzero().flatten().tolist()
            assert kept == sorted(best)


@pytest.mark.parametrize("q", [0, 4, -1])
def test_ordered_refuses_a_number_that_is_not_there(q: int) -> None:
    with pytest.raises(ArgumentError, match=f"between 1 and the 3 losses; got {q}"):
        functional.ordered(torch.ones(3), q)


@pytest.mark.parametrize(
    ("accuracy", "part"),
    [
        (math.nan, 1),
        (-0.5, 1),
        (0.799, 1),
        (0.8, 2),
        (0.899, 2),
        (0.9, 4),
        (0.95, 8),
        (0.994, 8),
        (0.995, 16),
        (1.1, 16),
    ],
)
def test_fewer_count_as_the_accuracy_grows(accuracy: float, part: int) -> None:
    assert functional.ordered_count(accuracy, 128) == 128 // part
    assert functional.ordered_count(accuracy, 3) == max(3 // part, 1)


@given(shares, st.floats(0, 2, allow_subnormal=False))
def test_closeness_follows_the_equation(p: Tensor, floor: float) -> None:
    close = [float(x) * (1 - float(x)) + floor for x in p]
    mean = sum(close) / len(close)
    expected = [x / mean if mean > 0 else 1.0 for x in close]
    found = functional.closeness(p.double(), floor)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    assert float(found.mean()) == pytest.approx(1, rel=1e-9)
    assert bool((found >= 0).all())


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_closeness_orders_by_the_distance_from_one_half(a: float, b: float, floor: float) -> None:
    first, second = functional.closeness(torch.tensor([a, b], dtype=torch.float64), floor).tolist()
    if abs(a - 0.5) < abs(b - 0.5):
        assert first >= second
    assert functional.closeness(torch.tensor([a, 1 - a]).double(), 0.1).tolist() == pytest.approx(
        [1, 1]
    )


@pytest.mark.parametrize("floor", [-0.1, math.nan, math.inf])
def test_closeness_refuses_a_bad_floor(floor: float) -> None:
    with pytest.raises(ArgumentError, match=f"floor must be a finite number >= 0; got {floor}"):
        functional.closeness(torch.ones(2), floor)
    with pytest.raises(ArgumentError, match=f"got {floor}"):
        Closeness(floor=floor)


@given(losses_of, st.data())
def test_factors_follow_their_losses_wherever_these_stand(losses: Tensor, data: Any) -> None:
    """Permutation equivariance. Equal losses are told apart by position: they are left out."""
    losses = losses.double() + torch.arange(len(losses)) * 1e-3
    order = torch.tensor(data.draw(st.permutations(range(len(losses)))))
    q = data.draw(st.integers(1, len(losses)))
    if len(set(losses.tolist())) == len(losses):
        assert torch.equal(
            functional.ordered(losses, q)[order], functional.ordered(losses[order], q)
        )
    p = torch.exp(-losses)
    torch.testing.assert_close(
        functional.closeness(p, 0.01)[order], functional.closeness(p[order], 0.01)
    )


# ------------------------------------------------------------------------------ what they learn


def draw_of(indices: list[int], p: list[float], n: int) -> Draw:
    probabilities = torch.tensor(p, dtype=torch.float64)
    ones = torch.ones(len(p))
    return Draw(0, torch.tensor(indices), ones, probabilities, ones, n)


def test_the_accuracy_is_unbiased_whatever_examples_are_drawn_by() -> None:
    losses, p = torch.tensor([0.1, 2.0, 0.69, 0.70]), [0.1, 0.5, 0.1, 0.3]
    expected = 0.0
    for i, probability in enumerate(p):
        focus = Ordered()
        focus.update(draw_of([i], [probability], 4), losses[[i]])
        expected += probability * focus.accuracy
    assert expected == pytest.approx(0.5)  # exp(-loss) > 1/2 for two of the four


def test_the_accuracy_is_a_running_mean() -> None:
    focus = Ordered(decay=0.75)
    assert math.isnan(focus.accuracy)
    for wrong in (1, 0, 0):
        focus.update(draw_of([0, 1], [0.5, 0.5], 2), torch.tensor([0.1, 5.0 * wrong]))
    # Weights 1/4 x (.75^2, .75, 1) of the three shares 1/2, 1, 1.
    assert focus.accuracy == pytest.approx(1 - 0.5 * 0.5625 / 2.3125)


def test_an_accuracy_that_is_told_counts() -> None:
    focus = Ordered()
    focus.update(draw_of([0], [1.0], 1), torch.tensor([9.0]))
    focus.tell(0.96)
    assert focus.factors(torch.arange(16.0), None).nonzero().flatten().tolist() == [14, 15]
    other = Ordered()
    other.load_state_dict(focus.state_dict())
    assert other.accuracy == 0.96
    other.tell(None)
    assert other.accuracy == 0.0


def test_closeness_keeps_a_running_mean_of_each_example() -> None:
    focus = Closeness(decay=0.8, floor=0.01)
    focus.extend(5)
    visits = [([0, 1], [0.5, 3.0]), ([1, 2], [1.0, 0.2]), ([1, 1], [0.1, 0.3])]
    mean: dict[int, float] = {}
    for indices, values in visits:
        seen = torch.tensor(values)
        blended = []
        for i, loss in zip(indices, values, strict=True):
            p = math.exp(-loss)
            blended.append(0.8 * mean[i] + 0.2 * p if i in mean else p)
        expected = functional.closeness(torch.tensor(blended), 0.01)
        torch.testing.assert_close(focus.factors(seen, torch.tensor(indices)), expected)
        focus.update(draw_of(indices, [0.5, 0.5], 5), seen)
        for i in set(indices):
            p = [math.exp(-v) for j, v in zip(indices, values, strict=True) if j == i]
            p_mean = sum(p) / len(p)
            mean[i] = 0.8 * mean[i] + 0.2 * p_mean if i in mean else p_mean
    table = focus.state_dict()["mean"]
    assert table.tolist()[:3] == pytest.approx([mean[0], mean[1], mean[2]], rel=1e-6)
    assert table[3:].isnan().all()
    focus.extend(7)
    assert focus.state_dict()["mean"].tolist()[:3] == table.tolist()[:3]
    assert len(focus.state_dict()["mean"]) == 7


def test_closeness_of_a_stream_is_that_of_the_losses_alone() -> None:
    focus, losses = Closeness(), torch.tensor([0.0, 0.7, 9.0])
    before = focus.factors(losses, None)
    torch.testing.assert_close(before, functional.closeness(torch.exp(-losses), 0.01))
    focus.update(draw_of([0, 1, 2], [0.3, 0.3, 0.4], 3), losses)
    assert torch.equal(focus.factors(losses, None), before)
    assert focus.state_dict() == {}


# -------------------------------------------------------------------------------- the loader


class Recorded:
    """A focus of the user's own: fixed factors by index, and a note of every call."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.learned: list[Any] = []

    def factors(self, losses: Tensor, indices: Tensor | None) -> Tensor:
        assert not losses.requires_grad
        self.asked.append((losses.clone(), None if indices is None else indices.clone()))
        return torch.arange(1.0, 1 + len(losses), dtype=losses.dtype)

    def update(self, draw: Draw, losses: Tensor) -> None:
        self.learned.append((draw.indices.tolist(), losses.tolist()))

    def state_dict(self) -> dict[str, Any]:
        return {"steps": len(self.learned)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learned = [None] * state["steps"]


def test_an_object_of_the_users_own_is_a_focus() -> None:
    assert isinstance(Recorded(), Focus)
    assert all(isinstance(make(), Focus) for make in NAMES.values())


@pytest.mark.parametrize("divisor", [None, 5.0])
@pytest.mark.parametrize("shape", ["[B]", "[B, T]"])
@pytest.mark.parametrize("score", SCORES)
def test_the_step_is_the_mean_of_weight_factor_and_loss(
    score: str, shape: str, divisor: float | None, dataset: TensorDataset, model: nn.Module
) -> None:
    focus = Recorded()
    loader = ImportanceLoader(dataset, 8, score=score, focus=focus, **needs(score, model))
    for step, _ in enumerate(loader):
        b = len(loader.indices)
        losses = torch.rand(b, 3).requires_grad_() if shape == "[B, T]" else torch.rand(b)
        losses.requires_grad_()
        mean = loader.mean(losses, divisor=divisor)
        each = losses.detach().mean(1) if shape == "[B, T]" else losses.detach()
        product = loader.weights * torch.arange(1.0, b + 1)
        torch.testing.assert_close(mean.detach(), (product * each).sum() / (divisor or b))
        (gradient,) = torch.autograd.grad(mean, losses)
        expected = product / (divisor or b)
        expected = expected if gradient.ndim == 1 else (expected / 3)[:, None].expand(b, 3)
        torch.testing.assert_close(gradient, expected)
        asked, indices = focus.asked[step]
        assert asked.tolist() == pytest.approx(each.tolist())
        assert indices.tolist() == loader.indices.tolist()
    assert len(focus.asked) == len(focus.learned) == 5


@pytest.mark.usefixtures("soon", "auto_turns_on")
@pytest.mark.parametrize("focus", NAMES)
@pytest.mark.parametrize("score", SCORES)
def test_every_score_goes_with_every_focus(
    score: str, focus: str, dataset: TensorDataset, model: nn.Module
) -> None:
    """Against the equations applied by hand to what was learned before."""
    loader = ImportanceLoader(dataset, 8, score=score, focus=focus, **needs(score, model))
    other: Any = NAMES[focus]()
    if hasattr(other, "extend"):
        other.extend(len(dataset))
    generator = torch.Generator().manual_seed(3)
    used = set()
    for _ in range(4):
        for _ in loader:
            draw, losses = loader.last_draw, 2 * torch.rand(8, generator=generator)
            losses = losses[: len(draw)]
            factors = other.factors(losses, draw.indices)
            used.add(int((factors > 0).sum()) / len(draw) if focus == "ordered" else True)
            expected = (draw.weights * factors * losses).mean()
            torch.testing.assert_close(loader.mean(losses), expected)
            other.update(draw, losses)
    assert frozen(other.state_dict()) == frozen(loader.state_dict()["focus"])
    assert focus == "closeness" or len(used) > 1  # several q


@pytest.mark.parametrize("score", ["uniform", "history", "loss"])
def test_without_a_focus_nothing_changes(
    score: str, dataset: TensorDataset, model: nn.Module
) -> None:
    """Bitwise: what the loader gave before there was such an argument."""
    loader = ImportanceLoader(dataset, 8, score=score, **needs(score, model))
    for _ in loader:
        draw = loader.last_draw
        losses = torch.rand(len(draw))
        expected = losses.mean() if draw.uniform else torch.dot(losses, draw.weights) / len(draw)
        assert torch.equal(loader.mean(losses), expected)
    assert "focus" not in loader.state_dict()
    assert not loader._feedback._factors


def test_a_second_call_has_the_factors_of_the_first(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8, score="uniform", focus="closeness")
    for _ in range(2):
        for _ in loader:
            first, second = torch.rand(8), torch.rand(8)
            factors = loader._sampler.factors(loader.last_draw, first)
            torch.testing.assert_close(loader.mean(first), (factors * first).mean())
            torch.testing.assert_close(loader.mean(second), (factors * second).mean())
    assert loader._sampler.step == 10


@pytest.mark.parametrize("deferred", [None, True])
def test_slots_have_the_factors_of_the_first_call_that_names_them(
    deferred: bool | None, dataset: TensorDataset
) -> None:
    """Parts of two batches, mixed; then all of them again, as SAM does with accumulation."""
    loader = ImportanceLoader(dataset, 8, score="uniform", focus=Recorded(), slots=True)
    loader.deferred = deferred
    (*_, a), (*_, b) = itertools.islice(loader, 2)
    losses = torch.rand(16)
    slots = torch.cat([a, b])
    parts = [torch.arange(0, 16, 2), torch.arange(1, 16, 4), torch.arange(3, 16, 4)]
    given = torch.empty(16)
    for part in parts:
        given[part] = torch.arange(1.0, 1 + len(part))
        expected = (given[part] * losses[part]).mean()
        torch.testing.assert_close(loader.mean(losses[part], slots[part]), expected)
    for part in (torch.arange(5, 12), torch.arange(16)):
        again = torch.rand(len(part))
        expected = (given[part] * again).mean()
        torch.testing.assert_close(loader.mean(again, slots[part]), expected)
    loader.state_dict()


def test_factors_of_parts_have_a_mean_of_one_each(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8, score="uniform", focus="closeness", slots=True)
    for *_, slots in loader:
        for part in (slots[:3], slots[3:]):
            ones = torch.ones(len(part))  # equal losses: what remains is the mean factor
            assert float(loader.mean(ones, part)) == pytest.approx(1)


def test_a_part_counts_only_once_its_slots_are_right(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8, score="uniform", focus=Recorded(), slots=True)
    *_, slots = next(iter(loader))
    with pytest.raises(UsageError, match="belongs to no batch"):
        loader.mean(torch.ones(4), slots[:4] + 800)
    torch.testing.assert_close(loader.mean(torch.ones(8), slots), torch.tensor(4.5))


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("deferred", [None, True])
def test_losses_that_are_left_out_are_no_part_of_it(
    deferred: bool | None, slots: bool, dataset: TensorDataset
) -> None:
    focus = Ordered()
    focus.tell(0.9)  # the two largest of eight
    loader = ImportanceLoader(
        dataset, 8, score="uniform", focus=focus, on_bad_loss="skip", slots=slots
    )
    loader.deferred = deferred
    batch = next(iter(loader))
    losses = torch.tensor([1.0, math.nan, 3.0, math.inf, -7.0, 2.0, 0.5, 0.1])
    mean = loader.mean(losses, *batch[2:])
    assert float(mean) == pytest.approx(2.5)


def test_a_bad_loss_is_weighed_again_by_what_it_becomes(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 4, score="uniform", focus="closeness")
    next(iter(loader))
    with pytest.raises(LossError):
        loader.mean(torch.tensor([1.0, math.nan, 1.0, 1.0]))
    assert float(loader.mean(torch.ones(4))) == pytest.approx(1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("focus", NAMES)
def test_losses_of_any_precision(focus: str, dtype: torch.dtype, dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8, score="uniform", focus=focus)
    next(iter(loader))
    losses = torch.linspace(0, 3, 8, dtype=dtype, requires_grad=True)
    wide = losses.detach().to(torch.promote_types(dtype, torch.float32))
    expected = (loader._sampler.factors(loader.last_draw, losses) * wide).mean()
    mean = loader.mean(losses)
    assert mean.dtype == wide.dtype
    torch.testing.assert_close(mean.detach(), expected)
    mean.backward()
    assert losses.grad is not None


class Pools:
    """A stream of pools of twelve."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(2)
        for _ in range(self.steps):
            x = torch.randn(12, 6, generator=generator)
            yield x, torch.randint(0, 3, (12,), generator=generator)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("focus", NAMES)
def test_streams(focus: str, model: nn.Module) -> None:
    loader = ImportanceLoader.from_loader(
        Pools(6), 4, focus=focus, model=model, loss=cross_entropy, on_bad_loss="skip"
    )
    other: Any = NAMES[focus]()
    for x, y in loader:
        losses, draw = cross_entropy(model, (x, y)), loader.last_draw
        factors = other.factors(losses.detach(), None)
        torch.testing.assert_close(loader.mean(losses), (draw.weights * factors * losses).mean())
        other.update(draw, losses.detach())
    assert loader.state_dict()["focus"] == other.state_dict()


def test_a_stream_has_no_indices(model: nn.Module) -> None:
    focus = Recorded()
    loader = ImportanceLoader.from_loader(Pools(2), 4, focus=focus, model=model, loss=cross_entropy)
    for x, y in loader:
        loader.mean(cross_entropy(model, (x, y)))
    assert [indices for _, indices in focus.asked] == [None, None]


# ---------------------------------------------------------------------------------- custom loops


@pytest.mark.parametrize("focus", [None, *NAMES])
def test_a_custom_loop_takes_the_same_steps_as_the_loader(focus: Any, dataset: Any) -> None:
    loader = ImportanceLoader(dataset, 8, score="history", focus=focus)
    sampler = ImportanceSampler(len(dataset), 8, score="history", focus=focus)
    for _ in range(3):
        for _ in loader:
            draw, losses = sampler.draw(), torch.rand(8)
            factors = sampler.factors(draw, losses)
            torch.testing.assert_close(
                loader.mean(losses), (draw.weights * factors * losses).mean()
            )
            sampler.update(draw, losses)
    assert focus is not None or bool((factors == 1).all())


# ------------------------------------------------------------------------------ state and errors


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("focus", NAMES)
def test_copies_go_on_where_the_loader_is(focus: str, how: Any, dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8, score="history", focus=focus)
    for _ in loader:
        loader.mean(torch.rand(8))
    other = how(loader)
    for _ in zip(loader, other, strict=True):
        losses = torch.rand(8)
        assert torch.equal(loader.mean(losses), other.mean(losses))


@pytest.mark.parametrize(
    ("saved", "here"),
    [
        (None, "ordered"),
        ("ordered", None),
        ("ordered", "closeness"),
        ("closeness", Closeness(floor=0.2)),
        ("ordered", Recorded()),
    ],
)
def test_the_state_of_another_focus_is_refused(saved: Any, here: Any) -> None:
    state = ImportanceLoader(make_dataset(40), 8, focus=saved).state_dict()
    other = ImportanceLoader(make_dataset(40), 8, focus=here)
    with pytest.raises(StateError, match="state was saved with focus"):
        other.load_state_dict(state)


def test_a_damaged_state_changes_nothing(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8, focus="closeness")
    for _ in loader:
        loader.mean(torch.rand(8))
    before = loader.state_dict()
    damaged = copy.deepcopy(before)
    damaged["focus"]["mean"] = torch.zeros(3)
    with pytest.raises(StateError, match="damaged"):
        loader.load_state_dict(damaged)
    assert frozen(loader.state_dict()) == frozen(before)


def test_a_state_of_before_there_was_a_focus_is_loaded(dataset: TensorDataset) -> None:
    loader = ImportanceLoader(dataset, 8)
    state = loader.state_dict()
    del state["settings"]["focus"]
    loader.load_state_dict(state)


@pytest.mark.parametrize("focus", ["hard", 3, Ordered, object()])
def test_what_is_no_focus_is_refused(focus: Any, dataset: TensorDataset) -> None:
    with pytest.raises(ArgumentError, match="focus must be None, one of ordered, closeness, or an"):
        ImportanceLoader(dataset, 8, focus=focus)


@pytest.mark.parametrize("wrong", [1.0, torch.ones(3)])
def test_factors_that_are_not_one_per_loss_are_refused(wrong: Any, dataset: TensorDataset) -> None:
    focus: Any = Recorded()
    focus.factors = lambda *_: wrong
    loader = ImportanceLoader(dataset, 8, focus=focus)
    next(iter(loader))
    with pytest.raises(ArgumentError, match=r"one factor per loss, a tensor of shape \[8\]; got"):
        loader.mean(torch.ones(8))


def test_one_closeness_does_not_serve_two_datasets() -> None:
    focus = Closeness()
    ImportanceLoader(make_dataset(40), 8, focus=focus)
    with pytest.raises(ArgumentError, match="in use for 40 examples and cannot be used for 20"):
        ImportanceLoader(make_dataset(20), 8, focus=focus)


def test_a_dataset_that_grows(dataset: TensorDataset) -> None:
    x, y = dataset.tensors
    grown = TensorDataset(x[:24], y[:24])
    loader = ImportanceLoader(grown, 8, score="uniform", focus="closeness")
    for _ in loader:
        loader.mean(torch.rand(8))
    before = loader.state_dict()["focus"]["mean"]
    grown.tensors = dataset.tensors
    loader.extend()
    after = loader.state_dict()["focus"]["mean"]
    assert torch.equal(after[:24], before)
    assert after[24:].isnan().all()
    for _ in loader:
        loader.mean(torch.rand(8))
    assert not loader.state_dict()["focus"]["mean"].isnan().any()
