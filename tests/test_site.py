"""The documentation site: whole, the same as where the code is hosted, and asking nobody else."""

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from compare.browser import COMPLAINTS, Browser, opened_browser
from test_docs import DOCS, PAGES, ROOT, name

ON_SITE = [page for page in PAGES if page != ROOT / "README.md"]
SOURCES = ("mkdocs.yml", "mkdocs_hooks.py", "CHANGELOG.md", "CONTRIBUTING.md")
# Elements that load what they name, and those that only lead somewhere.
LOADS = ("script", "link", "img", "iframe", "source", "video", "audio", "embed", "object", "use")
LOADED_BY_CSS = re.compile(r"url\(['\"]?(?:https?:)?//|@import")
STRUCTURE = ("h1", "h2", "h3", "h4", "li", "ol", "ul", "table", "tr", "th", "td", "pre", "img")


def build(folder: Path, to: Path) -> subprocess.CompletedProcess[str]:
    """What ``make docs`` does, in ``folder``."""
    command = [
        sys.executable,
        "-B",
        "-m",
        "mkdocs",
        "build",
        "--strict",
    ]  # quiet would not be strict
    return subprocess.run(
        [*command, "--site-dir", str(to)],
        cwd=folder,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT, to)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in (done.stdout + done.stderr).splitlines()} == {"INFO"}
    return to


class Elements(HTMLParser):
    """The elements of a page: names and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {key: value or "" for key, value in attrs}))


@functools.cache
def elements(html: Path) -> list[tuple[str, dict[str, str]]]:
    return Elements(html.read_text("utf-8")).found


def place(page: Path, site: Path) -> Path:
    """The built page of a source."""
    path = page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT)
    return site / path.parent / ("index.html" if path.stem == "README" else f"{path.stem}.html")


def article(page: Path, site: Path) -> str:
    text = place(page, site).read_text("utf-8")
    return re.search(r"<article[^>]*>(.*?)</article>", text, re.S)[1]


# ---------------------------------------------------------------------------------------- whole


@pytest.mark.parametrize("page", ON_SITE, ids=name)
def test_a_page_has_the_structure_it_has_where_the_code_is_hosted(page: Path, site: Path) -> None:
    """Two readers of Markdown, CommonMark's and the site's, find the same parts."""
    hosted = MarkdownIt("commonmark").enable("table").render(page.read_text("utf-8"))
    counts = [
        Counter(tag for tag, _ in Elements(html).found if tag in STRUCTURE)
        for html in (hosted, article(page, site))
    ]
    counts[1]["pre"] += article(page, site).count('<div class="math">')
    assert counts[0] == counts[1]
    assert counts[0]["h1"] == 1


def test_every_link_leads_to_a_file_and_every_anchor_to_an_element(site: Path) -> None:
    ids = {
        html: {each["id"] for _, each in elements(html) if "id" in each}
        for html in site.rglob("*.html")
    }
    assert len(ids) > len(ON_SITE)
    for html in ids:
        if html.name == "404.html":  # its links begin at the root of the server
            continue
        for _, each in elements(html):
            link = each.get("href", each.get("src", ""))
            if re.match(r"[a-z]+:", link) or not link:
                continue
            path, _, anchor = link.partition("#")
            target = (html.parent / path).resolve() if path else html
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{html.relative_to(site)} leads to {link}"
            if anchor and target.suffix == ".html":
                assert anchor in ids[target], f"{html.relative_to(site)} leads to {link}"


def test_sources_and_folders_that_pages_link_to_are_shown(site: Path) -> None:
    shown = (site / "examples" / "quickstart.py.html").read_text("utf-8")
    assert "ImportanceLoader" in re.sub(r"<[^>]+>", "", shown)
    folder = site / "results" / "default" / "mnist"
    assert (folder / "index.html").read_text("utf-8").count("<img") == 1
    for file in (ROOT / "results" / "default" / "mnist").iterdir():
        assert (folder / file.name).read_bytes() == file.read_bytes()


def test_equations_are_mathml(site: Path) -> None:
    page = DOCS / "how-it-works.md"
    text = article(page, site)
    assert text.count('<div class="math"><math') == page.read_text("utf-8").count("```math") > 5
    assert "\\" not in re.sub(r"<code.*?</code>", "", text, flags=re.S)


BREAKS = {
    "a link to nothing": ("docs/proxy.md", "\n[x](nowhere.md)\n", "nowhere.md"),
    "an anchor to nothing": ("docs/proxy.md", "\n[x](loader.md#nowhere)\n", "#nowhere"),
    "a link to nothing outside docs": ("results/README.md", "\n[x](nowhere.md)\n", "nowhere.md"),
    "a page that no list has": ("docs/unlisted.md", "# Unlisted\n", "unlisted.md"),
    "a list with a missing page": ("mkdocs.yml", "  - Nowhere: nowhere.md\n", "nowhere.md"),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_the_build_is_strict(broken: str, tmp_path: Path) -> None:
    for folder in ("docs", "results"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in SOURCES:
        shutil.copy(ROOT / file, tmp_path / file)
    for folder in ("src", "tests", "examples", "benchmarks", ".ci"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    for file in ("pyproject.toml", "constraints.txt", "LICENSE", "README.md"):
        shutil.copy(ROOT / file, tmp_path / file)
    path, text, said = BREAKS[broken]
    with (tmp_path / path).open("a", encoding="utf-8") as file:
        file.write(text)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert said in done.stderr


# -------------------------------------------------------------------------------- asks nobody else


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    outside = re.compile(r"(?:https?:)?//")
    assert any("stylesheet" in each.get("rel", "") for _, each in elements(site / "index.html"))
    for html in site.rglob("*.html"):
        for tag, each in elements(html):
            named = [each.get(key, "") for key in ("src", "href", "data", "srcset", "poster")]
            assert not (tag in LOADS and any(map(outside.match, named))), (html, tag, each)
        styles = re.findall(r"<style[^>]*>(.*?)</style>", html.read_text("utf-8"), re.S)
        assert not any(map(LOADED_BY_CSS.search, styles)), html
    for css in site.rglob("*.css"):
        assert not LOADED_BY_CSS.search(css.read_text("utf-8")), css


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as opened:
        yield opened


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The site on a loopback address, as a reader would meet it."""
    handler = functools.partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def visit(browser: Browser, url: str, width: int, scheme: str = "light") -> None:
    """Open a page as a reader who comes for the first time: the site remembers light or dark."""
    browser.call("Page.navigate", url="about:blank")
    browser.resize(width)
    browser.scheme(scheme)
    browser.call("Storage.clearDataForOrigin", origin=url, storageTypes="local_storage")
    browser.events.clear()
    browser.call("Page.navigate", url=url)
    while not browser.heard("Page.loadEventFired"):
        browser.events.append(browser._next())
    browser.drawn()


def wait_for(browser: Browser, expression: str) -> object:
    """The value of an expression once it is true."""
    look = f"const look = () => {{ const x = {expression}; x ? done(x) : setTimeout(look, 20); }}"
    return browser.run(f"new Promise((done) => {{ {look}; look(); }})")


OPENED = ("index.html", "how-it-works.html", "choosing.html", "results/index.html", "recipes.html")


@pytest.mark.parametrize("page", OPENED)
def test_a_page_is_drawn_without_complaint_request_or_sideways_scrolling(
    browser: Browser, served: str, page: str
) -> None:
    for width, scheme in ((1280, "light"), (390, "dark")):
        visit(browser, f"{served}/{page}", width, scheme)
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.heard(*COMPLAINTS) == []
        asked = {each["request"]["url"] for each in browser.heard("Network.requestWillBeSent")}
        assert {url for url in asked if not url.startswith((served, "data:", "blob:"))} == set()
        chosen = {"light": "default", "dark": "slate"}[scheme]
        wait_for(browser, f"document.body.dataset.mdColorScheme === '{chosen}'")


def test_equations_have_a_size(browser: Browser, served: str) -> None:
    visit(browser, f"{served}/how-it-works.html", 1280)
    heights = "[...document.querySelectorAll('math')].map((e) => e.getBoundingClientRect().height)"
    assert min(browser.run(heights)) > 10


def test_the_search_finds_a_page(browser: Browser, served: str) -> None:
    visit(browser, f"{served}/index.html", 1280)
    browser.run(
        "(() => { const box = document.querySelector('.md-search__input'); box.focus();"
        " box.value = 'gradient accumulation'; box.dispatchEvent(new Event('keyup'));"
        " box.dispatchEvent(new Event('input')); })()"
    )
    links = "[...document.querySelectorAll('.md-search-result__link')].map((a) => a.href)"
    wait_for(browser, f"{links}.length > 0")
    found = browser.run(links)
    assert any("recipes.html" in link for link in found), found
