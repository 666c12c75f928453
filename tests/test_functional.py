"""Each equation against a slow and obvious oracle."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from enumerate_draws import outcomes
from salience import ArgumentError, functional, trust
from salience.functional import Scheme

SCHEMES: tuple[Scheme, ...] = ("systematic", "multinomial")
positive = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40).map(torch.tensor)
non_negative = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=40).map(
    torch.tensor
)


def test_smooth_adds_the_constant() -> None:
    assert functional.smooth(torch.tensor([0.0, 1.0]), 0.5).tolist() == [0.5, 1.5]


@pytest.mark.parametrize("c", [-0.1, math.nan, math.inf])
def test_smooth_refuses_a_bad_constant(c: float) -> None:
    with pytest.raises(ArgumentError, match=str(c)):
        functional.smooth(torch.ones(2), c)


@given(non_negative)
def test_probabilities_are_proportional_and_sum_to_one(q: Tensor) -> None:
    p = functional.probabilities(q)
    assert p.dtype == torch.float64
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    if q.sum() > 0:
        torch.testing.assert_close(p, q.double() / q.double().sum())
    else:
        assert p.tolist() == [1 / len(q)] * len(q)


@given(positive, st.floats(-2, 1))
def test_weights_follow_the_equation(q: Tensor, k: float) -> None:
    p = functional.probabilities(q)
    expected = [(1 / (len(q) * float(x))) ** k for x in p]
    torch.testing.assert_close(functional.weights(p, k), torch.tensor(expected).double())
    torch.testing.assert_close(
        functional.weights(p[:1], k, pool=len(p)), torch.tensor(expected[:1]).double()
    )


@pytest.mark.parametrize("k", [1, 0.5, 0, -1])
def test_weights_are_one_for_every_k_when_p_is_uniform(k: float) -> None:
    torch.testing.assert_close(
        functional.weights(torch.full((8,), 1 / 8), k), torch.ones(8), rtol=0, atol=0
    )


@pytest.mark.parametrize("k", [1.01, math.nan, math.inf, -math.inf])
def test_weights_refuse_a_bad_k(k: float) -> None:
    with pytest.raises(ArgumentError, match=str(k)):
        functional.weights(torch.ones(2) / 2, k)


@pytest.mark.parametrize("scheme", SCHEMES)
@given(q=non_negative, n=st.integers(1, 30))
@settings(max_examples=60)
def test_every_position_comes_up_n_p_times_on_average(q: Tensor, n: int, scheme: Scheme) -> None:
    p = functional.probabilities(q)
    counts = torch.zeros(len(q)).double()
    for chance, points in outcomes(p, n, scheme):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(functional, "points", lambda *_, points=points, **__: points)
            found = functional.draw(p, n, generator=torch.Generator(), scheme=scheme)
        counts += chance * found.bincount(minlength=len(q))
    torch.testing.assert_close(counts, n * p, rtol=1e-6, atol=1e-7)


@given(q=non_negative, n=st.integers(1, 50), seed=st.integers(0, 2**31))
def test_systematic_counts_are_floor_or_ceil_of_n_p(q: Tensor, n: int, seed: int) -> None:
    p = functional.probabilities(q)
    found = functional.draw(p, n, generator=torch.Generator().manual_seed(seed))
    counts = found.bincount(minlength=len(q))
    assert (counts >= (n * p - 1e-6).floor()).all()
    assert (counts <= (n * p + 1e-6).ceil()).all()
    assert counts[q == 0].sum() == 0 or q.sum() == 0


def test_multinomial_frequencies() -> None:
    p = functional.probabilities(torch.tensor([1.0, 2.0, 3.0, 0.0, 4.0]))
    n = 100_000
    found = functional.draw(p, n, generator=torch.Generator().manual_seed(0), scheme="multinomial")
    sigma = (n * p * (1 - p)).sqrt()
    assert ((found.bincount(minlength=5) - n * p).abs() <= 5 * sigma).all()


def test_systematic_draws_come_in_random_order() -> None:
    found = functional.draw(torch.full((64,), 1 / 64), 64, generator=torch.Generator())
    assert sorted(found.tolist()) == list(range(64))
    assert found.tolist() != list(range(64))


def test_a_point_at_the_very_end_never_finds_an_impossible_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = functional.probabilities(torch.tensor([0.1, 0.2, 0.7, 0.0, 0.0]))
    for point, expected in ((1.0, 2), (1 - 1e-17, 2), (0.0, 0)):
        points = torch.tensor([point]).double()
        monkeypatch.setattr(functional, "points", lambda *_, points=points, **__: points)
        found = functional.draw(p, 1, generator=torch.Generator())
        assert found.tolist() == [expected]


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'sorted'"):
        functional.draw(torch.ones(2) / 2, 1, generator=torch.Generator(), scheme="sorted")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50))
def test_merging_adds_weights_and_keeps_the_weighted_sum(indices: list[int]) -> None:
    weights = torch.arange(1, len(indices) + 1).double()
    values = torch.arange(10).double() ** 2
    distinct, merged = functional.merge_duplicates(torch.tensor(indices), weights)
    assert distinct.tolist() == sorted(set(indices))
    for index, weight in zip(distinct.tolist(), merged.tolist(), strict=True):
        own = [w for i, w in zip(indices, weights.tolist(), strict=True) if i == index]
        assert weight == sum(own)
    assert float(merged @ values[distinct]) == float(weights @ values[indices])


def test_variance_reduction() -> None:
    assert float(functional.variance_reduction(torch.full((7,), 3.0))) == pytest.approx(1)
    assert float(functional.variance_reduction(torch.tensor([0.0, 0, 5, 0]))) == 4
    assert float(functional.variance_reduction(torch.zeros(4))) == 1
    s = torch.tensor([1.0, 2.0, 4.0])
    assert float(functional.variance_reduction(s)) == pytest.approx(3 * 21 / 49)


@given(positive)
def test_variance_reduction_is_the_ratio_of_second_moments(s: Tensor) -> None:
    s = s.double()
    p, m = s / s.sum(), len(s)
    uniform = float((s**2).sum() / m)
    importance = float((p * (s / (m * p)) ** 2).sum())
    assert float(functional.variance_reduction(s)) == pytest.approx(uniform / importance)


def test_effective_sample_size() -> None:
    assert float(functional.effective_sample_size(torch.full((9,), 0.3))) == pytest.approx(9)
    assert float(functional.effective_sample_size(torch.tensor([1.0, 0, 0]))) == 1
    assert float(functional.effective_sample_size(torch.tensor([1.0, 3.0]))) == 16 / 10
    assert float(functional.effective_sample_size(torch.zeros(3))) == 0


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=3, max_size=30),
)
def test_tracking_is_the_least_squares_slope(pairs: list[tuple[float, float]]) -> None:
    x, y = torch.tensor(pairs).double().T
    if float(x.std()) < 1e-3:
        return
    design = torch.stack([x, torch.ones_like(x)], dim=1)
    slope = torch.linalg.lstsq(design, y.unsqueeze(1)).solution[0, 0]
    torch.testing.assert_close(functional.tracking_coefficient(x, y), slope, rtol=1e-6, atol=1e-8)


def test_tracking_of_constant_predictions_is_zero() -> None:
    observed = torch.rand(5, generator=torch.Generator().manual_seed(0))
    assert float(functional.tracking_coefficient(torch.full((5,), 0.1), observed)) == 0
    assert float(functional.tracking_coefficient(observed, 2 * observed + 3)) == pytest.approx(2)


# ------------------------------------------------------------------ settings of the whole process


def everything() -> list[Tensor]:
    """Each function once, on host tensors."""
    scores, generator = torch.tensor([1.0, 2.0, 0.0, 5.0], device="cpu"), torch.Generator("cpu")
    p = functional.probabilities(functional.smooth(scores, 0.5))
    draws = [functional.draw(p, 9, generator=generator, scheme=scheme) for scheme in SCHEMES]
    weights = functional.weights(p, 0.5)
    return [
        *draws,
        *functional.even_visits(p, p, 3),
        *functional.merge_duplicates(draws[0], weights[draws[0]]),
        functional.variance_reduction(scores),
        functional.effective_sample_size(weights),
        functional.tracking_coefficient(scores, p),
    ]


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_a_default_device_changes_nothing() -> None:
    expected = everything()
    with torch.device("meta"):
        got = everything()
    assert all(map(torch.equal, got, expected))


@pytest.mark.usefixtures("_deterministic")
def test_deterministic_algorithms_change_nothing() -> None:
    got = everything()
    torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, got, everything()))


@pytest.mark.usefixtures("_deterministic")
def test_a_deterministic_draw_on_an_accelerator_cumulates_without_cumsum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On CUDA, cumsum raises in this mode. The meta device stands in for an accelerator."""

    def cumsum(*_: object) -> None:
        raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation")

    monkeypatch.setattr(Tensor, "cumsum", cumsum)
    p = torch.full((5,), 0.2, device="meta")
    found = functional.draw(p, 3, generator=torch.Generator())
    assert found.is_meta
    assert found.shape == (3,)


@given(non_negative)
def test_sums_by_doubling(q: Tensor) -> None:
    p = q.double()
    torch.testing.assert_close(functional._sums_by_doubling(p), p.cumsum(0))


def test_rounding_of_parallel_sums_neither_lowers_nor_adds() -> None:
    p, sums = torch.tensor([0.5, 0.0, 0.25, 0.25]), torch.tensor([0.5, 0.51, 0.49, 1.0])
    assert functional._never_falling(sums, p).tolist() == [0.5, 0.5, 0.5, 1.0]


# --------------------------------------------------------------------------------------- apart


def test_contrast_by_hand() -> None:
    losses, typical = torch.tensor([0.0, 1.0, 3.0, 0.0]), torch.tensor([2.0, 1.0, 1.0, 0.0])
    assert functional.contrast(losses, typical).tolist() == [0.0, 0.5, 0.75, 0.5]


@given(positive, st.floats(1e-3, 1e3))
def test_contrast_has_no_unit_and_keeps_the_order(losses: Tensor, unit: float) -> None:
    r = functional.contrast(losses.double(), losses.double().mean())
    scaled = functional.contrast(unit * losses.double(), (unit * losses.double()).mean())
    torch.testing.assert_close(r, scaled)
    assert ((r >= 0) & (r <= 1)).all()
    assert (r[losses.argsort()].diff() >= 0).all()


def spread(counts: dict[int, int], bins: int) -> Tensor:
    """So many values in the middle of each bin."""
    return torch.cat([torch.full((n,), (at + 0.5) / bins) for at, n in counts.items()])


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # Densities over five of ten bins, mirrored at the ends, in units of a fiftieth:
        # 12 12 6 6 0 0 4 4 8 8: the middle of the zeros is the sixth bin.
        ({1: 6, 8: 4}, (0.6, 0.0, 0.4)),
        # 10 9 5 6 2 1 5 5 8 8: between the peaks 1, an eighth of the lower one.
        ({1: 4, 2: 1, 5: 1, 8: 4}, (0.6, 0.125, 0.4)),
        # One peak: the limit within it is as high as anything.
        ({4: 10}, None),
    ],
)
def test_two_groups_by_hand(counts: dict[int, int], expected: tuple[float, ...] | None) -> None:
    found = functional.two_groups(spread(counts, 10), bins=10)
    if expected is None:
        assert found.depth == 1
    else:
        assert tuple(found) == pytest.approx(expected)


@given(st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0, 0.25, 0.5, 1])), max_size=80))
def test_two_groups_of_anything(values: list[float]) -> None:
    r = torch.tensor(values, dtype=torch.float64)
    limit, depth, share = functional.two_groups(r)
    assert 0 < limit <= 1
    assert 0 <= depth <= 1
    assert share == pytest.approx(float((r >= limit).double().mean()) if values else share)


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2, 0.5])
@pytest.mark.parametrize("wide", [0.03, 0.15])
@pytest.mark.parametrize(("low", "high"), [(0.05, 0.7), (0.3, 0.9), (0.4, 0.85)])
def test_two_groups_that_lie_apart_are_found(
    low: float, high: float, wide: float, share: float
) -> None:
    """Also a small one beside a wide one, where the limit must not fall on its edge."""
    generator = torch.Generator().manual_seed(1)
    many, few = round((1 - share) * 4000), round(share * 4000)
    r = low + wide * torch.rand(many + few, generator=generator)
    r[many:] = high + 0.05 * torch.rand(few, generator=generator)
    found = functional.two_groups(r)
    edges = float(r[:many].max()), float(r[many:].min())
    assert found.limit == pytest.approx(sum(edges) / 2, abs=3 / 64)
    assert found.depth < 0.01
    assert found.share == pytest.approx(share)
    assert (r >= found.limit).nonzero().flatten().tolist() == list(range(many, many + few))


@pytest.mark.parametrize("n", [1000, 4000])
@pytest.mark.parametrize("shape", ["uniform", "normal", "exponential", "wide"])
@pytest.mark.parametrize("seed", range(5))
def test_one_group_has_no_gap(shape: str, n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    if shape == "uniform":
        r = torch.rand(n, generator=generator)
    elif shape == "normal":
        r = (0.5 + 0.1 * torch.randn(n, generator=generator)).clamp(0, 1)
    else:  # losses, of ordinary spread or over several orders of magnitude
        losses = -torch.rand(n, generator=generator).log()
        losses = losses if shape == "exponential" else losses**3
        r = functional.contrast(losses, losses.mean())
    assert functional.two_groups(r).depth > trust.OFF
