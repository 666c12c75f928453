"""The facts that the contract pins, exactly, for every score of the public list."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from enumerate_draws import expected_step, expected_visits_step, outcomes, with_points
from parts import cross_entropy, needs
from salience import ImportanceSampler, functional
from salience.draw import Draw
from salience.functional import Scheme
from salience.presets import NAMES
from salience.scores import UpperBound
from salience.sources import AutoSource, EvenIntervals
from salience.sources.auto import Found

SCHEMES: tuple[Scheme, ...] = ("systematic", "multinomial")
BATCH = 5


def make_sampler(
    name: str, dataset: TensorDataset, model: nn.Module, **options: Any
) -> ImportanceSampler:
    options |= needs(name, model)
    sampler = ImportanceSampler(
        len(dataset), BATCH, score=name, labels=dataset.tensors[1], **options
    )
    warm_up(sampler, dataset)
    if isinstance(sampler.source, AutoSource):  # it would turn on by itself after a pass
        sampler.source._turn("focused", 0, Found(9.0))
        sampler._number = 1  # it looks again at the first draw, and then only now and then
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
    source = sampler.source._on if isinstance(sampler.source, AutoSource) else sampler.source
    if isinstance(source, EvenIntervals):
        unknown = float(known.mean())
    else:
        unknown = max(source._initial, float(known.max()) if len(known) else 0.0)
    scores = scores.nan_to_num(nan=unknown)
    q = scores + float(sampler._smoothing.constant(scores.mean()))
    if isinstance(source, EvenIntervals):
        q = functional.cap(q, 1 / BATCH)
    return q / q.sum() if q.sum() > 0 else torch.full_like(q, 1 / len(q))


def pool_of(sampler: ImportanceSampler, pool: Tensor) -> None:
    """The next pool of candidates is this one."""
    source = sampler.source._on if isinstance(sampler.source, AutoSource) else sampler.source
    source.candidates = lambda: pool


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
    whole = presample is None and sampler.score.by_index
    pool = torch.arange(len(dataset)) if whole else torch.arange(4, 4 + 3 * BATCH)
    check_mean_step(sampler, pool, dataset, model, scheme)


def check_mean_step(
    sampler: ImportanceSampler,
    pool: Tensor,
    dataset: TensorDataset,
    model: nn.Module,
    scheme: Scheme,
) -> None:
    """The expected step, over all outcomes of a draw, is the mean gradient of the ``pool``."""
    values, batch = gradients(model, dataset), dataset[pool]
    whole = len(pool) == len(dataset)
    p = probabilities(sampler, pool, batch)
    if bool((p == 0).any()):
        # What cannot be drawn cannot be in the mean: the fact is about p > 0.
        values[pool[p == 0]] = 0
    if not whole and sampler.score.by_index:
        pool_of(sampler, pool)

    def draw() -> Draw:
        if hasattr(sampler.source, "_queue"):
            sampler.source._queue.clear()
        return sampler.next_draw()

    def choose() -> Draw:
        return sampler.choose(pool, batch)[1]

    name = sampler.score_name
    if whole and name == "auto" and scheme == "systematic":
        actual = expected_visits_step(sampler.source._on, p, BATCH, values)
    else:
        if whole and name == "auto":
            sampler.source = sampler.source._on
        draws = draw if sampler.score.by_index else choose
        actual = expected_step(p, BATCH, scheme, draws, values)
    torch.testing.assert_close(actual, values[pool].mean(0), rtol=1e-5, atol=1e-7)


def test_a_uniform_pass_is_the_mean_gradient(dataset: TensorDataset, model: nn.Module) -> None:
    sampler = make_sampler("uniform", dataset, model, k=1)
    values = gradients(model, dataset)
    draws = [sampler.draw() for _ in range(len(dataset) // BATCH)]
    assert sorted(torch.cat([d.indices for d in draws]).tolist()) == list(range(len(dataset)))
    step = torch.stack([d.weights.double() @ values[d.indices] / BATCH for d in draws]).mean(0)
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
        found = with_points(
            points,
            lambda: functional.draw(p, BATCH, generator=torch.Generator(), scheme=scheme),
        )
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
    if name == "history":
        pool_of(sampler, pool)
        draw = with_points(points, sampler.next_draw)
    else:
        positions, draw = with_points(points, lambda: sampler.choose(pool, dataset[pool]))
        assert positions.tolist() == [2, 7]
    assert draw.indices.tolist() == [6, 11]
    assert draw.counts.tolist() == [2.0, 3.0]
    alpha = (1 / (10 * p[[2, 7]])) ** k
    losses = torch.tensor([0.7, 1.9]).double()
    by_draw = (2 * alpha[0] * losses[0] + 3 * alpha[1] * losses[1]) / BATCH
    torch.testing.assert_close((draw.weights * losses).mean(), by_draw, rtol=1e-6, atol=0)
    unbiased = (2 * losses[0] / p[2] + 3 * losses[1] / p[7]) / 10 / BATCH
    assert draw.unbiased_mean(losses) == pytest.approx(float(unbiased))
    sampler.learn(draw, losses.float())
    four_before = 4 * 1.0  # from the warm-up, all distinct
    fraction = (four_before + 2 / 5) / 5
    assert sampler.metrics()["unique_fraction"] == pytest.approx(fraction)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_mean_loss_of_a_draw_is_unbiased(scheme: Scheme, dataset: TensorDataset) -> None:
    """Also of draws that were merged, where the plain average over rows would not be."""
    sampler = make_sampler(
        "history", dataset, nn.Linear(6, 3), draw=scheme, presample=3, smoothing=0.1
    )
    pool = torch.arange(4, 4 + 3 * BATCH)
    p = probabilities(sampler, pool, None)
    values = torch.rand(len(dataset)).double()
    total = 0.0
    for chance, points in outcomes(p, BATCH, scheme):
        pool_of(sampler, pool)
        draw = with_points(points, sampler.next_draw)
        total += chance * draw.unbiased_mean(values[draw.indices])
    assert total == pytest.approx(float(values[pool].mean()))


def test_weights_are_those_of_the_draw_not_of_later_scores(dataset: TensorDataset) -> None:
    sampler = ImportanceSampler(len(dataset), BATCH, score="history", smoothing=0.5, k=1)
    first = sampler.draw()
    for _ in range(3):
        sampler.update(sampler.draw(), torch.full((BATCH,), 9.0))
    assert first.weights.tolist() == [1.0] * BATCH
    sampler.update(first.indices, torch.full((BATCH,), 9.0))
    assert sampler.metrics()["mean_loss"] > 4  # as a uniform draw, which it was
