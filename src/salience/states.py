"""What a sampler saves: which states it takes, and which part of them is a rank's."""

from typing import Any

from salience.assembly import Recipe
from salience.distributed import Ranks, counted
from salience.errors import StateError
from salience.shards import state_of_shard

__all__ = ["VERSION", "check_state", "state_of_rank"]

VERSION = 9  # of the saved state


def check_state(state: Any, settings: dict[str, Any], ranks: Ranks, batch_size: int) -> None:
    """Refuse what ``state_dict`` did not return, or returned with other ``settings``."""
    version = state.get("version") if isinstance(state, dict) else None
    if version != VERSION:
        raise StateError(
            f"state has version {version!r}, this release reads {VERSION}: "
            f"pass what state_dict() of an ImportanceLoader or ImportanceSampler returned"
        )
    if "elsewhere" in state:
        rank = state["elsewhere"]
        raise StateError(
            f"this is the state of a rank that shares the memory of rank {rank}, which has "
            f"all of it: load what state_dict() returned on rank {rank}"
        )
    saved = state.get("settings")
    if not isinstance(saved, dict):
        raise StateError(f"the state is damaged (settings {saved!r}): nothing was loaded")
    many = f" ({batch_size} on each of {ranks.world} ranks)" if ranks.world > 1 else ""
    for what, value in settings.items():
        if saved.get(what) != value:
            here = f"{value!r}{many if what == 'batch_size' else ''}"
            raise StateError(
                f"state was saved with {what} {saved.get(what)!r}, this one has {here}: "
                f"load it into one made with the same arguments"
            )


def state_of_rank(
    state: dict[str, Any], ranks: Ranks, sizes: list[int], recipe: Recipe
) -> dict[str, Any]:
    """The state of a rank, of shards of ``sizes``, from that of all, however many these were."""
    try:
        # One process is one shard.
        parts = state.get("parts", [{**state, "examples": sum(sizes)}])
        if [int(part["examples"]) for part in parts] == sizes:
            return dict(parts[ranks.rank])
        _refuse_to_cut(recipe, len(parts))
        return state_of_shard(parts, ranks, sizes, recipe.sharding)
    except StateError:
        raise
    except Exception as error:
        raise StateError(f"the state is damaged ({error!r}): nothing was loaded") from error


def _refuse_to_cut(recipe: Recipe, ranks: int) -> None:
    for what, part in (("score", recipe.score), ("focus", recipe.focus)):
        if not (part is None or isinstance(part, str)):
            raise StateError(
                f"what a {what} of your own ({type(part).__name__}) has learned cannot be cut into "
                f"other shards: resume on {counted(ranks)}, each with the examples it had"
            )
