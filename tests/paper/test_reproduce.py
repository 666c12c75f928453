"""Figures and tables of the paper: each target from end to end, and its numbers against oracles."""

import csv
import itertools
import json
import math
import pickle
from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from salience.compare.charts import Chart, Line, Panel
from salience.compare.demo import digits_task
from salience.compare.methods import make_method
from salience.compare.training import MEASURED, Row, Run, Task
from salience.errors import ArgumentError
from salience.paper import claims, figures, measures, probes, reproduce, table1, targets
from salience.paper.analyses import Material, largest_loss, tracking
from salience.paper.measures import Arrival, Trace

SCALE = 0.0002  # 4 steps for MNIST, 10 for CIFAR-10, 20 for Penn Treebank
SEEDS = 2
PAPER_FILES = ("png", "html", "json", "csv")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stand_in(name: str, **_: Any) -> Task:
    """Some of the shipped digits under the name of a data set that nobody has at hand."""
    whole = digits_task()
    order = torch.randperm(1437, generator=torch.Generator().manual_seed(0))[:224]
    x, y = (tensor[order] for tensor in whole.train.tensors)
    return replaced(
        whole,
        name=name,
        train=TensorDataset(x[:160], y[:160]),
        test=TensorDataset(x[160:], y[160:]),
        batch_size=16,
        wrong=None if name == "ptb" else whole.wrong,
    )


@pytest.fixture
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "make_task", stand_in)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all targets, as users have it: later ones find the runs of earlier ones."""
    return tmp_path_factory.mktemp("reproduced")


def run(name: str, out: Path, **more: Any) -> list[Row]:
    given = {"scale": SCALE, "model": "small", "seeds": SEEDS, **more}
    return list(reproduce.reproduce(name, out=out, **given))


# ---------------------------------------------------------------------------------- end to end


@pytest.mark.usefixtures("_tasks")
@pytest.mark.parametrize("name", reproduce.TARGETS)
def test_a_target_from_end_to_end(name: str, out: Path) -> None:
    rows = run(name, out)
    stages = [
        reproduce.Stage(study, reproduce.Settings(SCALE, "small", SEEDS), out)
        for study in reproduce.TARGETS[name].studies
    ]
    assert len(rows) == sum(
        SEEDS * len(stage.runs) * (stage.evaluations + 1) for stage in stages
    ), "every method, seed and evaluation, once"
    assert {row["method"] for row in rows} == {label for s in stages for label in s.runs}

    outcome = reproduce.finish(name, out)
    drawn = figures.write_figures(outcome)
    check_files(name, out / name, outcome, drawn)
    check_result(name, out / name, outcome)


def check_files(name: str, at: Path, outcome: reproduce.Outcome, drawn: list[Path]) -> None:
    (chart,) = outcome.charts
    assert {at / f"{name}.{kind}" for kind in PAPER_FILES} <= {*outcome.files, *drawn}
    assert (at / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    page = (at / f"{name}.html").read_text()
    assert "Plotly.newPlot" in page
    assert 'src="http' not in page
    assert "scale 0.0002" in page
    with (at / f"{name}.csv").open() as file:
        points = list(csv.reader(file))
    assert len(points) == 1 + sum(len(line.x) for panel in chart.panels for line in panel.lines)
    assert len(points) > 1
    for panel in chart.panels:
        for line in panel.lines:
            assert all(map(math.isfinite, line.y)), (panel.title, line.label)
    assert "scale 0.0002" in chart.title
    assert json.loads((at / f"{name}.json").read_text())["title"] == chart.title


def check_result(name: str, at: Path, outcome: reproduce.Outcome) -> None:
    result = json.loads((at / "result.json").read_text())
    assert result["target"] == name
    assert result["scale"] == SCALE
    assert result["config"]["versions"]["torch"] == torch.__version__
    assert len(result["claims"]) == len(outcome.claims) > 0
    assert len({claim["name"] for claim in result["claims"]}) == len(result["claims"])
    for claim, written in zip(outcome.claims, result["claims"], strict=True):
        assert written["holds"] is claim.holds
        assert written["numbers"]
        assert claim.sentence in result["paragraph"]
    assert "scale 0.0002" in outcome.paragraph
    assert reproduce.TARGETS[name].where in outcome.paragraph


@pytest.mark.usefixtures("_tasks")
def test_the_table_stands_beside_the_papers(out: Path) -> None:
    run("table1", out, resume=True)
    outcome = reproduce.finish("table1", out)
    figures.write_figures(outcome)
    (table,) = outcome.tables
    assert len(table.rows) == 3 * 3 * 5
    first = dict(zip(table.columns, table.rows[2], strict=True))
    assert (first["task"], first["epoch"], first["method"]) == ("mnist", 5, "loss k=0.5")
    assert (first["paper mean"], first["paper std"], first["n"]) == (0.56, 0.04, SEEDS)
    assert first["step"] == 1  # a quarter of four
    text = (out / "table1" / "table1.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + 9
    assert lines[-1].startswith("| ptb | 50 | 20 | ")
    assert lines[-1].endswith("(127.4 ± 1.45) |")


@pytest.mark.usefixtures("_tasks")
def test_targets_share_runs_and_resume_without_training(tmp_path: Path) -> None:
    before = run("cifar10", tmp_path)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")}
    assert len(files) == 4 * SEEDS
    run("tracking", tmp_path)
    assert all(path.stat().st_mtime_ns == at for path, at in files.items())
    again = run("cifar10", tmp_path, resume=True)
    key = lambda row: (row["method"], row["seed"], row["step"])  # noqa: E731
    assert sorted(again, key=key) == sorted(before, key=key)  # the seconds too: nothing was trained


@pytest.mark.usefixtures("_tasks")
def test_what_is_there_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    run("fig1b", tmp_path)
    with pytest.raises(ArgumentError, match="--resume"):
        run("fig1b", tmp_path)
    with pytest.raises(ArgumentError, match="begun with seeds 2, not 1"):
        run("fig1b", tmp_path, seeds=1, resume=True)


@pytest.mark.usefixtures("_tasks")
def test_an_unfinished_target_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="run the target"):
        reproduce.finish("fig1b", tmp_path)
    rows = reproduce.reproduce("fig1b", out=tmp_path, scale=SCALE, model="small", seeds=1)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="not finished"):
        reproduce.finish("fig1b", tmp_path)


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("fig9", {}, "fig1a, fig1b, cifar10, ptb, table1, gnorm-vs-loss, tracking; got 'fig9'"),
        ("fig1a", {"scale": 0.0}, "scale must be above 0 and at most 1; got 0.0"),
        ("fig1a", {"scale": 1.5}, "got 1.5"),
        ("fig1a", {"seeds": 0}, "seeds must be at least 1; got 0"),
        ("fig1a", {"model": "huge"}, "got 'huge'"),
    ],
)
def test_what_cannot_run_is_refused_at_once(
    name: str, settings: Any, match: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=match):
        reproduce.reproduce(name, out=tmp_path, **settings)
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------- declarations


def test_every_method_is_the_papers() -> None:
    for target in reproduce.TARGETS.values():
        for study in target.studies:
            for label, spec in study.methods.items():
                method = make_method(spec)
                if label in ("uniform", "online-selection"):
                    assert spec == label
                    continue
                assert method.options["presample"] == 2
                assert method.options["draw"] == "multinomial"
                constant = 0.5 if study.task == "ptb" else "adaptive"
                assert method.options["smoothing"] == constant
                stated = label.partition("k=")[2]
                default = 1.0 if target.name == "fig1a" else 0.5
                assert method.k == (float(stated) if stated else default)


def test_the_papers_schedules() -> None:
    def plans(name: str) -> list[tuple[int, int, int]]:
        whole = [
            reproduce.Stage(s, reproduce.Settings(), Path()) for s in targets.TARGETS[name].studies
        ]
        return [(stage.steps, stage.evaluations, len(stage.seeds)) for stage in whole]

    assert plans("fig1a") == [(6000, 120, 10)]
    assert plans("fig1b") == [(6000, 20, 10)]  # the maximum every 300 iterations
    assert plans("cifar10") == [(50_000, 100, 3)]
    assert plans("ptb") == [(100_000, 100, 3)]
    assert plans("table1") == [(6000, 20, 10), (50_000, 100, 3), (100_000, 100, 3)]
    assert plans("gnorm-vs-loss") == [(156, 156, 1)] * 3  # 157 batches of 128: 20,000 samples


def test_a_smaller_scale_shortens_and_says_so() -> None:
    settings = reproduce.Settings(scale=0.01, model="small", seeds=1)
    whole, *_ = targets.TARGETS["fig1b"].studies
    stage = reproduce.Stage(whole, settings, Path())
    assert (stage.steps, stage.evaluations) == (60, 4)
    assert stage.stated == "MNIST: 60 of 6,000 iterations (scale 0.01), small network, one seed"
    pairs = reproduce.Stage(targets.TARGETS["gnorm-vs-loss"].studies[0], settings, Path())
    assert (pairs.steps, pairs.evaluations) == (156, 4)  # as long, but looked at less often

    def lengths(name: str, scale: float) -> list[tuple[int, int]]:
        some = [
            reproduce.Stage(s, reproduce.Settings(scale=scale), Path())
            for s in targets.TARGETS[name].studies
        ]
        return [(stage.steps, stage.evaluations) for stage in some]

    assert lengths("fig1b", 0.5) == [(3000, 10)]  # every 300 iterations still
    assert lengths("cifar10", 0.5) == [(25_000, 50)]
    assert lengths("cifar10", 0.1) == [(5000, 20)]  # enough to see when a loss was reached


@pytest.mark.usefixtures("_tasks")
def test_one_task_of_several(tmp_path: Path) -> None:
    run("table1", tmp_path, task="ptb")
    outcome = reproduce.finish("table1", tmp_path, task="ptb")
    assert outcome.directory == tmp_path / "table1-ptb"
    assert {row[0] for row in outcome.tables[0].rows} == {"ptb"}
    with pytest.raises(ArgumentError, match=r"one of those of fig1a: mnist; got 'ptb'"):
        run("fig1a", tmp_path, task="ptb")


def test_plans_can_be_sent_to_a_process() -> None:
    for target in reproduce.TARGETS.values():
        for study in target.studies:
            plan = reproduce.Stage(study, reproduce.Settings(), Path()).plan
            received = pickle.loads(pickle.dumps(plan))
            assert (received.methods, received.observe) == (plan.methods, plan.observe)


def test_the_variance_is_measured_at_evaluations_up_to_the_last() -> None:
    steps = list(range(0, 6001, 50))
    at = targets._variances(steps, "mnist").at  # type: ignore[union-attr]
    assert at == tuple(range(300, 6001, 300))
    assert targets._variances([0, 1, 2, 3, 4], "mnist").at == (1, 2, 3, 4)  # type: ignore[union-attr]


# ------------------------------------------------------------------------- variance of a step

FEATURES, CLASSES, N, BATCH = 4, 3, 12, 3


def tiny_model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, CLASSES))


def tiny_task() -> Task:
    generator = torch.Generator().manual_seed(3)
    x = 2 * torch.randn(N, FEATURES, generator=generator)
    y = torch.randint(0, CLASSES, (N,), generator=generator)
    return Task(
        name="tiny",
        train=TensorDataset(x, y),
        test=TensorDataset(x[:7], y[:7]),
        model=tiny_model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.3),
        loss=lambda output, target: nn.functional.cross_entropy(output, target, reduction="none"),
        wrong=lambda output, target: output.argmax(1) != target,
        batch_size=BATCH,
    )


def tiny_run(spec: str, steps: int = 6) -> Run:
    made = Run(tiny_task(), make_method(spec), 0, steps=100)
    made.advance(steps)
    return made


def gradients(made: Run, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The slow and obvious way: a backward pass for each example. Losses [n], gradients [n, P]."""
    made.model.eval()
    x, y = made.task.train.tensors  # type: ignore[attr-defined]
    losses, found = [], []
    for i in indices.tolist():
        loss = made.task.loss(made.model(x[i : i + 1]), y[i : i + 1]).sum()
        parts = torch.autograd.grad(loss, list(made.model.parameters()))
        losses.append(loss.detach().double())
        found.append(torch.cat([part.flatten() for part in parts]).double())
    return torch.stack(losses), torch.stack(found)


def enumerated(p: Tensor, alpha: Tensor, g: Tensor, batch: int) -> float:
    """Trace of the covariance of the mean of ``batch`` draws: every single draw written out."""
    mean = sum(p[i] * alpha[i] * g[i] for i in range(len(p)))
    spread = sum(p[i] * ((alpha[i] * g[i] - mean) ** 2).sum() for i in range(len(p)))
    return float(spread) / batch


@pytest.mark.parametrize(("k", "size"), [(1.0, N), (0.5, N), (0.0, 7)])
def test_variance_of_draws_by_loss(k: float, size: int) -> None:
    made = tiny_run(f"loss:k={k:g}:presample=2:draw=multinomial:smoothing=adaptive")
    found = probes.GradientVariance(at=(6,), size=size)(made)
    indices = torch.randperm(N, generator=torch.Generator().manual_seed(MEASURED))[:size]
    losses, g = gradients(made, indices)
    q = losses + 0.5 * made.loader.metrics()["mean_loss"]  # half the running mean training loss
    p = q / q.sum()
    alpha = (1 / (size * p)) ** k
    even = torch.full_like(p, 1 / size)
    uniform = enumerated(even, torch.ones_like(p), g, BATCH)
    assert found["variance"] == pytest.approx(enumerated(p, alpha, g, BATCH), rel=1e-4)
    assert found["uniform_variance"] == pytest.approx(uniform, rel=1e-4)
    assert found["variance_ratio"] == pytest.approx(found["variance"] / found["uniform_variance"])
    assert ("pooled_ratio" in found) == (k == 1)


def test_variance_of_draws_by_gradient_norm() -> None:
    made = tiny_run("gnorm:k=1:presample=2:draw=multinomial:smoothing=0.3")
    found = probes.GradientVariance(at=(6,))(made)
    indices = torch.randperm(N, generator=torch.Generator().manual_seed(MEASURED))
    _, g = gradients(made, indices)
    q = g.norm(dim=1) + 0.3
    p = q / q.sum()
    assert found["variance"] == pytest.approx(enumerated(p, 1 / (N * p), g, BATCH), rel=1e-4)
    assert found["variance_ratio"] < 1  # the least of all, but for the smoothing


def test_variance_of_uniform_draws_is_the_measure() -> None:
    assert probes.GradientVariance(at=(6,))(tiny_run("uniform"))["variance_ratio"] == 1.0
    assert probes.GradientVariance(at=(7,))(tiny_run("uniform")) == {}


def test_variance_of_a_score_without_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'history'"):
        probes.GradientVariance(at=(6,))(tiny_run("history"))


@pytest.mark.parametrize(("batch", "pool"), [(1, 2), (2, 3)])
def test_variance_with_the_pool_by_enumerating_pools_and_draws(batch: int, pool: int) -> None:
    g = torch.tensor([[1.0, 0.0], [0.5, -2.0], [3.0, 1.0]], dtype=torch.float64)
    q = torch.tensor([0.4, 1.0, 2.5], dtype=torch.float64)
    steps, chances = [], []
    for members in itertools.product(range(3), repeat=pool):
        p = q[list(members)] / q[list(members)].sum()
        for draws in itertools.product(range(pool), repeat=batch):
            chances.append(float(p[list(draws)].prod()) / 3**pool)
            steps.append(sum(g[members[d]] / (pool * p[d]) for d in draws) / batch)
    chance, step = torch.tensor(chances, dtype=torch.float64).unsqueeze(1), torch.stack(steps)
    assert float(chance.sum()) == pytest.approx(1)
    mean = (chance * step).sum(0)
    assert torch.allclose(mean, g.mean(0))  # unbiased
    exact = float((chance * (step - mean) ** 2).sum())
    squares, mean_square = (g * g).sum(1), float((g.mean(0) ** 2).sum())
    assert probes.pooled_variance(squares, q, mean_square, batch, pool) == pytest.approx(exact)


@pytest.mark.parametrize("spec", ["uniform", "loss:k=1:presample=2:draw=multinomial"])
def test_measuring_leaves_the_run_as_it_was(spec: str) -> None:
    every = probes.Together(
        (
            probes.GradientVariance(at=tuple(range(20))),
            probes.LossAndNorm(),
            probes.Tracking(),
            probes.WholeTest(at=tuple(range(20))),
        )
    )
    watched, alone = tiny_run(spec, 0), tiny_run(spec, 0)
    for _ in range(5):
        watched.advance(2)
        alone.advance(2)
        seen = every(watched)
        assert {"variance_ratio", "norms", "tracking", "test_error"} <= set(seen)
    assert all(torch.equal(a, b) for a, b in zip(*map(weights, (watched, alone)), strict=True))
    assert all(p.grad is None for p in watched.model.parameters())


def weights(made: Run) -> list[Tensor]:
    return [p.detach() for p in made.model.parameters()]


def test_losses_and_norms_of_a_batch() -> None:
    made = tiny_run("uniform")
    found = probes.LossAndNorm()(made)
    losses, g = gradients(made, torch.arange(N))
    norms = g.norm(dim=1)
    assert len(found["losses"]) == len(found["norms"]) == BATCH
    assert sum(found["norms"]) == pytest.approx(BATCH, rel=1e-5)
    at = [int((losses - value).abs().argmin()) for value in found["losses"]]
    assert len(set(at)) == BATCH
    assert torch.allclose(losses[at], torch.tensor(found["losses"]).double(), atol=1e-5)
    scaled = norms[at] / norms[at].mean()
    assert torch.allclose(scaled, torch.tensor(found["norms"]).double(), rtol=1e-4)
    made.advance(1)
    assert probes.LossAndNorm()(made)["losses"] != found["losses"]


def test_the_whole_test_set_at_its_stages_only() -> None:
    made = tiny_run("uniform")
    row = made.evaluate()
    assert probes.WholeTest(at=(6,))(made)["test_error"] == pytest.approx(row["test_error"])
    assert probes.WholeTest(at=(5, 7))(made) == {}
    made.task = replaced(made.task, wrong=None)
    perplexity = probes.WholeTest(at=(6,))(made)["test_perplexity"]
    assert perplexity == pytest.approx(math.exp(row["test_loss"]), rel=1e-5)


# ---------------------------------------------------------------------------------- measures


def test_spearman_by_hand() -> None:
    assert measures.ranks([10, 30, 20, 20]).tolist() == [1, 4, 2.5, 2.5]
    # ranks 1 2.5 2.5 4 and 1 3 2 4: 4.5 / sqrt(4.5 x 5)
    assert measures.spearman([1, 2, 2, 3], [1, 9, 4, 16]) == pytest.approx(math.sqrt(0.9))
    x = [0.3, -1.0, 5.0, 2.0]
    assert measures.spearman(x, [math.exp(value) for value in x]) == pytest.approx(1)
    assert measures.spearman(x, [-(value**3) for value in x]) == pytest.approx(-1)
    assert math.isnan(measures.spearman(x, [1.0] * 4))


def test_moving_average_by_hand() -> None:
    mean, std = measures.moving([1, 2, 6, 3, 4], 3)
    assert mean == pytest.approx([1.5, 3, 11 / 3, 13 / 3, 3.5])
    assert std[1] == pytest.approx(math.sqrt(7))  # of 1, 2, 6
    assert std[0] == pytest.approx(math.sqrt(0.5))
    assert measures.moving([1, 2, 6], 1) == ([1, 2, 6], [0, 0, 0])
    mean, _ = measures.moving([0, 1, 2, 3, 4, 5], 4)
    assert mean[3] == 2.5  # 1, 2, 3, 4: four values, not five


def test_intervals_by_hand() -> None:
    mean, half, n = measures.interval([1.0, 2.0, 3.0])
    assert (mean, n) == (2.0, 3)
    assert half == pytest.approx(4.303 / math.sqrt(3))
    assert measures.interval([5.0]).half == math.inf
    # 1.984 is Student's quantile for 99; the sample has standard deviation 1.0050.
    many = measures.interval([-1.0, 1.0] * 50)
    assert many.half == pytest.approx(1.984 * 1.00504 / 10, rel=1e-3)
    r, half, _ = measures.correlation_interval(0.5, 103)
    assert r - half == pytest.approx(math.tanh(math.atanh(0.5) - 0.196))


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
    assert table1.stage_steps(task, steps) == pytest.approx(expected)


def test_the_stage_is_the_nearest_evaluation() -> None:
    assert measures.nearest([0, 2, 5, 9], 3.4) == 1
    assert measures.nearest([0, 2, 5, 9], 3.6) == 2
    rows = [row(step, 1.0, test_error=0.5) for step in (0, 10, 30, 60, 100)]
    seen = [{"test_error": step / 1000} for step in (0, 10, 30, 60, 100)]
    trace = Trace(rows, seen)
    assert [table1._at_stage("cifar10", trace, i) for i in range(3)] == [
        (30, 0.03),
        (60, 0.06),
        (100, 0.1),  # 90 is nearer to 100 than to 60
    ]


def row(step: int, train_loss: float, seconds: float = 0.0, seed: int = 0, **more: Any) -> Any:
    return {"step": step, "train_loss": train_loss, "seconds": seconds, "seed": seed, **more}


def traced(losses: list[float], pace: float = 1.0, seed: int = 0) -> Trace:
    """Evaluations every ten steps, at ``pace`` seconds a step."""
    rows = [row(10 * i, loss, 10 * i * pace, seed) for i, loss in enumerate(losses)]
    return Trace(rows, [{} for _ in rows])


def test_arrivals_by_hand() -> None:
    base = [traced([3, 2, 1.0, 0.9, 0.5]), traced([3, 2, 1.0, 0.7, 0.5], seed=1)]
    own = [traced([3, 0.4, 0.3, 0.2, 0.1], 2.0), traced([3, 2, 2, 2, 2], 2.0, seed=1)]
    steps = measures.arrivals(own, base, "step")
    assert steps == [Arrival(0.25, True), Arrival(1.0, False)]
    seconds = measures.arrivals(own, base, "seconds")
    assert seconds == [Arrival(0.5, True), Arrival(2.0, False)]  # twice the cost of a step
    assert measures.arrivals(base, base, "seconds")[0] == Arrival(1.0, True)


def test_a_slow_spell_later_on_credits_nobody() -> None:
    late = [row(0, 3, 0), row(10, 2, 10), row(20, 1, 110)]  # the machine stalls after step 10
    own = Trace([row(0, 3, 0), row(10, 0.5, 20), row(20, 0.4, 200)], [{}] * 3)
    ((ratio, _),) = measures.arrivals([own], [Trace(late, [{}] * 3)], "seconds")
    assert ratio == 1.0  # half the steps at twice the cost, not 20 / 110


def test_nothing_to_reach_where_the_baseline_did_not_improve() -> None:
    base = [traced([1.0, 2.0, 3.0])]
    ((ratio, reached),) = measures.arrivals([traced([1.0, 0.1, 0.1])], base, "step")
    assert math.isnan(ratio)
    assert not reached


def test_the_first_part_of_a_run() -> None:
    part = measures.until(traced([5, 4, 3, 2, 1, 1, 1, 1, 1, 1, 1]), 0.7)
    assert [r["step"] for r in part.rows] == [0, 10, 20, 30, 40, 50, 60, 70]
    assert len(part.observed) == 8


# ------------------------------------------------------------------------------------ claims

LOW, HIGH, MIXED = [0.7, 0.72, 0.71], [1.3, 1.32, 1.31], [0.8, 1.2, 1.05]


@pytest.mark.parametrize(
    ("values", "holds", "words"),
    [
        (LOW, True, "holds here"),
        (HIGH, False, "does not hold here"),
        (MIXED, None, "cannot be told: within the noise of 3 seeds"),
        ([0.1], None, "cannot be told from one seed"),
        ([0.7, 0.72, math.nan], None, "cannot be told: within the noise of 3 seeds"),
    ],
)
def test_below_and_above(values: list[float], holds: bool | None, words: str) -> None:
    claim = claims.below("a", "a is less", values, 1.0, "ratio")
    assert (claim.holds, claim.verdict) == (holds, words)
    assert claim.sentence.startswith(f"A is less: {words} (ratio ")
    opposite = claims.above("a", "a is more", values, 1.0, "ratio")
    assert opposite.holds is (None if holds is None else not holds)


@pytest.mark.parametrize(
    ("ratios", "holds"),
    [
        (LOW, True),
        ([1.0, 1.01, 0.99], True),  # the same, as far as a tenth goes
        ([1.02, 1.021, 1.019], False),  # a little worse, but for certain
        (HIGH, False),
        (MIXED, None),
        ([1.0], None),
    ],
)
def test_the_same_or_better(ratios: list[float], holds: bool | None) -> None:
    assert claims.no_worse("t", "no worse", ratios, 0.1, "error").holds is holds


@pytest.mark.parametrize(
    ("ratios", "holds"),
    [([1.0, 1.02, 0.99], True), (LOW, False), (HIGH, False), (MIXED, None), ([1.0], None)],
)
def test_the_same(ratios: list[float], holds: bool | None) -> None:
    assert claims.same("s", "alike", ratios, 0.1, "ratio").holds is holds


@pytest.mark.parametrize(
    ("ratios", "reached", "finals", "holds"),
    [
        (LOW, 3, LOW, True),
        (HIGH, 3, LOW, False),
        (MIXED, 3, LOW, None),
        (LOW, 2, LOW, None),  # one seed never got there: its ratio is only a lower bound
        ([1.0, 1.0, 1.0], 0, HIGH, False),  # never there, and clearly above
        ([1.0, 1.0, 1.0], 0, [1.001, 0.999, 1.002], None),  # never there by a hair
    ],
)
def test_sooner(ratios: list[float], reached: int, finals: list[float], holds: bool | None) -> None:
    arrived = [Arrival(ratio, i < reached) for i, ratio in enumerate(ratios)]
    claim = claims.sooner("s", "sooner", arrived, finals, "share", paper=0.5)
    assert claim.holds is holds
    assert claim.numbers["reached"] == reached
    assert ("reached by" in claim.evidence) == (reached < 3)
    assert "the paper: 0.5" in claim.evidence


def test_correlation_is_judged_by_its_samples() -> None:
    assert claims.correlated("c", "grows", 0.3, 400).holds is True
    assert claims.correlated("c", "grows", -0.3, 400).holds is False
    unsure = claims.correlated("c", "grows", 0.05, 400)
    assert unsure.verdict == "cannot be told: within the noise of 400 samples"


def test_the_paragraph_counts_the_outcomes() -> None:
    judged = [claims.below(str(i), "less", v, 1.0, "x") for i, v in enumerate((LOW, HIGH, MIXED))]
    text = claims.paragraph("Begin.", judged)
    assert text.startswith("Begin. Less: holds here (x 0.71 ± 0.025).")
    assert text.endswith("In all, 1 of 3 hold here, 1 do not, 1 cannot be told.")


# ----------------------------------------------------------------- from runs to claims


def maxima(values: list[float], seed: int) -> Trace:
    rows = [row(i, 1.0, seed=seed, train_max_loss=value) for i, value in enumerate(values)]
    return Trace(rows, [{} for _ in rows])


def test_smaller_k_lowers_the_maximum() -> None:
    def seeds(end: list[float]) -> list[Trace]:
        return [maxima([9.0] * 5 + [value + s / 100 for value in end], s) for s in range(3)]

    levels = {"uniform": 4.0, "k=1": 4.1, "k=0.5": 3.0, "k=0": 2.0}
    runs = {label: seeds([level] * 5) for label, level in levels.items()}
    runs["k=0.75"] = seeds([7.4, 7.4, 7.4, 7.4, 0.4])  # one lucky moment does not count
    found = largest_loss(Material({"mnist": runs}, {"mnist": "stated"}))
    outcome = {claim.name: claim.holds for claim in found.claims}
    assert outcome == {
        "k=0 lowers the maximum": True,
        "k=0.5 lowers the maximum": True,
        "k=0.75 lowers the maximum": False,
        "k=1 is like uniform": True,
    }
    lines = {line.label: line for line in found.charts[0].panels[0].lines}
    assert lines["k=0"].y[-1] == pytest.approx((2.0 + 2.01 + 2.02) / 3)
    assert lines["k=0"].y[4] == pytest.approx((9 * 3 + 2.01 * 2) / 5)


def test_tracking_rises_or_does_not() -> None:
    def seeds(curve: list[float]) -> list[Trace]:
        made = []
        for seed in range(3):
            rows = [row(i, 1.0, seed=seed) for i in range(len(curve) + 1)]
            seen = [{"tracking": math.nan}, *({"tracking": a + seed / 1000} for a in curve)]
            made.append(Trace(rows, seen))
        return made

    rising, falling = [0.1, 0.2, 0.3, 0.5, 0.6, 0.7], [0.6, 0.5, 0.1, 0.0, -0.1, -0.2]
    runs = {
        "cifar10": {"loss": seeds(falling), "approx": seeds(rising)},
        "ptb": {"loss": seeds(rising), "approx": seeds(falling)},
    }
    found = tracking(Material(runs, {"cifar10": "a", "ptb": "b"}))
    assert {claim.name: claim.holds for claim in found.claims} == {
        "cifar10, loss: positive": False,
        "cifar10, approx: positive": True,
        "cifar10, approx: rising": True,
        "ptb, loss: positive": True,
        "ptb, approx: positive": False,
        "ptb, approx: rising": False,
    }
    rise = next(c for c in found.claims if c.name == "cifar10, approx: rising")
    assert rise.numbers["mean"] == pytest.approx(0.65 - 0.15)  # last two less first two
    assert found.charts[0].panels[0].lines[0].x == [1, 2, 3, 4, 5, 6]  # nothing known at 0


# ----------------------------------------------------------------------------------- figures


def test_lines_look_the_same_in_every_panel() -> None:
    lines = [Line(name, [0.0], [1.0]) for name in ("loss", "uniform", "gnorm")]
    panels = [
        Panel("a", "x", "y", lines),
        Panel("b", "x", "y", [Line("pool", [0], [1], like="gnorm")]),
    ]
    found = figures.looks(Chart("c", "title", panels))
    assert found["uniform"] == (figures.PALETTE[0], "dash")
    assert found["loss"] == (figures.PALETTE[1], "solid")
    assert found["pool"] == (found["gnorm"].colour, "dot")
    assert len({look.colour for look in found.values()}) == 3


def test_nothing_below_zero_on_a_logarithmic_axis() -> None:
    line = Line("loss", [0, 1, 2], [0.3, 0.0, 0.6], [-1.0, -1.0, 0.5], [1.0, 1.0, 0.7])
    y, low, high = figures._drawable(line, True)
    assert (y[0], y[2]) == (0.3, 0.6)
    assert math.isnan(y[1])
    assert low == pytest.approx([0.1, 0.1, 0.5])
    assert high == [1.0, 1.0, 0.7]
    assert figures._drawable(line, False) == (line.y, line.low, line.high)


def test_a_page_shows_text_as_text() -> None:
    chart = Chart("c", "a < b", [Panel("<i>", "x", "y", [Line("<b>", [0, 1], [1, 2])])])
    page = figures.chart_html(chart, "x < y & z")
    assert "x &lt; y &amp; z</p></body>" in page
    assert "<title>a &lt; b</title>" in page
    assert "<i>" not in page.partition('id="c"')[2]
