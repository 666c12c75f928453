"""What users would choose instead: published ways to train on fewer, harder or weighted examples.

Each is written from the rule as published. All of them train with batches of the same size, for as
many steps and with the same schedule as any other method.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from salience.batches.rows import Rows, collate
from salience.compare.task import Task
from salience.errors import ArgumentError
from salience.generators import seeded
from salience.loader import ImportanceLoader
from salience.scores.model import scoring

__all__ = [
    *("Batches", "InfoBatch", "SelectiveBackprop", "Training", "loading", "random_subset"),
    *("shuffled",),
]


class Training(NamedTuple):
    """What a method is given: the task, the network, a seed, and how long the training is.

    ``budget``: the share of the whole length that this training has. ``done()``: how much of it
    has passed, 0 to 1.
    """

    task: Task
    model: nn.Module
    seed: int
    budget: float
    done: Callable[[], float]


class Batches(Protocol):
    """What a training run needs of a method: batches, a mean of their losses, and a state."""

    @property
    def indices(self) -> Tensor:
        """Dataset positions of the batch last yielded."""

    def __iter__(self) -> Iterator[Any]: ...

    def mean(self, losses: Tensor, /) -> Tensor: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


def loading(task: Task) -> dict[str, Any]:
    """The options of DataLoader."""
    options: dict[str, Any] = {"collate_fn": task.collate, "num_workers": task.workers}
    if task.workers:
        options["persistent_workers"] = True
    if task.place.type == "cuda":
        options["pin_memory"] = True
    return options


def shuffled(training: Training, dataset: Any = None, **options: Any) -> ImportanceLoader:
    """Ordinary shuffled passes over the training set, or over ``dataset``.

    With ``focus="ordered"`` it is Ordered SGD (Kawaguchi and Lu, 2020), and with
    ``focus="closeness"`` Active Bias by threshold closeness (Chang et al., 2017).
    """
    task = training.task
    return ImportanceLoader(
        task.train if dataset is None else dataset,
        task.batch_size,
        score="uniform",
        k=1.0,
        seed=training.seed,
        drop_last=True,
        **loading(task),
        **options,
    )


def random_subset(training: Training) -> ImportanceLoader:
    """Shuffled passes over a fixed random part of the training set, as large as the budget's share.

    So the part is seen as often as uniform sampling sees the whole with the whole budget. With the
    whole budget it is uniform sampling.
    """
    data: Any = training.task.train
    n, size = len(data), round(training.budget * len(data))
    if size >= n:
        return shuffled(training)
    if size < training.task.batch_size:
        raise ArgumentError(
            f"a budget of {training.budget:g} leaves random-subset {size} of {n} examples, fewer "
            f"than a batch of {training.task.batch_size}: leave the method out, or make the "
            f"smallest budget larger"
        )
    random = torch.Generator().manual_seed(training.seed)
    chosen = torch.randperm(n, generator=random)[:size].sort().values
    if isinstance(data, TensorDataset):
        return shuffled(training, TensorDataset(*(tensor[chosen] for tensor in data.tensors)))
    return shuffled(training, Subset(data, chosen.tolist()))


# ------------------------------------------------------------------- passes over fewer examples


@final
class Reader:
    """Examples by their positions, collated as ImportanceLoader does it."""

    def __init__(self, task: Task) -> None:
        self._dataset: Any = task.train
        self._collate: Any = task.collate or collate
        if type(self._dataset) is TensorDataset and task.collate is None:
            self._dataset = Rows(self._dataset.tensors)

    def __call__(self, indices: Tensor) -> Any:
        together, wanted = getattr(self._dataset, "__getitems__", None), indices.tolist()
        read = together(wanted) if together else [self._dataset[i] for i in wanted]
        return self._collate(read)


@final
class InfoBatch:
    """InfoBatch (Qin et al., 2024): each pass leaves out half of the easier examples at random.

    Examples whose last loss is below the mean of all known last losses are left out with
    probability r = 1/2, and those of them that stay weigh 1 / (1 - r), so that the expected step
    is that of the whole set. The first pass is whole; so is everything in the last eighth of the
    training (from ``until`` = 0.875 on), where a pass under way ends at once. Examples at the end
    of a pass that fill no batch begin the next one.
    """

    def __init__(self, training: Training, r: float = 0.5, until: float = 0.875) -> None:
        self._read, self._done = Reader(training.task), training.done
        self._batch, self._r, self._until = training.task.batch_size, r, until
        self._random = seeded(training.seed)
        self._losses = torch.full((len(training.task.train),), math.nan)  # type: ignore[arg-type]
        self._order, self._weights = torch.empty(0, dtype=torch.int64), torch.empty(0)
        self._place, self._whole = 0, True

    @property
    def indices(self) -> Tensor:
        return self._order[self._place - self._batch : self._place].clone()

    def __iter__(self) -> Iterator[Any]:
        while True:
            if not self._whole and self._done() >= self._until:
                self._place = len(self._order)
            while self._place + self._batch > len(self._order):
                self._new_pass()
            self._place += self._batch
            yield self._read(self.indices)

    def _new_pass(self) -> None:
        rest = self._order[self._place :], self._weights[self._place :]
        order = torch.randperm(len(self._losses), generator=self._random)
        weights = torch.ones(len(order))
        self._whole = self._done() >= self._until or not self._losses.isfinite().any()
        if not self._whole:
            easier = self._losses[order] < self._losses.nanmean()  # no unknown loss is
            out = easier & (torch.rand(len(order), generator=self._random) < self._r)
            weights[easier] = 1 / (1 - self._r)
            order, weights = order[~out], weights[~out]
        self._order, self._weights = torch.cat([rest[0], order]), torch.cat([rest[1], weights])
        self._place = 0

    def mean(self, losses: Tensor) -> Tensor:
        at = slice(self._place - self._batch, self._place)
        self._losses[self._order[at]] = losses.detach().float().cpu()
        return (self._weights[at].to(losses) * losses).mean()

    def state_dict(self) -> dict[str, Any]:
        return {
            "losses": self._losses,
            "order": self._order,
            "weights": self._weights,
            "place": self._place,
            "whole": self._whole,
            "random": self._random.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses, self._order = state["losses"].clone(), state["order"].clone()
        self._weights, self._place = state["weights"].clone(), state["place"]
        self._whole = state["whole"]
        self._random.set_state(state["random"])


POSITIONS = "salience_positions"  # a column of our own beside those of a batch


@final
class SelectiveBackprop:
    """Selective-Backprop (Jiang et al., 2019): only examples with large losses are trained on.

    Shuffled candidates pass through the network, B at a time, without gradients and in evaluation
    mode. Each is kept with probability CDF(loss)^``beta``, by the distribution of the last
    ``window`` losses. As soon as B are kept, they are a batch, without weights. With beta = 1
    about half are kept, so a step costs two more forward passes; they count as training time.
    """

    def __init__(self, training: Training, beta: float = 1.0, window: int = 1024) -> None:
        self._task, self._model = training.task, training.model
        self._beta, self._window = beta, window
        self._batch, self._read = training.task.batch_size, Reader(training.task)
        self._random = seeded(training.seed)
        self._n = len(training.task.train)  # type: ignore[arg-type]
        self._order, self._place = torch.empty(0, dtype=torch.int64), 0
        self._recent = torch.empty(0)
        self._kept: dict[Any, Tensor] = {}  # the columns of kept examples, and their positions
        self._mapping = False
        self.indices = torch.empty(0, dtype=torch.int64)

    def __iter__(self) -> Iterator[Any]:
        while True:
            while not self._kept or len(self._kept[POSITIONS]) < self._batch:
                self._look_at_more()
            batch = {name: column[: self._batch] for name, column in self._kept.items()}
            self._kept = {name: column[self._batch :] for name, column in self._kept.items()}
            self.indices = batch.pop(POSITIONS)
            yield batch if self._mapping else [*batch.values()]

    def _look_at_more(self) -> None:
        """Pass another B candidates through the network and keep some."""
        if self._place + self._batch > len(self._order):
            self._order, self._place = torch.randperm(self._n, generator=self._random), 0
        candidates = self._order[self._place : self._place + self._batch]
        self._place += self._batch
        batch = self._read(candidates)
        self._mapping = isinstance(batch, Mapping)
        columns = dict(batch) if self._mapping else dict(enumerate(batch))
        if not all(isinstance(column, Tensor) for column in columns.values()):
            raise ArgumentError(
                f"selective-backprop needs batches of tensors; those of task {self._task.name!r} "
                f"are something else: leave the method out"
            )
        with scoring(self._model, "eval"):
            losses = self._task.batch_losses(self._model, batch).float().cpu()
        chance = self._share_below(losses) ** self._beta
        kept = (torch.rand(len(losses), generator=self._random) < chance).nonzero().flatten()
        columns = {POSITIONS: candidates, **columns}
        more = {name: column[kept.to(column.device)] for name, column in columns.items()}
        before = self._kept or {name: column[:0] for name, column in more.items()}
        self._kept = {name: torch.cat([before[name], column]) for name, column in more.items()}

    def _share_below(self, losses: Tensor) -> Tensor:
        """CDF(loss): the share of recent losses, these included, at or below each."""
        self._recent = torch.cat([self._recent, losses])[-self._window :]
        ordered = self._recent.sort().values
        return torch.searchsorted(ordered, losses, right=True) / len(ordered)

    def mean(self, losses: Tensor) -> Tensor:
        return losses.mean()

    def state_dict(self) -> dict[str, Any]:
        return {
            "order": self._order,
            "place": self._place,
            "recent": self._recent,
            "kept": dict(self._kept),
            "mapping": self._mapping,
            "random": self._random.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order, self._place = state["order"].clone(), state["place"]
        self._recent, self._kept = state["recent"].clone(), dict(state["kept"])
        self._mapping = state["mapping"]
        self._random.set_state(state["random"])
