"""Pages point at what exists, name what is public, and show code that runs."""

import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import salience
from salience import ImportanceLoader, functional, recency, trust
from salience.compare.digits import digits
from salience.presets import NAMES
from salience.smoothing import Fading
from salience.sources import auto

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "results").rglob("*.md")],
)
HEADINGS = [
    "What it does",
    "Needs",
    "Cost",
    "Settings",
    "Results",
    "When to use it",
    "When not to use it",
]
# Words that only we understand.
JARGON = r"take turns|takes turns|\bowed\b|\bdealt\b|by heart|plumbing|to the bit|\btickets?\b"


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a page in ``language``."""
    fence = rf"^```{language}\n(.*?)^```"
    return re.findall(fence, path.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def without_fences(path: Path) -> str:
    return re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S)


def prose(path: Path) -> str:
    """The page without its code, where brackets are no links and # is no heading."""
    return re.sub(r"`[^`\n]+`", "", without_fences(path))


def headings(path: Path, level: int) -> list[str]:
    return re.findall(rf"^#{{{level}}} (.+)$", prose(path), re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Headings as GitHub turns them into addresses."""
    found = re.findall(r"^#{1,4} (.+)$", without_fences(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def links(path: Path) -> list[str]:
    """The addresses of links and pictures that lie in this repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_relative_links_resolve(path: Path) -> None:
    for link in links(path):
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        assert target.exists(), f"{path.name} points at {link}"
        assert target.is_relative_to(ROOT), f"{path.name} points out of the repository: {link}"
        assert not anchor or anchor in anchors(target), f"{path.name} points at {link}"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_pages_are_in_ordinary_english(path: Path) -> None:
    assert re.findall(JARGON, prose(path), re.IGNORECASE) == []


@pytest.mark.parametrize("score", NAMES)
def test_every_score_has_a_card_and_a_row_in_the_index(score: str) -> None:
    card = DOCS / "scores" / f"{score}.md"
    assert headings(card, 1) == [score]
    assert headings(card, 2) == HEADINGS
    index = (DOCS / "README.md").read_text("utf-8")
    assert f'| [`"{score}"`](scores/{score}.md) |' in index


INDEXES = ("README.md", "results/README.md", "results/paper/README.md")


def test_every_page_is_in_an_index() -> None:
    linked = {
        (path.parent / link.partition("#")[0]).resolve()
        for path in (DOCS / "README.md", *map(ROOT.joinpath, INDEXES))
        for link in links(path)
    }
    assert {path.resolve() for path in PAGES} - linked <= {ROOT / "README.md"}


def named(module: ModuleType) -> list[str]:
    return [each for each in module.__all__ if not each.startswith("__")]


@pytest.mark.parametrize("public", [*named(salience), *named(functional)])
def test_every_public_name_is_documented(public: str) -> None:
    text = "\n".join(path.read_text("utf-8") for path in DOCS.glob("*.md"))
    assert re.search(rf"`(salience\.)?{public}[`(]", text), f"no page of docs mentions `{public}`"


def test_every_public_name_exists() -> None:
    for module in (salience, functional):
        assert [each for each in module.__all__ if not hasattr(module, each)] == []


def test_every_member_of_the_loader_is_documented() -> None:
    page = (DOCS / "loader.md").read_text("utf-8")
    members = [each for each in vars(ImportanceLoader) if not each.startswith("_")]
    assert [each for each in members if not re.search(rf"`[^`]*\b{each}\b[^`]*`", page)] == []


def test_the_readme_names_its_two_commands() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert re.findall(r"^ {4}(make \w+)", readme, re.MULTILINE) == ["make demo", "make test"]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) < 6900


def test_results_that_are_quoted_are_recorded() -> None:
    """Every mean (standard deviation), interval and difference is in the table of results."""
    results = (ROOT / "results" / "README.md").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    quoted = re.findall(r"\d+\.\d+ \(\d+\.\d+\)|[+-]\d+\.\d\d \([^)]*\)", readme)
    assert len(quoted) >= 8
    assert [each for each in quoted if each not in results] == []


@pytest.mark.parametrize("page", ["choosing", "how-it-works", "questions"])
def test_numbers_that_are_quoted_are_recorded(page: str) -> None:
    """Every number with two or more decimals is in the results, or in those of the paper."""
    recorded = "".join(
        (ROOT / "results" / each).read_text("utf-8") for each in ("README.md", "paper/README.md")
    )
    text = re.sub(r"\]\([^)]*\)", "]", prose(DOCS / f"{page}.md"))
    quoted = re.findall(r"(?<![\d.])\d+\.\d{2,}(?!\.?\d)", text)
    assert quoted
    assert [each for each in quoted if each not in recorded] == []


def test_the_default_was_not_worse_in_any_recorded_case() -> None:
    """As docs/questions.md says: no interval of the test error lies above 0."""
    results = (ROOT / "results" / "README.md").read_text("utf-8")
    section = results.partition("## The default against uniform sampling")[2].partition("\n\n- ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| [")]
    cells = [row[4] for row in rows if row[4] != "none"]  # which are identical
    lowest = [float(re.search(r"\(([+-][\d.]+) to", cell)[1]) for cell in cells]
    assert len(lowest) >= 7
    assert max(lowest) <= 0


# ------------------------------------------------------------------------------ code that is shown


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from digits(train=True)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the reader of a page is assumed to have."""
    monkeypatch.chdir(tmp_path)
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda fn: compiler(fn, backend="eager"))  # no C compiler
    torch.manual_seed(0)
    dataset = digits(train=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    return {
        "torch": torch,
        "nn": nn,
        "F": F,
        "DataLoader": DataLoader,
        "dataset": dataset,
        "images": dataset.tensors[0],
        "classes": dataset.tensors[1],
        "stream": Stream(),
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "loader": ImportanceLoader(dataset, 64),
    }


# Pages about frameworks are run where those are installed: tests/integrations/test_pages.py.
SHOWN = [p for p in PAGES if blocks(p, "python") and p.parent != DOCS / "integrations"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # its own, while it compiles
@pytest.mark.parametrize("path", SHOWN, ids=name)
def test_the_python_of_a_page_runs(path: Path, names: dict[str, Any]) -> None:
    for block in blocks(path, "python"):
        exec(compile(block, str(path), "exec"), names)


def test_python_is_shown() -> None:
    assert {"docs/loader.md", "docs/checkpoints.md", "docs/custom-loops.md"} <= set(
        map(name, SHOWN)
    )


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, "pycon")], ids=name)
def test_the_sessions_of_a_page_are_true(path: Path, names: dict[str, Any]) -> None:
    session = "\n".join(blocks(path, "pycon"))
    test = doctest.DocTestParser().get_doctest(session, names, path.name, str(path), 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_change_at_the_top_of_the_readme_trains() -> None:
    (diff,) = blocks(ROOT / "README.md", "diff")
    sides = {
        sign: "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] != sign)
        for sign in "+-"
    }
    trained = []
    for program in sides.values():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        given = {"F": F, "DataLoader": DataLoader, "dataset": digits(train=True), "model": model}
        optimizer = torch.optim.Adam(model.parameters())
        exec(compile(program, "README.md", "exec"), {**given, "optimizer": optimizer})
        trained.append(model[1].weight)
    assert not torch.equal(*trained)
    assert "ImportanceLoader" not in sides["+"]
    assert ".mean()" not in sides["-"]


def modules() -> list[str]:
    found = pkgutil.walk_packages(salience.__path__, "salience.")
    return [each.name for each in found if not each.name.endswith("__main__")]


def import_or_skip(module: str) -> ModuleType:
    """Integrations can be imported where their framework is installed."""
    if module.startswith("salience.integrations."):
        return pytest.importorskip(module, reason="an extra that is not installed")
    return importlib.import_module(module)


@pytest.mark.parametrize("module", modules())
def test_the_sessions_in_docstrings_are_true(module: str) -> None:
    assert doctest.testmod(import_or_skip(module)).failed == 0


def test_the_numbers_of_auto_are_those_of_the_code() -> None:
    card = (DOCS / "scores" / "auto.md").read_text("utf-8")
    page = " ".join((DOCS / "wrong-labels.md").read_text("utf-8").split())
    fading = Fading()
    for said in (
        f"Every {auto.EVERY} draws",
        f"the scores of {auto.SAMPLE:,} to {2 * auto.SAMPLE - 1:,} examples",
        f"v = M sum q^2 / (sum q)^2 > {auto.ON:g}, until below {auto.OFF:g}",
        f"more than\n{100 * auto.LEFT:g} % of the first loss left",
        f"({fading.least:g} + {fading.most - fading.least:g} min(rho / {fading.scale:g}, 1)^3)",
        f"more than {auto.SINGLE:g} to v",
    ):
        assert said in card, said
    assert (trust.ON, trust.OFF, trust.DISCOUNT) == (0.2, 0.4, 0.1)  # in words on the page
    assert f"between {100 * trust.LEAST:g} and {100 * trust.MOST:g} % of the examples" in page
    # In words in the decision records:
    assert auto.DOUBT == 1
    assert (recency.SLOPE, recency.ERRORS, recency.BACK, recency.SETTLED) == (0.03, 2, 1, 4)
