"""The paper's figures and tables as declarations: which methods run on which task, and how long.

Settings are the paper's throughout: batches of 128 by Adam, pools of twice the batch, draws with
replacement, adaptive smoothing (a constant 0.5 for Penn Treebank), k = 0.5 unless it is said.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from salience.compare.plan import Observer
from salience.paper.analysis import NAMES, Analysis, Material
from salience.paper.figures import gnorm_vs_loss, largest_loss, speed, tracking, variance
from salience.paper.measures import nearest
from salience.paper.probes import GradientVariance, TrackingAndTest, loss_and_norm
from salience.paper.table1 import stage_steps, table1
from salience.paper.tasks import PROBE, STEPS

__all__ = ["TARGETS", "Study", "Target"]

VARIANCES = 20  # checkpoints at which the variance is measured
SAMPLES = 20_000  # losses and gradient norms


def _paper(score: str, k: float, smoothing: str = "adaptive") -> str:
    """A method as the paper ran it: from a pool of twice the batch, with replacement."""
    return f"{score}:k={k:g}:presample=2:draw=multinomial:smoothing={smoothing}"


Observe = Callable[[Sequence[int]], Observer | None]
"""Makes the observer of a study from the steps of its evaluations."""


def _variances(steps: Sequence[int]) -> Observer:
    """At evenly spaced evaluations after the first."""
    count = min(VARIANCES, len(steps) - 1)
    places = [(i + 1) * (len(steps) - 1) // count for i in range(count)]
    return GradientVariance(tuple(steps[place] for place in places))


def _stages(task: str, steps: Sequence[int]) -> Observer:
    """How well scores track at every evaluation, the whole test set at the table's stages."""
    wanted = stage_steps(task, steps[-1])
    return TrackingAndTest(tuple(steps[nearest(steps, step)] for step in wanted))


@dataclass(frozen=True)
class Study:
    """Runs on one task. ``methods``: a label for figures, and the spec for ``make_method``.

    ``steps``, ``evaluations`` and ``seeds`` are the paper's. A smaller scale shortens the
    training and leaves out evaluations, down to ``least`` of them; with ``scaled`` "evaluations"
    it only leaves out evaluations.
    """

    name: str
    task: str
    methods: Mapping[str, str]
    steps: int
    evaluations: int
    seeds: int
    probe: int | None = PROBE
    least: int = 20
    observe: Observe = lambda _: None
    scaled: Literal["steps", "evaluations"] = "steps"


@dataclass(frozen=True)
class Target:
    """A figure or table: where it is in the paper, what that says, and how it is made.

    ``shows``: what is measured, for a list of targets.
    """

    name: str
    where: str
    says: str
    studies: tuple[Study, ...]
    analyse: Callable[[Material], Analysis]
    shows: str


_FIVE = {
    "uniform": "uniform",
    **{f"{score} k={k:g}": _paper(score, k) for score in ("loss", "approx") for k in (1, 0.5)},
}
_FIVE_PTB = {
    label: spec.replace("=adaptive", "=0.5")  # the constant that the paper chose
    for label, spec in _FIVE.items()
}
_MNIST = Study(
    "mnist",
    "mnist",
    _FIVE,
    STEPS["mnist"],
    evaluations=20,  # every 300 iterations
    seeds=10,
    probe=None,  # a maximum is over all 60,000 examples
    least=4,
    observe=partial(_stages, "mnist"),
)
_CIFAR10 = Study(
    "cifar10", "cifar10", _FIVE, STEPS["cifar10"], 100, 3, observe=partial(_stages, "cifar10")
)
_PTB = Study("ptb", "ptb", _FIVE_PTB, STEPS["ptb"], 100, 3, observe=partial(_stages, "ptb"))


_PAIR = {"loss": "loss k=0.5", "approx": "approx k=0.5"}


def _some(study: Study, labels: Mapping[str, str], **more: str) -> Study:
    """The same study with the methods named, under other labels, and ``more``."""
    chosen = {label: study.methods[old] for label, old in labels.items()}
    return replace(study, methods={**chosen, **more})


def _curves(study: Study) -> Study:
    online = {"online-selection": "online-selection"}
    return _some(study, {"uniform": "uniform", **_PAIR}, **online)


_FIG1A = Study(
    "fig1a",
    "mnist",
    {"uniform": "uniform", "loss": _paper("loss", 1), "gnorm": _paper("gnorm", 1)},
    STEPS["mnist"],
    evaluations=120,
    seeds=10,
    probe=1000,  # evaluated often, for a moving average
    observe=_variances,
)
_FIG1B = replace(
    _MNIST,
    methods={"uniform": "uniform", **{f"k={k:g}": _paper("loss", k) for k in (0, 0.5, 0.75, 1)}},
)
_PAIRS = tuple(
    Study(
        f"gnorm-vs-loss-{task}",
        task,
        {"uniform": "uniform"},
        steps=SAMPLES // 128,  # the first samples of the training, as in the paper
        evaluations=SAMPLES // 128,
        seeds=1,
        probe=256,  # its rows are not used
        least=4,
        observe=lambda _: loss_and_norm,
        scaled="evaluations",  # losses of an untrained network have hardly any order
    )
    for task in NAMES
)

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "fig1a",
            "Figure 1a",
            "sampling by loss reduces the variance, trains 6 times faster in epochs than uniform "
            "sampling, and does a bit better than sampling by gradient norm",
            (_FIG1A,),
            variance,
            "variance and train loss",
        ),
        Target(
            "fig1b",
            "Figure 1b",
            "smaller k minimise the maximum loss, while k=1 behaves like uniform sampling",
            (_FIG1B,),
            largest_loss,
            "greatest loss",
        ),
        Target(
            "cifar10",
            "Figure 2",
            "importance sampling speeds training up in epochs, and reaches uniform's loss in 30% "
            "(loss) and 15% (approx) less time",
            (_curves(_CIFAR10),),
            speed,
            "train loss",
        ),
        Target(
            "ptb",
            "Figure 3",
            "importance sampling speeds training up in epochs, and approx reaches uniform's final "
            "loss in 20% less time; online selection fails to converge",
            (_curves(_PTB),),
            speed,
            "train loss",
        ),
        Target(
            "table1",
            "Table 1",
            "the test error is the same or better than with uniform sampling in all cases, and "
            "the bias helps most in the first stages",
            (_MNIST, _CIFAR10, _PTB),
            table1,
            "test errors",
        ),
        Target(
            "gnorm-vs-loss",
            "Figure 4 (appendix)",
            "samples with a high gradient norm also have a high loss",
            _PAIRS,
            gnorm_vs_loss,
            "loss and gradient norm",
        ),
        Target(
            "tracking",
            "Figure 5 (appendix)",
            "the approximation correlates positively with the loss and comes to track it as well "
            "as the full network does",
            tuple(_some(s, _PAIR) for s in (_CIFAR10, _PTB)),
            tracking,
            "how well scores follow losses",
        ),
    )
}
