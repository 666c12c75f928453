"""The random numbers of a run: torch's on host and device, Python's and NumPy's.

Runs that are interleaved must not influence each other, and a resumed run must continue with the
numbers that it would have had. Users' augmentation may read any of these generators.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast, final

import numpy as np
import torch

__all__ = ["Randomness", "fixed"]


@final
class Randomness:
    """Generators with a state of their own, which are in place within ``with randomness():``."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        with _kept(device):
            _seed(seed, device)
            self._state = _read(device)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with _kept(self._device):
            _put(self._state, self._device)
            yield
            self._state = _read(self._device)

    def state_dict(self) -> dict[str, Any]:
        """Plain values and tensors, for ``torch.load(weights_only=True)``."""
        return dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = dict(state)


@contextmanager
def fixed(seed: int, device: torch.device) -> Iterator[None]:
    """The same numbers every time, and afterwards those of before."""
    with _kept(device):
        _seed(seed, device)
        yield


@contextmanager
def _kept(device: torch.device) -> Iterator[None]:
    before = _read(device)
    try:
        yield
    finally:
        _put(before, device)


def _seed(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what users' transforms read
    if device.type != "cpu":
        getattr(torch, device.type).manual_seed(seed)


def _read(device: torch.device) -> dict[str, Any]:
    version, words, gauss = random.getstate()
    _, keys, place, has_gauss, cached = cast(Any, np.random.get_state())  # noqa: NPY002
    found = {
        "torch": torch.get_rng_state(),
        "python": (version, torch.tensor(words), gauss),
        "numpy": (torch.from_numpy(keys.astype(np.int64)), int(place), int(has_gauss), cached),
    }
    if device.type != "cpu":
        found["device"] = getattr(torch, device.type).get_rng_state(*_index(device))
    return found


def _put(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    keys, place, has_gauss, cached = state["numpy"]
    np.random.set_state(  # noqa: NPY002
        ("MT19937", keys.numpy().astype(np.uint32), place, has_gauss, cached)
    )
    if device.type != "cpu":
        getattr(torch, device.type).set_rng_state(state["device"], *_index(device))


def _index(device: torch.device) -> tuple[torch.device, ...]:
    """torch.mps has one device and takes no argument."""
    return () if device.type == "mps" else (device,)
