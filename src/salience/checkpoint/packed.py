"""States as one value, for checkpoints of others."""

from typing import Any, Protocol, final

from salience.checkpoint import archive
from salience.errors import StateError, UsageError

__all__ = ["Packed"]


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@final
class Packed:
    """The state of a loader or sampler as one value, for ``torch.distributed.checkpoint``.

    That loads into a template, key by key and shape by shape. The state of a loader has neither
    the same keys nor the same shapes at every step; as one value it needs no template.

    Example::

        dcp.save({"model": model.state_dict(), "loader": Packed(loader)}, checkpoint_id="run/400")
        dcp.load({"model": model.state_dict(), "loader": Packed(loader)}, checkpoint_id="run/400")
    """

    def __init__(self, of: Stateful) -> None:
        self._of = of

    def state_dict(self) -> dict[str, Any]:
        """``{"packed": bytes}``: those of a checkpoint file."""
        if getattr(self._of, "_shares_memory", False):
            raise UsageError(
                "with memory= only the first rank of each machine has the whole state, and "
                "torch.distributed.checkpoint may save that of any rank: save this one with "
                "salience.checkpoint.save on rank 0"
            )
        return {"packed": archive.pack(self._of.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Every byte is verified before anything is loaded."""
        content = state.get("packed")
        if not isinstance(content, bytes):
            raise StateError(f"no packed state: got {sorted(state)}; save with Packed as well")
        self._of.load_state_dict(archive.unpack(content))
