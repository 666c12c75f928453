"""What the loader knows about the run, for TensorBoard, MLflow and Weights & Biases.

Call one of these at every step. It writes at every ``every``-th, on rank 0 only, and leaves out
what is not known yet::

    for step, (x, y) in enumerate(loader):
        ...
        log_tensorboard(writer, loader, step)
"""

import math
from typing import Any

import torch
from numpy.typing import NDArray

from salience.distributed import current_ranks
from salience.errors import ArgumentError
from salience.integrations._shared import extra
from salience.loader import ImportanceLoader

__all__ = ["log_mlflow", "log_tensorboard", "log_wandb"]

EVERY = 100  # steps
PREFIX = "importance"
SHOWN = 10_000  # scores in a histogram: as many examples, evenly spaced over the dataset


def log_tensorboard(
    writer: Any, loader: ImportanceLoader, step: int, *, every: int = EVERY, prefix: str = PREFIX
) -> None:
    """``metrics()`` as scalars, scores and weights as histograms; ``writer``: a SummaryWriter."""
    if _due(step, every):
        for name, value in _scalars(loader, prefix).items():
            writer.add_scalar(name, value, step)
        for name, values in _histograms(loader, prefix).items():
            writer.add_histogram(name, values, step)


def log_mlflow(
    loader: ImportanceLoader,
    step: int,
    *,
    every: int = EVERY,
    prefix: str = PREFIX,
    run_id: str | None = None,
) -> None:
    """``metrics()`` as metrics of the active run, or of ``run_id``. MLflow has no histograms."""
    if _due(step, every):
        with extra("mlflow", "trackers"):
            import mlflow

        mlflow.log_metrics(_scalars(loader, prefix), step=step, run_id=run_id)


def log_wandb(
    run: Any, loader: ImportanceLoader, step: int, *, every: int = EVERY, prefix: str = PREFIX
) -> None:
    """``metrics()`` as scalars, scores and weights as histograms, of a run of ``wandb.init()``.

    They are plotted over ``importance/step``. The run has one counter, which every ``run.log`` of
    the user's own advances, and wandb drops what is logged for an earlier step: then they join the
    row that the user writes next.
    """
    if _due(step, every):
        with extra("wandb", "trackers"):
            from wandb import Histogram

        histograms = _histograms(loader, prefix)
        run.define_metric(f"{prefix}/*", step_metric=f"{prefix}/step")
        run.log(
            {
                f"{prefix}/step": step,
                **_scalars(loader, prefix),
                **{name: Histogram(values) for name, values in histograms.items()},
            },
            step=max(step, run.step),
        )


def _due(step: int, every: int) -> bool:
    """Whether this process writes at this step."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ArgumentError(f"every must be a whole number >= 1; got {every!r}")
    return step % every == 0 and current_ranks().rank == 0


def _scalars(loader: ImportanceLoader, prefix: str) -> dict[str, float]:
    known = {name: value for name, value in loader.metrics().items() if math.isfinite(value)}
    return {f"{prefix}/{name}": value for name, value in known.items()}


def _histograms(loader: ImportanceLoader, prefix: str) -> dict[str, NDArray[Any]]:
    """Scores of the dataset, or of the last draws if they need the model; weights of those."""
    recent = loader.recent()
    scores = loader.scores(_spread(loader)) if loader._sampler.by_index else recent["scores"]
    known = {"scores": scores[scores.isfinite()], "weights": recent["weights"]}
    return {f"{prefix}/{name}": each.numpy() for name, each in known.items() if len(each)}


def _spread(loader: ImportanceLoader) -> torch.Tensor:
    n = len(loader.dataset)
    shown = min(n, SHOWN)
    return torch.arange(shown, device="cpu") * n // shown
