"""The language model's cross entropy and Adam against torch's own."""

import pytest
import torch
from torch import nn

from salience.paper.networks import ptb_network
from salience.paper.words import fused_adam, word_loss


def scores_and_words(batch=6, words=11, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    scores = 5 * torch.randn(batch, words, generator=generator, dtype=dtype)
    targets = torch.randint(0, words, (batch,), generator=generator)
    return scores.requires_grad_(), targets


def losses_and_gradient(loss, scores, targets, weights):
    losses = loss(scores, targets)
    (gradient,) = torch.autograd.grad((losses * weights).sum(), scores)
    return losses.detach(), gradient


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_and_gradients_are_those_of_cross_entropy(dtype, shift):
    scores, targets = scores_and_words(dtype=dtype)
    scores = (scores.detach() + shift).requires_grad_()
    weights = torch.linspace(0.0, 3.0, len(targets), dtype=dtype)  # one example counts for nothing
    own = losses_and_gradient(word_loss, scores, targets, weights)
    torchs = losses_and_gradient(
        lambda *both: nn.functional.cross_entropy(*both, reduction="none"), scores, targets, weights
    )
    # A score of 1e4 has a spacing of 1e-3 in float32: the sum of both is as exact as that.
    tolerance = torch.finfo(dtype).eps * max(1.0, abs(shift)) * 8
    for ours, theirs in zip(own, torchs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=tolerance)


def test_gradients_are_those_of_finite_differences_each_time_they_are_asked_for():
    scores, targets = scores_and_words()
    assert torch.autograd.gradcheck(word_loss, (scores, targets))
    losses = word_loss(scores, targets).sum()
    first, second = (torch.autograd.grad(losses, scores, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_without_gradients_it_is_torchs_own():
    scores, targets = scores_and_words()
    with torch.no_grad():
        plain = word_loss(scores, targets)
    assert not plain.requires_grad
    torch.testing.assert_close(plain, word_loss(scores, targets).detach())


def test_a_nan_stays_one():
    scores, targets = scores_and_words()
    broken = scores.detach().clone()
    broken[2, 3] = torch.nan
    found = word_loss(broken.requires_grad_(), targets)
    assert found.isnan().nonzero().flatten().tolist() == [2]


def test_fused_adam_takes_the_steps_of_adam():
    def trained(make):
        torch.manual_seed(0)
        model = ptb_network("tiny").eval()
        optimizer = make(model.parameters())
        for _ in range(3):
            loss = nn.functional.cross_entropy(
                model(torch.arange(40).view(2, 20)), torch.ones(2).long()
            )
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([each.detach().flatten() for each in model.parameters()])

    plain = trained(lambda parameters: torch.optim.Adam(parameters, lr=1e-3))
    torch.testing.assert_close(trained(fused_adam), plain, rtol=0, atol=1e-6)
