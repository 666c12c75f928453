"""Datasets that grow while training."""

from dataclasses import replace
from typing import Any

import torch

from salience.assembly import Parts, Recipe
from salience.batches.labels import Labels, as_labels
from salience.errors import ArgumentError, UsageError
from salience.scores import Approx

__all__ = ["grow", "grown", "refuse_to_grow"]


def refuse_to_grow(recipe: Recipe, parts: Parts, n: int) -> None:
    """Where that cannot be, or not to ``n`` examples."""
    if recipe.n is None:
        raise UsageError("a stream has no size that could grow")
    if parts.shard is not None:
        raise UsageError(
            "the shards of several ranks cannot grow: leave shard out, or begin anew with the "
            "larger dataset"
        )
    if recipe.reference is not None:
        raise UsageError(
            "a reference has no losses for new examples: begin anew with one for all of them, or "
            "leave reference out"
        )
    if parts.preset.score.by_index and not hasattr(parts.preset.score, "extend"):
        raise UsageError(
            f"score {parts.name} cannot grow: give it a method extend(n) that makes room for n "
            f"examples"
        )
    if n < recipe.n:
        raise ArgumentError(
            f"the dataset has shrunk from {recipe.n} to {n} examples: extend() is for new ones "
            f"behind those that were there"
        )
    if n > recipe.n and recipe.memory is not None and parts.ranks.world > 1:
        raise UsageError("memory that ranks share cannot grow: leave memory out")


def grown(recipe: Recipe, parts: Parts, n: int, labels: Any) -> Recipe:
    """The recipe for ``n`` examples; ``labels`` of all of them, if there were any."""
    return replace(recipe, n=n, labels=_grown_labels(recipe, parts, n, labels))


def _grown_labels(recipe: Recipe, parts: Parts, n: int, labels: Any) -> Labels | None:
    """The classes of all examples, numbered as before."""
    before = recipe.labels
    if before is None:
        return None
    if labels is None:
        raise ArgumentError(f"labels must be given for all {n} examples, as at the beginning")
    new = as_labels(labels, n)
    # With no more classes than places in a batch, ``auto`` makes no use of them.
    batch = recipe.batch_size * parts.ranks.world
    strata = recipe.score == "auto" and new.number > batch
    if not (isinstance(parts.preset.score, Approx) or strata):
        return new
    if new.number != before.number or not torch.equal(new.labels[: recipe.n], before.labels):
        raise ArgumentError(
            "labels must be those of before with new ones behind, and no new classes: begin "
            "anew with all classes"
        )
    return new


def grow(parts: Parts, recipe: Recipe) -> Parts:
    """The same parts, with room for the examples of a larger ``recipe``."""
    score, _, source = parts.preset
    n, labels = recipe.n, None if recipe.labels is None else recipe.labels.labels
    assert n is not None
    extensible: Any = score
    if isinstance(score, Approx):
        score.extend(n, None if labels is None else labels[parts.examples :])
    elif score.by_index:
        extensible.extend(n)
    if (extend := getattr(parts.focus, "extend", None)) is not None:
        extend(n)
    if parts.record is not None:
        parts.record.extend(n)
    assert source is not None
    source.extend(n, labels)
    parts.settings["dataset size"] = n
    return parts._replace(examples=n, size=min(recipe.batch_size * parts.ranks.world, n))
