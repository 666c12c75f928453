"""All examples, each once, then all again: what ordinary training does."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from salience import saved
from salience.batches.labels import narrow
from salience.errors import ArgumentError
from salience.sources.permutation import ROUNDS, Ints, Permutation, scramble

__all__ = ["Passes", "Strata", "by_frequency"]

BATCHES = 32  # of a stratified pass, computed at a time
KEYS = 2**62


class Order(Protocol):
    """All positions in some order, read in pieces."""

    def span(self, start: int, stop: int) -> Ints: ...


@final
class Passes:
    """All positions in random order, then all again: each exactly once per pass.

    With ``strata``, every batch of a pass holds the classes in proportion. ``size`` is the number
    of positions of the pass under way: fewer than ``n`` after ``extend``, until it is over.
    """

    def __init__(self, n: int, generator: torch.Generator, strata: "Strata | None" = None) -> None:
        self.n = self.size = n
        self._generator = generator
        self._strata = strata
        self._key, self._at = 0, n  # the next call begins a pass
        self._order: Order | None = None

    def extend(self, n: int, classes: Tensor | None = None) -> None:
        """Grow to ``n`` positions, from the next pass on; ``classes`` [n] of all, for strata."""
        if self._strata is not None:
            if classes is None:
                raise ArgumentError(
                    f"passes stratified by class need the classes of all {n} examples: "
                    f"give labels for the new ones too"
                )
            self._strata.extend(classes)
        self.n = n

    @property
    def under_way(self) -> bool:
        """Whether what is taken next belongs to a pass that has begun."""
        return self._at < self.size

    def take(self, count: int, *, whole: bool = True) -> Tensor:
        """The next ``count`` positions; without ``whole``, no further than the end of the pass."""
        if not self.under_way:
            self._begin()
        stop = min(self._at + count, self.size)
        missing = self._at + count - stop if whole else 0
        part = torch.from_numpy(self._places().span(self._at, stop))
        self._at = stop
        return torch.cat([part, self.take(missing)]) if missing else part

    def end(self) -> None:
        """Leave the rest of this pass: what is taken next begins a new one."""
        self._at = self.size

    def _begin(self) -> None:
        key = torch.randint(KEYS, (1,), generator=self._generator, device="cpu")
        self._key, self._at, self._order = int(key), 0, None
        self.size = self.n

    def _places(self) -> Order:
        if self._order is None:
            make = Permutation if self._strata is None else self._strata.order
            self._order = make(self.size, self._key)
        return self._order

    def state_dict(self) -> dict[str, Any]:
        sizes = [] if self._strata is None else list(self._strata.sizes)
        return {"key": self._key, "at": self._at, "size": self.size, "strata": sizes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.size = saved.whole(state["size"], 1, self.n)
        self._key, self._order = saved.whole(state["key"], 0, KEYS - 1), None
        self._at = saved.whole(state["at"], 0, self.size)
        sizes = [saved.whole(size, 1) for size in state["strata"]]
        if self._strata is not None:
            self._strata.load_sizes(sizes, self.size)


@final
class Strata:
    """The examples sorted by class, to be visited so that batches hold classes in proportion.

    In the order of their frequency, classes fall into ``batch_size`` equal strata, and every batch
    gets one example from each.
    """

    def __init__(self, classes: Tensor, batch_size: int, generator: torch.Generator) -> None:
        self.batch_size = batch_size
        self.sizes = [len(classes)]  # at first, and after each extension
        self._start = generator.get_state()
        self._classes = narrow(classes)
        self._sorted = self._sort(len(classes), generator)

    def extend(self, classes: Tensor) -> None:
        """Grow to these examples; ``classes`` are those of all of them, and numbered anew."""
        self._classes = narrow(classes)
        self.sizes.append(len(classes))

    def load_sizes(self, sizes: list[int], size: int) -> None:
        """Order the examples as if they had come in these steps, of which ``size`` is one."""
        if sizes[-1:] != [len(self._classes)] or size not in sizes or sizes != sorted(sizes):
            steps = ", ".join(str(each) for each in sizes)
            raise ValueError(f"strata of {steps} examples for {len(self._classes)}")
        if sizes != self.sizes:
            self.sizes = sizes
            self._sorted = self._sorted[:0]  # to be sorted anew

    def order(self, n: int, key: int) -> "StratifiedOrder":
        """The order of one pass over the first ``n`` examples, which is one of ``sizes``."""
        if n != len(self._sorted):
            generator = torch.Generator(device="cpu")
            generator.set_state(self._start)
            self._sorted = self._sort(n, generator)
        return StratifiedOrder(self._sorted, self.batch_size, key)

    def _sort(self, n: int, generator: torch.Generator) -> NDArray[np.integer[Any]]:
        """The first ``n`` by class, those of a class at random.

        Examples that came later are shuffled among themselves: so the order of the others stays
        what it was, and follows from ``sizes`` when a state is loaded.
        """
        shuffled = np.concatenate(list(self._shuffled(n, generator)))
        ranks = by_frequency(self._classes[:n].long())
        few = int(ranks.max()) < 2**16  # those numpy sorts by counting
        keys = ranks.numpy().astype(np.uint16 if few else np.int64)[shuffled]
        by_class: NDArray[np.integer[Any]] = shuffled[keys.argsort(kind="stable")]
        return by_class.astype(places_dtype(n))

    def _shuffled(self, n: int, generator: torch.Generator) -> Iterator[Ints]:
        for start, stop in pairwise([0, *(size for size in self.sizes if size <= n)]):
            yield start + torch.randperm(stop - start, generator=generator, device="cpu").numpy()


@final
class StratifiedOrder:
    """One pass: batch b takes from stratum j the b-th example of a random order of its own."""

    def __init__(self, examples: NDArray[np.integer[Any]], batch_size: int, key: int) -> None:
        n = len(examples)
        edges = np.arange(batch_size + 1) * n // batch_size
        rng = np.random.default_rng(key)
        # Strata begin elsewhere in every pass, so the same examples are not always the ones whose
        # stratum is longer by one and fills the last, short batch.
        self._offset = int(rng.integers(n))
        self._keys = rng.integers(2**32, size=(ROUNDS, batch_size), dtype=np.uint32)
        self._first, self._sizes = edges[:-1], np.diff(edges)
        self._examples, self._key, self._batch = examples, key, batch_size
        self._places, self._start = np.empty(0, dtype=np.int64), 0

    def span(self, start: int, stop: int) -> Ints:
        if start < self._start or stop > self._start + len(self._places):
            size = BATCHES * self._batch
            chunks = range(start // size, -(-stop // size))
            self._places = np.concatenate([self._chunk(chunk) for chunk in chunks])
            self._start = chunks[0] * size
        return self._places[start - self._start : stop - self._start]

    def _chunk(self, chunk: int) -> Ints:
        """The examples of some batches, those of a batch in random order.

        Wherever reading begins, after a resume too, chunks begin at the same batches.
        """
        first = chunk * BATCHES
        last = min(first + BATCHES, int(self._sizes.max()))
        step = np.repeat(np.arange(first, last, dtype=np.uint32), self._batch)
        column = np.tile(np.arange(self._batch), last - first)
        # The places of a batch change at random too: halves of it differ only by chance.
        jitter = np.random.default_rng([self._key, chunk]).random(len(step))
        mixed = np.lexsort((jitter, step))
        step, column = step[mixed], column[mixed]
        there = step < self._sizes[column]  # the last batch has an example of some strata only
        step, column = step[there], column[there]
        sizes = self._sizes[column].astype(np.uint32)
        within = scramble(step, sizes, [key[column] for key in self._keys])
        at = (self._first[column] + within + self._offset) % len(self._examples)
        chosen: Ints = self._examples[at].astype(np.int64)
        return chosen


def places_dtype(n: int) -> type[np.integer[Any]]:
    """Four bytes for each of ``n`` places, as long as they hold the last one."""
    return np.int32 if n <= 2**31 else np.int64


def by_frequency(classes: Tensor) -> Tensor:
    """The classes 0, 1, ... renumbered, the most frequent first: neighbours are about as rare.

    >>> by_frequency(torch.tensor([0, 2, 2, 1, 2, 1]))
    tensor([2, 0, 0, 1, 0, 1])
    """
    return torch.bincount(classes).argsort(descending=True, stable=True).argsort()[classes]
