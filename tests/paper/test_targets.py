"""What each target runs: the paper's methods, schedules and stages."""

import pickle
from pathlib import Path

import pytest

from salience.compare.methods import make_method
from salience.paper import targets
from salience.paper.stages import Settings, Stage
from salience.paper.table1 import stage_steps
from salience.paper.targets import TARGETS


def stages(name: str, settings: Settings) -> list[Stage]:
    return [Stage(study, settings, Path()) for study in TARGETS[name].studies]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_method_is_the_papers(target: targets.Target) -> None:
    for study in target.studies:
        for label, spec in study.methods.items():
            if label in ("uniform", "online-selection"):
                assert spec == label
                continue
            stated = label.partition("k=")[2]
            default = 1.0 if target.name == "fig1a" else 0.5
            method = make_method(spec)
            assert method.k == (float(stated) if stated else default)
            assert method.options["presample"] == 2
            assert method.options["draw"] == "multinomial"
            assert method.options["smoothing"] == (0.5 if study.task == "ptb" else "adaptive")


@pytest.mark.parametrize(
    ("name", "scale", "expected"),
    [
        ("fig1a", 1, [(6000, 120, 10)]),
        ("fig1b", 1, [(6000, 20, 10)]),  # the maximum every 300 iterations
        ("fig1b", 0.5, [(3000, 10, 10)]),  # still every 300
        ("fig1b", 0.01, [(60, 4, 10)]),
        ("cifar10", 1, [(50_000, 100, 3)]),
        ("cifar10", 0.5, [(25_000, 50, 3)]),
        ("cifar10", 0.1, [(5000, 20, 3)]),  # enough to see when a loss was reached
        ("ptb", 1, [(100_000, 100, 3)]),
        ("table1", 1, [(6000, 20, 10), (50_000, 100, 3), (100_000, 100, 3)]),
        ("gnorm-vs-loss", 1, [(156, 156, 1)] * 3),  # 157 batches of 128: 20,000 samples
        ("gnorm-vs-loss", 0.01, [(156, 4, 1)] * 3),  # as long, but evaluated less often
    ],
)
def test_schedules(name: str, scale: float, expected: list[tuple[int, int, int]]) -> None:
    found = stages(name, Settings(scale=scale))
    assert [(stage.steps, stage.evaluations, len(stage.seeds)) for stage in found] == expected


def test_a_smaller_scale_is_stated() -> None:
    (stage,) = stages("fig1b", Settings(scale=0.01, model="small", seeds=1))
    assert stage.stated == "MNIST: 60 of 6,000 iterations (scale 0.01), small network, one seed"


@pytest.mark.parametrize("name", TARGETS)
def test_plans_can_be_sent_to_a_process(name: str) -> None:
    for stage in stages(name, Settings()):
        received = pickle.loads(pickle.dumps(stage.plan))
        assert (received.methods, received.observe) == (stage.plan.methods, stage.plan.observe)


def test_the_variance_is_measured_at_evaluations_up_to_the_last() -> None:
    assert targets._variances(list(range(0, 6001, 50))).at == tuple(range(300, 6001, 300))
    assert targets._variances([0, 1, 2, 3, 4]).at == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("task", "steps", "expected"),
    [
        ("mnist", 6000, [1500, 3000, 6000]),
        ("cifar10", 50_000, [15_000, 30_000, 45_000]),
        ("ptb", 100_000, [20_000, 60_000, 100_000]),
        ("cifar10", 100, [30, 60, 90]),
    ],
)
def test_stages_of_the_table(task: str, steps: int, expected: list[float]) -> None:
    assert stage_steps(task, steps) == pytest.approx(expected)
