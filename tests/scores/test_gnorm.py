"""The exact gradient norm against a slow loop that cannot be wrong: one example, one backward."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from salience.errors import ArgumentError, LossError
from salience.scores import _layer_rules, _order, _taps, gnorm
from salience.scores.criterion import per_example
from salience.scores.gnorm import GradientNorm
from salience.scores.loss import Loss
from salience.scores.upper_bound import UpperBound

B = 5


def squared_output(model, batch):
    """A loss that sends a different gradient into every entry of the output, per example."""
    out = model(batch["x"])
    out = out[0] if isinstance(out, tuple) else out
    weight = torch.linspace(0.5, 1.5, out[0].numel(), dtype=out.dtype).view(out.shape[1:])
    return (weight * (out - batch["y"].view(-1, *[1] * (out.dim() - 1))) ** 2).flatten(1).sum(1)


def sequence_first(model, batch):
    """For models that take [T, B, D]: the same loss, with the example dimension moved."""
    return squared_output(lambda x: _first(model(x.transpose(0, 1))).transpose(0, 1), batch)


def _first(out):
    return out[0] if isinstance(out, tuple) else out


def batch_of(*shape, tokens=0, n=B, dtype=torch.float64):
    x = torch.randint(tokens, (n, *shape)) if tokens else torch.randn(n, *shape, dtype=dtype)
    return {"x": x, "y": torch.randn(n, dtype=dtype)}


def slow(model, loss, batch, n=B):
    """One example at a time through ordinary autograd."""
    model, norms = copy.deepcopy(model).eval(), []
    for i in range(n):
        model.zero_grad()
        one = {key: x[i : i + 1] for key, x in batch.items()}
        per_example(loss(model, one), 1).sum().backward()
        grads = [p.grad for p in model.parameters() if p.requires_grad and p.grad is not None]
        norms.append(sum(g.square().sum() for g in grads).sqrt())
    return torch.stack(norms)


def check(model, batch, loss=squared_output, n=B, rtol=1e-7):
    model = model.double()
    got = GradientNorm(model, loss).score(torch.arange(n), batch)
    torch.testing.assert_close(got, slow(model, loss, batch, n), rtol=rtol, atol=0)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def only_rules(monkeypatch):
    """Fails where a layer that has a rule is sent to torch.func: right, but slow."""

    def refuse(*args):
        raise AssertionError(f"no rule was used for {list(args[2])}")

    monkeypatch.setattr(gnorm, "by_function", refuse)


@pytest.fixture
def rest(monkeypatch):
    """The names of the parameters that went to torch.func."""
    names, real = [], gnorm.by_function

    def spy(model, loss, parameters, batch, n):
        names.extend(parameters)
        return real(model, loss, parameters, batch, n)

    monkeypatch.setattr(gnorm, "by_function", spy)
    return names


class Reversed(nn.Module):
    """For layers behind a permutation of the dimensions."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x.transpose(0, 1)).transpose(0, 1)


# ----------------------------------------------------------------------------- layers with a rule

LAYERS = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), (4,)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (4,)),
    "linear on sequences, by Gram": (lambda: nn.Linear(30, 20), (3, 30)),
    "linear on sequences, direct": (lambda: nn.Linear(3, 2), (30, 3)),
    "linear on images": (lambda: nn.Linear(4, 3), (2, 3, 4)),
    "linear, sequence as long as the batch": (lambda: nn.Linear(4, 3), (B, 4)),
    "linear, examples second": (lambda: Reversed(nn.Linear(4, 3)), (7, 4)),
    "linear, examples second, square": (lambda: Reversed(nn.Linear(4, 3)), (B, 4)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2), (2, 12)),
    "conv1d, reflect": (lambda: nn.Conv1d(2, 3, 3, padding=2, padding_mode="reflect"), (2, 8)),
    "conv2d, by Gram": (lambda: nn.Conv2d(8, 16, 3), (8, 5, 5)),
    "conv2d, direct": (lambda: nn.Conv2d(1, 2, 3), (1, 12, 12)),
    "conv2d, one position": (lambda: nn.Conv2d(2, 3, 4), (2, 4, 4)),
    "conv2d, same": (lambda: nn.Conv2d(2, 3, (2, 3), padding="same", dilation=(3, 1)), (2, 6, 7)),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), (4, 5, 5)),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Tanh(), nn.LayerNorm((3, 6))), (3, 6)),
    "layer norm, examples second": (lambda: Reversed(nn.LayerNorm(6)), (3, 6)),
    "layer norm on rows": (lambda: nn.LayerNorm(6), (6,)),
    "rms norm": (lambda: nn.RMSNorm(6, eps=1e-6), (3, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 6), (6, 3, 4)),
    "group norm on rows": (lambda: nn.GroupNorm(2, 6), (6,)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 4)),
    "instance norm with statistics": (
        lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        (3, 8),
    ),
    "frozen layer first": (
        lambda: nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 2)),
        (4,),
    ),
    "frozen layer last": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2).requires_grad_(False)),
        (4,),
    ),
    "in-place activation": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Conv2d(3, 2, 3)),
        (1, 8, 8),
    ),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch, to the user
@pytest.mark.usefixtures("only_rules")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("n", [1, 2, B])
def test_equals_the_slow_loop(name, n):
    make, shape = LAYERS[name]
    model = make()
    for p in model.parameters():  # normalisation starts at ones and zeros, which hides mistakes
        p.data.uniform_(-0.9, 0.9)
    check(model, batch_of(*shape, n=n), n=n)


@pytest.mark.usefixtures("only_rules")
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
def test_batch_norm_in_evaluation_mode(kind):
    shape = {nn.BatchNorm1d: (), nn.BatchNorm2d: (3, 2), nn.BatchNorm3d: (2, 3, 2)}[kind]
    norm = kind(4)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    nn.init.uniform_(norm.weight, 0.5, 2)
    check(nn.Sequential(norm, nn.Tanh()), batch_of(4, *shape))


@pytest.mark.usefixtures("only_rules")
@pytest.mark.parametrize("padding_idx", [None, 0])
def test_embedding_with_repeated_tokens(padding_idx):
    model = nn.Sequential(nn.Embedding(3, 4, padding_idx=padding_idx), nn.Tanh())
    batch = batch_of(9, tokens=3)
    assert all(len(set(row.tolist())) < 9 for row in batch["x"])
    check(model, batch)


@pytest.mark.usefixtures("only_rules")
def test_embedding_of_one_token_per_example():
    check(nn.Embedding(3, 4), batch_of(tokens=3))


def test_embedding_scaled_by_frequency_counts_within_the_example(rest):
    model = nn.Embedding(3, 4, scale_grad_by_freq=True)
    check(model, batch_of(9, tokens=3))
    assert rest == ["weight"]


CONVOLUTIONS = st.fixed_dictionaries(
    {
        "rank": st.sampled_from([1, 2]),
        "groups": st.integers(1, 3),
        "c": st.integers(1, 3),
        "o": st.integers(1, 3),
        "kernel": st.tuples(st.integers(1, 4), st.integers(1, 3)),
        "stride": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "dilation": st.tuples(st.integers(1, 3), st.integers(1, 2)),
        "padding": st.one_of(
            st.sampled_from(["same", "valid"]), st.tuples(st.integers(0, 3), st.integers(0, 2))
        ),
        "mode": st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
        "bias": st.booleans(),
        "size": st.tuples(st.integers(4, 11), st.integers(4, 9)),
    }
)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch, to the user
@settings(max_examples=40, deadline=None)
@given(CONVOLUTIONS)
def test_any_convolution(config):
    rank, groups, padding = config["rank"], config["groups"], config["padding"]
    cut = {name: config[name][:rank] for name in ("kernel", "stride", "dilation", "size")}
    stride = (1,) * rank if padding == "same" else cut["stride"]
    kind, channels = (nn.Conv1d, nn.Conv2d)[rank - 1], config["c"] * groups
    try:
        layer = kind(
            *(channels, config["o"] * groups, cut["kernel"]),
            stride=stride,
            padding=padding if isinstance(padding, str) else padding[:rank],
            dilation=cut["dilation"],
            groups=groups,
            bias=config["bias"],
            padding_mode=config["mode"],
        ).double()
        batch = batch_of(channels, *cut["size"], n=3)
        layer(batch["x"])
    except RuntimeError:  # kernel or padding larger than the input
        assume(False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gnorm, "by_function", None)
        check(layer, batch, n=3)


@pytest.mark.usefixtures("only_rules")
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("steps", [B, 7])
def test_lstm(layers, bidirectional, batch_first, bias, steps):
    model = nn.LSTM(
        *(3, 4, layers), bidirectional=bidirectional, batch_first=batch_first, bias=bias
    )
    check(model, batch_of(steps, 3), squared_output if batch_first else sequence_first)


@pytest.mark.usefixtures("only_rules")
@pytest.mark.parametrize(
    "kind", [nn.GRU, nn.RNN, lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_other_recurrent_layers(kind, bias):
    check(kind(3, 4, num_layers=2, bidirectional=True, batch_first=True, bias=bias), batch_of(6, 3))


@pytest.mark.usefixtures("only_rules")
def test_recurrent_layer_with_a_given_state_and_its_last_state():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.start, self.lstm = nn.Linear(3, 4), nn.LSTM(3, 4, 2, batch_first=True)

        def forward(self, x):
            h = self.start(x[:, 0])
            _, (h, c) = self.lstm(x, (torch.stack([h, -h]), torch.stack([2 * h, 3 * h])))
            return torch.cat([*h, *c], 1)

    check(Net(), batch_of(6, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(3, 4, 2, bidirectional=True),
        lambda: nn.LSTM(3, 4, 2, proj_size=2),
        lambda: nn.GRU(3, 4, 2, batch_first=True, bias=False),
        lambda: nn.RNN(3, 4, nonlinearity="relu"),
    ],
)
def test_written_out_recurrent_layers_return_what_the_originals_do(make):
    layer, x = make().double(), torch.randn(5, 6, 3, dtype=torch.float64)
    expected = layer(x)
    with _taps.written_out(layer, None):
        assert "forward" in vars(layer)
        got = layer(x)
    assert "forward" not in vars(layer)
    for a, b in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


class Take(nn.Module):
    def forward(self, x):
        return x[0]


# ----------------------------------------------------------------------- weights used several times


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.between = nn.Linear(4, 4)
        self.out.weight = self.into.weight

    def forward(self, x):
        return self.out(self.between(self.into(x)).tanh())


class Shared(nn.Module):
    """All modules under one weight (and bias, where they have one), one after the other."""

    def __init__(self, *modules):
        super().__init__()
        self.parts = nn.ModuleList(modules)
        for name in ("weight", "bias"):
            for module in modules[1:]:
                if getattr(module, name, None) is not None:
                    setattr(module, name, getattr(modules[0], name))

    def forward(self, x):
        for part in self.parts:
            x = part(x) if isinstance(part, nn.Embedding) else part(x).tanh()
        return x


class Words(nn.Module):
    """Tokens into two embeddings and out of two linear layers, all with one weight."""

    def __init__(self, tokens, width, padding_idx=None):
        super().__init__()
        self.one, self.two = (
            nn.Embedding(tokens, width, padding_idx=p) for p in (padding_idx, None)
        )
        self.out, self.other = (nn.Linear(width, tokens, bias=False) for _ in range(2))
        for part in (self.two, self.out, self.other):
            part.weight = self.one.weight

    def forward(self, x):
        h = self.one(x).sin() + self.two(x.flip(1))
        return self.out(h.cumsum(1)) + self.other(h.tanh())[:, :1]


SHARED = {
    "tied": (Tied, (6,), 5),
    "tied, one token": (Tied, (1,), 5),
    "linear twice": (lambda: Twice(), (4,), 0),
    "linear twice on sequences, direct": (lambda: Twice(), (30, 4), 0),
    "linear twice on sequences, by Gram": (lambda: Shared(*[nn.Linear(20, 20)] * 2), (3, 20), 0),
    "two embeddings, two heads, by Gram": (lambda: Words(40, 12), (6,), 40),
    "two embeddings, two heads, direct": (lambda: Words(3, 2), (9,), 3),
    "two embeddings, one with padding": (lambda: Words(5, 4, padding_idx=0), (6,), 5),
    "conv2d twice": (
        lambda: Shared(nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, stride=2)),
        (2, 7, 7),
        0,
    ),
    "depthwise twice": (lambda: Shared(*[nn.Conv1d(4, 4, 3, groups=4)] * 2), (4, 9), 0),
    "layer norm twice": (lambda: Shared(nn.LayerNorm(6), nn.LayerNorm(6)), (3, 6), 0),
    "gru twice": (
        lambda: nn.Sequential(*[g := nn.GRU(3, 3, batch_first=True), Take(), g, Take()]),
        (5, 3),
        0,
    ),
}


@pytest.mark.usefixtures("only_rules")
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("n", [1, B])
def test_weights_used_several_times(name, n):
    make, shape, tokens = SHARED[name]
    model = make()
    for p in model.parameters():
        p.data.uniform_(-0.9, 0.9)
    batch = batch_of(*shape, tokens=tokens, n=n)
    check(model, batch, n=n)
    if tokens:
        check(model, {**batch, "x": batch["x"].int()}, n=n)


@pytest.mark.usefixtures("only_rules")
def test_a_tied_embedding_needs_no_loop_and_no_gradient_per_example():
    """More than 2^24 parameters, where torch.func would take one example at a time."""
    tokens, width, n = 33_000, 512, 8
    model = nn.Sequential(nn.Embedding(tokens, width), nn.Linear(width, tokens, bias=False))
    model[1].weight = model[0].weight
    assert model[0].weight.numel() > 2**24
    batch = torch.randint(tokens, (n, 4))
    score = GradientNorm(
        model, lambda m, b: F.cross_entropy(m(b).mT, b.roll(1, 1), reduction="none")
    )
    with Largest() as largest:
        score.score(torch.arange(n), batch)
    assert largest.numbers <= model[0].weight.numel()


# ------------------------------------------------------------------- parameters without a rule


class TiedByFunction(Tied):
    """The embedding's weight is used a second time, past its layer: no hook sees that."""

    def __init__(self):
        super().__init__()
        del self.out

    def forward(self, x):
        return F.linear(self.between(self.into(x)).tanh(), self.into.weight)


class TiedThrice(Tied):
    """Two uses that rules cover and one that they do not: all three go to torch.func."""

    def forward(self, x):
        return F.linear(super().forward(x).tanh()[..., :4], self.into.weight)


class UnlikeConvolutions(nn.Module):
    """One weight, in one group and in two: the rules do not add up."""

    def __init__(self):
        super().__init__()
        self.whole, self.halves = nn.Conv1d(2, 4, 3, bias=False), nn.Conv1d(4, 4, 3, groups=2)
        self.halves.weight = self.whole.weight

    def forward(self, x):
        return self.whole(x[:, :2]) * self.halves(x).tanh()


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.again, self.once = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.once(self.again(self.again(x).tanh()).tanh())


class Unhooked(nn.Module):
    """One layer runs but its result is dropped; its weight acts elsewhere, once."""

    def __init__(self):
        super().__init__()
        self.layer, self.once = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        self.layer(x)
        return self.once(F.linear(x, self.layer.weight).tanh())


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(3))
        self.once = nn.Linear(4, 2)

    def forward(self, x):
        return self.once((x * self.scale).sin())


class Positions(nn.Module):
    """A learned position per step, shared by all examples; as many steps as examples."""

    def __init__(self, steps):
        super().__init__()
        self.place, self.once = nn.Embedding(steps, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.once((x + self.place(torch.arange(x.shape[1]))).tanh())


class Folded(nn.Module):
    """Time folded into the batch, as many language models do before the last layer."""

    def __init__(self):
        super().__init__()
        self.each, self.once = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.once(self.each(x.reshape(-1, 4)).tanh().view_as(x))


class Sideways(nn.Module):
    """The examples lie along the positions of a convolution that sees one at a time."""

    def __init__(self):
        super().__init__()
        self.conv, self.once = nn.Conv1d(4, 4, 1), nn.Linear(4, 2)

    def forward(self, x):
        return self.once(self.conv(x.t().unsqueeze(0))[0].t().tanh())


class Gated(nn.Linear):
    """A subclass: the rule of its parent would be wrong."""

    def forward(self, input):
        return super().forward(input) * torch.sigmoid(super().forward(input))


class Attention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)[0]


REST = {
    "tied by function": (TiedByFunction, (6,), {"into.weight"}),
    "used past its layer": (Unhooked, (4,), {"layer.weight"}),
    "own parameter": (Own, (4,), {"scale"}),
    "positions": (lambda: Positions(B), (B, 4), {"place.weight"}),
    "folded": (Folded, (3, 4), {"each.weight", "each.bias"}),
    "sideways": (Sideways, (4,), {"conv.weight", "conv.bias"}),
    "subclass": (lambda: Gated(4, 3), (4,), {"weight", "bias"}),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 3, 4, 3), {"weight", "bias"}),
    "transposed": (lambda: nn.ConvTranspose1d(2, 3, 2), (2, 5), {"weight", "bias"}),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        (4,),
        {"bias", "parametrizations.weight.original0", "parametrizations.weight.original1"},
    ),
    "projected lstm": (
        lambda: nn.LSTM(3, 4, proj_size=2, batch_first=True, bias=False),
        (5, 3),
        {"weight_hr_l0"},
    ),
    "tied and used past its layer": (TiedThrice, (6,), {"into.weight"}),
    "shared by unlike convolutions": (
        UnlikeConvolutions,
        (4, 6),
        {"whole.weight"},
    ),
    "attention": (
        lambda: Attention(4, 2, batch_first=True),
        (6, 4),
        {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"},
    ),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        (6, 4),
        {f"self_attn.{p}" for p in ("in_proj_weight", "in_proj_bias")}
        | {"self_attn.out_proj.weight", "self_attn.out_proj.bias"},
    ),
}


@pytest.mark.parametrize("name", REST)
def test_what_no_rule_covers_is_exact_too(name, rest):
    make, shape, expected = REST[name]
    model = make().double()
    before = dict(model.named_parameters())
    batch = batch_of(*shape, tokens=5 if name.startswith("tied") else 0)
    check(model, batch)
    assert set(rest) == expected
    assert all(p is before[name] for name, p in model.named_parameters())


def test_fallback_takes_a_few_examples_at_a_time(monkeypatch):
    sizes, real = [], torch.func.vmap

    def spy(*args, chunk_size, **kwargs):
        sizes.append(chunk_size)
        return real(*args, chunk_size=chunk_size, **kwargs)

    monkeypatch.setattr(torch.func, "vmap", spy)
    layer = nn.ConvTranspose1d(2048, 2048, 1, bias=False)
    batch = batch_of(2048, 1)
    check(layer, batch)
    assert sizes == [4]


def test_loss_may_read_parameters_and_call_parts_of_the_model():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def loss(model, batch):
        decay = model.head.weight.square().sum()
        return model.head(model.encode(batch["x"]).tanh()).square().sum(1) * batch["y"] ** 2 + decay

    check(Net(), batch_of(4), loss)


@pytest.mark.usefixtures("only_rules")
def test_losses_over_time_are_averaged():
    def loss(model, batch):
        return model(batch["x"]).square().sum(2)

    batch = batch_of(6, 4)
    check(nn.Linear(4, 3), batch, loss)
    one = GradientNorm(nn.Linear(4, 3).double(), loss).score(torch.arange(B), batch)
    assert one.shape == (B,)


@pytest.mark.usefixtures("only_rules")
def test_user_hooks_that_replace_the_output():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].register_forward_hook(lambda _m, _x, out: out.tanh() * 3)
    model[1].register_forward_pre_hook(lambda _m, args: (args[0] ** 2,))
    check(model, batch_of(4))


@pytest.mark.usefixtures("only_rules")
def test_checkpointed_layers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.LSTM(4, 2, batch_first=True)

        def forward(self, x):
            x = checkpoint(lambda z: self.a(z).tanh(), x, use_reentrant=False)
            return checkpoint(self.b, x, use_reentrant=False)[0]

    check(Net(), batch_of(6, 4))


def test_what_a_reentrant_checkpoint_hides_is_refused():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.hidden, self.once = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            return self.once(checkpoint(self.hidden, self.first(x), use_reentrant=True))

    with pytest.raises(ArgumentError, match="use_reentrant=False"):
        check(Net(), batch_of(4))


@pytest.mark.usefixtures("only_rules")
def test_half_precision_is_summed_in_single():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).bfloat16()
    batch = {"x": torch.randn(B, 64).bfloat16(), "y": torch.randn(B).bfloat16()}
    got = GradientNorm(model, squared_output).score(torch.arange(B), batch)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, slow(model, squared_output, batch).float(), rtol=0.03, atol=0)


@pytest.mark.usefixtures("only_rules")
def test_autocast_inside_the_loss():
    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return squared_output(model, batch)

    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8))
    batch = batch_of(1, 8, 8, dtype=torch.float32)
    got = GradientNorm(model, loss).score(torch.arange(B), batch)
    torch.testing.assert_close(got, slow(model, squared_output, batch), rtol=0.03, atol=0)


def test_a_weight_used_twice_under_autocast_is_noticed(rest):
    """Autocast would cast it once for both uses, and the graph would show one."""

    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return (F.linear(model(batch["x"]), model.weight) ** 2).sum(1)

    GradientNorm(nn.Linear(4, 4), loss).score(torch.arange(B), batch_of(4, dtype=torch.float32))
    assert rest == ["weight"]


def test_train_mode_drops_the_same_units_for_all_parameters(rest):
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 4), Own())
    got = GradientNorm(model.double(), squared_output, mode="train").score(
        torch.arange(B), batch_of(4)
    )
    assert torch.isfinite(got).all()
    assert set(rest) == {name for name, _ in model.named_parameters()} - {"3.unused"}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch, as it compiles
@pytest.mark.parametrize("part", ["whole", "in place", "inner"])
def test_compiled_models(part):
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Sequential(nn.Linear(3, 2))).double()
    batch = batch_of(4)
    expected = slow(model, squared_output, batch)
    compiled = []

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph.forward

    if part == "inner":
        model[2] = torch.compile(model[2], backend=backend)
    elif part == "in place":
        model.compile(backend=backend)
    else:
        model = torch.compile(model, backend=backend)
    model(batch["x"])
    before = len(compiled)
    got = GradientNorm(model, squared_output).score(torch.arange(B), batch)
    assert len(compiled) == before  # scoring compiles nothing
    torch.testing.assert_close(got, expected, rtol=1e-7, atol=0)


def test_train_mode_is_the_gradient_under_one_mask():
    """Dropout keeps or doubles each unit: the score is that of one such network."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1, bias=False)).double()
    x = torch.ones(B, 3, dtype=torch.float64)
    got = GradientNorm(model, lambda m, b: m(b).squeeze(1), mode="train").score(torch.arange(B), x)
    possible = 2 * torch.arange(4, dtype=torch.float64).sqrt()
    assert (torch.cdist(got[:, None], possible[:, None]).amin(1) < 1e-12).all()


# --------------------------------------------------------------------------------------- memory


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any operation returned in one tensor."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):  # a view takes no memory of its own
                numbers = x.untyped_storage().nbytes() // x.element_size()
                self.numbers = max(self.numbers, numbers)
        return out


@pytest.mark.usefixtures("only_rules")
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(1024, 1024), (1024,)),
        (nn.Linear(512, 512), (4, 512)),  # by Gram
        (nn.Linear(1024, 1024), (600, 1024)),  # direct
        (nn.Conv2d(128, 256, 3, padding=1), (128, 24, 24)),  # direct
        (nn.Conv2d(256, 256, 3), (256, 5, 5)),  # by Gram
    ],
)
def test_no_tensor_grows_as_examples_times_parameters(model, shape):
    n = 16
    parameters = sum(p.numel() for p in model.parameters())
    score = GradientNorm(model, lambda m, b: m(b).square().flatten(1).sum(1))
    batch = torch.randn(n, *shape) * 0.1
    with Largest() as largest:
        score.score(torch.arange(n), batch)
    activations = max(batch.numel(), model(batch).numel())
    assert largest.numbers <= max(activations, 2 * parameters, 2**21) < n * parameters


@pytest.mark.parametrize(("d", "o", "t"), [(512, 512, 4), (3, 2, 30)])
def test_the_cheaper_of_the_two_forms_is_taken(d, o, t):
    x, g = torch.randn(2, d, t), torch.randn(2, o, t)
    with Largest() as largest:
        got = _layer_rules._frobenius(x, g)
    assert largest.numbers <= max(x.numel(), g.numel(), 2 * min(t * t, d * o))
    torch.testing.assert_close(got, (g @ x.mT).square().sum((1, 2)))


@pytest.mark.usefixtures("only_rules")
@pytest.mark.parametrize("padding", [0, 1])
def test_the_papers_network(padding):
    side = {0: 4, 1: 7}[padding]
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=padding), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, padding=padding), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Conv2d(32, 64, 3, padding=padding), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, padding=padding), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(64 * side * side, 512), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10)),
    )
    batch = batch_of(1, 28, 28)
    batch["y"] = torch.arange(B)
    check(model, batch, lambda m, b: F.cross_entropy(m(b["x"]), b["y"], reduction="none"))


# --------------------------------------------------------------------------------------- refusals


def test_batch_norm_in_train_mode_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(ArgumentError, match=r"'1' \(BatchNorm1d\) mixes .* use mode=\"eval\""):
        GradientNorm(model, squared_output, mode="train")


def test_batch_norm_without_statistics_is_refused():
    with pytest.raises(ArgumentError, match="without running statistics"):
        GradientNorm(nn.BatchNorm1d(4, track_running_stats=False), squared_output)


@pytest.mark.parametrize("model", [nn.Tanh(), nn.Linear(2, 2).requires_grad_(False)])
def test_nothing_to_train_is_refused(model):
    with pytest.raises(ArgumentError, match=r"no parameter .* requires a gradient"):
        GradientNorm(model, squared_output)


def test_losses_cut_off_from_the_model_are_refused():
    def loss(model, batch):
        return model(batch["x"]).detach().sum(1)

    with pytest.raises(LossError, match="do not depend on any trainable"):
        GradientNorm(nn.Linear(4, 2), loss).score(torch.arange(B), batch_of(4, dtype=torch.float32))


def test_what_vmap_cannot_run_is_named():
    class Branch(Own):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    with pytest.raises(ArgumentError, match=r"no rule covers scale, and .*vmap cannot run"):
        GradientNorm(Branch(), squared_output).score(
            torch.arange(B), batch_of(4, dtype=torch.float32)
        )


def test_parameters_the_loss_does_not_reach_count_as_zero(rest):
    model = nn.ModuleDict({"used": nn.Linear(4, 2), "left": nn.Linear(9, 9)})
    check(model, batch_of(4), lambda m, b: squared_output(m["used"], b))
    assert rest == []


class Reordered(nn.Module):
    """The second layer meets the examples in the order of ``key``, and their order comes back."""

    def __init__(self, key):
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.key = key

    def forward(self, x):
        order = self.key(x)
        h = self.second(self.first(x).tanh()[order]).tanh()
        return self.last(h[order.argsort()])


def exchanged(x):
    order = torch.arange(len(x))
    order[-2:] = order[-2:].flip(0)
    return order


ORDERS = {
    "flipped": (lambda x: torch.arange(len(x)).flip(0), (2, B, 64)),
    "sorted": (lambda x: x[:, 0].argsort(), (2, B, 64)),
    "rotated": (lambda x: torch.arange(len(x)).roll(8), (B, 64)),
    "two exchanged": (exchanged, (2, B, 64)),
}


@pytest.mark.parametrize(("name", "n"), [(name, n) for name in ORDERS for n in ORDERS[name][1]])
def test_a_model_that_reorders_its_batch_is_refused(name, n):
    model = Reordered(ORDERS[name][0])
    batch = {"x": torch.linspace(1, -1, n * 4).view(n, 4), "y": torch.randn(n)}
    score = GradientNorm(model, squared_output)
    for _ in range(2):  # not only the first time
        with pytest.raises(ArgumentError, match=r"'second' \(Linear\) does not meet .* keep the"):
            score.score(torch.arange(n), batch)


def test_examples_that_influence_each_other_are_refused():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = self.first(x)
            return self.last((h - h.mean(0)).tanh())

    with pytest.raises(ArgumentError, match=r"layer 'first' .* influence each other"):
        check(Mixing(), batch_of(4))


class Deep(nn.Module):
    """Rounding adds up, and one layer's gradient is nothing but rounding."""

    def __init__(self):
        super().__init__()
        self.deep = nn.ModuleList(nn.Linear(32, 32) for _ in range(16))
        self.without_effect, self.head = nn.Linear(32, 1), nn.Linear(32, 7)

    def forward(self, x):
        for layer in self.deep:
            x = x + layer(x).tanh()
        return (self.head(x) + self.without_effect(x)).log_softmax(1)  # a shift of all logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cast", [False, True])
def test_rounding_is_not_taken_for_another_order(dtype, cast):
    def loss(model, batch):
        with torch.autocast("cpu", dtype, enabled=cast and dtype != torch.float32):
            losses = -model(batch)[:, 3]
            return losses.float() if cast else losses

    model, x = Deep(), torch.randn(48, 32)
    score = GradientNorm(model if cast else model.to(dtype), loss)
    assert score.score(torch.arange(48), x if cast else x.to(dtype)).isfinite().all()


def test_on_an_accelerator_another_order_is_reported_with_the_next_scores(monkeypatch):
    class Elsewhere(_order.Order):
        def __init__(self, *args):
            super().__init__(*args)
            self.on_host = False

    monkeypatch.setattr(_order, "Order", Elsewhere)
    score, batch = GradientNorm(Reordered(exchanged), squared_output), batch_of(4)
    score.model.double()
    score.score(torch.arange(B), batch)
    for again in (score, score):  # and from then on
        with pytest.raises(ArgumentError, match="does not meet"):
            again.score(torch.arange(B), batch)
    pickle.loads(pickle.dumps(GradientNorm(nn.Linear(2, 2), F.mse_loss)))


def test_the_order_is_checked_once_for_each_set_of_shapes(monkeypatch):
    checked, real = [], gnorm.check_order
    monkeypatch.setattr(gnorm, "check_order", lambda *a: checked.append(1) or real(*a))
    score = GradientNorm(nn.Linear(4, 2).double(), squared_output)
    for n in (B, B, 3, B, 3):
        score.score(torch.arange(n), batch_of(4, n=n))
    assert len(checked) == 2


@pytest.fixture
def _one_rank(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # torch's own, of the CPU
@pytest.mark.usefixtures("_one_rank")
def test_sharded_parameters_are_refused_by_name():
    """FSDP2: parameters are DTensors; the scores that need no gradient of them work."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    batch = torch.randn(B, 4), torch.randint(2, (B,))
    expected = [s(model, F.cross_entropy).score(torch.arange(B), batch) for s in (Loss, UpperBound)]
    score = GradientNorm(model, F.cross_entropy)
    fsdp.fully_shard(model[0], mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    with pytest.raises(ArgumentError, match=r"sharded parameters such as '0.weight' \(FSDP2"):
        score.score(torch.arange(B), batch)
    with pytest.raises(ArgumentError, match="sharded parameters"):
        GradientNorm(model, F.cross_entropy)
    for kind, scores in zip((Loss, UpperBound), expected, strict=True):
        got = kind(model, F.cross_entropy).score(torch.arange(B), batch)
        torch.testing.assert_close(got, scores)
