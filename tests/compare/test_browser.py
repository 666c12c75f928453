"""The report in a browser: drawn, complete, and quiet."""

import pytest

from compare.browser import COMPLAINTS, opened_browser
from compare.made_up import BAD_END, BAD_NAME, LONG, MADE, directory, run
from compare.pages import page_of
from salience.compare.reading import read_comparison
from salience.compare.report.page import write_report


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as opened:
        yield opened


DRAWN = (  # how many methods each chart shows
    "Object.fromEntries([...document.querySelectorAll('.chart')].map("
    "(chart) => [chart.id, new Set([...chart.querySelectorAll('[data-place]')]"
    ".map((each) => each.dataset.place)).size]))"
)
FITS = (
    "[...document.querySelectorAll('.chart')].every((chart) => !chart.clientWidth || "
    "chart.querySelector('svg').width.baseVal.value === chart.clientWidth)"
)
OTHERS = [f"other-{name}-{on}" for name in ("train_max_loss", "test_loss") for on in (0, 1)]
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_drawn_without_complaint_request_or_sideways_scrolling(made, browser, name):
    at = made(name)
    browser.open(at / "report.html", 1280)
    drawn = browser.run(DRAWN)
    assert len(drawn) == (6 if name == "budgets" else 5) + len(OTHERS)
    assert {*OTHERS} < {*drawn}
    assert min(drawn.values()) >= len(read_comparison(at).summary["methods"])
    browser.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    browser.drawn()
    assert min(browser.run(DRAWN).values()) == min(drawn.values())
    for width in (1280, 390):
        browser.resize(width)
        assert browser.run(WIDTHS) == [width, width]
        assert browser.run(FITS), f"a chart is wider than its box at {width}"
    assert browser.heard(*COMPLAINTS) == []
    requests = {each["request"]["url"] for each in browser.heard("Network.requestWillBeSent")}
    assert {url for url in requests if not url.startswith("data:")} == {
        (at / "report.html").as_uri()
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
        "getComputedStyle(document.querySelector('.tick.y')).fill"
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
    before = browser.run(DRAWN)
    click = "document.querySelector('button[data-method=\"1\"]').click()"
    browser.run(click)
    hidden = browser.run(DRAWN)
    assert all(hidden[name] < before[name] for name in before)
    browser.run(click)
    assert browser.run(DRAWN) == before


SHOWN = "[...document.querySelectorAll('#curves-0 .tip p')].map((each) => each.textContent)"


def test_the_box_at_the_pointer_shows_names_as_they_are(made, browser):
    browser.open(made("nasty") / "report.html", 1280)
    middle = browser.run(
        "(() => { const at = document.getElementById('curves-0').getBoundingClientRect();"
        " scrollTo(0, at.top); return [at.left + at.width / 2, 100]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=middle[0], y=middle[1])
    assert browser.run(SHOWN) == [
        "20 steps",
        "uniform: 0.5",
        f"{BAD_NAME[:31]}…: 0.5",
        f"{BAD_END[:31]}…: 0.5",
        f"{LONG[:31]}…: 0.5",
    ]
    assert browser.run("document.querySelectorAll('.chart :is(a, b, img, script)').length") == 0


def press(browser, key):
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)


def test_a_chart_can_be_read_by_the_keyboard(made, browser):
    browser.open(made("wins") / "report.html", 1280)
    browser.run("document.getElementById('curves-0').focus()")
    press(browser, "ArrowRight")
    press(browser, "ArrowRight")
    assert browser.run(SHOWN) == [
        "10 steps",
        "uniform: 1",
        "history: 0.45 (0.4 to 0.5)",
        "loss: 0.5",
    ]
    press(browser, "Escape")
    assert browser.run("document.querySelector('#curves-0 .tip').style.display") == "none"


def test_dragging_looks_closer_and_a_double_click_goes_back(made, browser):
    browser.open(made("wins") / "report.html", 1280)
    browser.run("document.getElementById('curves-0').scrollIntoView({block: 'center'})")
    left, width, y = browser.run(
        "(() => { const at = document.getElementById('curves-0').getBoundingClientRect();"
        " return [at.left, at.width, at.top + at.height / 2]; })()"
    )
    ticks = "[...document.querySelectorAll('#curves-0 .tick.x')].map((each) => each.textContent)"
    before = browser.run(ticks)
    mouse = {"y": y, "button": "left", "clickCount": 1}
    for kind, share in (("mousePressed", 0.6), ("mouseMoved", 0.8), ("mouseReleased", 0.8)):
        browser.call("Input.dispatchMouseEvent", type=kind, x=left + share * width, **mouse)
    closer = [*map(float, browser.run(ticks))]
    assert 15 < min(closer) < max(closer) < 35
    browser.run("document.getElementById('curves-0').dispatchEvent(new Event('dblclick'))")
    assert browser.run(ticks) == before


TOP = "Math.max(...[...document.querySelectorAll('#curves-0 .tick.y')].map((e) => +e.textContent))"


def test_the_first_steps_are_shown_when_asked_for(browser, tmp_path):
    losses = [8.0, 4.0, 1.0, *(0.9 - place / 100 for place in range(28))]
    write_report(directory(tmp_path, run("uniform", losses)))
    browser.open(tmp_path / "report.html", 1280)
    assert browser.run(TOP) < 1
    button = "document.querySelector('[data-first]')"
    browser.run(f"{button}.click()")
    assert browser.run(TOP) > 7
    assert browser.run(f"{button}.getAttribute('aria-pressed')") == "true"
    browser.run(f"{button}.click()")
    assert browser.run(TOP) < 1


def test_the_head_of_a_column_is_explained_to_keyboards_too(made, browser):
    browser.open(made("wins") / "report.html", 390)
    terms = "document.querySelectorAll('.term')"
    assert browser.run(f"{terms}.length") == len(page_of(made("wins")).table()["history"])
    browser.run(f"{terms}[1].focus()")
    shown = browser.run("document.getElementById('help').textContent")
    assert "95% interval" in shown
    box = "document.getElementById('help').getBoundingClientRect()"
    assert browser.run(f"{box}.left >= 0 && {box}.right <= innerWidth")
    assert browser.run(f"{terms}[1].getAttribute('aria-describedby')") == "help"
    press(browser, "Escape")
    assert browser.run("document.getElementById('help').style.display") == "none"


def test_names_stay_in_sight_when_a_table_is_scrolled(made, browser):
    browser.open(made("wins") / "report.html", 390)
    first = "document.querySelector('.numbers tbody th').getBoundingClientRect().left"
    before = browser.run(first)
    browser.run("document.querySelector('.scroll').scrollLeft = 200")
    assert browser.run("document.querySelector('.scroll').scrollLeft") == 200
    assert abs(browser.run(first) - before) <= 1


def test_on_paper_everything_is_light_and_unfolded(made, browser):
    browser.open(made("many") / "report.html", 1280, scheme="dark")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("[...document.querySelectorAll('details')].every((each) => each.open)")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("document.querySelector('.chart svg').width.baseVal.value") < 340
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
