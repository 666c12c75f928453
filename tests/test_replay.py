"""Saved anywhere and resumed: the same draws, weights and parameters, bit for bit.

One replay for every preset, with and without pools, workers and deferred losses. The very run that
is saved from has to go on as if it had not been saved.
"""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from parts import auto_is, cross_entropy, force_auto, force_worth, frozen, make_dataset, needs
from salience import ImportanceLoader, ImportanceSampler, functional
from salience.presets import NAMES
from salience.scores import NEED_MODEL
from salience.sources import even
from salience.sources import whole as whole_dataset

EPOCHS, STEPS, BATCH = 2, 6, 6
GAIN = 1.5  # v of the losses of these trainings is sometimes above, sometimes below
CASES = [(name, None) for name in NAMES] + [(name, 3.0) for name in NAMES if name != "uniform"]
# (steps done, what is going on then)
CUTS = [
    (0, "not begun"),
    (0, "batch handed out"),
    (1, "batch weighed"),
    (3, "batch weighed"),
    (4, "batch handed out"),
    (STEPS, "batch weighed"),  # the last one: the iteration has not ended yet
    (STEPS, "epoch ended"),
    (STEPS, "batch handed out"),
    (STEPS + 2, "batch weighed"),
    (2 * STEPS - 1, "batch handed out"),
]


class Case(NamedTuple):
    score: str
    presample: float | None = None
    workers: int = 0
    deferred: bool = False
    slots: bool = False
    labels: Any = None
    focus: Any = None
    mode: str = "focused"  # of auto
    trust: bool = False  # in that mode


MODES = [("focused", True), ("off", True)]
WITH_WORKERS = [
    Case("auto", workers=2),
    Case("auto", workers=2, mode="focused", trust=True),
    Case("auto", workers=2, deferred=True, trust=True),
    Case("auto", 3.0, workers=2, deferred=True),
    Case("uniform", workers=2),
    Case("history", workers=2, deferred=True),
    Case("approx", workers=2),
    Case("loss", workers=2),
    Case("loss", workers=2, deferred=True),
]


class Training:
    """A model, its optimizer and a loader; one row per step."""

    def __init__(self, case: Case, saved: bytes | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(6, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.5)
        self.loader = ImportanceLoader(
            make_dataset(STEPS * BATCH),
            BATCH,
            score=case.score,
            presample=case.presample,
            num_workers=case.workers,
            slots=case.slots,
            labels=case.labels,
            focus=case.focus,
            seed=11,
            **needs(case.score, self.model),
        )
        self.loader.deferred = case.deferred or None
        self.rows: list[Any] = []
        self.active: list[float] = []
        self.modes: list[tuple[str, bool]] = []
        if saved is not None:
            self.load(torch.load(io.BytesIO(saved), weights_only=True))

    def save(self) -> bytes:
        file = io.BytesIO()
        names = ("model", "optimizer", "loader")
        torch.save({name: getattr(self, name).state_dict() for name in names}, file)
        return file.getvalue()

    def load(self, state: dict[str, Any]) -> None:
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)

    def go(self, cuts: Any = (), steps: int = 10**6) -> dict[Any, bytes]:
        """Train to the end or for some steps; what was saved at each of the cuts."""
        saved = {}

        def reached(what: str) -> None:
            if (len(self.rows), what) in cuts:
                saved[len(self.rows), what] = self.save()

        reached("not begun")
        while self.loader.epoch < EPOCHS:
            for batch in self.loader:
                reached("batch handed out")
                self.step(*batch)
                reached("batch weighed")
                if len(self.rows) == steps:
                    return saved
            reached("epoch ended")
        return saved

    def step(self, x: Any, y: Any, slots: Any = None) -> None:
        loss = self.loader.mean(cross_entropy(self.model, (x, y)), slots)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.rows.append((self.loader.indices.tolist(), self.loader.weights.tolist()))
        self.active.append(float(self.loader._sampler.active))  # metrics() would learn at once
        if self.loader._sampler.score_name == "auto":
            self.modes.append(auto_is(self.loader._sampler))

    def parameters(self) -> Any:
        learned = [*self.model.parameters()]
        if self.loader._sampler.score_name == "approx":
            learned += self.loader._sampler.score._model.parameters()
        return frozen(learned)


def replay(case: Case, cuts: Any = CUTS) -> Training:
    if case.mode != "as it is":
        force_auto(case.mode, trust=case.trust)
    whole = Training(case)
    whole.go()
    assert len(whole.rows) == EPOCHS * STEPS
    saving = Training(case)
    saved = saving.go(cuts)
    assert saving.rows == whole.rows, "saving changed the run that went on"
    assert saving.parameters() == whole.parameters()
    assert set(saved) == set(cuts)
    for (done, what), state in saved.items():
        resumed = Training(case, state)
        resumed.go()
        assert resumed.rows == whole.rows[done:], f"{what} after {done} steps"
        assert resumed.parameters() == whole.parameters(), f"{what} after {done} steps"
    return whole


def check_active(case: Case, run: Training) -> None:
    """A test of a feature that never turned on would show nothing."""
    if case.score != "uniform":
        assert set(run.active[-STEPS:]) == {float(case.mode != "off")}
        assert any(weight != 1 for _, weights in run.rows[-STEPS:] for weight in weights)
    if case.score == "auto":
        assert run.modes[-1] == run.modes[-3] == (case.mode, case.trust)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize(("score", "presample"), CASES)
def test_every_preset(score: str, presample: float | None, deferred: bool) -> None:
    case = Case(score, presample, deferred=deferred)
    check_active(case, replay(case))


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize(("mode", "trust"), MODES)
def test_every_mode_of_auto(mode: str, trust: bool, deferred: bool) -> None:
    case = Case("auto", mode=mode, trust=trust, deferred=deferred)
    check_active(case, replay(case))


@pytest.mark.parametrize("presample", [None, 3.0])
def test_auto_with_many_classes_while_it_is_off(presample: float | None) -> None:
    labels = [i // 2 for i in range(STEPS * BATCH)]
    case = Case("auto", presample, labels=labels, mode="as it is")
    assert set(replay(case).active) == {0.0}


@pytest.mark.parametrize(
    "case", [Case("loss"), Case("loss", deferred=True), Case("loss", slots=True)], ids=str
)
def test_pools_that_are_scored_at_some_steps_only(case: Case) -> None:
    force_worth(GAIN)
    assert set(replay(case).active) == {0.0, 1.0}


def test_pools_that_are_scored_at_some_steps_only_with_workers() -> None:
    force_worth(GAIN)
    assert set(replay(Case("loss", workers=2), [CUTS[0], CUTS[4], CUTS[6]]).active) == {0.0, 1.0}


@pytest.mark.parametrize("case", WITH_WORKERS, ids=str)
def test_with_workers(case: Case) -> None:
    cuts = [CUTS[3], CUTS[4], CUTS[5]] if case.deferred else [CUTS[0], CUTS[4], CUTS[6]]
    check_active(case, replay(case, cuts))


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("score", ["auto", "history", "approx"])
def test_with_draws_for_several_batches_at_once(
    score: str, deferred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses are learned, and trees brought up to date, only when somebody needs it."""
    monkeypatch.setattr(whole_dataset, "PART", 2)
    monkeypatch.setattr(even, "SWEEPS", 2)
    replay(Case(score, deferred=deferred))


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("score", ["auto", "loss"])
def test_with_slots(score: str, deferred: bool) -> None:
    case = Case(score, deferred=deferred, slots=True, trust=deferred)
    check_active(case, replay(case))


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("focus", ["ordered", "closeness"])
@pytest.mark.parametrize("score", ["auto", "uniform", "loss"])
def test_with_a_focus(
    score: str, focus: str, deferred: bool, slots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functional, "STAGES", ((0.5, 3), (0.2, 2)))
    force_auto("focused")
    case = Case(score, deferred=deferred, slots=slots, focus=focus)
    without = Training(case._replace(focus=None))
    without.go()
    assert replay(case).parameters() != without.parameters()  # else it would show nothing


@pytest.mark.parametrize("focus", ["ordered", "closeness"])
def test_with_a_focus_and_workers(focus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "STAGES", ((0.5, 3), (0.2, 2)))
    replay(Case("auto", workers=2, deferred=True, focus=focus), [CUTS[3], CUTS[4], CUTS[5]])


AGAIN = [Case(name) for name in NAMES if name != "gnorm"]
AGAIN += [Case("auto", mode=mode, trust=trust) for mode, trust in MODES[:2]]


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("case", AGAIN, ids=str)
def test_resumed_again_and_again(case: Case, deferred: bool) -> None:
    force_auto(case.mode, trust=case.trust)
    case = case._replace(deferred=deferred)
    whole = Training(case)
    whole.go()
    check_active(case, whole)
    rows: list[Any] = []
    run = Training(case)
    for steps in (2, 0, 1, 3, 1, 0, 10**6):  # 0: resumed and saved at once
        if steps:
            run.go(steps=steps)
        rows += run.rows
        saved = run.save()
        run = Training(case, saved)
    assert rows == whole.rows
    assert run.parameters() == whole.parameters()


def test_in_a_new_process(tmp_path: Path) -> None:
    case = Case("approx")
    whole = Training(case)
    (saved,) = whole.go([(4, "batch weighed")]).values()
    (tmp_path / "state.pt").write_bytes(saved)
    program = (
        f"import sys, json, pathlib; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
        f"import test_replay as t; "
        f"run = t.Training(t.Case('approx'), pathlib.Path('state.pt').read_bytes()); run.go(); "
        f"print(json.dumps(run.rows))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    rows = [(indices, weights) for indices, weights in json.loads(done.stdout)]
    assert rows == whole.rows[4:]


@pytest.mark.usefixtures("auto_turns_on")
@pytest.mark.parametrize("score", [name for name in NAMES if name not in NEED_MODEL])
def test_a_sampler_drawing_ahead_resumes_with_the_weights_of_its_draws(score: str) -> None:
    def fresh(seed: int = 2) -> ImportanceSampler:
        return ImportanceSampler(50, 5, score=score, smoothing=0.1, seed=seed)

    sampler = fresh()
    ahead = [sampler.draw() for _ in range(8)]
    for draw in ahead[:4]:
        sampler.update(draw, draw.indices.float())
    twin = fresh(seed=3)
    twin.load_state_dict(sampler.state_dict())
    for one in (sampler, twin):
        for draw in ahead[4:]:
            one.update(draw.indices, draw.indices.float())
    for _ in range(5):
        ours, theirs = sampler.draw(), twin.draw()
        assert frozen(ours.state_dict()) == frozen(theirs.state_dict())
        for one in (sampler, twin):
            one.update(ours.indices, ours.indices.float())
    assert sampler.metrics()["mean_loss"] == twin.metrics()["mean_loss"]


@pytest.mark.parametrize("score", ["approx", "history"])
def test_later_steps_do_not_change_a_saved_state(score: str) -> None:
    run = Training(Case(score))
    run.go(steps=3)
    state = run.loader.state_dict()
    kept = frozen(state)
    run.go(steps=5)
    assert frozen(state) == kept != frozen(run.loader.state_dict())


def test_loading_leaves_the_state_to_the_user() -> None:
    """The same state can be loaded twice, and the runs do not share its tensors."""
    run = Training(Case("approx"))
    run.go(steps=3)
    state = run.loader.state_dict()
    kept = frozen(state)
    for _ in range(2):
        other = Training(Case("approx"))
        other.loader.load_state_dict(state)
        other.go(steps=2)
        assert frozen(state) == kept


def test_iterating_takes_nothing_from_the_global_generator() -> None:
    """Else the dropout of a resumed run would differ, which begins one more iteration."""
    before = torch.get_rng_state()
    for score in ("uniform", "history", "approx", "auto"):
        loader = ImportanceLoader(make_dataset(30), BATCH, score=score)
        for _ in loader:
            loader.mean(torch.ones(BATCH))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("score", ["history", "approx", "auto"])
def test_saving_a_sampler_changes_nothing(score: str) -> None:
    """Also where draws serve many batches, and predictions are refreshed a few at a time."""

    def follow(saves: tuple[int, ...]) -> list[Any]:
        sampler = ImportanceSampler(400, 4, score=score, seed=2)
        rows = []
        for step in range(60):
            draw = sampler.draw()
            rows.append(frozen(draw.state_dict()))
            sampler.update(draw, (draw.indices % 7).float() + 0.1)
            if step in saves:
                sampler.state_dict()
                sampler.metrics()
        return rows

    assert follow((3, 17, 30)) == follow(())


@pytest.mark.parametrize("score", ["history", "approx", "auto"])
def test_a_sampler_whose_draws_serve_many_batches_resumes_exactly(score: str) -> None:
    def steps(sampler: ImportanceSampler, count: int) -> list[Any]:
        rows = []
        for _ in range(count):
            draw = sampler.draw()
            rows.append(frozen(draw.state_dict()))
            sampler.update(draw, (draw.indices % 7).float() + 0.1)
        return rows

    n, total = 4000, 80  # a draw serves 32 batches, in which half of the predictions are refreshed
    whole = steps(ImportanceSampler(n, 4, score=score, seed=2), total)
    for cut in (3, 40):
        one = ImportanceSampler(n, 4, score=score, seed=2)
        steps(one, cut)
        twin = ImportanceSampler(n, 4, score=score, seed=3)
        twin.load_state_dict(one.state_dict())
        assert steps(twin, total - cut) == whole[cut:]
