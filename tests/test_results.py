"""The tables in results/ are what the recorded rows come to."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import payoff
import pytest
import variance
import why

from salience.compare.budgets import summarize_all
from salience.compare.paired import t_95
from salience.compare.summary import summarize
from salience.paper import measures, packed, pages

RESULTS = Path(__file__).parent.parent / "results"
CASES = sorted(path.parent for path in RESULTS.rglob("runs.jsonl.gz"))
LONG = [path for path in CASES if path.parent == RESULTS]
SHORT = [path for path in CASES if path.parent.name == "step-cost"]
PARTS = ("draw", "update", "both")
PAGES = (RESULTS / "paper", RESULTS / "paper" / "why")  # tables made from packed runs
TARGETS = sorted(path.parent for page in PAGES for path in page.glob("*/result.json"))
VERDICTS = {
    "holds": "**holds**",
    "does not hold": "**does not hold**",
    "tie": "a tie",
    "unknown": "undecided",
}


def name(path: Path) -> str:
    return path.relative_to(RESULTS).as_posix()


def rows(path: Path) -> list[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def table(page: Path) -> list[list[str]]:
    """The cells of every table row on a page."""
    lines = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def row_of(path: Path) -> list[str]:
    (found,) = [row for row in table(RESULTS / "README.md") if f"]({path.name})" in row[0]]
    return found


def runs(all_rows: list[Any], method: str) -> list[list[Any]]:
    """The rows of each seed, in the order of the seeds."""
    seeds = sorted({row["seed"] for row in all_rows})
    return [[r for r in all_rows if (r["method"], r["seed"]) == (method, s)] for s in seeds]


def ratio(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"


def mean_std(values: list[float], scale: float) -> str:
    return f"{scale * fmean(values):.{2 if scale > 1 else 1}f} ({scale * stdev(values):.2f})"


def rounded(value: Any) -> Any:
    """Floats to twelve digits: the order of summation may change."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


def expected(path: Path) -> list[str]:
    """The computed cells of a case: ratios, step cost, test results, arguments, commit.

    Each seed is compared with the uniform run of the same seed. The test result of a method is
    the one of its last evaluation within uniform's training time.
    """
    config, found = read(path / "config.json"), rows(path / "runs.jsonl.gz")
    method = config["methods"][1]
    measure = "test_error" if "test_error" in found[0] else "test_perplexity"
    whole = summarize(found)["methods"][method]
    pairs = list(zip(runs(found, "uniform"), runs(found, method), strict=True))
    seeds = [summarize(u + m)["methods"][method]["time_to_target_ratio"] for u, m in pairs]
    equal = [[r for r in m if r["seconds"] <= u[-1]["seconds"]][-1] for u, m in pairs]
    scale = 100 if measure == "test_error" else 1
    by_size = sorted(seeds, key=lambda seed: (seed is None, seed))
    return [
        f"`{method}`",
        str(len(pairs)),
        ratio(whole["time_to_target_ratio"]),
        ", ".join(map(ratio, by_size)),
        ratio(whole["step_cost_ratio"]),
        mean_std([u[-1][measure] for u, _ in pairs], scale),
        mean_std([row[measure] for row in equal], scale),
        f"`{config['commit'][:7]}`",
    ]


@pytest.mark.parametrize("path", LONG, ids=name)
def test_the_table_agrees_with_the_rows(path: Path) -> None:
    assert row_of(path)[2:10] == expected(path)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("default/*/summary.json")), ids=name)
def test_the_table_of_the_default_agrees_with_the_rows(path: Path) -> None:
    found = summarize_all(rows(path.parent / "runs.jsonl.gz"))
    link = f"](default/{path.parent.name})"
    (shown,) = [row for row in table(RESULTS / "README.md") if link in row[0]]
    assert shown[1:-1] == payoff.cells(found)
    assert shown[-1] == f"`{read(path.parent / 'config.json')['commit'][:7]}`"


RIVALS = [
    path
    for path in sorted(RESULTS.glob("default/*/summary.json"))
    if set(payoff.RIVALS) & set(read(path)["methods"])
]


@pytest.mark.parametrize("path", RIVALS, ids=name)
def test_the_table_of_rivals_agrees_with_the_rows(path: Path) -> None:
    found = summarize_all(rows(path.parent / "runs.jsonl.gz"))
    (shown,) = [row for row in table(RESULTS / "README.md") if row[0] == f"`{path.parent.name}`"]
    assert shown[1:] == payoff.beside(found)


@pytest.mark.parametrize(("case", "place"), [("crops-strided", 0), ("crops", 1)])
def test_the_tables_of_budgets_agree_with_the_rows(case: str, place: int) -> None:
    ends: dict[Any, dict[int, Any]] = {}
    alone = RESULTS / "default" / case / "infobatch.jsonl.gz"
    found = rows(alone) if alone.exists() else []
    for row in [*rows(RESULTS / "default" / case / "runs.jsonl.gz"), *found]:
        ends.setdefault((row["budget"], row["method"]), {})[row["seed"]] = row  # the last one stays
    shown = [row for row in table(RESULTS / "README.md") if re.fullmatch(r"0?\.?\d+", row[0])]
    shown = [row for row in shown if row[1].endswith("%")][4 * place : 4 * place + 4]
    assert [float(row[0]) for row in shown] == [0.25, 0.5, 0.75, 1]
    for budget, *cells in shown:
        base, own, rival = (ends[float(budget), method] for method in METHODS)
        errors = [[100 * each[seed]["test_error"] for seed in base] for each in (base, own)]
        assert cells[:2] == [f"{fmean(each):.2f} ({stdev(each):.2f}) %" for each in errors]
        assert cells[2] == interval(own, base, "test_error")
        assert cells[3] == interval(own, base, "test_loss")
        assert cells[4] == interval(rival, base, "test_error")
        assert cells[5:] in ([], [interval(rival, base, "test_loss")])


def test_the_table_of_shorter_trainings_agrees_with_the_rows() -> None:
    shown: dict[str, dict[str, list[str]]] = {}
    for case, method, *cells in (row for row in table(RESULTS / "README.md") if len(row) == 7):
        if found := re.fullmatch(r"`([\w-]+)` \(constant\)|\[`[\w-]+`\]\((budgets/.+)\)", case):
            place = f"default/{found[1]}" if found[1] else found[2]
            shown.setdefault(place, {})[method.strip("`")] = cells
    assert len(shown) >= 8
    assert {path.parent.name for path in RESULTS.glob("budgets/*/summary.json")} <= {
        case.removeprefix("budgets/") for case in shown
    }
    for case, methods in shown.items():
        recorded = rows(RESULTS / case / "runs.jsonl.gz")
        if case.startswith("default/"):
            assert read(RESULTS / case / "config.json")["schedule"] == "constant"
        n = len({row["seed"] for row in recorded})
        expected = payoff.shorter(recorded).items()
        assert methods == {method: [str(n), *cells] for method, cells in expected}


METHODS = ("uniform", "auto", "infobatch")


def interval(own: dict[int, Any], base: dict[int, Any], column: str) -> str:
    """The mean difference to the run of the same seed, and its 95 % interval."""
    scale, digits = (100, 2) if column == "test_error" else (1, 4)
    pairs = [scale * (own[seed][column] - base[seed][column]) for seed in own]
    half = t_95(len(pairs) - 1) * stdev(pairs) / len(pairs) ** 0.5
    low, mean, high = (fmean(pairs) + side * half for side in (-1, 0, 1))
    return f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


@pytest.mark.parametrize(
    ("case", "share"),
    [("mnist", 0.45), ("long-tail", 0.35), ("mnist-small", 0.6), ("long-tail-small", 0.4)],
)
def test_the_same_test_error_comes_after_this_share_of_the_steps(case: str, share: float) -> None:
    curves: dict[str, dict[int, list[float]]] = {"uniform": {}, "auto": {}}
    for row in rows(RESULTS / "default" / case / "runs.jsonl.gz"):
        if row["method"] in curves:
            curves[row["method"]].setdefault(row["step"], []).append(row["test_error"])
    last = max(curves["uniform"])
    target = fmean(curves["uniform"][last])
    first = min(step for step, values in curves["auto"].items() if fmean(values) <= target)
    assert first / last == pytest.approx(share)
    assert f"{share:.2f}" in " ".join((RESULTS / "README.md").read_text("utf-8").split())


@pytest.mark.parametrize("path", sorted(RESULTS.glob("rerun/*.jsonl.gz")), ids=name)
def test_the_reruns_agree_with_the_rows(path: Path) -> None:
    found = rows(path)
    pairs = list(zip(runs(found, "uniform"), runs(found, "auto"), strict=True))
    seeds = [summarize(u + m)["methods"]["auto"]["steps_to_target_ratio"] for u, m in pairs]
    ends = [[run[-1]["test_error"] for run in method] for method in zip(*pairs, strict=True)]
    errors = [mean_std(end, 100) for end in ends]
    cells = [str(found[-1]["step"]), str(len(pairs)), ", ".join(map(ratio, sorted(seeds))), *errors]
    (shown,) = [row[1:] for row in table(RESULTS / "README.md") if f"]({name(path)})" in row[0]]
    assert shown == cells


@pytest.mark.parametrize("path", LONG, ids=name)
def test_the_table_gives_the_command(path: Path) -> None:
    command = read(path / "config.json")["command"]
    for option in re.findall(r"^\S+|--\w+ \S+", row_of(path)[10].strip("`")):
        assert f" {option} " in f"{command} ", f"{path.name} was run by {command}"


@pytest.mark.parametrize("path", CASES, ids=name)
def test_the_summary_is_that_of_the_rows(path: Path) -> None:
    found = rounded(summarize(rows(path / "runs.jsonl.gz"))["methods"])
    for method, recorded in rounded(read(path / "summary.json")["methods"]).items():
        assert recorded.items() <= found[method].items()


def test_the_trials_of_the_default_agree_with_the_rows() -> None:
    page = (RESULTS.parent / "docs" / "designs.md").read_text("utf-8")
    section = page.partition("### Before it focused on crops")[2].partition("\n## ")[0]
    shown = re.findall(r"(\d+\.\d\d)(?: and \d+\.\d\d|, \d+\.\d\d)? %", section)
    ends: dict[Any, float] = {}
    best: dict[Any, float] = {}
    for row in rows(RESULTS / "designs" / "default-trials.jsonl.gz"):
        keys = ("task", "wrong_labels", "design", "seed", "steps", "schedule")
        run, error = tuple(row[key] for key in keys), row["test_error"]
        ends[run] = error  # the last one stays
        best[run] = min(error, best.get(run, 1.0))
    recorded = {f"{100 * error:.2f}" for error in (*ends.values(), *best.values())}
    assert len(shown) > 40
    assert [each for each in shown if each not in recorded] == []


def test_the_trials_of_the_default_of_today_agree_with_the_rows() -> None:
    """Differences to ``uniform``: n, train loss, steps (without augmentation), test, best."""
    page = (RESULTS.parent / "docs" / "designs.md").read_text("utf-8")
    section = page.partition("### The default of today")[2].partition("\n### ")[0]
    shown = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    found: dict[Any, dict[str, dict[int, Any]]] = {}
    for row in rows(RESULTS / "designs" / "focus-trials.jsonl.gz"):
        group = found.setdefault((row["task"], row["schedule"]), {})
        group.setdefault(row["design"], {})[row["seed"]] = row["rows"]
    expected = []
    for key, with_steps in (
        (("cifar10-crops", "onecycle"), False),
        (("cifar10-plain", "cosine"), True),
    ):
        base = found[key].pop("uniform")
        expected += [[name, *_trial(own, base, with_steps)] for name, own in found[key].items()]
    cells = [[re.sub("[`*]", "", each) for each in row] for row in shown if row[0] != "design"]
    assert len(cells) > 20
    assert sorted(cells) == sorted(expected)


def test_the_trials_of_more_capacity_agree_with_the_rows() -> None:
    page = (RESULTS.parent / "docs" / "designs.md").read_text("utf-8")
    section = page.partition("### Networks with more capacity")[2].partition("\n## ")[0]
    shown = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    ends: dict[Any, dict[int, Any]] = {}
    for row in rows(RESULTS / "designs" / "capacity-trials.jsonl.gz"):
        key = row["model"], row["steps"], row["design"]
        ends.setdefault(key, {})[row["seed"]] = row["rows"][-1]
    expected = []
    for (model, steps, design), own in ends.items():
        if design == "uniform":
            continue
        base = ends[model, steps, "uniform"]
        cells = [model, f"{steps:,}", f"k = {design.partition('k=')[2] or '1/2'}", str(len(own))]
        for name, scale, digits in (
            ("train_loss", 1, 3),
            ("test_loss", 1, 3),
            ("test_error", 100, 2),
        ):
            values = [scale * (own[seed][name] - base[seed][name]) for seed in own]
            cells.append(_with_error(values, digits))
        expected.append(cells)
    assert sorted(shown[1:]) == sorted(expected)


def _trial(own: dict[int, Any], base: dict[int, Any], with_steps: bool) -> list[str]:
    pairs = [(own[seed], base[seed]) for seed in own]
    train = fmean(mine[-1]["train_loss"] - theirs[-1]["train_loss"] for mine, theirs in pairs)
    end, best = (
        [100 * (at(mine) - at(theirs)) for mine, theirs in pairs]
        for at in (
            lambda run: run[-1]["test_error"],
            lambda run: min(row["test_error"] for row in run),
        )
    )
    if not with_steps:
        return [str(len(own)), f"{train:+.3f}", _with_error(end)]
    target = fmean(theirs[-1]["train_loss"] for _, theirs in pairs)
    curves = [[row["train_loss"] for row in run] for run, _ in pairs]
    means = [fmean(each) for each in zip(*curves, strict=True)]
    steps = (1 + next(i for i, mean in enumerate(means) if mean <= target)) / len(means)
    return [str(len(own)), f"{train:+.3f}", f"{steps:.2f}", _with_error(end), _with_error(best)]


def _with_error(values: list[float], digits: int = 2) -> str:
    """The mean, and its standard error where there is one."""
    error = f" ({stdev(values) / len(values) ** 0.5:.{digits}f})" if len(values) > 1 else ""
    return f"{fmean(values):+.{digits}f}{error}"


def test_all_runs_were_on_the_hardware_and_versions_that_the_page_names() -> None:
    page = " ".join((RESULTS / "README.md").read_text("utf-8").split())
    for path in CASES:
        config = read(path / "config.json")
        versions, hardware = config["versions"], config["hardware"]
        told = ", ".join(f"{key} {value}" for key, value in versions.items())
        cores = f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['threads']} thread"
        assert told in page, path.name
        assert cores in page, path.name


def test_the_step_costs_agree_with_the_rows() -> None:
    measured = {
        (
            row["network"],
            row["method"],
            "{:.2f} ({:.2f} to {:.2f})".format(row["ratio"], *row["quartiles"]),
        )
        for row in rows(RESULTS / "step-cost" / "rows.jsonl.gz")
        if row["measured"] == "step"
    }
    networks = ("demo", "mnist-paper", "cifar10-paper", "ptb-paper")
    methods = {method for _, method, _ in measured}
    shown = [row for row in table(RESULTS / "README.md") if row[0].strip("`") in methods]
    assert len(shown) == len(methods)
    for method, *cells in shown:
        for network, cell in zip(networks, cells, strict=True):
            assert not cell or (network, method.strip("`"), cell) in measured


def test_the_costs_of_draws_agree_with_the_rows() -> None:
    for row in rows(RESULTS / "step-cost" / "rows.jsonl.gz"):
        if row["measured"] == "draw":
            draw, update, both = (f"{1e6 * row[f'{part}_seconds']:.0f} us" for part in PARTS)
            low, high = row["both_quartiles_us"]
            cells = [f"{row['examples']:,}", draw, update, f"{both} ({low} to {high})"]
            assert cells in table(RESULTS / "README.md")


def test_the_costs_after_the_rebuild_agree_with_the_rows() -> None:
    page = table(RESULTS / "README.md")
    measured = json.loads(gzip.decompress((RESULTS / "step-cost/rebuilt.json.gz").read_bytes()))
    for run in measured["steps"]:
        for case in run.keys() & {"fast", "demo"}:
            by_method = run[case]["methods"]
            cells = [
                "{:.2f} ({:.2f} to {:.2f})".format(
                    by_method[m]["ratio"], *by_method[m]["quartiles"]
                )
                for m in ("uniform", "auto:off", "auto:on", "history")
            ]
            assert [*cells, f"`{run['commit'][:7]}`"] in [row[2:] for row in page]
    for key, cost in measured["draws"]["draws"].items():
        method, n = key.split(", ")
        cells = [
            f"{int(n):,}",
            f"`{method}`",
            f"{cost['mean_ms']:.2f}",
            f"{cost['longest_ms']:.1f}",
        ]
        assert cells in [row[:4] for row in page]


def test_the_costs_beside_the_authors_library_agree_with_the_rows() -> None:
    measured = json.loads(
        gzip.decompress((RESULTS / "step-cost/authors-library.json.gz").read_bytes())
    )
    section = (RESULTS / "README.md").read_text("utf-8").partition("authors' library\n")[2]
    for method, cost in measured["mnist-paper"]["methods"].items():
        if method != "plain":
            shown = "| {:.2f} ({:.2f} to {:.2f}) |".format(cost["ratio"], *cost["quartiles"])
            assert shown in section.partition("###")[0]


def test_the_costs_of_pools_in_parts_agree_with_the_rows() -> None:
    measured = json.loads(gzip.decompress((RESULTS / "step-cost/parts.json.gz").read_bytes()))
    shown = [row[1:] for row in table(RESULTS / "README.md")]
    for case in measured.keys() & {"mnist-paper", "cifar10-paper", "ptb-paper"}:
        methods = measured[case]["methods"]
        costs = [methods[each] for each in ("loss:at-once", "loss:presample=2")]
        cells = ["{:.2f} ({:.2f} to {:.2f})".format(c["ratio"], *c["quartiles"]) for c in costs]
        assert cells in shown
    for task, step, steps in (("mnist", 500, "1,000"), ("ptb", 100, "200")):
        early = run_costs(rows(RESULTS / f"step-cost/run-{task}/runs.jsonl.gz"), "loss", step)
        told = f"after {step} of the {steps} steps it was {early}."
        assert told in (RESULTS / "README.md").read_text("utf-8")


def run_costs(all_rows: list[Any], method: str, step: int | None = None) -> str:
    """The time of a run over uniform's with the same seed: mean (least to most)."""
    ends = [
        [next(r for r in run[::-1] if step in (None, r["step"])) for run in runs(all_rows, name)]
        for name in (method, "uniform")
    ]
    found = [own["seconds"] / base["seconds"] for own, base in zip(*ends, strict=True)]
    several = f" ({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else ""
    return f"{fmean(found):.2f}{several}"


@pytest.mark.parametrize("path", SHORT, ids=name)
def test_the_costs_over_a_run_agree_with_the_rows(path: Path) -> None:
    found = rows(path / "runs.jsonl.gz")
    cells = [str(found[-1]["step"])]
    for method in read(path / "config.json")["methods"][1:]:
        ends = [run[-1] for run in runs(found, method)]
        trained = sum(row["examples"] for row in ends) / sum(row["step"] for row in ends)
        cells += [run_costs(found, method), f"{trained:.0f}"]
    assert cells in [row[1:] for row in table(RESULTS / "README.md")]
    if path.name.startswith("run-"):
        assert cells[1] in [row[2] for row in table(RESULTS.parent / "docs/scores/loss.md")]
    if path.name.startswith("resting-"):
        card = table(RESULTS.parent / "docs/scores/loss.md")
        assert [cells[1], cells[3]] in [row[1:] for row in card]


def test_a_report_is_made_from_the_rows(tmp_path: Path) -> None:
    for file in ("config.json", "summary.json"):
        shutil.copy(LONG[0] / file, tmp_path / file)
    (tmp_path / "runs.jsonl").write_bytes(gzip.decompress((LONG[0] / "runs.jsonl.gz").read_bytes()))
    command = [sys.executable, "-m", "salience", "report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("path", TARGETS, ids=name)
def test_every_claim_of_the_paper_is_in_the_table(path: Path) -> None:
    shown = [row[1:] for row in table(path.parent / "README.md") if f"]({path.name})" in row[0]]
    claims = read(path / "result.json")["claims"]
    for cells, claim in zip(shown, claims, strict=True):
        statement = claim["statement"][0].upper() + claim["statement"][1:]
        assert cells == [statement, VERDICTS[claim["verdict"]], claim["evidence"]]


@pytest.mark.parametrize("score", ["loss", "approx", "gnorm"])
def test_the_cards_of_scores_have_the_figures_of_the_paper_s_claims(score: str) -> None:
    page = (RESULTS.parent / "docs/scores" / f"{score}.md").read_text("utf-8")
    found = re.findall(r"[\d.]+ ± [\d.]*\d", page)
    assert found
    claims = "".join((page / "README.md").read_text("utf-8") for page in PAGES)
    assert [each for each in found if each not in claims] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_results_of_the_paper_are_those_of_its_runs(page: Path, tmp_path: Path) -> None:
    """Made again from the packed runs: the same page, the same claims."""
    copy = tmp_path / "paper"
    shutil.copytree(page, copy)
    packs = [packed.read(path) for path in sorted((copy / "runs").glob("*.jsonl.gz"))]
    pages.write(copy, {pack.study: pack for pack in packs})
    assert (copy / "README.md").read_text("utf-8") == (page / "README.md").read_text("utf-8")
    found = sorted(path.parent.name for path in copy.glob("*/result.json"))
    assert found == [path.name for path in TARGETS if path.parent == page]
    for name in found:
        made, kept = (read(place / name / "result.json") for place in (copy, page))
        assert rounded(made) == rounded(kept)


WHY = RESULTS / "paper" / "why"


def test_the_variances_are_those_of_the_rows() -> None:
    found = variance.table(rows(WHY / "variance.jsonl.gz"))
    assert found in (WHY / "README.md").read_text("utf-8")


@pytest.mark.parametrize("path", sorted(WHY.glob("*/runs.jsonl.gz")), ids=name)
def test_the_trainings_that_ask_why_agree_with_the_rows(path: Path) -> None:
    every, place = rows(path), path.parent
    shown = [row for row in table(WHY / "README.md") if f"]({place.name})" in row[0]]
    config, methods = read(place / "config.json"), summarize(every)["methods"]
    expected = []
    for method in config["methods"][1:]:
        pairs = zip(runs(every, "uniform"), runs(every, method), strict=True)
        ends = measures.interval(
            [own[-1]["train_loss"] / base[-1]["train_loss"] for base, own in pairs]
        )
        found = methods[method]
        cells = [f"`{method}`", str(ends.n), f"{ends.mean:.3f} ± {ends.half:.2g}"]
        cells += [ratio(found["steps_to_target_ratio"]), f"{found['step_cost_ratio']:.2f}"]
        expected.append([*cells, f"`{config['commit'][:7]}`"])
    assert [row[1:] for row in shown] == expected


def test_the_page_that_asks_why_is_made_from_the_rows(tmp_path: Path) -> None:
    copy = tmp_path / "why"
    shutil.copytree(WHY, copy)
    made = [copy / name for name in why.CASES]
    for place in made:
        (place / "curves.png").unlink()
        (place / "summary.json").write_text("{}")
    assert why.tables(copy) == [*made, copy / "README.md"]
    assert (copy / "README.md").read_text("utf-8") == (WHY / "README.md").read_text("utf-8")
    for place in made:
        assert (place / "curves.png").exists()
        found, kept = (read(each / place.name / "summary.json") for each in (copy, WHY))
        assert rounded(found) == rounded(kept)


def test_why_not_has_the_figures_of_the_rows() -> None:
    text = (RESULTS / "paper/README.md").read_text("utf-8")
    section = text.partition("## Why not")[2].partition("<!-- targets -->")[0]
    last = [row for row in rows(WHY / "variance.jsonl.gz") if row["step"] == 6000]
    shown = [("cifar10:tiny", "loss_pool"), ("cifar10-plain:strided", "loss_pool")]
    for case, draws in (*shown, ("ptb:tiny", "loss"), ("ptb:tiny", "loss_pool")):
        found = fmean(row[draws] for row in last if row["case"] == case)
        assert f" {found:.3g} of " in section
    assert (
        f"v = {fmean(row['loss_gain'] for row in last if row['case'] == 'ptb:tiny'):.3g}" in section
    )
    for cells in table(WHY / "README.md"):
        if "](ptb)" in cells[0] or "](cifar10)" in cells[0]:
            assert f" {cells[3]} of " in section
        if "](cifar10)" in cells[0] and cells[4] != "never":
            assert re.search(rf"[ \[]{cells[4]} of the steps", section)
            assert f"a step costs {cells[5]}" in section
        if "presample=8" in cells[1]:
            card = (RESULTS.parent / "docs/scores/loss.md").read_text("utf-8")
            assert f"[{cells[4]} of the steps]" in card
            assert f"at {cells[5]} times the cost" in card
    by_loss = "loss:k={}:presample=2:draw=multinomial:smoothing=adaptive"
    told = [(by_loss.format(k), "train_loss") for k in ("1", "0.5")]
    told += [("online-selection", key) for key in ("train_loss", "train_max_loss")]
    for method, key in told:
        assert f" {ends_over_uniform('cifar10', method, key)} of " in section
    pack = packed.read(RESULTS / "paper/runs/ptb.jsonl.gz").runs
    ends = [
        kept.trace.rows[-1] for (name, _), kept in pack.items() if name.startswith("loss:k=0.5")
    ]
    different = fmean(row["examples"] / row["step"] for row in ends)
    assert f": {different:.1f} different words a step instead of 128" in section


def ends_over_uniform(study: str, method: str, key: str) -> str:
    """At the last step, over the uniform run with the same seed."""
    pack = packed.read(RESULTS / f"paper/runs/{study}.jsonl.gz").runs
    last = {run: kept.trace.rows[-1] for run, kept in pack.items()}
    seeds = sorted(seed for name, seed in pack if name == method)
    found = measures.interval([last[method, s][key] / last["uniform", s][key] for s in seeds])
    return f"{found.mean:.3g} ± {found.half:.2g}"


def test_what_gradient_norms_cost_is_told_from_the_rows() -> None:
    found = read(WHY / "gnorm-cost.json")["mnist-paper"]["methods"]
    loss, whole, one_by_one = (
        f"{found[name]['ratio']:.2f}" for name in ("loss", "gnorm", "gnorm:one-by-one")
    )
    card = (RESULTS.parent / "docs/scores/gnorm.md").read_text("utf-8")
    assert f"takes {whole} of a plain one, and {one_by_one}" in card
    (row,) = [cells for cells in table(RESULTS / "paper/README.md") if "100 times" in cells[0]]
    assert re.findall(r"\d+\.\d\d", row[2]) == [loss, whole, one_by_one]


def test_the_designs_agree_with_the_rows() -> None:
    measured = set()
    for row in rows(RESULTS / "designs" / "rows.jsonl.gz"):
        errors = [100 * error for error in row["test_error"]]
        error = f"{fmean(errors):.2f} % ({min(errors):.2f} to {max(errors):.2f})"
        measured.add((ratio(row["steps_to_target"]), f"{row['train_loss']:.4f}", error))
    page = RESULTS.parent / "docs" / "designs.md"
    shown = [tuple(row[1:]) for row in table(page) if len(row) == 4 and " to " in row[3]]
    assert len(shown) > 40
    assert [row for row in shown if row not in measured] == []


def test_costs_of_large_batches_before_and_after_agree_with_the_rows() -> None:
    found = rows(RESULTS / "scale" / "before-after.jsonl.gz")
    shown = [row for row in table(RESULTS / "README.md") if row[0] in ("128", "8,192")]
    assert len(shown) == len({(row["batch"], row["method"]) for row in found}) == 5
    for batch, method, *cells in shown:
        own = [
            row
            for row in found
            if (f"{row['batch']:,}", row["method"]) == (batch, method.strip("`"))
        ]
        before, after = (
            [row["processor_ms"] for row in own if row["when"] == when]
            for when in ("before", "after")
        )
        ratios = [a / b for a, b in zip(after, before, strict=True)]
        digits = 2 if batch == "8,192" else 3
        assert cells == [
            f"{median(before):.{digits}f}",
            f"{median(after):.{digits}f}",
            f"{median(ratios):.2f}",
        ]


# ---------------------------------------------------------------------------------------- insight


def test_the_tables_about_insight_are_those_of_the_rows() -> None:
    page = RESULTS.parent / "docs" / "insight.md"
    rows = table(page)
    about, *seeds = _lines(RESULTS / "insight" / "known-errors.jsonl")
    assert f"commit `{about['commit'][:7]}`" in page.read_text("utf-8")
    for each in seeds:
        places = sorted(each["places"].values())
        counts = [sum(place <= most for place in places) for most in (30, 100, 300, 3000)]
        assert [str(value) for value in (each["seed"], *counts, places[8])] in rows
    for each in _lines(RESULTS / "insight" / "recording.jsonl")[1:]:
        size = f"10^{len(str(each['n'])) - 1}"
        numbers = (f"{each['without_us']:g}", f"{each['with_us']:g}")
        assert [size, f"`{each['score']}`", *numbers] in rows


def test_wrong_labels_are_found_with_the_precision_that_is_promised() -> None:
    found = _lines(RESULTS / "default" / "suspects.jsonl")
    precisions = [row["precision_at_count"] for row in found if row["share"] == 0.05]
    assert len(precisions) == 3
    assert min(precisions) >= 0.9


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
