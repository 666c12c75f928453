"""The methods that can be compared, by name: every score, and what users would choose instead."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from salience import ImportanceLoader
from salience.compare import rivals
from salience.compare.rivals import Batches, Training, loading
from salience.compare.task import Task
from salience.errors import ArgumentError
from salience.presets import NAMES
from salience.scores import Uniform, Unit
from salience.scores.model import scoring

__all__ = ["BASELINE", "METHOD_NAMES", "Method", "OnlineSelection", "make_method", "parse_methods"]

BASELINE = "uniform"
NUMBERS = ("k", "smoothing", "presample")


@dataclass(frozen=True)
class Method:
    """How examples are chosen: a name for tables, the bias k, further options of the loader.

    ``score`` makes a score object from the task and the model. ``batches`` makes everything, for
    methods that are no score.
    """

    name: str
    k: float
    options: Mapping[str, Any] = field(default_factory=dict)
    score: Callable[[Task, nn.Module], Any] | None = None
    batches: Callable[[Training], Batches] | None = None

    def loader(
        self,
        task: Task,
        model: nn.Module,
        seed: int,
        budget: float = 1.0,
        done: Callable[[], float] = lambda: 0.0,
    ) -> Batches:
        """The batches of a training; ``budget`` and ``done`` are those of ``Training``."""
        if len(task.train) < task.batch_size:  # type: ignore[arg-type]
            raise ArgumentError(
                f"batch_size {task.batch_size} is larger than the training set of task "
                f"{task.name!r}: make the batch smaller"
            )
        if self.batches is not None:
            return self.batches(Training(task, model, seed, budget, done))
        options = dict(self.options)
        if self.score is not None:
            options["score"] = self.score(task, model)
        # Without a short batch at the end of an epoch, every step has the same cost.
        return ImportanceLoader(
            task.train,
            task.batch_size,
            k=self.k,
            seed=seed,
            model=model,
            loss=task.batch_losses,
            drop_last=True,
            **loading(task),
            **options,
        )


@final
class OnlineSelection:
    """Online batch selection (Loshchilov and Hutter, 2015), which the paper compared with.

    p_i falls exponentially with the rank r_i of the last known loss, p_i ~ exp(-r_i ln(s) / N)
    with r = 0 for the largest: the hardest example is s, the ``pressure``, times as likely as the
    easiest. Losses of all examples are recomputed twice per epoch, and the ranks with them.
    """

    by_index = True
    unit: Unit = "loss"

    def __init__(self, task: Task, model: nn.Module, pressure: float = 100.0) -> None:
        if not 1 <= pressure < math.inf:
            raise ArgumentError(f"pressure must be at least 1; got {pressure:g}")
        self._task, self.model = task, model
        self._n = len(task.train)  # type: ignore[arg-type]
        self._every = max(1, self._n // task.batch_size // 2)
        self._fall = math.log(pressure) / self._n
        self._last = torch.full((self._n,), math.inf)
        self._scores = torch.ones(self._n)
        self._steps = 0

    def score(self, indices: Tensor, batch: Any) -> Tensor:  # noqa: ARG002
        return self._scores[indices]

    def update(self, indices: Tensor, losses: Tensor) -> Tensor:
        self._last[indices] = losses
        self._steps += 1
        if self._steps % self._every:
            return indices[:0]
        self._last = self._all_losses()
        ranks = self._last.argsort(descending=True).argsort()
        self._scores = torch.exp(-self._fall * ranks.float())
        return torch.arange(self._n)

    def _all_losses(self) -> Tensor:
        """Of every example, written in place: memory kept between blocks of outputs splits them."""
        batches = DataLoader(
            self._task.train, 2 * self._task.batch_size, collate_fn=self._task.collate
        )
        found, done = torch.empty(self._n), 0
        with scoring(self.model, "eval"):
            for batch in batches:
                losses = self._task.batch_losses(self.model, batch)
                found[done : done + len(losses)] = losses
                done += len(losses)
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"last": self._last, "scores": self._scores, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last, self._scores = state["last"].clone(), state["scores"].clone()
        self._steps = state["steps"]


# Not presets of the loader: k, its options, and what makes the score.
_REPLACED: dict[str, Any] = {"draw": "multinomial", "smoothing": 0.0}
OWN: dict[str, tuple[float, dict[str, Any], Callable[..., Any]]] = {
    "with-replacement": (1.0, _REPLACED, lambda *_: Uniform()),  # importance sampling, no scores
    "online-selection": (0.0, _REPLACED, OnlineSelection),
}
# No scores: what makes their batches from a ``Training``.
RIVALS: dict[str, Callable[..., Batches]] = {
    "random-subset": rivals.random_subset,
    "infobatch": rivals.InfoBatch,
    "ordered": partial(rivals.shuffled, focus="ordered"),
    "closeness": partial(rivals.shuffled, focus="closeness"),
    "selective-backprop": rivals.SelectiveBackprop,
}
METHOD_NAMES = (*NAMES, *OWN, *RIVALS)
# The settings that a method takes; the presets of the loader take all of LOADER.
LOADER = (*NUMBERS, "draw")
SETTINGS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*OWN, *RIVALS), ()),
    "online-selection": ("pressure",),
    "selective-backprop": ("beta",),
}


def parse_methods(text: str) -> list[Method]:
    """``"uniform,loss:k=1,history:smoothing=0.1"`` as methods; the baseline always comes first."""
    specs = [spec.strip() for spec in text.split(",") if spec.strip()]
    if not specs:
        raise ArgumentError(f"methods must name at least one of {', '.join(METHOD_NAMES)}")
    repeated = [spec for spec in specs if specs.count(spec) > 1]
    if repeated:
        raise ArgumentError(f"method {repeated[0]!r} is named twice: name it once")
    others = [spec for spec in specs if spec != BASELINE]
    return [make_method(spec) for spec in (BASELINE, *others)]


def make_method(spec: str) -> Method:
    """``NAME`` or ``NAME:option=value:...`` with the loader's options; the spec is its name."""
    name, *settings = spec.split(":")
    if name not in METHOD_NAMES:
        raise ArgumentError(f"method must be one of {', '.join(METHOD_NAMES)}; got {name!r}")
    allowed = SETTINGS.get(name, LOADER)
    options: dict[str, Any] = dict(_setting(spec, setting, allowed) for setting in settings)
    if name in OWN:
        k, fixed, score = OWN[name]
        return Method(spec, k, fixed, partial(score, **options))
    if name in RIVALS:
        return Method(spec, 1.0, batches=partial(RIVALS[name], **options))
    k = options.pop("k", 1.0 if name == BASELINE else 0.5)
    return Method(spec, k, {"score": name, **options})


def _setting(spec: str, setting: str, allowed: tuple[str, ...]) -> tuple[str, Any]:
    key, _, value = setting.partition("=")
    if not allowed:
        raise ArgumentError(f"method {spec!r} takes no settings: leave out {setting!r}")
    if key not in allowed or not value:
        raise ArgumentError(
            f"method {spec!r} has the setting {setting!r}: write option=value with one of "
            f"{', '.join(allowed)}"
        )
    if key == "draw" or value == "adaptive":
        return key, value
    try:
        return key, float(value)
    except ValueError:
        raise ArgumentError(f"method {spec!r}: {key} must be a number; got {value!r}") from None
