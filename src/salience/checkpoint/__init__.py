"""Checkpoints in one file: atomic, with checksums, the previous one kept, without pickle.

Example::

    from salience import checkpoint

    if checkpoint.exists("run/last.ckpt"):
        found = checkpoint.load("run/last.ckpt")
        loader.load_state_dict(found.state["loader"])
    ...
    state = {"model": model.state_dict(), "loader": loader.state_dict()}
    checkpoint.save("run/last.ckpt", state, step=400)
"""

from salience.checkpoint.files import (
    Checkpoint,
    exists,
    load,
    load_together,
    save,
    save_together,
)
from salience.checkpoint.packed import Packed

__all__ = ["Checkpoint", "Packed", "exists", "load", "load_together", "save", "save_together"]
