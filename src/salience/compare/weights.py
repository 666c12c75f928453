"""Weights to start from: read safely, and put into a network whole or not at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from salience.errors import ArgumentError

__all__ = ["load_weights"]

NESTED = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights


def load_weights(model: nn.Module, checkpoint: Any) -> None:
    """Put the weights of a file, a state dict or another network into ``model``; all or refused."""
    name = "the checkpoint"
    if isinstance(checkpoint, str | Path):
        name, checkpoint = f"checkpoint {checkpoint}", _read_weights(Path(checkpoint))
    if isinstance(checkpoint, nn.Module):
        checkpoint = checkpoint.state_dict()
    if isinstance(checkpoint, Mapping):
        inner = (checkpoint[key] for key in NESTED if isinstance(checkpoint.get(key), Mapping))
        checkpoint = next(inner, checkpoint)
    if not isinstance(checkpoint, Mapping):
        raise ArgumentError(
            f"{name} must be a state dict or a file with one; it is a {type(checkpoint).__name__}"
        )
    try:
        model.load_state_dict(checkpoint)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
        why = (lines[0] if lines else str(error)).rstrip(".")
        raise ArgumentError(
            f"{name} does not fit the model ({why}): start from weights of the same network"
        ) from error


def _read_weights(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ArgumentError(f"there is no checkpoint {path}: name a file with weights") from error
    except Exception as error:
        raise ArgumentError(
            f"checkpoint {path} has no weights that can be read safely "
            f"({type(error).__name__}): save model.state_dict() with torch.save"
        ) from error
