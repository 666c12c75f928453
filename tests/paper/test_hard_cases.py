"""Training sets on which importance sampling may go wrong."""

import pytest
import torch

from salience.errors import ArgumentError
from salience.paper.data.images import Images, Scale
from salience.paper.tasks import long_tail, rarest_third, wrong_labels


def images(n: int = 5000, classes: int = 10) -> Images:
    """Each image is its own number, so that it is known again."""
    pixels = torch.arange(n).view(n, 1, 1, 1).remainder(251).to(torch.uint8)
    return Images(pixels, torch.arange(n) % classes, Scale((0.0,), (1.0,)))


def test_a_share_of_the_labels_is_replaced_and_nothing_else() -> None:
    whole = images()
    changed = wrong_labels(whole, 0.2)
    assert torch.equal(changed.images, whole.images)
    # A tenth of the labels drawn at random is right by chance.
    assert 0.16 < float((changed.targets != whole.targets).float().mean()) < 0.2
    assert set(changed.targets.tolist()) == set(range(10))
    assert torch.equal(wrong_labels(whole, 0.2).targets, changed.targets)
    assert torch.equal(wrong_labels(whole, 0.0).targets, whole.targets)
    assert torch.equal(whole.targets, torch.arange(5000) % 10), "the original stays as it was"


def test_class_sizes_fall_geometrically() -> None:
    whole = images()
    tail = long_tail(whole, 0.01)
    sizes = torch.bincount(tail.targets).tolist()
    assert sizes == [round(500 * 0.01 ** (each / 9)) for each in range(10)]
    assert (sizes[0], sizes[-1]) == (500, 5)
    assert rarest_third(tail.targets).tolist() == [9, 8, 7]
    for image, target in zip(tail.images.flatten().tolist(), tail.targets.tolist(), strict=True):
        assert any(number % 10 == target for number in range(image, 5000, 251)), "labels moved"


def test_no_class_vanishes() -> None:
    assert torch.bincount(long_tail(images(20), 0.01).targets).tolist() == [2, *[1] * 9]


@pytest.mark.parametrize(
    ("change", "share", "sentence"),
    [
        (wrong_labels, -0.1, "share must be between 0 and 1"),
        (wrong_labels, 1.1, "share must be between 0 and 1"),
        (long_tail, 0.0, "least must be above 0"),
        (long_tail, 1.1, "least must be above 0"),
    ],
)
def test_shares_out_of_range_are_refused(change, share, sentence) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        change(images(20), share)
