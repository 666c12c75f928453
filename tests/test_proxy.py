"""A small network scores for the model, and learns from what it has chosen."""

import copy
import io
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from parts import cross_entropy, frozen, make_dataset
from ranks import on_ranks
from salience import ArgumentError, ImportanceLoader, StateError
from salience.scores import Loss, Proxy, UpperBound

STEPS, BATCH = 6, 6


def small(seed: int = 5) -> nn.Module:
    """With dropout and batch normalisation, which have random numbers and buffers."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 3)
        )


def make(model: Any, score: Any = "loss", n: int = STEPS * BATCH, **options: Any) -> Any:
    options = {"proxy": small(), **options}
    return ImportanceLoader(
        make_dataset(n), BATCH, score=score, model=model, loss=cross_entropy, **options
    )


def train(loader: Any, model: nn.Module, steps: int = 10**6, epochs: int = 1) -> list[Any]:
    rows: list[Any] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    while loader.epoch < epochs:
        for batch in loader:
            rows.append((loader.indices.tolist(), loader.weights.tolist()))
            loader.mean(cross_entropy(model, batch[:2]), *batch[2:]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if len(rows) == steps:
                return rows
    return rows


def parameters(model: nn.Module) -> Any:
    return frozen({**model.state_dict()})


@pytest.mark.parametrize(("score", "inner"), [("loss", Loss), ("upper_bound", UpperBound)])
def test_pools_are_scored_by_the_small_network(score: str, inner: Any, model: nn.Module) -> None:
    proxy = small()
    loader = make(model, score, proxy=proxy)
    for x, y in loader:
        draw = loader.last_draw
        if loader._handed % 4 != 1:  # else it has learned since
            expected = inner(proxy, cross_entropy).score(draw.indices, (x, y))
            torch.testing.assert_close(draw.scores, expected)
        loader.mean(cross_entropy(model, (x, y)))


def test_it_learns_from_one_chosen_batch_in_four(model: nn.Module) -> None:
    """Against a loop of its own with the same optimizer, on the same batches and weights."""
    proxy = nn.Linear(6, 3)
    twin = copy.deepcopy(proxy)
    theirs = torch.optim.Adam(twin.parameters(), lr=1e-3)
    loader = make(model, proxy=proxy)
    seen = 0
    for epoch in range(3):
        for x, y in loader:
            if seen % 4 == 0:
                theirs.zero_grad()
                (loader.weights * cross_entropy(twin, (x, y))).mean().backward()
                theirs.step()
            seen += 1
            for mine, other in zip(proxy.parameters(), twin.parameters(), strict=True):
                torch.testing.assert_close(mine, other)
            loader.mean(cross_entropy(model, (x, y)))
        assert loader.epoch == epoch + 1
    assert seen == 3 * STEPS


def test_an_optimizer_of_ones_own(model: nn.Module) -> None:
    proxy = nn.Linear(6, 3)
    before = copy.deepcopy(proxy)
    loader = make(model, proxy=proxy, proxy_optimizer=torch.optim.SGD(proxy.parameters(), lr=0.25))
    x, y = next(iter(loader))
    loss = (loader.weights * cross_entropy(before, (x, y))).mean()
    gradients = torch.autograd.grad(loss, [*before.parameters()])
    for p, old, gradient in zip(proxy.parameters(), before.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.detach(), (old - 0.25 * gradient).detach())
        assert p.grad is None


def test_nothing_else_is_touched(model: nn.Module) -> None:
    proxy, main = small(), parameters(model)
    loader, start = make(model, proxy=proxy), parameters(proxy)
    proxy.eval()
    rng = torch.get_rng_state()
    with torch.no_grad():  # the user's, and it stays
        next(iter(loader))
        assert not torch.is_grad_enabled()
    assert parameters(proxy) != start
    assert torch.equal(torch.get_rng_state(), rng)
    assert parameters(model) == main
    assert all(p.grad is None for p in model.parameters())
    assert not any(module.training for module in proxy.modules())


def test_time_for_it_is_counted(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    learn = Proxy.train

    def slow(self: Proxy, *args: Any) -> None:
        now[0] += 10
        learn(self, *args)

    monkeypatch.setattr(Proxy, "train", slow)
    loader = make(model)
    next(iter(loader))
    assert loader._sampler.seconds == 10


def test_a_bad_loss_of_one_example_does_not_spoil_it() -> None:
    def loss(net: nn.Module, batch: Any) -> Tensor:
        losses = cross_entropy(net, batch)
        return torch.where(batch[0][:, 0] > 0, losses, torch.full_like(losses, torch.nan))

    proxy = nn.Linear(6, 3)
    before = parameters(proxy)
    score = Proxy(Loss(proxy, loss))
    score.train(torch.ones(8), (torch.randn(8, 6), torch.zeros(8, dtype=torch.int64)))
    assert all(bool(p.isfinite().all()) for p in proxy.parameters())
    assert parameters(proxy) != before


CUTS = (1, 4, 5, 6, 9)


@pytest.mark.parametrize("reference", [None, torch.linspace(0, 1, STEPS * BATCH)])
@pytest.mark.parametrize("deferred", [None, True])
@pytest.mark.parametrize("focus", [None, "closeness"])
def test_saved_anywhere_and_resumed(deferred: Any, focus: Any, reference: Any) -> None:
    """Bitwise, with the small network and its optimizer; dropout follows the global generator."""

    def start() -> tuple[nn.Module, nn.Module, Any]:
        torch.manual_seed(0)
        model, proxy = nn.Linear(6, 3), small()
        loader = make(model, proxy=proxy, focus=focus, reference=reference)
        loader.deferred = deferred
        return model, proxy, loader

    model, proxy, loader = start()
    whole = train(loader, model, epochs=2)
    expected = parameters(model), parameters(proxy)
    for cut in CUTS:
        model, proxy, loader = start()
        before = train(loader, model, cut, epochs=2)
        file = io.BytesIO()
        state = {"model": model.state_dict(), "loader": loader.state_dict()}
        torch.save({**state, "rng": torch.get_rng_state()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        model, proxy, loader = start()
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        torch.set_rng_state(saved["rng"])
        assert before + train(loader, model, epochs=2) == whole, cut
        assert (parameters(model), parameters(proxy)) == expected, cut


def test_a_batch_that_was_handed_out_is_learned_once(model: nn.Module) -> None:
    proxy = nn.Linear(6, 3)
    loader = make(model, proxy=proxy)
    x, _ = next(iter(loader))
    state, learned = loader.state_dict(), parameters(proxy)
    other = nn.Linear(6, 3)
    resumed = make(model, proxy=other)
    resumed.load_state_dict(state)
    again, _ = next(iter(resumed))
    assert torch.equal(x, again)
    assert parameters(other) == learned


def test_a_state_is_a_copy(model: nn.Module) -> None:
    loader = make(model)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    kept = frozen(state)
    loader.skip()
    for _ in range(4):
        next(iterator)
        loader.skip()
    assert frozen(state) == kept
    assert frozen(loader.state_dict()["score"]) != frozen(state["score"])


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_learn_by_themselves(how: Any) -> None:
    loader = make(nn.Linear(6, 3), proxy=nn.Linear(6, 3))
    for _ in loader:
        loader.mean(torch.ones(len(loader.indices)))
    other = how(loader)
    before = frozen(loader.state_dict()["score"])
    for _ in other:
        other.mean(torch.ones(len(other.indices)))
    assert frozen(loader.state_dict()["score"]) == before
    for _ in loader:
        loader.mean(torch.ones(len(loader.indices)))
    assert frozen(loader.state_dict()["score"]) == frozen(other.state_dict()["score"])


@pytest.mark.parametrize("there", [None, nn.Linear(6, 3)])
def test_the_state_of_another_proxy_is_refused(there: Any, model: nn.Module) -> None:
    state = make(model).state_dict()
    with pytest.raises(
        StateError, match="state was saved with proxy 'Sequential of 51 parameters'"
    ):
        make(model, proxy=there).load_state_dict(state)


class Pools:
    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(2)
        for _ in range(6):
            x = torch.randn(12, 6, generator=generator)
            yield x, torch.randint(0, 3, (12,), generator=generator)


def test_streams_have_proxies_too(model: nn.Module) -> None:
    proxy = small()
    before = parameters(proxy)
    loader = ImportanceLoader.from_loader(Pools(), 4, loss=cross_entropy, proxy=proxy)
    for x, y in loader:
        loader.mean(cross_entropy(model, (x, y)))
    assert parameters(proxy) != before


def on_rank(rank: int, steps: int, state: Any = None) -> Any:  # noqa: ARG001
    torch.manual_seed(0)
    model, proxy = nn.Linear(6, 3), nn.Linear(6, 3)
    wrapped = nn.parallel.DistributedDataParallel(model)
    loader = make(model, proxy=proxy, n=60)
    if state is not None:
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
    rows = train(loader, wrapped, steps, epochs=100)
    saved = copy.deepcopy({"model": model.state_dict(), "loader": loader.state_dict()})
    return rows, parameters(proxy), saved


def test_ranks_train_one_proxy_together() -> None:
    through = on_ranks(2, on_rank, 14)
    assert through[0][1] == through[1][1]  # the same network, from different batches
    assert through[0][0] != through[1][0]
    first = on_ranks(2, on_rank, 6)
    rest = on_ranks(2, on_rank, 8, first[0][2])
    for rank in range(2):
        assert first[rank][0] + rest[rank][0] == through[rank][0]
        assert rest[rank][1] == through[rank][1]


def averaged(rank: int) -> list[Any]:
    torch.manual_seed(0)
    proxy = nn.Linear(6, 3)
    x, y = make_dataset(8).tensors
    mine = slice(4 * rank, 4 * rank + 4)
    score = Proxy(Loss(proxy, cross_entropy), torch.optim.SGD(proxy.parameters(), lr=1.0))
    from salience.distributed import average

    score.train(torch.ones(4), (x[mine], y[mine]), average)
    assert dist.is_initialized()
    return [p.detach().tolist() for p in proxy.parameters()]


def test_gradients_are_averaged_over_ranks() -> None:
    torch.manual_seed(0)
    proxy = nn.Linear(6, 3)
    x, y = make_dataset(8).tensors
    gradients = torch.autograd.grad(cross_entropy(proxy, (x, y)).mean(), [*proxy.parameters()])
    expected = [p - g for p, g in zip(proxy.parameters(), gradients, strict=True)]
    for found in on_ranks(2, averaged):
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.tensor(mine), theirs.detach())


def other_start(rank: int) -> str:
    torch.manual_seed(rank)
    loader = make(nn.Linear(6, 3), proxy=nn.Linear(6, 3), n=60)
    try:
        next(iter(loader))
    except Exception as error:
        return str(error)
    return ""


def test_ranks_begin_with_the_same_proxy() -> None:
    for message in on_ranks(2, other_start):
        assert "the ranks differ in the initial parameters of the proxy" in message


SHARED = nn.Linear(6, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "gnorm"}, "proxy= does not go with score 'gnorm'"),
        ({"score": "history"}, "proxy= does not go with score 'history'"),
        ({"proxy": "small"}, "proxy must be an nn.Module; got 'small'"),
        ({"proxy": nn.ReLU()}, "proxy ReLU has no parameters"),
        ({"proxy": nn.Sequential(SHARED), "model": SHARED}, "shares parameters with model"),
        ({"proxy_optimizer": 3}, "proxy_optimizer must be a torch.optim.Optimizer; got 3"),
        (
            {"proxy_optimizer": torch.optim.SGD(SHARED.parameters(), lr=1)},
            "parameters that are not the proxy's",
        ),
        (
            {"proxy": None, "proxy_optimizer": torch.optim.SGD(SHARED.parameters(), lr=1)},
            "needs proxy=",
        ),
    ],
)
def test_what_cannot_work_is_refused(options: Any, message: str, model: nn.Module) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(**{"model": model, **options})


def test_a_proxy_with_slots(model: nn.Module) -> None:
    proxy = small()
    before = parameters(proxy)
    loader = make(model, proxy=proxy, slots=True)
    assert len(train(loader, model, epochs=1)) == STEPS
    assert parameters(proxy) != before


def test_a_proxy_finds_what_is_hard() -> None:
    """Trained along, it draws the examples that a line cannot explain more often than chance."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 2, generator=generator)
    hard = torch.rand(512, generator=generator) < 0.2
    y = ((x[:, 0] > 0) ^ hard).long()
    proxy, model = nn.Linear(2, 2), nn.Linear(2, 2)
    loader = ImportanceLoader(
        TensorDataset(x, y),
        32,
        score="loss",
        proxy=proxy,
        model=model,
        loss=cross_entropy,
        proxy_optimizer=torch.optim.Adam(proxy.parameters(), lr=0.1),
    )
    drawn: list[float] = []
    for _ in range(6):
        for batch in loader:
            loader.mean(cross_entropy(model, batch))
            drawn.append(float(hard[loader.indices].float().mean()))
    late = list(itertools.islice(drawn, 48, None))
    assert sum(late) / len(late) > 0.3
