"""The report in a browser: drawn, complete, and quiet."""

import tempfile

import pytest

from compare.browser import CHROMIUM, COMPLAINTS, Browser
from compare.made_up import BAD_END, BAD_NAME, LONG, MADE
from salience.compare.reading import read_comparison


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the PATH")
    # Chromium may still be tidying up its profile when it is told to end.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        opened = Browser(profile)
        yield opened
        opened.close()


TRACES = (
    "Object.fromEntries([...document.querySelectorAll('.chart')].map("
    "(chart) => [chart.id, chart.querySelectorAll('.scatterlayer .trace').length]))"
)
FITS = (
    "[...document.querySelectorAll('.chart')].every("
    "(chart) => chart.querySelector('svg').width.baseVal.value === chart.clientWidth)"
)
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_drawn_without_complaint_request_or_sideways_scrolling(made, browser, name):
    directory = made(name)
    browser.open(directory / "report.html", 1280)
    traces = browser.run(TRACES)
    assert len(traces) == (6 if name == "budgets" else 5)
    assert min(traces.values()) >= len(read_comparison(directory).summary["methods"])
    for width in (1280, 390):
        browser.resize(width)
        assert browser.run(WIDTHS) == [width, width]
        assert browser.run(FITS), f"a chart is wider than its box at {width}"
    assert browser.heard(*COMPLAINTS) == []
    requests = {each["request"]["url"] for each in browser.heard("Network.requestWillBeSent")}
    assert {url for url in requests if not url.startswith("data:")} == {
        (directory / "report.html").as_uri()
    }


def test_the_policy_stops_what_would_leave_the_page(made, browser):
    browser.open(made("wins") / "report.html", 1280)
    ended = "fetch('http://127.0.0.1:9/').then(() => 'answered', () => 'refused')"
    assert browser.run(ended) == "refused"
    assert "Content Security Policy" in browser.heard("Log.entryAdded")[0]["entry"]["text"]
    script = (
        "document.body.append(Object.assign(document.createElement('script'), {text: 'x = 1'}))"
    )
    browser.run(script)
    assert browser.run("typeof x") == "undefined"


def test_charts_follow_light_and_dark(made, browser):
    colour = (
        "getComputedStyle(document.querySelector('.ytick text')).fill"
        " + getComputedStyle(document.body).backgroundColor"
    )
    browser.open(made("wins") / "report.html", 1280)
    light = browser.run(colour)
    browser.scheme("dark")
    browser.drawn()
    dark = browser.run(colour)
    assert light != dark
    browser.open(made("wins") / "report.html", 390, scheme="dark")
    assert browser.run(colour) == dark
    assert browser.run(WIDTHS) == [390, 390]
    assert browser.run(FITS)
    assert browser.heard(*COMPLAINTS) == []


def test_a_method_can_be_hidden_and_shown_again(made, browser):
    browser.open(made("wins") / "report.html", 1280)
    before = browser.run(TRACES)
    press = "document.querySelector('button[data-method=\"1\"]').click()"
    browser.run(press)
    hidden = browser.run(TRACES)
    assert all(hidden[name] < before[name] for name in before)
    browser.run(press)
    assert browser.run(TRACES) == before


def test_the_box_at_the_pointer_shows_names_as_they_are(made, browser):
    browser.open(made("nasty") / "report.html", 1280)
    browser.run("void Plotly.Fx.hover('curves-0', {xval: 20}, ['xy'])")
    lines = browser.run(
        "[...document.querySelectorAll('.hoverlayer text')].map((each) => each.textContent)"
    )
    assert lines[1:] == [
        "uniform : 0.5",
        f"{BAD_NAME[:31]}… : 0.5",
        f"{BAD_END[:31]}… : 0.5",
        f"{LONG[:31]}… : 0.5",
    ]
    assert browser.run("document.querySelectorAll('.hoverlayer :is(a, b, img)').length") == 0


def test_on_paper_everything_is_light_and_unfolded(made, browser):
    browser.open(made("many") / "report.html", 1280, scheme="dark")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("[...document.querySelectorAll('details')].every((each) => each.open)")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("document.querySelector('.chart svg').width.baseVal.value") < 340
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
