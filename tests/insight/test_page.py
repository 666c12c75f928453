"""The page and the terminal: complete, small, and never obeying what examples say."""

import base64
import io
import re
import time
from typing import Any

import pytest
from rich.console import Console

from compare.browser import COMPLAINTS, opened_browser
from compare.pages import Page
from insight import shows
from insight.histories import BAD, made
from salience import ArgumentError, LossHistory
from salience.insight.page import html
from salience.insight.terminal import class_table, group_tables, spark
from salience.insight.words import lead


def titles(page: Page) -> list[str]:
    return [text for _, text in page.find("h2")]


def cards(page: Page) -> list[str]:
    return [text for _, text in page.find("li")]


def test_every_group_has_its_cards() -> None:
    page = Page(html(made(), "mine", shows.image, top=4))
    assert titles(page) == [
        *("Hardest", "Likely wrong labels", "Forgotten after being learned", "Not seen again"),
        "Class by class",
    ]
    found = cards(page)
    assert [re.match(r"#(\d+)", text)[1] for text in found] == [
        *("59", "58", "57", "56"),
        *("59", "58", "57", "56"),
        *("2", "3"),
        *("0", "1"),
    ]
    assert found[0] == "#59 1 label 2 · 5 visits"
    assert found[8] == "#2 0.05 label 2 · forgotten 3x"
    assert found[10] == "#0 no loss label 0 · never seen"
    assert found[11] == "#1 0.0333 label 1 · last seen at step 50"
    assert "Shown: the first 4 of 6." in page.text()
    lines = [attributes["points"].count(",") for attributes, _ in page.find("polyline")]
    assert lines == [5] * 11  # one example has no loss
    assert len(page.find("tr")) == 1 + 3


def test_pictures_have_the_pixels_that_were_given() -> None:
    image = pytest.importorskip("PIL.Image")
    for show, level in ((shows.image, round(59 / 60 * 255)), (shows.flat, 59)):
        page = Page(html(made(), "mine", show, top=1))
        data = page.find("img")[0][0]["src"].removeprefix("data:image/png;base64,")
        found = image.open(io.BytesIO(base64.b64decode(data)))
        assert found.size == (4, 4)
        assert found.getpixel((2, 2)) == level


def test_texts_stay_texts_and_nothing_is_run() -> None:
    page = Page(html(made(), BAD, shows.text, top=2))
    assert f"59: {BAD}" in page.text()
    assert page.find("h1")[0][1] == f"{BAD}: what the losses tell"
    (script,) = page.find("script")  # data, and no program
    assert script[0]["type"] == "application/json"
    (policy,) = (each for each, _ in page.find("meta") if "http-equiv" in each)
    assert policy["content"].startswith("default-src 'none'; script-src ;")


def test_a_history_without_a_record_has_losses_and_suspects() -> None:
    page = Page(html(made(recorded=False), "mine"))
    assert titles(page) == ["Hardest", "Likely wrong labels", "Class by class"]
    assert page.find("polyline") == []
    assert page.find("img") == []
    assert [text for _, text in page.find("th")][:4] == [
        *("Class", "Examples", "Mean loss", "Likely wrong")
    ]


@pytest.mark.parametrize(
    ("show", "said"),
    [
        (shows.broken, r"showing example 59 failed .*KeyError: 'no example 59'"),
        (shows.odd, r"example 59 is shown as \[2, 2, 2, 60\]: return an image"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_sentence(show: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        html(made(), "mine", show)


# --------------------------------------------------------------------------------------- in words


@pytest.mark.parametrize(
    ("history", "said"),
    [
        (
            made(),
            "6 of 60 labels (10.0%) contradict what was learned; 2 examples were learned and then "
            "forgotten; 2 examples were not seen in the last half of the training.",
        ),
        (made(5, recorded=False), "None of 5 labels contradicts what was learned."),
        (made(10, recorded=False), "1 of 10 labels (10.0%) contradicts what was learned."),
    ],
)
def test_the_lead_counts(history: LossHistory, said: str) -> None:
    assert lead(history) == said


def printed(history: LossHistory, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    for table in (*group_tables(history, 5), class_table(history)):
        console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("recorded", [True, False])
def test_tables_fit_80_columns(recorded: bool) -> None:
    """With the widest numbers that there are."""
    history = made(10**6, recorded=recorded, classes=1000)
    text = printed(history, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "#999999" in text
    assert "…" not in text
    assert printed(history, 120).split() == text.split()


def test_a_line_of_bars() -> None:
    assert spark([]) == ""
    assert spark([0.0, 0.0]) == "▁▁"
    assert spark([0.0, 0.5, 1.0]) == "▁▅█"


# ------------------------------------------------------------------------------------ in a browser


@pytest.fixture(scope="module")
def browser() -> Any:
    with opened_browser() as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_million_examples_open_at_once(browser: Any, tmp_path: Any, scheme: str) -> None:
    """With hostile texts, quietly, and without scrolling sideways."""
    path = tmp_path / "page.html"
    path.write_text(html(made(10**6, classes=1000), BAD, shows.text), encoding="utf-8")
    assert path.stat().st_size < 500_000
    for width in (1280, 390):
        started = time.perf_counter()
        browser.open(path, width, scheme)
        assert time.perf_counter() - started < 2
        sizes = "[document.documentElement.scrollWidth, innerWidth]"
        assert browser.run(sizes) == [width, width]
        assert browser.heard(*COMPLAINTS) == []
        asked = {each["request"]["url"] for each in browser.heard("Network.requestWillBeSent")}
        assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}
