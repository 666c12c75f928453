"""Measurements at evaluations: functions of a run that do not change it and return plain values.

They can be pickled, so that a plan with one can be sent to a process.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from salience import ImportanceLoader, functional
from salience.compare.run import MEASURED, Run
from salience.compare.task import Task
from salience.errors import ArgumentError
from salience.scores import NEED_MODEL, GradientNorm, Loss, Score
from salience.scores.model import scoring
from salience.smoothing import make_smoothing

__all__ = [
    *("GradientVariance", "TrackingAndTest", "loss_and_norm", "pooled_variance", "step_variance"),
    "variance_ratios",
]

CHUNK = 128  # examples that are measured at a time


@dataclass(frozen=True)
class TrackingAndTest:
    """How well the score followed the loss of the last steps: the coefficient a.

    At the steps ``at`` also the error (or perplexity) over the whole test set.
    """

    at: tuple[int, ...]

    def __call__(self, run: Run) -> dict[str, Any]:
        assert isinstance(run.loader, ImportanceLoader)  # all methods of the paper are
        found = {"tracking": run.loader.metrics()["tracking"]}
        return {**found, **run.test(run.task.test)} if run.step in self.at else found


def loss_and_norm(run: Run) -> dict[str, Any]:
    """Loss and exact gradient norm of one mini-batch, drawn at random for each step.

    Norms are divided by their mean in the mini-batch, because their size changes with the weights.
    """
    task = run.task
    generator = torch.Generator().manual_seed(MEASURED + run.seed * 1_000_003 + run.step)
    indices = _some_of(task, task.batch_size, generator)
    batch = _read(task, indices)
    losses = Loss(run.model, task.batch_losses).score(indices, batch)
    norms = GradientNorm(run.model, task.batch_losses).score(indices, batch)
    scaled = norms / norms.mean() if norms.any() else norms
    return {"losses": losses.tolist(), "norms": scaled.tolist()}


# ---------------------------------------------------------------------- variance of the gradient


@dataclass(frozen=True)
class GradientVariance:
    """The variance of the method's step on the same ``size`` examples, at the steps ``at``.

    Ratios are over uniform sampling with the same weights of the model. ``variance_ratio``: draws
    from all the examples. ``pooled_ratio``: draws from pools that are drawn uniformly first, as
    in training (for k = 1, where it has a closed form).
    """

    at: tuple[int, ...]
    size: int = 1024

    def __call__(self, run: Run) -> dict[str, Any]:
        if run.step not in self.at:
            return {}
        indices = _some_of(run.task, self.size, torch.Generator().manual_seed(MEASURED))
        norms = _in_parts(run.task, GradientNorm(run.model, run.task.batch_losses), indices)
        return _variances(run, indices, norms**2, _importance(run, indices))


def _variances(run: Run, indices: Tensor, squares: Tensor, q: Tensor) -> dict[str, Any]:
    k, batch = run.method.k, run.task.batch_size
    pool = round(run.method.options.get("presample", 0) * batch)  # 0: the whole dataset
    p, even = functional.probabilities(q), functional.probabilities(torch.ones_like(q))
    mean = _mean_square(run, indices, even)
    uniform = step_variance(squares, even, 1.0, mean, batch)
    expected = mean if k == 1 else _mean_square(run, indices, p * functional.weights(p, k))
    own = step_variance(squares, p, k, expected, batch)
    found = {"variance": own, "uniform_variance": uniform, "variance_ratio": _over(own, uniform)}
    if k == 1 and pool:
        found["pooled_ratio"] = _over(pooled_variance(squares, q, mean, batch, pool), uniform)
    return found


def variance_ratios(run: Run, name: str, pool: int, size: int = 1024) -> tuple[float, float]:
    """What the score of this name would do to the variance of a step, over uniform sampling's.

    With k = 1, a constant of half the mean score, and the weights that ``run`` has now: for draws
    from all the examples, and from pools of so many that are drawn uniformly first.
    """
    indices = _some_of(run.task, size, torch.Generator().manual_seed(MEASURED))
    norms, scores = (
        _in_parts(run.task, NEED_MODEL[each](run.model, run.task.batch_losses), indices)
        for each in ("gnorm", name)
    )
    squares, even = norms**2, functional.probabilities(torch.ones_like(norms))
    q = functional.smooth(scores, float(scores.mean()) / 2)
    mean, batch = _mean_square(run, indices, even), run.task.batch_size
    uniform = step_variance(squares, even, 1.0, mean, batch)
    whole = step_variance(squares, functional.probabilities(q), 1.0, mean, batch)
    return _over(whole, uniform), _over(pooled_variance(squares, q, mean, batch, pool), uniform)


def step_variance(squares: Tensor, p: Tensor, k: float, mean_square: float, batch: int) -> float:
    """(1/B) (sum_i p_i alpha_i^2 |g_i|^2 - |sum_i p_i alpha_i g_i|^2): B independent draws.

    With |g_i|^2, p_i, k, B = ``squares``, ``p``, ``k``, ``batch``; ``mean_square`` is the second
    term, the squared norm of the expected step.
    """
    alpha = functional.weights(p, k)
    return (float((p * alpha**2 * squares.double()).sum()) - mean_square) / batch


def pooled_variance(squares: Tensor, q: Tensor, mean_square: float, batch: int, pool: int) -> float:
    """The variance of a step for k = 1 when M = ``pool`` candidates are drawn uniformly first.

    A pool's mean gradient varies by V/M, with V the variance of one example. Within a pool,
    B = ``batch`` draws in proportion to q add (1/B) (E[mean(q) mean(|g|^2 / q)] - E|mean(g)|^2),
    means over the pool. Its candidates are independent, so the first expectation is
    (1 - 1/M) mean(q) mean(|g|^2 / q) + mean(|g|^2) / M, and the second |g|^2 + V/M, means over all.
    """
    squares, q = squares.double(), q.double()
    spread = float(squares.mean()) - mean_square
    across = float(q.mean() * (squares / q).mean())
    within = (1 - 1 / pool) * across + float(squares.mean()) / pool
    return spread / pool + (within - mean_square - spread / pool) / batch


def _in_parts(task: Task, score: Score, indices: Tensor) -> Tensor:
    """Scores float64, a chunk of examples at a time."""
    parts = [score.score(part, _read(task, part)) for part in torch.split(indices, CHUNK)]
    return torch.cat(parts).double()


def _mean_square(run: Run, indices: Tensor, shares: Tensor) -> float:
    """|sum_i share_i g_i|^2 by backward passes over weighted losses; ``grad`` stays None."""
    parameters = [p for p in run.model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
    with scoring(run.model, "eval"), torch.enable_grad():
        for part, share in zip(*(torch.split(t, CHUNK) for t in (indices, shares)), strict=True):
            losses = run.task.batch_losses(run.model, _read(run.task, part)).double()
            found = torch.autograd.grad((losses * share).sum(), parameters, allow_unused=True)
            total = [t if g is None else t + g for t, g in zip(total, found, strict=True)]
    return float(sum((t * t).sum() for t in total))


def _importance(run: Run, indices: Tensor) -> Tensor:
    """q_i = s_i + c of the run's score and smoothing; ones for uniform sampling."""
    options = run.method.options
    if options.get("score") == "uniform":
        return torch.ones(len(indices), dtype=torch.float64)
    if options.get("score") not in NEED_MODEL:
        raise ArgumentError(
            f"the variance of a step is measured for uniform, {', '.join(NEED_MODEL)}; "
            f"got method {run.method.name!r}"
        )
    score = NEED_MODEL[options["score"]](run.model, run.task.batch_losses)
    scores = _in_parts(run.task, score, indices)
    smoothing = make_smoothing(options.get("smoothing", "adaptive"))
    smoothing.load_state_dict(run.loader.state_dict()["smoothing"])
    return functional.smooth(scores, smoothing.constant(float(scores.mean())))


def _over(a: float, b: float) -> float:
    return a / b if b > 0 else math.nan


def _some_of(task: Task, count: int, generator: torch.Generator) -> Tensor:
    """Distinct positions in the training set."""
    n = len(task.train)  # type: ignore[arg-type]
    return torch.randperm(n, generator=generator)[: min(count, n)]


def _read(task: Task, indices: Tensor) -> Any:
    """The examples as one batch."""
    chosen = Subset(task.train, indices.tolist())
    return next(iter(DataLoader(chosen, len(chosen), collate_fn=task.collate)))
