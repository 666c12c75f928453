"""From the scores of some candidates to probabilities: unknown ones filled in, all smoothed."""

import numpy as np
import torch
from torch import Tensor

from salience import functional
from salience.scores import Score
from salience.scores.checks import check_scores
from salience.smoothing import Smoothing

__all__ = ["CHUNK", "distribution", "known_scores", "mean_of_known"]

CHUNK = 65536  # examples scored at a time


def known_scores(score: Score, indices: Tensor) -> tuple[Tensor, Tensor]:
    """float64 scores of ``indices``, 0 where nothing is known yet, and where that is."""
    if len(indices) > CHUNK:  # a model's passes would take as much memory as there are examples
        parts = [known_scores(score, part) for part in torch.split(indices, CHUNK)]
        return torch.cat([s for s, _ in parts]), torch.cat([u for _, u in parts])
    scores = check_scores(score.score(indices, None), len(indices), unknown=True)
    # On the host numpy does a handful of numbers in a fraction of the time.
    values = scores.numpy().astype(np.float64)
    unknown = values != values
    if unknown.any():
        values[unknown] = 0.0
    return torch.from_numpy(values), torch.from_numpy(unknown)


def distribution(scores: Tensor, smoothing: Smoothing, most: float | None = None) -> Tensor:
    """p of candidates with these ``scores``; no p_i is larger than ``most``."""
    exact = functional.smooth(scores, 0.0)  # the mean of a few losses of 1e38 is no float32
    q = functional.smooth(exact, smoothing.constant(exact.mean()))
    return functional.probabilities(q if most is None else functional.cap(q, most))


def mean_of_known(scores: Tensor, unknown: Tensor) -> float:
    """The mean of the known scores; 1 when there are none."""
    known = len(scores) - int(np.count_nonzero(unknown.numpy()))
    return float(scores.sum()) / known if known else 1.0
