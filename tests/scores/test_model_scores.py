"""What holds for every score that asks the model, and the values of loss and upper_bound."""

import functools
from collections import OrderedDict, namedtuple
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from salience.batches.nested import map_tensors
from salience.errors import ArgumentError, LossError, StateError
from salience.scores import upper_bound
from salience.scores.criterion import Criterion, as_loss, per_example
from salience.scores.gnorm import GradientNorm
from salience.scores.loss import Loss
from salience.scores.model import PIECE, scoring
from salience.scores.protocol import Score
from salience.scores.upper_bound import UpperBound

B, C = 6, 4
SCORES = [Loss, UpperBound, GradientNorm]
INDICES = torch.arange(B)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def classification(dtype=torch.float64):
    return torch.randn(B, 3, dtype=dtype), torch.randint(C, (B,))


def network():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, C)).double()


def per_example_cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


# ------------------------------------------------------------------------------ the contract


@pytest.mark.parametrize("kind", SCORES)
def test_contract(kind):
    score = kind(network(), per_example_cross_entropy)
    assert isinstance(score, Score)
    assert score.by_index is False
    assert score.unit == ("loss" if kind is Loss else "gradient")
    values = score.score(INDICES, classification())
    assert values.shape == (B,)
    assert not values.requires_grad
    assert (values > 0).all()
    changed = score.update(INDICES, torch.ones(B))
    assert changed.shape == (0,)
    assert changed.dtype == torch.int64
    assert score.state_dict() == {}
    score.load_state_dict({})
    with pytest.raises(StateError, match=r"'(loss|upper_bound|gnorm)' keeps no state; got 'last'"):
        score.load_state_dict({"last": 1})


@pytest.mark.parametrize("kind", SCORES)
def test_missing_arguments_name_the_score_and_the_remedy(kind):
    with pytest.raises(ArgumentError, match=f"score '{kind.name}' needs model="):
        kind(None, F.cross_entropy)
    with pytest.raises(ArgumentError, match=f"score '{kind.name}' needs loss="):
        kind(network(), None)
    with pytest.raises(ArgumentError, match="mode must be one of eval, train; got 'test'"):
        kind(network(), F.cross_entropy, mode="test")


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        (lambda m, b: F.cross_entropy(m(b[0]), b[1]), r"shape \[\] for 6 examples"),
        (lambda m, b: per_example_cross_entropy(m, b)[1:], r"shape \[5\] for 6 examples"),
        (lambda m, b: per_example_cross_entropy(m, b).tolist(), "list for 6 examples"),
    ],
)
def test_losses_of_the_wrong_shape(kind, loss, shown):
    with pytest.raises(LossError, match=shown + r", expected \[6\] or \[6, T\]: return one loss"):
        kind(network(), loss).score(INDICES, classification())


def test_losses_over_time_are_averaged():
    losses = torch.arange(12.0).view(2, 2, 3)
    assert per_example(losses, 2).tolist() == [2.5, 8.5]
    assert per_example(losses[:, 0, 0], 2).tolist() == [0, 6]


@pytest.mark.parametrize("kind", SCORES)
def test_half_precision(kind):
    x, y = classification(torch.bfloat16)
    exact = kind(network(), F.cross_entropy)
    exact.model.bfloat16()
    values = exact.score(INDICES, (x, y))
    assert values.dtype == torch.float32
    exact.model.double()
    torch.testing.assert_close(
        values.double(), exact.score(INDICES, (x.double(), y)), rtol=0.05, atol=0.02
    )


@pytest.mark.parametrize("kind", SCORES)
def test_autocast_inside_the_loss(kind):
    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return per_example_cross_entropy(model, batch)

    model, batch = network().float(), classification(torch.float32)
    got = kind(model, loss).score(INDICES, batch)
    torch.testing.assert_close(
        got, kind(model, F.cross_entropy).score(INDICES, batch), rtol=0.03, atol=0.02
    )


@pytest.mark.parametrize("kind", SCORES)
def test_scoring_under_the_users_autocast_leaves_the_gradient_of_the_step(kind):
    """Autocast keeps its casts of the weights; one made without a graph would cut the step's."""
    model, batch = network().float(), classification(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        kind(model, per_example_cross_entropy).score(INDICES, batch)
        per_example_cross_entropy(model, batch).mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert torch.is_autocast_cache_enabled()


class Everything(nn.Module):
    """Layers with and without a rule, normalisation, recurrence: all that scores may read."""

    def __init__(self, device=None):
        super().__init__()
        self.words = nn.Embedding(9, 8, padding_idx=0, device=device)
        self.scale = nn.Parameter(torch.ones(8, device=device))
        self.lstm = nn.LSTM(8, 4, bidirectional=True, device=device)
        self.conv = nn.Conv1d(8, 8, 3, padding="same", padding_mode="circular", device=device)
        self.norms = nn.Sequential(
            nn.BatchNorm1d(8, device=device), nn.GroupNorm(2, 8, device=device)
        )
        self.attend = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, device=device)
        self.head = nn.Sequential(nn.LayerNorm(8, device=device), nn.Linear(8, C, device=device))

    def forward(self, x):
        x = self.lstm((self.words(x) * self.scale).transpose(0, 1))[0]  # [T, B, 8]
        x = self.norms(self.conv(x.permute(1, 2, 0))).transpose(1, 2)
        return self.head(self.attend(x)).mean(1)


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("loss", [F.cross_entropy, per_example_cross_entropy])
def test_no_value_is_read_back(kind, loss):
    """Tensors of the meta device have no values: whoever waits for one fails."""
    x = torch.randint(9, (B, 5), device="meta")
    y = torch.randint(C, (B,), device="meta")
    values = kind(Everything("meta"), loss).score(INDICES, (x, y))
    assert values.shape == (B,)
    assert values.is_meta


# ------------------------------------------------------------------------------- without trace


class Counting(nn.Module):
    """Changes its buffers on every pass: one in place, one by assignment."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(8, dtype=torch.float64))

    def forward(self, x):
        self.passes += 1
        self.last = x.detach().mean(0)
        return x + 0 * torch.rand(1)


def traceable():
    model = nn.Sequential(
        *(nn.Linear(3, 8), Counting(), nn.Dropout(0.5), nn.Sequential(nn.Tanh(), nn.Dropout(0.5))),
        nn.Linear(8, C),
    ).double()
    model.insert(1, nn.BatchNorm1d(8).double())
    model.train()
    model[1].eval()  # mixed on purpose
    model[4][0].eval()
    model[0].weight.grad = torch.full_like(model[0].weight, 3.0)
    return model


def trace(model):
    return {
        "flags": [m.training for m in model.modules()],
        "buffers": [(id(b), b._version, b.clone()) for b in model.buffers()],
        "parameters": [(id(p), p._version, p.detach().clone()) for p in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "rng": torch.get_rng_state(),
        "grad mode": torch.is_grad_enabled(),
        "hooks": [len(m._forward_hooks) + ("forward" in vars(m)) for m in model.modules()],
    }


def assert_no_trace(model, before):
    after = trace(model)
    for key in before:
        pairs = zip(tree_leaves(before[key]), tree_leaves(after[key]), strict=True)
        for a, b in pairs:
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, key


def broken(model, batch):
    per_example_cross_entropy(model, batch)
    torch.set_grad_enabled(True)
    raise KeyError("from the user's loss")


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("loss", [per_example_cross_entropy, broken])
@pytest.mark.parametrize("grad", [True, False])
def test_leaves_no_trace(kind, mode, loss, grad):
    model = traceable()
    if kind is GradientNorm and mode == "train":
        model.pop(1)
    score, batch = kind(model, loss, mode=mode), classification()
    with torch.set_grad_enabled(grad):
        before = trace(model)
        with pytest.raises(KeyError) if loss is broken else nullcontext():
            score.score(INDICES, batch)
        assert_no_trace(model, before)


class Renormalised(nn.Module):
    """``max_norm`` makes an embedding write its own weight; here it is that of the head too."""

    def __init__(self, kind):
        super().__init__()
        self.words, self.head = kind(C, 3, max_norm=0.1), nn.Linear(3, C, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.words(x).view(len(x), -1, 3).sum(1))


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_that_renormalises_its_weight_leaves_no_trace(kind, mode, layer):
    model, batch = Renormalised(layer).double(), (torch.randint(C, (B, 2)), torch.randint(C, (B,)))
    before = trace(model)
    score = kind(model, per_example_cross_entropy, mode=mode)
    if kind is GradientNorm and layer is nn.EmbeddingBag:
        with pytest.raises(ArgumentError, match="vmap cannot run"):
            score.score(INDICES, batch)
        return assert_no_trace(model, before)
    got = score.score(INDICES, batch)
    assert_no_trace(model, before)
    model(batch[0])  # as it would be in a training pass
    if kind is Loss:
        assert torch.equal(got, per_example_cross_entropy(model, batch).detach())
    return None


def test_train_mode_drops_and_normalises_by_the_batch():
    model, batch = traceable(), classification()
    evaluated = Loss(model, F.cross_entropy).score(INDICES, batch)
    torch.testing.assert_close(evaluated, per_example_cross_entropy(model.eval(), batch).detach())
    state = torch.get_rng_state()
    trained = Loss(model, F.cross_entropy, mode="train").score(INDICES, batch)
    torch.set_rng_state(state)
    expected = per_example_cross_entropy(model.train(), batch).detach()
    assert torch.equal(trained, expected)
    assert not torch.allclose(trained, evaluated)


class Sizes(nn.Module):
    """A network that notes how many examples each pass has."""

    def __init__(self):
        super().__init__()
        self.inner, self.seen = network(), []

    def forward(self, x):
        self.seen.append(len(x))
        return self.inner(x)


def large(n=2 * PIECE + 44):
    return torch.randn(n, 3, dtype=torch.float64), torch.randint(C, (n,))


@pytest.mark.parametrize("kind", [Loss, UpperBound])
@pytest.mark.parametrize("loss", [per_example_cross_entropy, nn.CrossEntropyLoss(reduction="none")])
def test_a_cpu_scores_large_pools_in_parts(kind, loss, monkeypatch):
    model, batch = Sizes(), large()
    indices = torch.arange(len(batch[0]))
    got = kind(model, loss).score(indices, batch)
    assert model.seen == [PIECE, PIECE, 44]
    assert got.shape == indices.shape
    monkeypatch.setattr("salience.scores.model.PIECE", len(indices))
    whole = kind(model, loss).score(indices, batch)
    assert model.seen[3:] == [len(indices)]
    torch.testing.assert_close(got, whole)


def test_parts_are_of_batches_with_the_examples_first():
    model = Sizes()
    x, y = large(PIECE + 1)
    words = [str(i) for i in range(PIECE + 1)]  # cannot be told from columns

    def loss(model, batch):
        return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")

    Loss(model, loss).score(torch.arange(PIECE + 1), {"x": x, "y": y, "scale": 2.0})
    Loss(model, loss).score(torch.arange(PIECE + 1), {"x": x, "y": y, "words": words})
    assert model.seen == [PIECE, 1, PIECE + 1]


def test_in_training_mode_and_among_ranks_a_pool_is_one_pass(monkeypatch):
    model, batch = Sizes(), large()
    indices = torch.arange(len(batch[0]))
    Loss(model, F.cross_entropy, mode="train").score(indices, batch)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    Loss(model, F.cross_entropy).score(indices, batch)
    assert model.seen == [len(indices)] * 2


def test_shared_buffers_stay_shared_inside():
    model = nn.ModuleList([Counting(), Counting()])
    model[1].passes = model[0].passes
    with scoring(model, "train"):
        assert model[0].passes is model[1].passes
        model[0].passes += 1
    assert model[0].passes is model[1].passes
    assert model[0].passes == 0


# ------------------------------------------------------------------------------------ the loss


def test_loss_is_the_models_loss():
    model, batch = network(), classification()
    got = Loss(model, per_example_cross_entropy).score(INDICES, batch)
    assert torch.equal(got, per_example_cross_entropy(model, batch).detach())


class OwnCriterion:
    def __call__(self, prediction, target):
        return F.cross_entropy(prediction, target, reduction="none")

    def method(self, output, label):
        return self(output, label)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(reduction="none"),
        F.cross_entropy,
        functools.partial(F.cross_entropy, label_smoothing=0.0),
        functools.partial(functools.partial(F.cross_entropy, reduction="mean"), ignore_index=9),
        lambda input, target: F.cross_entropy(input, target, reduction="none"),
        lambda inputs, targets: F.cross_entropy(inputs, targets, reduction="none"),
        lambda logits, y: F.cross_entropy(logits, y, reduction="none"),
        lambda a, labels: F.cross_entropy(a, labels, reduction="none"),
        lambda y_pred, b: F.cross_entropy(y_pred, b, reduction="none"),
        lambda y_hat, y_true, reduction="mean": F.cross_entropy(y_hat, y_true, reduction=reduction),
        OwnCriterion(),
        OwnCriterion().method,
        per_example_cross_entropy,
        lambda net, data: per_example_cross_entropy(net, data),
        lambda m, b: per_example_cross_entropy(m, b),
        lambda *args: per_example_cross_entropy(*args),
    ],
)
@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("container", [tuple, list])
def test_a_plain_criterion_is_as_good_as_a_callable(loss, kind, container):
    model, batch = network(), container(classification())
    got = kind(model, loss).score(INDICES, batch)
    expected = kind(model, per_example_cross_entropy).score(INDICES, batch)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_a_module_of_model_and_batch_is_a_callable():
    class Whole(nn.Module):
        def forward(self, model, batch):
            return per_example_cross_entropy(model, batch)

    whole = Whole()
    assert as_loss(whole) is whole


@pytest.mark.parametrize(
    "loss",
    [
        lambda a, b: F.cross_entropy(a, b, reduction="none"),
        lambda a, b: (a - b) ** 2,
        lambda a, b: a.softmax(1)[b],
        lambda *args: F.cross_entropy(*args, reduction="none"),
        lambda a: a,
    ],
)
@pytest.mark.parametrize("kind", SCORES)
def test_a_loss_that_cannot_be_told_is_named_with_both_forms(loss, kind):
    wanted = r"called as loss\(model, batch\).*\(model, batch\).*\(input, target\)"
    with pytest.raises(ArgumentError, match=wanted) as caught:
        kind(network(), loss).score(INDICES, classification())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_criterion_that_reduces_is_refused(reduction):
    wanted = rf"reduction='{reduction}'.*use MSELoss\(reduction=\"none\"\)"
    with pytest.raises(ArgumentError, match=wanted):
        as_loss(nn.MSELoss(reduction=reduction))


@pytest.mark.parametrize("loss", [None, 3, "mse"])
def test_what_is_no_loss_is_refused(loss):
    with pytest.raises(ArgumentError, match=r"loss must be a callable .* got"):
        as_loss(loss)


@pytest.mark.parametrize(
    ("batch", "shown"),
    [({"x": 1}, "a dict"), ((1, 2, 3), "a tuple of 3"), (torch.ones(2, 2), "a Tensor")],
)
def test_a_criterion_needs_pairs(batch, shown):
    with pytest.raises(ArgumentError, match=rf"this one is {shown}: give loss= a callable"):
        as_loss(F.mse_loss)(network(), batch)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (F.cross_entropy, -100),
        (nn.CrossEntropyLoss(reduction="none", ignore_index=3), 3),
        (functools.partial(F.cross_entropy, ignore_index=2), 2),
        (functools.partial(F.cross_entropy, label_smoothing=0.1), None),
        (functools.partial(F.cross_entropy, weight=torch.ones(C)), None),
        (nn.CrossEntropyLoss(torch.ones(C), reduction="none"), None),
        (nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), None),
        (F.nll_loss, None),
        (nn.NLLLoss(reduction="none"), None),
    ],
)
def test_plain_cross_entropy_is_recognised(loss, expected):
    criterion = as_loss(loss)
    assert isinstance(criterion, Criterion)
    assert criterion.ignore_index == expected


# -------------------------------------------------------------------------------- upper_bound


def at_output(losses, output):
    """The norm of the loss gradient at the output, one example at a time."""
    norms = []
    for i in range(len(output)):
        z = output[i : i + 1].detach().requires_grad_()
        norms.append(torch.autograd.grad(losses(z, i).sum(), z)[0].norm())
    return torch.stack(norms)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ignore_index": 1},
        {"label_smoothing": 0.1},
        {"weight": torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)},
    ],
)
@pytest.mark.parametrize("scale", [1, 30])
def test_cross_entropy_closed_and_generic(options, scale):
    model, (x, y) = network(), classification()
    model[2].weight.data *= scale
    loss = functools.partial(F.cross_entropy, reduction="none", **options)
    expected = at_output(lambda z, i: loss(z, y[i : i + 1]), model(x))
    closed = UpperBound(model, loss).score(INDICES, (x, y))
    generic = UpperBound(model, lambda m, b: loss(m(b[0]), b[1])).score(INDICES, (x, y))
    torch.testing.assert_close(closed, expected, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(generic, expected, rtol=1e-6, atol=1e-12)


def test_the_closed_form_is_used_where_it_holds_and_only_there(monkeypatch):
    calls: list[Any] = []
    real = upper_bound.cross_entropy_gradient_norm
    monkeypatch.setattr(
        upper_bound, "cross_entropy_gradient_norm", lambda *a: calls.append(a) or real(*a)
    )
    model, (x, y) = network(), classification()
    UpperBound(model, F.cross_entropy).score(INDICES, (x, y))
    assert len(calls) == 1
    soft = torch.rand(B, C, dtype=torch.float64).softmax(1)
    expected = at_output(
        lambda z, i: F.cross_entropy(z, soft[i : i + 1], reduction="none"), model(x)
    )
    got = UpperBound(model, F.cross_entropy).score(INDICES, (x, soft))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
    UpperBound(model, functools.partial(F.cross_entropy, label_smoothing=0.1)).score(
        INDICES, (x, y)
    )
    assert len(calls) == 1


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int16])
@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(reduction="none")])
def test_class_numbers_of_any_integer_type(kind, dtype, loss):
    model, (x, y) = network(), classification()
    expected = kind(model, loss).score(INDICES, (x, y))
    assert torch.equal(kind(model, loss).score(INDICES, (x, y.to(dtype))), expected)


def test_no_class_of_small_integers_is_taken_for_the_ignored_one():
    """-100, the usual ignore_index, has the bits of 156."""
    logits, y = torch.randn(B, 200), torch.full((B,), 156, dtype=torch.uint8)
    got = UpperBound(nn.Identity(), F.cross_entropy).score(INDICES, (logits, y))
    assert torch.equal(
        got, UpperBound(nn.Identity(), F.cross_entropy).score(INDICES, (logits, y.long()))
    )
    assert (got > 0).all()


def test_two_classes_as_bool():
    model, (x, y) = network(), classification()
    expected = UpperBound(model, F.cross_entropy).score(INDICES, (x, y % 2))
    got = UpperBound(model, F.cross_entropy).score(INDICES, (x, y % 2 == 1))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("loss", [F.mse_loss, F.binary_cross_entropy_with_logits, F.l1_loss])
def test_other_criteria(loss):
    model, x = network(), classification()[0]
    y = torch.rand(B, C, dtype=torch.float64)
    expected = at_output(lambda z, i: loss(z, y[i : i + 1], reduction="none").mean(1), model(x))
    got = UpperBound(model, loss).score(INDICES, (x, y))
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


def test_sequences():
    model, x = network(), torch.randn(B, 5, 3, dtype=torch.float64)
    y = torch.randint(C, (B, 5))

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]).transpose(1, 2), batch[1], reduction="none")

    def one(z, i):
        return F.cross_entropy(z.transpose(1, 2), y[i : i + 1], reduction="none").mean(1)

    got = UpperBound(model, loss).score(INDICES, (x, y))
    torch.testing.assert_close(got, at_output(one, model(x)), rtol=1e-6, atol=0)


class Output(OrderedDict):
    """As the outputs of transformers: a mapping whose entries are attributes too."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


@dataclass(frozen=True)
class Answer:
    logits: torch.Tensor
    note: str = "kept"


Pair = namedtuple("Pair", "logits extra")


def _output(logits):
    out = Output()
    out["logits"] = logits
    return out


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda z: {"a": [z], "n": torch.arange(B)}, lambda out: out["a"][0]),
        (lambda z: (z, None), lambda out: out[0]),
        (lambda z: Pair(z, 3), lambda out: out.logits),
        (_output, lambda out: out.logits),
        (_output, lambda out: out["logits"]),
        (Answer, lambda out: out.logits),
    ],
)
def test_any_nesting_of_the_output(wrap, unwrap):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            return wrap(self.inner(x))

    model, (x, y) = Net(), classification()

    def loss(model, batch):
        assert model.inner is not None  # attributes are the model's
        return F.cross_entropy(unwrap(model(batch[0])), batch[1], reduction="none")

    got = UpperBound(model, loss).score(INDICES, (x, y))
    expected = UpperBound(model.inner, F.cross_entropy).score(INDICES, (x, y))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


def test_one_tensor_under_two_names_counts_once_with_both_gradients():
    class Net(nn.Module):
        def forward(self, x):
            return {"a": x, "b": x}

    def loss(model, batch):
        out = model(batch)
        return (out["a"] + out["b"]).sum(1)

    got = UpperBound(Net(), loss).score(INDICES, torch.zeros(B, 4))
    torch.testing.assert_close(got, torch.full((B,), 4.0))


def test_two_outputs_add_up():
    class Net(nn.Module):
        def forward(self, x):
            return x, 2 * x

    def loss(model, batch):
        a, b = model(batch)
        return 3 * a.sum(1) + 4 * b.sum(1)

    got = UpperBound(Net(), loss).score(INDICES, torch.zeros(B, 1))
    torch.testing.assert_close(got, torch.full((B,), 5.0))


def test_the_model_runs_without_a_graph():
    seen = []

    class Net(nn.Linear):
        def forward(self, x):
            seen.append(torch.is_grad_enabled())
            return super().forward(x)

    UpperBound(Net(3, C).double(), F.cross_entropy).score(INDICES, classification())
    Loss(Net(3, C).double(), F.cross_entropy).score(INDICES, classification())
    assert seen == [False, False]


@pytest.mark.parametrize("way", ["another model", "forward", "parts"])
def test_upper_bound_refuses_a_loss_that_never_calls_the_model(way):
    model = network()

    def loss(given, batch):
        parts = lambda x: given.get_submodule("2")(given.get_submodule("0")(x))  # noqa: E731
        called = {"another model": model, "forward": given.forward, "parts": parts}[way]
        return per_example_cross_entropy(called, batch)

    with pytest.raises(ArgumentError, match=r"loss never called model\(...\)"):
        UpperBound(model, loss).score(INDICES, classification())


def test_upper_bound_refuses_losses_cut_off_from_the_output():
    def loss(model, batch):
        return per_example_cross_entropy(model, batch).detach()

    with pytest.raises(LossError, match="do not depend on the model's output"):
        UpperBound(network(), loss).score(INDICES, classification())


def test_upper_bound_refuses_outputs_without_an_example_dimension():
    class Net(nn.Module):
        def forward(self, x):
            return x.transpose(0, 1)

    with pytest.raises(
        LossError, match=r"shape \[3, 6\] for 6 examples: return the examples along"
    ):
        UpperBound(Net(), lambda m, b: m(b[0]).sum(0)).score(INDICES, classification())


def test_map_tensors_leaves_the_original_alone():
    tree = {
        "a": [torch.ones(1), "text"],
        "b": Pair(torch.ones(2), None),
        "c": Answer(torch.ones(3)),
    }
    doubled = map_tensors(lambda x: 2 * x, tree)
    assert doubled["a"][0].item() == 2
    assert doubled["b"].logits.tolist() == [2, 2]
    assert doubled["c"].logits.tolist() == [2, 2, 2]
    assert doubled["c"].note == "kept"
    assert tree["a"][0].item() == 1
    assert tree["b"].logits.tolist() == [1, 1]
    assert tree["c"].logits.tolist() == [1, 1, 1]
    assert doubled["a"][1] == "text"


def test_gradient_norm_and_upper_bound_of_a_linear_model():
    """They agree on a linear softmax model: || g x^T || = || g || || x ||."""
    model, batch = nn.Linear(3, C, bias=False).double(), classification()
    top = UpperBound(model, F.cross_entropy).score(INDICES, batch)
    full = GradientNorm(model, F.cross_entropy).score(INDICES, batch)
    torch.testing.assert_close(full, top * batch[0].norm(dim=1))
