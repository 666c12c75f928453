"""The facts that the contract pins, exactly, for every score of the public list."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from conftest import cross_entropy
from enumerate_draws import outcomes
from salience import ImportanceSampler, functional
from salience.distribution import Drawn, Switched
from salience.functional import Scheme
from salience.scores import NAMES, UpperBound

SCHEMES: tuple[Scheme, ...] = ("systematic", "multinomial")
BATCH = 5
# What a score needs beside the dataset's size. A new name without an entry fails here.
NEEDS: dict[str, tuple[str, ...]] = {
    "auto": (),
    "uniform": (),
    "history": (),
    "approx": ("labels",),
    "loss": ("model", "loss"),
    "upper_bound": ("model", "loss"),
    "gnorm": ("model", "loss"),
}


def test_every_public_score_has_its_settings_here() -> None:
    assert set(NEEDS) == set(NAMES)


def make_sampler(
    name: str, dataset: TensorDataset, model: nn.Module, **options: Any
) -> ImportanceSampler:
    given = {"labels": dataset.tensors[1], "model": model, "loss": cross_entropy}
    needed = {key: given[key] for key in NEEDS[name]}
    sampler = ImportanceSampler(len(dataset), BATCH, score=name, **needed, **options)
    warm_up(sampler, dataset)
    if isinstance(sampler.source, Switched):  # it would go on by itself after a pass
        sampler._switch.active = True
        sampler.source.switch(True)
    return sampler


def warm_up(sampler: ImportanceSampler, dataset: TensorDataset) -> None:
    """Let by-index scores see two thirds of the examples, some of them several times."""
    losses = torch.rand(len(dataset), generator=torch.Generator().manual_seed(5)) * 3
    for start in (0, 7, 14, 3):
        at = torch.arange(start, start + 13)
        sampler.update(at, losses[at] / (1 + start))


def gradients(model: nn.Module, dataset: TensorDataset) -> Tensor:
    """[N, parameters], one example at a time."""
    model.eval()
    rows = []
    for x, y in dataset:
        model.zero_grad()
        cross_entropy(model, (x[None], y[None])).sum().backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]).double())
    model.zero_grad()
    return torch.stack(rows)


def probabilities(sampler: ImportanceSampler, pool: Tensor, batch: Any) -> Tensor:
    """p over the pool by the equations, from the score itself."""
    scores = sampler.score.score(pool, batch).double()
    known = scores[~scores.isnan()]
    seen = getattr(sampler.source, "_optimism", 0.0)
    stands = max(seen, float(known.max()) if len(known) else 0.0)
    if isinstance(sampler.source, Switched):
        stands = sampler._mean_loss.value
    scores = scores.nan_to_num(nan=stands)
    q = scores + float(sampler._smoothing.constant(scores.mean()))
    return q / q.sum() if q.sum() > 0 else torch.full_like(q, 1 / len(q))


def expected_step(p: Tensor, scheme: Scheme, draw: Any, values: Tensor) -> Tensor:
    """The exact mean over all outcomes of (1/B) sum_i alpha_i values_i."""
    total = torch.zeros_like(values[0])
    for chance, points in outcomes(p, BATCH, scheme):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(functional, "points", lambda *_, points=points, **__: points)
            record = draw()
        total += chance * (record.weights.double() @ values[record.indices]) / len(record.weights)
    return total


def expected_turns(sampler: ImportanceSampler, p: Tensor, values: Tensor) -> Tensor:
    """The same over a part of n turns, for fractions owed that are uniform in [0, 1).

    The sum is linear in how often each example comes, so it is enough to average over one fraction
    for all of them; it matters only where it carries some n p_i over a whole number.
    """
    turns, n = sampler.source._turns, 7
    total = torch.zeros_like(values[0])
    breaks = torch.cat([torch.tensor([0.0, 1.0]).double(), 1 - (n * p) % 1]).sort().values
    for low, high in pairwise(breaks):
        turns._owed = torch.full_like(p, (low + high) / 2)
        indices, drawn_with, scores = turns._part(n)
        record = sampler._weigh(Drawn(indices, drawn_with, len(p), scores))
        total += (high - low) * (record.weights.double() @ values[record.indices]) / n
    return total


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("smoothing", ["adaptive", 0.0, 0.7])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "uniform"])
@pytest.mark.parametrize("presample", [None, 3])
def test_with_k_1_the_expected_step_is_the_mean_gradient(
    name: str,
    smoothing: Any,
    scheme: Scheme,
    presample: int | None,
    dataset: TensorDataset,
    model: nn.Module,
) -> None:
    sampler = make_sampler(
        name, dataset, model, k=1, smoothing=smoothing, draw=scheme, presample=presample
    )
    values = gradients(model, dataset)
    if presample is None and sampler.score.by_index:
        pool = torch.arange(len(dataset))
        p = probabilities(sampler, pool, None)

        def draw() -> Any:
            return sampler.next_record()
    else:
        pool = torch.arange(4, 4 + 3 * BATCH)
        batch = dataset[pool]
        if sampler.score.by_index:
            take = sampler.source.passes

            def draw() -> Any:
                take._order, take._at = pool, 0
                return sampler.next_record()
        else:

            def draw() -> Any:
                return sampler.choose(pool, batch)[1]

        p = probabilities(sampler, pool, batch)
    if smoothing == 0.0 and bool((p == 0).any()):
        # What cannot be drawn cannot be in the mean: the fact is about p > 0.
        values = values.clone()
        values[pool[p == 0]] = 0
    expected = values[pool].mean(0)
    if isinstance(sampler.source, Switched) and scheme == "systematic":
        actual = expected_turns(sampler, p, values)
    else:
        actual = expected_step(p, scheme, draw, values)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7)


def test_a_uniform_pass_is_the_mean_gradient(dataset: TensorDataset, model: nn.Module) -> None:
    sampler = make_sampler("uniform", dataset, model, k=1)
    values = gradients(model, dataset)
    records = [sampler.next_record() for _ in range(len(dataset) // BATCH)]
    assert sorted(torch.cat([r.indices for r in records]).tolist()) == list(range(len(dataset)))
    step = torch.stack([r.weights.double() @ values[r.indices] / BATCH for r in records]).mean(0)
    torch.testing.assert_close(step, values.mean(0))


@pytest.mark.parametrize("k", [0.75, 0.5, 0.0, -1.0])
def test_drawing_by_loss_follows_the_gradient_of_the_powered_loss(
    k: float, dataset: TensorDataset, model: nn.Module
) -> None:
    model = model.double().eval()
    x, y = dataset.tensors
    values = gradients(model, TensorDataset(x.double(), y))
    losses = cross_entropy(model, (x.double(), y))
    powered = torch.autograd.grad((losses ** (2 - k)).mean(), list(model.parameters()))
    target = torch.cat([g.flatten() for g in powered])
    p = functional.probabilities(losses.detach())
    step = (p * functional.weights(p, k)) @ values
    # sum_i p_i alpha_i g_i = (M / sum L)^(1-k) / (2-k) x gradient of mean(L^(2-k))
    factor = (len(x) / float(losses.detach().sum())) ** (1 - k) / (2 - k)
    torch.testing.assert_close(step, factor * target, rtol=1e-9, atol=1e-12)


@given(st.integers(0, 10_000))
def test_no_distribution_has_less_variance_than_the_gradient_norm(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(12, 4, generator=generator).double()
    values *= torch.rand(12, 1, generator=generator).double() * 5

    def variance(p: Tensor) -> float:
        alpha = functional.weights(p, 1)
        step = alpha[:, None] * values
        return float((p[:, None] * (step - values.mean(0)) ** 2).sum())

    best = variance(functional.probabilities(values.norm(dim=1)))
    assert best <= variance(torch.full((12,), 1 / 12).double()) + 1e-12
    for _ in range(5):
        other = functional.probabilities(torch.rand(12, generator=generator) + 1e-3)
        assert best <= variance(other) + 1e-12


class _Given(nn.Module):
    """A model whose output is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_lemma_2_negative_log_likelihood() -> None:
    def likelihood(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        psi, y = batch
        return -model(psi).gather(1, y[:, None]).log().squeeze(1)

    psi = torch.randn(200, 7).double().softmax(1)
    batch = (psi, torch.randint(0, 7, (200,)))
    norms = UpperBound(_Given(), likelihood).score(torch.arange(200), batch)
    losses = likelihood(_Given(), batch)
    assert losses.argsort().tolist() == norms.argsort().tolist()
    torch.testing.assert_close(norms, losses.exp())


def test_lemma_2_squared_error() -> None:
    def squared(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) - batch[1]).square().sum(1)

    batch = (torch.randn(200, 7).double(), torch.randn(200, 7).double())
    norms = UpperBound(_Given(), squared).score(torch.arange(200), batch)
    losses = squared(_Given(), batch)
    assert losses.argsort().tolist() == norms.argsort().tolist()
    torch.testing.assert_close(norms**2, 4 * losses)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("k", [1.0, 0.5])
def test_merging_duplicates_keeps_the_expected_step(scheme: Scheme, k: float) -> None:
    scores = torch.tensor([0.1, 0.1, 4.0, 0.5, 0.1, 2.0]).double()
    values = torch.randn(6, 3).double()
    p = functional.probabilities(functional.smooth(scores, 0.2))
    alpha = functional.weights(p, k)
    merged_step = torch.zeros(3).double()
    merged = 0
    for chance, points in outcomes(p, BATCH, scheme):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(functional, "points", lambda *_, points=points, **__: points)
            found = functional.draw(p, BATCH, generator=torch.Generator(), scheme=scheme)
        distinct, weights = functional.merge_duplicates(found, alpha[found])
        merged += len(found) - len(distinct)
        merged_step += chance * (weights @ values[distinct]) / BATCH
    assert merged > 0
    torch.testing.assert_close(merged_step, (p * alpha) @ values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("k", [1.0, 0.5])
@pytest.mark.parametrize("name", ["history", "loss"])
def test_repeated_draws_from_a_pool_are_one_row_with_their_weights_added(
    name: str, k: float, dataset: TensorDataset, model: nn.Module
) -> None:
    options = {"k": k, "smoothing": 0.3, "presample": 2, "draw": "multinomial"}
    sampler = make_sampler(name, dataset, model, **options)
    pool = torch.arange(4, 14)
    # Of the ten candidates: the third twice, the eighth three times.
    p = probabilities(sampler, pool, dataset[pool])
    middles = p.cumsum(0) - p / 2
    points = middles[[7, 2, 7, 7, 2]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "points", lambda *_, **__: points)
        if name == "history":
            sampler.source.passes.take = lambda _: pool
            record = sampler.next_record()
        else:
            positions, record = sampler.choose(pool, dataset[pool])
            assert positions.tolist() == [2, 7]
    assert record.indices.tolist() == [6, 11]
    assert record.counts.tolist() == [2.0, 3.0]
    alpha = (1 / (10 * p[[2, 7]])) ** k
    losses = torch.tensor([0.7, 1.9]).double()
    by_draw = (2 * alpha[0] * losses[0] + 3 * alpha[1] * losses[1]) / BATCH
    torch.testing.assert_close((record.weights * losses).mean(), by_draw, rtol=1e-6, atol=0)
    sampler.learn(record, losses.float())
    four_before = 4 * 1.0  # from the warm-up, all distinct
    fraction = (four_before + 2 / 5) / 5
    assert sampler._window.summary()["unique_fraction"] == pytest.approx(fraction)


def test_weights_are_those_of_the_draw_not_of_later_scores(dataset: TensorDataset) -> None:
    sampler = ImportanceSampler(len(dataset), BATCH, score="history", smoothing=0.5, k=1)
    first = sampler.draw()
    for _ in range(3):
        other = sampler.draw()
        sampler.update(other.indices, torch.full((BATCH,), 9.0))
    assert first.weights.tolist() == [1.0] * BATCH
    assert math.isclose(float(sampler._mean_loss.value), 9.0, rel_tol=0.7)


# ---------------------------------------------------- one draw from the whole dataset, many batches


def dealt(n: int, batch: int, **options: Any) -> ImportanceSampler:
    """A sampler that knows a loss of each example."""
    sampler = ImportanceSampler(n, batch, score="history", **options)
    losses = torch.rand(n, generator=torch.Generator().manual_seed(1)) ** 3
    sampler.update(torch.arange(n), losses)
    return sampler


def test_batches_dealt_from_one_draw_keep_the_expected_step() -> None:
    n, batch, batches = 96, 4, 3
    sampler = dealt(n, batch, k=1)
    values = torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    p = probabilities(sampler, torch.arange(n), None)
    total = torch.zeros(2, dtype=torch.float64)
    for chance, points in outcomes(p, batch * batches, "systematic"):
        sampler.source._hand = ()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(functional, "points", lambda *_, points=points, **__: points)
            records = [sampler.next_record() for _ in range(batches)]
        assert not len(sampler.source._hand[0])
        for record in records:
            total += chance / batches * (record.weights.double() @ values[record.indices]) / batch
    torch.testing.assert_close(total, values.mean(0), rtol=1e-6, atol=1e-9)


def test_over_the_batches_of_one_draw_an_example_comes_as_often_as_it_should() -> None:
    n, batch, batches = 480, 6, 10
    sampler = dealt(n, batch)
    p = probabilities(sampler, torch.arange(n), None)
    counts = torch.cat([sampler.draw().indices for _ in range(batches)]).bincount(minlength=n)
    expected = batch * batches * p
    assert ((counts - expected).abs() < 1 + 1e-9).all()


def test_examples_meet_others_than_those_at_an_even_distance() -> None:
    sampler = ImportanceSampler(800, 10, score="history", smoothing=1.0)
    sampler.update(torch.arange(800), torch.zeros(800))
    others = [indices - indices[0] for indices, _ in (sampler.draw() for _ in range(20))]
    assert len(torch.cat(others).remainder(80).unique()) == 10  # a draw for each batch: one


def test_multinomial_draws_follow_the_newest_scores() -> None:
    sampler = dealt(800, 10, draw="multinomial", smoothing=0.0)
    sampler.draw()
    losses = torch.zeros(800)
    losses[7] = 1.0
    sampler.update(torch.arange(800), losses)
    assert sampler.draw().indices.tolist() == [7] * 10
