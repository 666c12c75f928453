r"""The equations of the paper, one pure function each.

For a pool of M candidates with scores :math:`s_i \ge 0`:

==========================  ==========================================================
``smooth``                  :math:`q_i = s_i + c`
``probabilities``           :math:`p_i = q_i / \sum_j q_j`
``draw``                    B positions from p
``even_visits``             position i at even intervals, n p_i times among n
``cap``                     min(q_i, T): no more than a given share each
``weights``                 :math:`\alpha_i = (1 / (M p_i))^k`
``shard_weights``           :math:`\alpha_i = (Q / (N q_i))^k W Q_r / Q`
``merge_duplicates``        one row per distinct position, weights added
``variance_reduction``      :math:`v = M \sum_i s_i^2 / (\sum_i s_i)^2`
``effective_sample_size``   :math:`(\sum_i \alpha_i)^2 / \sum_i \alpha_i^2`
``contrast``                :math:`r_i = L_i / (L_i + m_i)`
``two_groups``              where r falls into two groups, and how far apart they are
``tracking_coefficient``    :math:`a` of :math:`\min_{a,b} \sum_i (a \hat L_i + b - L_i)^2`
==========================  ==========================================================

And for a batch of B examples with losses :math:`L_i`, factors with mean 1 to multiply them by:

==========================  ==========================================================
``ordered_count``           :math:`q`: B, B/2, ..., B/16, as the accuracy grows
``ordered``                 :math:`f_i = B / q` for the q largest losses, 0 for the others
``closeness``               :math:`f_i \propto \bar p_i (1 - \bar p_i) + \epsilon`
==========================  ==========================================================

Nothing here waits for an accelerator: no function reads a value back to the host.
"""

import math
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from salience.errors import ArgumentError

__all__ = [
    "Groups",
    "Scheme",
    "cap",
    "closeness",
    "contrast",
    "draw",
    "effective_sample_size",
    "even_visits",
    "merge_duplicates",
    "ordered",
    "ordered_count",
    "points",
    "probabilities",
    "shard_weights",
    "smooth",
    "tracking_coefficient",
    "two_groups",
    "variance_reduction",
    "weights",
]

Scheme = Literal["systematic", "multinomial"]
# From this accuracy on, only one in so many losses of a batch is trained on (Ordered SGD).
STAGES = ((0.995, 16), (0.95, 8), (0.9, 4), (0.8, 2))
Array = TypeVar("Array", Tensor, NDArray[np.float64])


def _wide(x: Tensor) -> Tensor:
    """float64 where the device has it."""
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)


def smooth(scores: Tensor, c: float | Tensor) -> Tensor:
    """q_i = s_i + c in float64, with s, c = ``scores``, ``c``: closer to uniform as c grows."""
    if not isinstance(c, Tensor) and not (math.isfinite(c) and c >= 0):
        raise ArgumentError(f"smoothing must be a finite number >= 0; got {c}")
    return _wide(scores) + c


def probabilities(q: Tensor) -> Tensor:
    """p_i = q_i / sum_j q_j in float64; uniform where every q_i is zero."""
    q = _wide(q)
    total = q.sum()
    return torch.where(total > 0, q / total, 1.0 / len(q))


def weights(p: Array, k: float, pool: int | None = None) -> Array:
    """alpha_i = (1 / (M p_i))^k, with p_i, k, M = ``p``, ``k``, ``pool`` (by default ``len(p)``).

    The paper writes 1 / (N p_i^k). The two differ by the constant N^(k-1), which would silently
    shrink the learning rate of every optimizer that is not scale-free; ours is 1 for every k
    when p is uniform. Both agree at k = 1, where the weighted step is unbiased. Tensors give
    tensors and arrays give arrays: on the host, numpy is several times faster at this size.
    """
    if not (math.isfinite(k) and k <= 1):
        raise ArgumentError(f"k must be a finite number <= 1 (1 is unbiased); got {k}")
    inverse = 1 / ((len(p) if pool is None else pool) * p)
    return inverse if k == 1 else inverse**k


def shard_weights(q: Array, k: float, *, n: int, total: float, own: float, world: int) -> Array:
    """alpha_i = (Q / (N q_i))^k W Q_r / Q, for draws of rank r from its own examples by q_i / Q_r.

    q_i, N, Q, Q_r, W = ``q``, ``n``, ``total``, ``own``, ``world``: Q is the sum over all N
    examples, Q_r over those of this rank. The mean over W ranks of their steps is expected to be
    the step of one process that draws by q_i / Q from all, for every k.
    """
    return weights(q / total, k, n) * (world * own / total)


def draw(p: Tensor, n: int, *, generator: torch.Generator, scheme: Scheme = "systematic") -> Tensor:
    """Draw ``n`` positions, position i on average n p_i times. Random numbers come from the host.

    ``"systematic"``: one random offset and n evenly spaced points on the line of the cumulated p,
    so position i comes up floor(n p_i) or ceil(n p_i) times: the least variance of the two.
    ``"multinomial"``: n independent draws with replacement, as in the paper.
    """
    cumulated = _cumulated(_wide(p))
    on_line = points(n, generator=generator, scheme=scheme).to(cumulated, non_blocking=True)
    # Scaled by the last entry, rounding cannot push a point beyond the line; the clamp keeps a
    # point that equals the end on the last position that has any probability.
    ends = torch.searchsorted(cumulated, cumulated[-1:], right=False)
    found = torch.searchsorted(cumulated, on_line * cumulated[-1], right=True)
    return torch.minimum(found, ends)


def _cumulated(p: Tensor) -> Tensor:
    """sum_{j <= i} p_j, never falling, and equal to its predecessor where p_i = 0."""
    if p.device.type == "cpu":
        return p.cumsum(0)
    sums = _sums_by_doubling(p) if torch.are_deterministic_algorithms_enabled() else p.cumsum(0)
    return _never_falling(sums, p)


def _never_falling(sums: Tensor, p: Tensor) -> Tensor:
    """Accelerators add in parallel: rounding may lower a sum, or raise it where p_i = 0."""
    return torch.where(p > 0, sums, 0).cummax(0).values


def _sums_by_doubling(p: Tensor) -> Tensor:
    """As ``p.cumsum(0)``, which on CUDA has no deterministic implementation."""
    reach = 1
    while reach < len(p):
        p = torch.cat([p[:reach], p[reach:] + p[:-reach]])
        reach *= 2
    return p


def points(n: int, *, generator: torch.Generator, scheme: Scheme = "systematic") -> Tensor:
    """The random part of ``draw``: ``n`` float64 points in [0, 1), in random order, on the host."""
    if scheme == "multinomial":
        return torch.rand(n, dtype=torch.float64, generator=generator, device="cpu")
    if scheme == "systematic":
        offset = torch.rand(1, dtype=torch.float64, generator=generator, device="cpu")
        places = torch.randperm(n, generator=generator, device="cpu")
        # On the host numpy does a handful of numbers in a fraction of the time.
        return torch.from_numpy((places.numpy() + offset.numpy()) / n)
    raise ArgumentError(f"draw must be one of {', '.join(get_args(Scheme))}; got {scheme!r}")


def even_visits(credit: Tensor, p: Tensor, n: float) -> tuple[Tensor, Tensor]:
    """How often each position is visited among the next ``n`` visits, and the credit it has left.

    ``credit``, ``p``: [M], fractions of a visit in [0, 1) and probabilities. Position i earns
    n p_i; the whole part becomes visits and the fraction stays. From credits that are uniform in
    [0, 1) it is visited n p_i times on average, and over any number of calls less than one visit
    more or less often than it has earned. A negative credit is earned back before the next visit.
    """
    total = credit + n * _wide(p)
    counts = total.floor().clamp(min=0)
    return counts.to(torch.int64), total - counts


def cap(q: Tensor, most: float) -> Tensor:
    """min(q_i, T) with the largest T for which no entry is more than ``most`` of their sum.

    If j entries are cut off and R is the sum of the others, T = most (j T + R). Entries are all
    equal where nothing else would do, with len(q) x ``most`` <= 1.
    """
    if len(q) * most <= 1:
        return q.mean().expand(len(q))
    q = _wide(q)
    if q.device.type == "cpu" and bool(q.max() <= most * q.sum()):
        return q  # the usual case, where a look costs nothing
    largest = q.topk(min(math.ceil(1 / most), len(q))).values  # fewer than 1 / most are cut off
    cut = torch.arange(len(largest), dtype=q.dtype, device=q.device)
    below = q.clamp(max=largest[-1]).sum() - len(largest) * largest[-1]
    rest = below + largest.flip(0).cumsum(0).flip(0)  # [j]: the sum without the j largest
    limits = most * rest / (1 - most * cut).clamp(min=1e-12)
    # The fewest that have to be cut off: the next one is not above the limit.
    place = (largest <= limits).to(torch.int64).argmax()
    return q.clamp(max=limits[place])


def merge_duplicates(indices: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """One row per distinct index, its weights added: one forward pass, the same expected step.

    The mean still divides by the number of draws: sum_j w_j L_j / ``len(indices)``.
    """
    distinct, place = torch.unique(indices, return_inverse=True)
    return distinct, weights.new_zeros(len(distinct)).index_add_(0, place, weights)


def variance_reduction(scores: Tensor) -> Tensor:
    """v = M sum_i s_i^2 / (sum_i s_i)^2, with s_i, M = ``scores``, ``len(scores)``.

    Where s stands for gradient norms, drawing by s needs v times fewer examples than uniform
    draws for the same variance. 1 when all are equal (or all zero), M when one has everything.
    """
    s = _wide(scores)
    total = s.sum()
    return torch.where(total > 0, len(s) * (s * s).sum() / (total * total), 1.0)


def effective_sample_size(weights: Tensor) -> Tensor:
    """(sum_i alpha_i)^2 / sum_i alpha_i^2: how many equally weighted examples are worth as much."""
    w = _wide(weights)
    squares = (w * w).sum()
    return torch.where(squares > 0, w.sum() ** 2 / squares, 0.0)


def tracking_coefficient(predicted: Tensor, observed: Tensor) -> Tensor:
    """The slope a of the least squares fit a ``predicted`` + b = ``observed``.

    1: the score follows the loss exactly; 0: it says nothing about it (also when all predictions
    are equal, as in uniform sampling).
    """
    x, y = _wide(predicted), _wide(observed)
    size = (x * x).sum()
    x, y = x - x.mean(), y - y.mean()
    spread = (x * x).sum()
    # Below this share of the size, the spread is the rounding of equal predictions.
    return torch.where(spread > 1e-24 * size, (x * y).sum() / spread, 0.0)


def contrast(losses: Tensor, typical: float | Tensor) -> Tensor:
    """r_i = L_i / (L_i + m_i), with L, m = ``losses``, ``typical``: 0 to 1, and 1/2 where L = m.

    The same for losses in any unit. 1/2 as well where both are zero.
    """
    total = losses + typical
    return torch.where(total > 0, losses / total, 0.5)


class Groups(NamedTuple):
    """Two groups of values, and the gap between them."""

    limit: float  # where the upper group begins: it has the values from here on
    depth: float  # of the gap: density there over that of the lower of both peaks
    share: float  # of the values in the upper group


def two_groups(values: Tensor, bins: int = 64) -> Groups:
    """The two groups that ``values`` in [0, 1] fall into best, from a histogram of them.

    Otsu's limit, which leaves the least variance within the groups, tells the peak of each; the
    gap is the lowest place between the peaks, of densities averaged over five bins. A depth near 0
    means two groups with hardly anything between them, 1 means that there is one peak only.
    """
    counts, edges = np.histogram(values.double().numpy(), bins=bins, range=(0.0, 1.0))
    h = counts / max(counts.sum(), 1)
    below, moment = h.cumsum(), (h * (edges[:-1] + edges[1:]) / 2).cumsum()
    between = (moment[-1] * below - moment) ** 2 / np.maximum(below * (1 - below), 1e-12)
    otsu = _middle(between[:-1] == between[:-1].max()) + 1
    density = np.convolve(np.pad(h, 2, mode="reflect"), np.full(5, 0.2), "valid")
    low, high = int(density[:otsu].argmax()), otsu + int(density[otsu:].argmax())
    between_peaks = density[low : high + 1]
    gap = low + _middle(between_peaks == between_peaks.min())
    peak = min(density[low], density[high])
    depth = float(density[gap] / peak) if peak > 0 else 1.0
    return Groups(float(edges[gap + 1]), depth, float(1 - below[gap]))


def _middle(places: NDArray[np.bool_]) -> int:
    """Of the places where something holds: of an empty gap, where all are as good, not its edge."""
    there = np.flatnonzero(places)
    return int(there[len(there) // 2])


def ordered_count(accuracy: float, batch: int) -> int:
    """q = B, B/2, B/4, B/8, B/16 from an accuracy of 0, .8, .9, .95, .995 on; at least 1.

    B = ``batch``. The schedule of Ordered SGD (Kawaguchi and Lu 2020), rounded down. B where the
    accuracy is not known yet (nan).
    """
    part = next((part for least, part in STAGES if accuracy >= least), 1)
    return max(batch // part, 1)


def ordered(losses: Tensor, q: int) -> Tensor:
    """f_i = B / q for the q largest of the B ``losses``, 0 for the others; their mean is 1.

    Of equal losses the first count as larger. mean(f L) is the mean of the q largest losses.
    """
    if not 1 <= q <= len(losses):
        raise ArgumentError(f"q must be between 1 and the {len(losses)} losses; got {q}")
    largest = torch.argsort(losses, descending=True, stable=True)[:q]
    return torch.zeros_like(losses).index_fill_(0, largest, len(losses) / q)


def closeness(p: Tensor, floor: float) -> Tensor:
    """f_i = (p_i (1 - p_i) + e) / mean_j (p_j (1 - p_j) + e), with p, e = ``p``, ``floor``.

    How close examples are to the decision (Active Bias, Chang et al. 2017): with p_i = exp(-L_i) of
    a log loss, those that are learned (p near 1) and those that are contradicted (p near 0) both
    fade, to no less than e before the division. 1 where all are zero.
    """
    if not (math.isfinite(floor) and floor >= 0):
        raise ArgumentError(f"floor must be a finite number >= 0; got {floor}")
    close = p * (1 - p) + floor
    mean = close.mean()
    return torch.where(mean > 0, close / mean, torch.ones_like(close))
