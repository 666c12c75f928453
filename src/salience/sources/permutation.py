"""Random orders that are computed from a key, so that neither time nor memory grows with n."""

from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Permutation", "round_keys", "scramble"]

Ints = NDArray[np.int64]
Words = NDArray[np.uint32]

STORED = 2**18  # up to here the whole order is made at once: a few milliseconds
CHUNK = 8192  # places computed at a time beyond
ROUNDS = 8


@final
class Permutation:
    """0 .. n-1 in a random order that follows from ``key`` alone.

    Small orders are drawn outright, each equally likely. Large ones are a Feistel network, computed
    where they are read: making 10^7 places at once would hold up one step by half a second.
    """

    def __init__(self, n: int, key: int) -> None:
        self._n = n
        self._stored = n <= STORED
        if self._stored:
            generator = torch.Generator(device="cpu").manual_seed(key)
            self._places = torch.randperm(n, generator=generator, device="cpu").numpy()
        else:
            self._places = np.empty(0, dtype=np.int64)
            self._keys = round_keys(key)
        self._start = 0  # of what is in _places

    def span(self, start: int, stop: int) -> Ints:
        """Places ``start`` to ``stop``, which lie within n."""
        if start < self._start or stop > self._start + len(self._places):
            ends = min(max(stop, start + CHUNK), self._n)
            x = np.arange(start, ends, dtype=np.uint32)
            self._places, self._start = scramble(x, self._n, self._keys).astype(np.int64), start
        return self._places[start - self._start : stop - self._start]


def round_keys(key: int) -> list[Words]:
    """The keys of the rounds."""
    return list(np.random.SeedSequence(key).generate_state(ROUNDS).reshape(ROUNDS, 1))


def scramble(x: Words, n: int | Words, keys: list[Words]) -> Words:
    """A permutation of 0 .. n-1, applied to the places ``x``; n <= 2^32, keys may differ by place.

    A Feistel network permutes the next power of two; what falls outside goes through it again,
    until it falls inside. Both halves of the bits are scrambled by turns, so any number of bits
    will do.
    """
    bits = max(int(np.max(n) - 1).bit_length(), 2)
    x = _network(x, bits, keys)
    while (outside := np.flatnonzero(x >= n)).size:
        some = [key[outside] if len(key) > 1 else key for key in keys]
        x[outside] = _network(x[outside], bits, some)
    return x


def _network(x: Words, bits: int, keys: list[Words]) -> Words:
    low_bits = np.uint32(bits // 2)
    low_mask = np.uint32((1 << (bits // 2)) - 1)
    high_mask = np.uint32((1 << (bits - bits // 2)) - 1)
    high, low = x >> low_bits, x & low_mask
    for i, key in enumerate(keys):
        if i % 2:
            low ^= _mixed(high ^ key) & low_mask
        else:
            high ^= _mixed(low ^ key) & high_mask
    return (high << low_bits) | low


def _mixed(x: Words) -> Words:
    """Every bit of the result depends on every bit of ``x``, which is overwritten."""
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x
