"""Reports as readers see them: pages, Markdown tables, and the data of charts."""

import json
import re
from functools import cache
from html import unescape
from html.parser import HTMLParser

from salience.compare.reading import read_comparison
from salience.compare.report.page import html, markdown


class Page(HTMLParser):
    """A page as browsers understand it: elements, their text, and the scripts."""

    EMPTY = ("meta", "link", "img", "br")

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.source = [], [], source
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))
        if tag not in self.EMPTY:
            self.open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for element in self.open:
            element[2].append(data)

    def find(self, tag, **wanted):
        """The elements of that kind: attributes and text."""
        return [
            (attributes, " ".join("".join(text).split()))
            for name, attributes, text in self.elements
            if name == tag and all(attributes.get(key) == value for key, value in wanted.items())
        ]

    def text(self):
        """What people read."""
        hidden = {"script", "style", "title"}
        kept = [e for e in self.elements if e[0] == "main"]
        assert not any(e[0] in hidden for e in kept)
        return " ".join("".join(kept[0][2]).split())

    def table(self, kind="numbers"):
        """The summary: name of a method -> its cells by the head of the column."""
        body = self.source.partition(f'<table class="{kind}">')[2].partition("</table>")[0]
        rows = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.S) for row in body.split("</tr>")]
        rows = [[cell.replace("</div><div>", "; ") for cell in row] for row in rows]
        cells = [[unescape(re.sub("<.*?>", "", c, flags=re.S)).strip() for c in r] for r in rows]
        head, *lines = [row for row in cells if row]
        return {line[0]: dict(zip(head[1:], line[1:], strict=True)) for line in lines}


@cache
def page_of(directory):
    return Page((directory / "report.html").read_text(encoding="utf-8"))


def markdown_table(text):
    """The same from Markdown, with the escapes taken off."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [
        [re.sub(r"\\(.)", r"\1", c) for c in re.split(r"(?<!\\) ?\| ?", line)[1:-1]]
        for line in lines
    ]
    head, _, *rest = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rest}


def report(directory):
    """Page and Markdown of a directory, without the pictures, which take longest."""
    found = read_comparison(directory)
    return Page(html(found)), markdown(found)


def figures(page):
    (block,) = re.findall(
        r'<script type="application/json" id="figures">(.*?)</script>', page.source
    )
    return json.loads(block)
