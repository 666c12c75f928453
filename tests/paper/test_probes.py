"""Measurements during training: each against a slow, obvious oracle, and without side effects."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from salience.compare.methods import make_method
from salience.compare.run import MEASURED, Run
from salience.compare.task import Task, cross_entropy, wrong
from salience.errors import ArgumentError
from salience.paper import probes

FEATURES, CLASSES, N, BATCH = 4, 3, 12, 3


def tiny_model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, CLASSES))


def tiny_task() -> Task:
    generator = torch.Generator().manual_seed(3)
    x = 2 * torch.randn(N, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (N,), generator=generator)
    return Task(
        name="tiny",
        train=TensorDataset(x, y),
        test=TensorDataset(x[:7], y[:7]),
        model=tiny_model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.3),
        loss=cross_entropy,
        wrong=wrong,
        batch_size=BATCH,
    )


def tiny_run(spec: str, steps: int = 6) -> Run:
    made = Run(tiny_task(), make_method(spec), 0, steps=100)
    made.advance(steps)
    return made


def gradients(made: Run, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The slow and obvious way: a backward pass for each example. Losses [n], gradients [n, P]."""
    made.model.eval()
    x, y = made.task.train.tensors  # type: ignore[attr-defined]
    losses, found = [], []
    for i in indices.tolist():
        loss = made.task.loss(made.model(x[i : i + 1]), y[i : i + 1]).sum()
        parts = torch.autograd.grad(loss, list(made.model.parameters()))
        losses.append(loss.detach().double())
        found.append(torch.cat([part.flatten() for part in parts]).double())
    return torch.stack(losses), torch.stack(found)


def enumerated(p: Tensor, alpha: Tensor, g: Tensor, batch: int) -> float:
    """Trace of the covariance of the mean of ``batch`` draws: every single draw written out."""
    mean = sum(p[i] * alpha[i] * g[i] for i in range(len(p)))
    spread = sum(p[i] * ((alpha[i] * g[i] - mean) ** 2).sum() for i in range(len(p)))
    return float(spread) / batch


@pytest.mark.parametrize(("k", "size"), [(1.0, N), (0.5, N), (0.0, 7)])
def test_variance_of_draws_by_loss(k: float, size: int) -> None:
    made = tiny_run(f"loss:k={k:g}:presample=2:draw=multinomial:smoothing=adaptive")
    found = probes.GradientVariance(at=(6,), size=size)(made)
    indices = torch.randperm(N, generator=torch.Generator().manual_seed(MEASURED))[:size]
    losses, g = gradients(made, indices)
    q = losses + 0.5 * made.loader.metrics()["mean_loss"]  # half the running mean training loss
    p = q / q.sum()
    alpha = (1 / (size * p)) ** k
    even = torch.full_like(p, 1 / size)
    uniform = enumerated(even, torch.ones_like(p), g, BATCH)
    assert found["variance"] == pytest.approx(enumerated(p, alpha, g, BATCH), rel=1e-4)
    assert found["uniform_variance"] == pytest.approx(uniform, rel=1e-4)
    assert found["variance_ratio"] == pytest.approx(found["variance"] / found["uniform_variance"])
    assert ("pooled_ratio" in found) == (k == 1)


def test_variance_of_draws_by_gradient_norm() -> None:
    made = tiny_run("gnorm:k=1:presample=2:draw=multinomial:smoothing=0.3")
    found = probes.GradientVariance(at=(6,))(made)
    indices = torch.randperm(N, generator=torch.Generator().manual_seed(MEASURED))
    _, g = gradients(made, indices)
    q = g.norm(dim=1) + 0.3
    p = q / q.sum()
    assert found["variance"] == pytest.approx(enumerated(p, 1 / (N * p), g, BATCH), rel=1e-4)
    assert found["variance_ratio"] < 1  # the least of all, but for the smoothing


@pytest.mark.parametrize("score", ["loss", "gnorm"])
def test_variance_that_another_score_would_have(score: str) -> None:
    made = tiny_run("uniform")
    weights = {name: value.clone() for name, value in made.model.state_dict().items()}
    whole, pooled = probes.variance_ratios(made, score, 2 * BATCH)
    losses, g = gradients(made, torch.arange(N))
    scores = losses if score == "loss" else g.norm(dim=1)
    q = scores + scores.mean() / 2
    p, even = q / q.sum(), torch.full_like(q, 1 / N)
    uniform = enumerated(even, torch.ones_like(p), g, BATCH)
    assert whole == pytest.approx(enumerated(p, 1 / (N * p), g, BATCH) / uniform, rel=1e-4)
    squares, mean = (g**2).sum(1), float((g.mean(0) ** 2).sum())
    expected = probes.pooled_variance(squares, q, mean, BATCH, 2 * BATCH)
    assert pooled == pytest.approx(expected / uniform, rel=1e-4)
    assert all(torch.equal(value, weights[name]) for name, value in made.model.state_dict().items())


def test_variance_of_uniform_draws_is_the_measure() -> None:
    assert probes.GradientVariance(at=(6,))(tiny_run("uniform"))["variance_ratio"] == 1.0
    assert probes.GradientVariance(at=(7,))(tiny_run("uniform")) == {}


def test_variance_of_a_score_without_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'history'"):
        probes.GradientVariance(at=(6,))(tiny_run("history"))


@pytest.mark.parametrize(("batch", "pool"), [(1, 2), (2, 3)])
def test_variance_with_the_pool_by_enumerating_pools_and_draws(batch: int, pool: int) -> None:
    g = torch.tensor([[1.0, 0.0], [0.5, -2.0], [3.0, 1.0]], dtype=torch.float64)
    q = torch.tensor([0.4, 1.0, 2.5], dtype=torch.float64)
    steps, chances = [], []
    for members in itertools.product(range(3), repeat=pool):
        p = q[list(members)] / q[list(members)].sum()
        for draws in itertools.product(range(pool), repeat=batch):
            chances.append(float(p[list(draws)].prod()) / 3**pool)
            steps.append(sum(g[members[d]] / (pool * p[d]) for d in draws) / batch)
    chance, step = torch.tensor(chances, dtype=torch.float64).unsqueeze(1), torch.stack(steps)
    assert float(chance.sum()) == pytest.approx(1)
    mean = (chance * step).sum(0)
    assert torch.allclose(mean, g.mean(0))  # unbiased
    exact = float((chance * (step - mean) ** 2).sum())
    squares, mean_square = (g * g).sum(1), float((g.mean(0) ** 2).sum())
    assert probes.pooled_variance(squares, q, mean_square, batch, pool) == pytest.approx(exact)


@pytest.mark.parametrize("spec", ["uniform", "loss:k=1:presample=2:draw=multinomial"])
def test_measuring_leaves_the_run_as_it_was(spec: str) -> None:
    every = (
        probes.GradientVariance(at=tuple(range(20))),
        probes.loss_and_norm,
        probes.TrackingAndTest(at=tuple(range(20))),
    )
    watched, alone = tiny_run(spec, 0), tiny_run(spec, 0)
    for _ in range(5):
        watched.advance(2)
        alone.advance(2)
        seen = {key for probe in every for key in probe(watched)}
        assert {"variance_ratio", "norms", "tracking", "test_error"} <= seen
    assert all(torch.equal(a, b) for a, b in zip(*map(weights, (watched, alone)), strict=True))
    assert all(p.grad is None for p in watched.model.parameters())


def weights(made: Run) -> list[Tensor]:
    return [p.detach() for p in made.model.parameters()]


def test_losses_and_norms_of_a_batch() -> None:
    made = tiny_run("uniform")
    found = probes.loss_and_norm(made)
    losses, g = gradients(made, torch.arange(N))
    norms = g.norm(dim=1)
    assert len(found["losses"]) == len(found["norms"]) == BATCH
    assert sum(found["norms"]) == pytest.approx(BATCH, rel=1e-5)
    at = [int((losses - value).abs().argmin()) for value in found["losses"]]
    assert len(set(at)) == BATCH
    assert torch.allclose(losses[at], torch.tensor(found["losses"]).double(), atol=1e-5)
    scaled = norms[at] / norms[at].mean()
    assert torch.allclose(scaled, torch.tensor(found["norms"]).double(), rtol=1e-4)
    made.advance(1)
    assert probes.loss_and_norm(made)["losses"] != found["losses"]


def test_the_whole_test_set_at_its_stages_only() -> None:
    made = tiny_run("uniform")
    row = made.evaluate()
    at_stage = probes.TrackingAndTest(at=(6,))
    assert at_stage(made)["test_error"] == pytest.approx(row["test_error"])
    assert at_stage(made)["tracking"] == made.loader.metrics()["tracking"]
    assert set(probes.TrackingAndTest(at=(5, 7))(made)) == {"tracking"}
    made.task = replace(made.task, wrong=None, metrics=["perplexity"])
    perplexity = at_stage(made)["test_perplexity"]
    assert perplexity == pytest.approx(math.exp(row["test_loss"]), rel=1e-5)
