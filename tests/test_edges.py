"""Numbers at the edge: one example and 2^31 + 1, the smallest and the largest losses.

Probabilities are compared with rational arithmetic, to 1e-12 of each, whatever the losses are.
"""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from salience import ImportanceLoader, ImportanceSampler, functional
from salience.scores import History
from salience.smoothing import Constant
from salience.sources import WholeDataset
from salience.sources.passes import places_dtype
from salience.sources.tree import SumTree

EXACT = 1e-12
LARGE = 2**31 + 1
TINY, HUGE = 1e-38, 1e38
PATTERNS = {
    "tiny": [TINY, 3 * TINY, TINY, 2 * TINY],
    "huge": [HUGE, 3 * HUGE, HUGE, 2 * HUGE],
    "tiny and huge": [TINY, HUGE, TINY, 3 * HUGE],
    "denormal": [1e-45, 1e-40, 3e-45, 0.0],
    "equal": [0.7, 0.7, 0.7, 0.7],
    "zero": [0.0, 0.0, 0.0, 0.0],
    "one not zero": [0.0, 0.0, 2.5, 0.0],
    "one tiny, the rest zero": [0.0, TINY, 0.0, 0.0],
    "ordinary": [0.1, 2.0, 0.3, 1.7],
}


def exact(scores: list[float], c: float) -> list[Fraction]:
    """p_i = (s_i + c) / sum_j (s_j + c), without any rounding; uniform where all are zero."""
    q = [Fraction(float(s)) + Fraction(c) for s in scores]
    total = sum(q)
    return [Fraction(1, len(q)) if total == 0 else each / total for each in q]


def close(found: Any, expected: list[Fraction]) -> None:
    for p, wanted in zip(np.asarray(found).tolist(), expected, strict=True):
        assert abs(Fraction(p) - wanted) <= Fraction(EXACT) * wanted, (p, float(wanted))


def single(values: list[float]) -> list[float]:
    """As float32 holds them."""
    return torch.tensor(values, dtype=torch.float32).tolist()


# ------------------------------------------------------------------------------------- few examples


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("score", ["uniform", "history", "approx", "auto"])
@pytest.mark.parametrize("draw", ["systematic", "multinomial"])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_one_example_and_two(n: int, score: str, draw: Any, batch: int) -> None:
    data = TensorDataset(torch.arange(n))
    loader = ImportanceLoader(data, batch, score=score, draw=draw)
    for _ in range(3):
        seen = []
        for (x,) in loader:
            losses = 1.0 + x.float()
            mean = float(loader.mean(losses))
            expected = (loader.weights.double() * losses).mean()
            assert mean == pytest.approx(float(expected), rel=1e-6)
            last = loader.last_draw
            assert 0 < float(last.probabilities.min()) <= float(last.probabilities.max()) <= 1
            if n == 1:
                assert last.probabilities.tolist() == [1.0] * len(last)
                assert loader.weights.tolist() == [1.0] * len(last)
            seen += x.tolist()
        assert set(seen) <= set(range(n))
        if score == "uniform":
            assert sorted(seen) == list(range(n))
    assert math.isfinite(loader.metrics()["mean_loss"])


# ------------------------------------------------------------------------------ losses at the edge


@pytest.mark.parametrize("losses", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("c", [0.0, 0.25, "adaptive"])
@pytest.mark.parametrize("draw", ["systematic", "multinomial"])
def test_probabilities_of_the_whole_dataset(losses: list[float], c: Any, draw: Any) -> None:
    n = len(losses)
    sampler = ImportanceSampler(n, n, score="history", smoothing=c, draw=draw, k=0.5)
    given = torch.tensor(losses)
    for _ in range(5):
        sampler.update(torch.arange(n), given)
    drawn = sampler.draw()
    assert sampler.scores().tolist() == single(losses)
    mean = float(np.mean(single(losses)))
    constant = c if c != "adaptive" else 0.5 * mean
    wanted = exact(single(losses), constant)
    close(drawn.probabilities, [wanted[i] for i in drawn.indices.tolist()])
    for i, weight in zip(drawn.indices.tolist(), drawn.weights.tolist(), strict=True):
        assert weight == pytest.approx(float(1 / (n * wanted[i])) ** 0.5, rel=1e-6)
    assert all(wanted[i] > 0 for i in drawn.indices.tolist()), "what has no chance is not drawn"
    metrics = sampler.metrics()
    assert metrics["mean_loss"] == pytest.approx(mean, rel=1e-6)
    assert math.isfinite(metrics["variance_reduction"])


@pytest.mark.parametrize("losses", PATTERNS.values(), ids=PATTERNS)
def test_probabilities_of_a_pool(losses: list[float]) -> None:
    p = functional.probabilities(functional.smooth(torch.tensor(losses), 0.5))
    close(p, exact(single(losses), 0.5))
    close(functional.probabilities(torch.tensor(losses)), exact(single(losses), 0.0))

    model = torch.nn.Linear(1, 1)
    table = torch.tensor(losses)
    loader = ImportanceLoader(
        TensorDataset(torch.arange(4)),
        2,
        score="loss",
        model=model,
        loss=lambda _, batch: table[batch[0]],
        draw="multinomial",
    )
    mean = float(np.mean(single(losses)))
    for (x,) in loader:
        drawn = loader.last_draw
        if loader._sampler.step == 0:  # the pool is the whole dataset, and no loss has come yet
            wanted = exact(single(losses), 0.5 * mean)
            close(drawn.probabilities, [wanted[i] for i in x.tolist()])
        loader.mean(table[x])
    assert math.isfinite(loader.metrics()["mean_loss"])


@pytest.mark.parametrize("score", ["uniform", "history", "approx", "auto"])
@pytest.mark.parametrize("losses", [PATTERNS["huge"], PATTERNS["tiny"], PATTERNS["zero"]])
@pytest.mark.parametrize("draw", ["systematic", "multinomial"])
def test_training_goes_on(score: str, losses: list[float], draw: Any) -> None:
    """Sums of a few losses of 1e38, and their squares, are beyond float32."""
    sampler = ImportanceSampler(4, 8, score=score, draw=draw)
    table = torch.tensor(losses)
    for _ in range(12):
        drawn = sampler.draw()
        assert bool(drawn.weights.isfinite().all())
        assert float(drawn.probabilities.min()) > 0
        sampler.update(drawn, table[drawn.indices])
    metrics = sampler.metrics()
    assert 0 <= metrics["mean_loss"] < math.inf
    other = ImportanceSampler(4, 8, score=score, draw=draw)
    other.load_state_dict(sampler.state_dict())
    assert torch.equal(other.draw().indices, sampler.draw().indices)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("score", ["history", "uniform", "auto"])
def test_half_precision_losses_are_learned_as_they_are(dtype: torch.dtype, score: str) -> None:
    """The smallest, the largest, and ordinary ones: exact in float32."""
    info = torch.finfo(dtype)
    losses = torch.tensor([info.tiny, info.max / 64, 1.0, 0.1], dtype=dtype)
    loader = ImportanceLoader(TensorDataset(torch.arange(4)), 4, score=score, smoothing=0.5)
    for _ in range(8):
        for (x,) in loader:
            mean = loader.mean(losses[x])
            assert mean.dtype == torch.float32
            expected = (loader.weights.double() * losses[x].double()).mean()
            assert float(mean) == pytest.approx(float(expected), rel=1e-6)
    if score != "history":
        return
    assert not bool(loader.scores().isnan().any())
    assert loader.scores().tolist() == losses.float().tolist()
    drawn = loader._sampler.next_draw()
    wanted = exact(losses.float().tolist(), 0.5)
    close(drawn.probabilities, [wanted[i] for i in drawn.indices.tolist()])


# ----------------------------------------------------------------------------------- many examples


class Sparse:
    """Files with nothing in them: they take no room until they are written."""

    writable, shared = True, False

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def array(self, size: int, dtype: Any, fill: float = 0) -> NDArray[Any]:  # noqa: ARG002
        self._count += 1
        path = self._folder / f"{self._count}"
        with path.open("wb") as file:
            file.truncate(max(size, 1) * np.dtype(dtype).itemsize)
        return np.memmap(path, dtype, "r+", shape=size)


@pytest.fixture
def sparse(tmp_path: Path) -> Sparse:
    return Sparse(tmp_path)


PLACES = [0, 1, 15, 16, 2**16, 2**30, 2**31 - 2, 2**31 - 1, LARGE - 1]


def test_a_tree_of_more_than_32_bits(sparse: Sparse) -> None:
    tree = SumTree(LARGE, 2, sparse)
    places, values = np.array(PLACES), np.arange(1, len(PLACES) + 1) / 3
    tree.put(0, places, values)
    exactly = sum(Fraction(v) for v in values.tolist())
    assert abs(Fraction(tree.total((1.0, 0.0))) - exactly) <= Fraction(EXACT) * exactly
    ends = values.cumsum()
    points = np.concatenate([ends - values / 2, ends - values * 0.999, ends - values * 1e-6])
    assert tree.find(points, (1.0, 0.0), 0.0).tolist() == PLACES * 3
    # With a floor each example has 1 as well: example i begins at i and the values before it.
    before = np.concatenate([[0.0], ends[:-1]])
    middle = places + before + (1 + values) / 2
    assert tree.find(middle, (1.0, 0.0), 1.0).tolist() == PLACES


def test_draws_from_more_than_32_bits(sparse: Sparse, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sampler draws and learns; only that its files are not written at the start."""
    monkeypatch.setattr(WholeDataset, "_fill", lambda *_: None)
    history = History(LARGE, storage=sparse)
    smoothing, generator = Constant(0.5), torch.Generator().manual_seed(0)
    source = WholeDataset(LARGE, history, smoothing, 1.0, "multinomial", generator, None, sparse)
    some, losses = torch.tensor(PLACES), torch.linspace(1, 2, len(PLACES)) * 1e9
    source.update(history.update(some, losses))
    drawn = source.draw(2000, 0)
    total = sum(Fraction(x) for x in losses.tolist()) + Fraction(1, 2) * LARGE
    assert int(drawn.indices.max()) > 2**31 - 1
    known = dict(zip(PLACES, losses.tolist(), strict=True))
    q = [Fraction(known.get(i, 0.0)) + Fraction(1, 2) for i in drawn.indices.tolist()]
    close(drawn.probabilities, [each / total for each in q])
    for weight, each in zip(drawn.weights.tolist(), q, strict=True):
        assert weight == pytest.approx(float(total / (LARGE * each)), rel=1e-6)
    among = sum(i in known for i in drawn.indices.tolist()) / 2000
    share = float(sum(Fraction(x) for x in losses.tolist()) / total)
    assert abs(among - share) < 6 * math.sqrt(share * (1 - share) / 2000)


@pytest.mark.parametrize("n", [LARGE, 2**32])
def test_passes_over_more_than_32_bits(n: int) -> None:
    sampler = ImportanceSampler(n, 1024, score="uniform")
    first = sampler.draw()
    assert len(set(first.indices.tolist())) == 1024
    assert 0 <= int(first.indices.min()) <= int(first.indices.max()) < n
    assert int(first.indices.max()) > 2**31 * 0.9, "they come from everywhere"
    assert first.probabilities.tolist() == [1 / n] * 1024
    state = sampler.state_dict()
    state["source"]["at"] = n - 1500
    sampler.load_state_dict(state)
    last = [sampler.draw() for _ in range(3)]
    assert [len(draw) for draw in last] == [1024, 476, 1024]
    everything = torch.cat([first.indices, last[0].indices, last[1].indices]).tolist()
    assert len(set(everything)) == 1024 + 1500, "the end of a pass has none of its beginning"
    sampler.update(last[1], torch.rand(476))
    assert math.isfinite(sampler.metrics()["mean_loss"])


def test_places_beyond_32_bits_take_eight_bytes() -> None:
    for n in (1, 2**31 - 1, 2**31, LARGE, 2**32):
        assert np.iinfo(places_dtype(n)).max >= n - 1
    assert places_dtype(2**31) is np.int32


def test_more_than_can_be_numbered_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        ImportanceSampler(2**32 + 1, 128, score="uniform")


# ------------------------------------------------------------------------------------ many updates

UPDATES, AT_ONCE = 10**8, 20_000


def same_tree(tree: SumTree, other: SumTree) -> bool:
    pairs = zip(tree._levels, other._levels, strict=True)
    return all(a.tobytes() == b.tobytes() for x, y in pairs for a, b in zip(x, y, strict=True))


def test_any_number_of_updates_leaves_what_the_last_of_each_would() -> None:
    """A node is the sum of its children, added in one order whenever one of them changes.

    So after any number of updates the tree is, bit for bit, a function of the leaves alone: that
    of the updates that came last. That is compared here after each 2 x 10^6 of 10^8 updates. The
    error of a sum is that of adding up n numbers once, below (16 x 8 + 8192) x 2^-53 = 1e-12 of
    it, after 10^9 updates as after one; probabilities follow.
    """
    n = 20_000
    tree, rng, leaves = SumTree(n, 1), np.random.default_rng(0), np.zeros(n)
    for i in range(UPDATES // AT_ONCE):
        at = rng.integers(n, size=AT_ONCE)
        values = rng.random(AT_ONCE) * 10.0 ** rng.integers(-30, 30, size=AT_ONCE)
        tree.put(0, at, values)
        leaves[at] = values
        if i % 100 == 99:
            fresh = SumTree(n, 1)
            fresh.column(0)[:] = leaves
            fresh.sum_up()
            assert same_tree(tree, fresh)
    exactly = sum(Fraction(leaf) for leaf in leaves.tolist())
    assert abs(Fraction(tree.total((1.0,))) - exactly) <= Fraction(EXACT) * exactly
    mass = tree.mass(np.arange(n), (1.0,), 0.0) / tree.total((1.0,))
    close(mass[::97], [Fraction(leaf) / exactly for leaf in leaves.tolist()[::97]])


def test_single_updates_are_updates_together() -> None:
    rng, n = np.random.default_rng(1), 9000
    one, many = SumTree(n, 1), SumTree(n, 1)
    at, values = rng.integers(n, size=5000), rng.random(5000)
    many.put(0, at, values)
    for i, value in zip(at, values, strict=True):
        one.put(0, np.array([i]), float(value))
    assert same_tree(one, many)
