"""Pages point at what exists, and every score has its card."""

import re
from pathlib import Path

import pytest

from salience.scores import NAMES

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HEADINGS = [
    "What it does",
    "Needs",
    "Cost",
    "Settings",
    "When to use",
    "When not to use",
    "How it is tested",
]


def prose(path: Path) -> str:
    """The page without its code, where brackets are no links and # is no heading."""
    return re.sub(r"^```.*?^```|`[^`\n]+`", "", path.read_text("utf-8"), flags=re.M | re.S)


def headings(path: Path, level: int) -> list[str]:
    return re.findall(rf"^#{{{level}}} (.+)$", prose(path), re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Headings as GitHub turns them into addresses."""
    found = [title for level in range(1, 5) for title in headings(path, level)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def links(path: Path) -> list[str]:
    """The addresses of links and pictures that lie in this repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_resolve(path: Path) -> None:
    for link in links(path):
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        assert target.exists(), f"{path.name} points at {link}"
        assert target.is_relative_to(ROOT), f"{path.name} points out of the repository: {link}"
        assert not anchor or anchor in anchors(target), f"{path.name} points at {link}"


@pytest.mark.parametrize("name", NAMES)
def test_every_score_has_a_card_and_a_row_in_the_readme(name: str) -> None:
    card = ROOT / "docs" / "scores" / f"{name}.md"
    assert headings(card, 1) == [name]
    assert headings(card, 2) == HEADINGS
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f'| [`"{name}"`](docs/scores/{name}.md) |' in readme
    assert card in [(ROOT / "docs" / link).resolve() for link in links(ROOT / "docs/README.md")]


def test_every_decision_is_in_the_index() -> None:
    index = links(ROOT / "docs" / "README.md")
    for path in (ROOT / "docs" / "decisions").glob("*.md"):
        assert f"decisions/{path.name}" in index


def test_the_readme_names_its_two_commands() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert re.findall(r"^ {4}(make \w+)", readme, re.MULTILINE) == ["make demo", "make test"]
