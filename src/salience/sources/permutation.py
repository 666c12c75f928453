"""Random orders that are computed from a key, so that neither time nor memory grows with n."""

import math
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
            end = min(max(stop, start + CHUNK), self._n)
            x = np.arange(start, end, dtype=np.uint32)
            self._places, self._start = scramble(x, self._n, self._keys).astype(np.int64), start
        return self._places[start - self._start : stop - self._start]


def round_keys(key: int) -> list[Words]:
    """The keys of the rounds."""
    return list(np.random.SeedSequence(key).generate_state(ROUNDS).reshape(ROUNDS, 1))


def scramble(x: Words, n: int | Words, keys: list[Words]) -> Words:
    """A permutation of 0 .. n-1, applied to the places ``x``; n <= 2^32, keys may differ by place.

    A Feistel network over the cells of a table with ``n`` cells, or a few more: rows are moved by
    an amount that depends on the column, then columns by one that depends on the row, and so on.
    What falls outside goes through it again, until it falls inside.
    """
    cells = int(np.max(n))
    rows = math.isqrt(cells - 1) + 1
    columns = -(-cells // rows)
    x = _network(x, rows, columns, keys)
    while (outside := np.flatnonzero(x >= n)).size:
        some = [key[outside] if len(key) > 1 else key for key in keys]
        x[outside] = _network(x[outside], rows, columns, some)
    return x


def _network(x: Words, rows: int, columns: int, keys: list[Words]) -> Words:
    row = x // np.uint32(columns)
    column = x - row * np.uint32(columns)
    for i, key in enumerate(keys):
        if i % 2:
            column = _moved(column, row ^ key, np.uint32(columns))
        else:
            row = _moved(row, column ^ key, np.uint32(rows))
    return row * np.uint32(columns) + column


def _moved(place: Words, by: Words, size: np.uint32) -> Words:
    """(place + an amount below size that depends on every bit of ``by``) mod size <= 2^16.

    ``place`` and ``by`` are overwritten.
    """
    by *= np.uint32(0x85EBCA6B)
    by ^= by >> np.uint32(13)
    by *= np.uint32(0xC2B2AE35)
    by >>= np.uint32(16)
    by *= size
    by >>= np.uint32(16)
    place += by
    # Below 0, unsigned numbers go on at the top: the smaller of the two is the remainder.
    moved: Words = np.minimum(place, place - size)
    return moved
