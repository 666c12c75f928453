"""The paper's networks: shapes, layers in their order, and numbers of weights."""

import pytest
import torch
from torch import nn

from salience.errors import ArgumentError
from salience.paper.networks import (
    WordModel,
    cifar10_network,
    mnist_network,
    perceptron,
    ptb_network,
    strided,
)

SIZES = ("paper", "small", "tiny")


# Weights counted by hand, and a batch.
WEIGHTS = {
    "mnist": {"paper": 1_938_922, "small": 122_434, "tiny": 52_138},
    "cifar10": {"paper": 5_872_458, "small": 92_978, "tiny": 39_626},
    "ptb": {"paper": 4_066_385, "small": 864_353, "tiny": 334_385},
}
NETWORKS = {
    "mnist": (mnist_network, WEIGHTS["mnist"], torch.zeros(2, 1, 28, 28)),
    "cifar10": (cifar10_network, WEIGHTS["cifar10"], torch.zeros(2, 3, 32, 32)),
    "ptb": (ptb_network, WEIGHTS["ptb"], torch.ones(2, 20).long()),
}


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("make", "weights", "batch"), NETWORKS.values(), ids=NETWORKS)
def test_size_output_and_gradients(make, weights, batch, size):
    network = make(size)
    assert count(network) == weights[size]
    scores = network(batch)
    assert scores.shape == (2, 10_001 if make is ptb_network else 10)
    nn.functional.cross_entropy(scores, torch.tensor([1, 2])).backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


@pytest.mark.parametrize(("make", "weights", "_"), NETWORKS.values(), ids=NETWORKS)
def test_the_papers_size_is_the_default_and_others_are_refused(make, weights, _):
    assert count(make()) == weights["paper"]
    with pytest.raises(ArgumentError, match=r"model must be one of tiny, .*; got 'huge'"):
        make("huge")


def layers(network):
    """Each layer with the number that tells it from others of its kind."""
    telling = {
        nn.Conv2d: "out_channels",
        nn.BatchNorm2d: "num_features",
        nn.MaxPool2d: "kernel_size",
        nn.Dropout: "p",
        nn.Linear: "out_features",
    }
    return [
        f"{type(layer).__name__} {getattr(layer, telling.get(type(layer), ''), '')}".strip()
        for layer in network
    ]


def test_layers_of_the_mnist_network():
    assert layers(mnist_network("paper")) == [
        *("Conv2d 32", "ReLU", "Conv2d 32", "ReLU", "MaxPool2d 2", "Dropout 0.25"),
        *("Conv2d 64", "ReLU", "Conv2d 64", "ReLU", "MaxPool2d 2", "Dropout 0.25"),
        "Flatten",
        *("Linear 512", "ReLU", "Dropout 0.5", "Linear 512", "ReLU", "Dropout 0.5", "Linear 10"),
    ]


def test_layers_of_the_cifar10_network():
    expected = []
    for filters in (64, 128, 256):
        expected += [f"Conv2d {filters}", "ReLU", f"BatchNorm2d {filters}"] * 2
        expected += ["MaxPool2d 2", "Dropout 0.25"]
    expected += ["Flatten", "Linear 1024", "ReLU", "Dropout 0.5", "Linear 512", "ReLU"]
    assert layers(cifar10_network("paper")) == [*expected, "Dropout 0.5", "Linear 10"]


def test_layers_of_the_tiny_networks():
    block = ["Conv2d {}", "MaxPool2d 2", "ReLU"]
    mnist = [each.format(n) for n in (8, 16) for each in (*block, "Dropout 0.25")]
    ends = ["Flatten", "Linear 64", "ReLU", "Dropout 0.5", "Linear 10"]
    assert layers(mnist_network("tiny")) == [*mnist, *ends]
    cifar10 = [each.format(n) for n in (8, 16, 32) for each in (*block, "BatchNorm2d {}")]
    ends.remove("Dropout 0.5")
    for dropout in (True, False):
        assert layers(cifar10_network("tiny", dropout=dropout)) == [*cifar10, *ends]


def test_the_perceptron_is_for_mnist_alone():
    expected = ["Flatten", "Linear 500", "ReLU", "Linear 300", "ReLU", "Linear 10"]
    assert layers(mnist_network("perceptron")) == layers(perceptron()) == expected
    for make in (cifar10_network, ptb_network):
        with pytest.raises(ArgumentError, match="perceptron is for MNIST, not for"):
            make("perceptron")


def test_the_strided_network_is_for_cifar10_alone():
    expected = [each for n in (24, 48, 96) for each in (f"Conv2d {n}", f"BatchNorm2d {n}", "ReLU")]
    assert layers(strided()) == [*expected, "Flatten", "Linear 10"]
    assert layers(cifar10_network("strided")) == layers(strided())
    assert count(strided()) == 68_698
    assert strided()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert {layer.stride for layer in strided() if isinstance(layer, nn.Conv2d)} == {(2, 2)}
    for make in (mnist_network, ptb_network):
        with pytest.raises(ArgumentError, match="strided is for CIFAR-10, not for"):
            make("strided")


@pytest.mark.parametrize("make", [mnist_network, cifar10_network])
def test_small_is_the_same_shape_but_narrower(make):
    kinds = [[type(layer) for layer in make(size)] for size in ("paper", "small")]
    assert kinds[0] == kinds[1]


def test_the_language_model_predicts_from_the_last_state_of_the_upper_layer():
    model = WordModel(words=30, embedding=4, units=6).eval()
    context = torch.tensor([[0, 0, 3, 9], [5, 1, 2, 8]])
    _, (last, _) = model.lstm(model.embedding(context))
    torch.testing.assert_close(model(context), model.output(last[1]))


def test_the_language_model_drops_between_its_layers_and_before_the_output():
    model = ptb_network("paper")
    assert (model.lstm.num_layers, model.lstm.dropout, model.dropout.p) == (2, 0.5, 0.5)
    dropped = []
    model.output.register_forward_pre_hook(lambda _, inputs: dropped.append(inputs[0]))
    model(torch.randint(1, 10_001, (64, 20)))
    assert 0.45 < (dropped[0] == 0).float().mean() < 0.55


def test_padding_is_embedded_as_nothing_and_stays_so():
    model = ptb_network("small")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model(torch.zeros(4, 20).long()), torch.arange(4)).backward()
    optimizer.step()
    assert model.embedding.weight[0].abs().sum() == 0


@pytest.mark.parametrize("make", [mnist_network, cifar10_network])
def test_convolutions_lie_in_memory_with_the_channels_last_and_compute_the_same(make):
    network = make("small").eval()
    weights = [layer.weight for layer in network if isinstance(layer, nn.Conv2d)]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
    images = torch.randn(3, *{mnist_network: (1, 28, 28), cifar10_network: (3, 32, 32)}[make])
    scores = network(images)
    plain = network.to(memory_format=torch.contiguous_format)
    torch.testing.assert_close(scores, plain(images), atol=1e-5, rtol=1e-4)
