"""Training sets on which importance sampling may go wrong: wrong labels, and a long tail."""

import torch
from torch import Tensor

from salience.errors import ArgumentError
from salience.paper.data.images import Images

__all__ = ["long_tail", "rarest_third", "wrong_labels"]


SEED = 4_107_558_203  # of the choices below; not one that a run has, whose draws they would be


def wrong_labels(images: Images, share: float = 0.2) -> Images:
    """The same images, a ``share`` of them with a class drawn at random from all classes."""
    if not 0 <= share <= 1:
        raise ArgumentError(f"share must be between 0 and 1; got {share}")
    generator = torch.Generator().manual_seed(SEED)
    targets = images.targets.clone()
    n = len(targets)
    chosen = torch.randperm(n, generator=generator)[: round(share * n)]
    classes = int(targets.max()) + 1
    targets[chosen] = torch.randint(0, classes, (len(chosen),), generator=generator)
    return Images(images.images, targets, images.scale)


def long_tail(images: Images, least: float = 0.01) -> Images:
    """Class sizes that fall geometrically, from all of class 0 to ``least`` of the last class."""
    if not 0 < least <= 1:
        raise ArgumentError(f"least must be above 0 and at most 1; got {least}")
    generator = torch.Generator().manual_seed(SEED)
    classes = int(images.targets.max()) + 1
    chosen = []
    for each in range(classes):
        members = (images.targets == each).nonzero().flatten()
        size = max(1, round(len(members) * least ** (each / max(classes - 1, 1))))
        chosen.append(members[torch.randperm(len(members), generator=generator)[:size]])
    order = torch.cat(chosen).sort().values
    return Images(images.images[order], images.targets[order], images.scale)


def rarest_third(targets: Tensor) -> Tensor:
    """The classes of the rarest third (rounded down, at least one), the rarest first."""
    counts = torch.bincount(targets)
    return counts.argsort(stable=True)[: max(1, len(counts) // 3)]
