"""The report of a comparison: what it says, that nothing in it obeys the data, how it looks."""

import ast
import base64
import hashlib
import io
import json
import math
import os
import re
import select
import shutil
import subprocess
import tempfile
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from salience.compare.records import finite
from salience.compare.report import curves, series
from salience.compare.report import plotly_charts as charts
from salience.compare.report.hardest import sparkline
from salience.compare.report.markdown import escape, markdown
from salience.compare.report.page import html, write_report
from salience.compare.report.reading import read_comparison
from salience.compare.summary import summarize
from salience.compare.training import Row
from salience.errors import ArgumentError, SalienceError

WRITTEN = ["report.html", "report.md", "curves.png", "test.png", "cost.png"]
CHARTS = [
    f"{measure}-{on}" for measure in ("train_loss", "test_error") for on in ("steps", "seconds")
]

BAD_NAME = '<b>x</b><script>alert(1)</script> & "q" $a$ | `c` %{y}'
BAD_END = "</script><!--<img src=x onerror=alert(2)>"
BAD_TASK = "digits</title><script>alert(3)</script>"
BAD_TEXT = "the <unk> said\n<script>alert(4)</script> [a](javascript:alert(5))"
LONG = "a-very-long-name:presample=4:draw=multinomial:smoothing=constant:k=-0.5"


# Made-up run directories.


def run(method, losses, *, task="made up", seed=0, cost=0.1, every=10, **tested):
    """The rows of one run, an evaluation each ``every`` steps."""
    return [
        Row(
            task=task,
            method=method,
            k=0.5,
            seed=seed,
            step=place * every,
            seconds=place * every * cost,
            examples=place * every * 64,
            train_loss=loss,
            train_max_loss=10 * loss,
            test_loss=loss,
            **(tested or {"test_error": 0.02}),
        )
        for place, loss in enumerate(losses)
    ]


FALLING = [2.0, 1.0, 0.5, 0.25, 0.125]  # the target is 0.125, reached at step 40
WINS = run("uniform", FALLING) + run("history", [2.0, 0.5, 0.125, 0.1, 0.1], cost=0.12)
LOSES = run("uniform", FALLING) + run("history", [2.0, 0.5, 0.1, 0.1, 0.1], cost=0.3)
NEVER = run("uniform", FALLING) + run("history", [2.0, 1.5, 1.0, 0.7, 0.6], test_error=0.04)
EVEN = run("uniform", FALLING) + run("history", FALLING)
SEEDS = [
    *run("uniform", [2.0, 1.0, 0.5, 0.25, 0.1], seed=0, test_error=0.02),
    *run("uniform", [2.0, 1.0, 0.5, 0.25, 0.15], seed=1, test_error=0.03),
    *run("history", [2.0, 0.4, 0.12, 0.1, 0.1], seed=0, cost=0.12, test_error=0.01),
    *run("history", [2.0, 0.5, 0.13, 0.1, 0.08], seed=1, cost=0.12, test_error=0.02),
    *run("loss", [2.0, 0.5, 0.2, 0.19, 0.18], seed=0, cost=0.2, test_error=0.02),
    *run("loss", [2.0, 0.5, 0.2, 0.15, 0.12], seed=1, cost=0.2, test_error=0.02),
]
WORDS = [
    *run("uniform", [6.8, 6.0, 5.5, 5.2, 5.0], test_perplexity=140.25),
    *run("history", [6.8, 5.5, 5.0, 4.9, 4.8], test_perplexity=130.25),
]
NAMES = ["uniform", *(f"{score}:k={k}" for score in "abcd" for k in (1, 0.5, -0.5))]
MANY = [
    row for i, name in enumerate(NAMES) for row in run(name, [x * (1 + i / 9) for x in FALLING])
]
NASTY = [
    row
    for name in ("uniform", BAD_NAME, BAD_END, LONG)
    for row in run(name, FALLING, task=BAD_TASK, cost=0.1 + len(name) / 1000)
]


def write(directory, rows, *, finished=True, hardest=None, **config):
    """A run directory as experiments leave it."""
    directory.mkdir(exist_ok=True)
    names = [*dict.fromkeys(row["method"] for row in rows)]
    settings = {
        "command": "salience compare digits",
        "methods": names,
        "seeds": sorted({row["seed"] for row in rows}),
        "steps": 40,
        "seconds": None,
        "versions": {"salience": "0.1.0", "torch": "2.13.0"},
        "hardware": {"cpu": "A Processor @ 2.80GHz", "threads": 1},
        **config,
    }
    (directory / "config.json").write_text(json.dumps(settings))
    lines = (json.dumps(finite(row)) + "\n" for row in rows)
    (directory / "runs.jsonl").write_text("".join(lines))
    if finished:
        (directory / "summary.json").write_text(json.dumps(finite(summarize(rows))))
    if hardest is not None:
        (directory / "hardest.json").write_text(json.dumps({"steps": [0, 10], "methods": hardest}))
    return directory


def example(index, loss, *, seed=0, history=(2.0, 1.0), **shown):
    return {"index": index, "seed": seed, "loss": loss, "history": [*history], **shown}


PIXELS = [[[0, 255], [128, 3]]]
COLOURS = np.arange(3 * 4 * 5).reshape(3, 4, 5).tolist()
MADE = {
    "wins": lambda to: write(
        to,
        SEEDS,
        hardest={
            "uniform": [example(7, 3.5, image=PIXELS), example(8, None, image=COLOURS)],
            "history": [
                example(7, 1.5, image=PIXELS),
                example(7, 2.5, seed=1, image=PIXELS),
                example(9, 2.25, seed=1, history=[2.0, None, 1.0, 0.5], image=PIXELS),
            ],
        },
    ),
    "words": lambda to: write(
        to, WORDS, hardest={"history": [example(3, 5.5, text="a <unk> text")]}
    ),
    "many": lambda to: write(to, MANY),
    "nasty": lambda to: write(
        to, NASTY, title=None, note=BAD_END, hardest={BAD_END: [example(1, 2.0, text=BAD_TEXT)]}
    ),
    "unfinished": lambda to: write(
        to, [row for row in SEEDS if row["step"] <= 20], finished=False, seeds=[0, 1, 2]
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Each directory with its report, made once."""
    ready = {}

    def directory(name):
        if name not in ready:
            ready[name] = MADE[name](tmp_path_factory.mktemp("run") / name)
            assert [path.name for path in write_report(ready[name])] == WRITTEN
        return ready[name]

    return directory


# Reading what was written.


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

    def table(self):
        """The summary: name of a method -> its cells by the head of the column."""
        body = self.source.partition('<table class="numbers">')[2].partition("</table>")[0]
        rows = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.S) for row in body.split("</tr>")]
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


# What it says.


@pytest.mark.parametrize(
    ("rows", "outcome", "cells"),
    [
        (
            WINS,
            "history reached the train loss at which uniform ended (0.125) in 60% of the training "
            "time of uniform.",
            ("0.50x", "0.60x", "1.20x"),
        ),
        (
            LOSES,
            "Nothing was faster than uniform: to reach the train loss at which uniform ended "
            "(0.125), history took 150% of its time.",
            ("0.50x", "1.50x", "3.00x"),
        ),
        (
            NEVER,
            "history did not reach the train loss at which uniform ended (0.125): it ended at 0.6.",
            ("not reached", "not reached", "1.00x"),
        ),
        (
            EVEN,
            "history reached the train loss at which uniform ended (0.125) in the same training "
            "time as uniform.",
            ("1.00x", "1.00x", "1.00x"),
        ),
    ],
    ids=["wins", "loses", "never", "even"],
)
def test_the_report_says_what_came_out(tmp_path, rows, outcome, cells):
    page, text = report(write(tmp_path / "run", rows))
    expected = f"{outcome} This is one seed: another may turn out differently."
    assert page.find("p", **{"class": "lead"})[0][1] == expected
    assert f"**{escape(expected)}**" in text
    for table in (page.table(), markdown_table(text)):
        found = table["history"]
        assert (found["Steps to target"], found["Time to target"], found["Cost of a step"]) == cells
        assert found["Seeds"] == "1"


def test_the_table_has_means_spreads_ratios_and_seeds(made):
    page, text = page_of(made("wins")), (made("wins") / "report.md").read_text()
    assert page.table() == markdown_table(text)
    assert page.table()["history"] == {
        "Train loss at the end": "0.090 ± 0.014",
        "Worst train loss": "0.90 ± 0.14",
        "Test error": "1.50 ± 0.71%",
        "Steps to target": "0.50x",
        "Seeds alone": "0.50x to 0.75x",
        "Time to target": "0.60x",
        "Cost of a step": "1.20x",
        "Seeds": "2",
    }
    assert page.table()["loss"]["Steps to target"] == "not reached"
    assert page.table()["loss"]["Seeds alone"] == "1.00x (1 of 2)"
    assert "Target: train loss 0.125, where uniform ended." in page.text()


def test_the_head_names_the_fastest_the_seeds_and_the_machine(made):
    page = page_of(made("wins"))
    title = "Importance sampling on made up: history and loss against uniform"
    assert page.find("h1")[0][1] == page.find("title")[0][1] == title
    assert "The fastest was history: it reached" in page.text()
    assert "Seed by seed it took 0.50 to 0.75 times the steps." in page.text()
    assert "with uniform, history and loss: 2 seeds each, 40 steps." in page.text()
    assert "A Processor @ 2.80GHz · salience 0.1.0 · torch 2.13.0" in page.text()
    assert [text for _, text in page.find("dd")] == ["0.60x", "0.50x", "1.20x", "1.50%"]


def test_every_method_has_its_sentence_in_both(made):
    page, text = page_of(made("wins")), (made("wins") / "report.md").read_text()
    for part in (
        "(history) needed 50% of the steps and 60%",
        "(loss) did not reach the train loss",
    ):
        assert part in page.text()
        assert part in text


def test_configuration_and_command_are_there(made):
    page, text = page_of(made("wins")), (made("wins") / "report.md").read_text()
    assert page.find("pre")[0][1] == "salience compare digits"
    settings = page.text().partition("Configuration, versions, hardware")[2]
    assert "versions torch2.13.0" in settings.replace("\n", "")
    config = json.loads(re.search("```json\n(.*)\n```", text, re.S)[1])
    assert config == json.loads((made("wins") / "config.json").read_text())


def test_the_users_own_title_stands_above_all(tmp_path):
    page, text = report(write(tmp_path / "run", WINS, title=" Our *own* task "))
    assert page.find("h1")[0][1] == "Our *own* task"
    assert text.startswith("# Our \\*own\\* task\n")


def test_language_models_are_told_by_their_perplexity(made):
    page, text = page_of(made("words")), (made("words") / "report.md").read_text()
    for table in (page.table(), markdown_table(text)):
        assert table["history"]["Test perplexity"] == "130"
        assert "Test error" not in table["history"]
    assert "test perplexity was 130.2 against 140.2" in page.text()
    assert [text for _, text in page.find("figcaption")][2:] == [
        "Test perplexity against steps",
        "Test perplexity against seconds",
    ]


def test_many_methods_all_look_different(made):
    page = page_of(made("many"))
    assert [text for _, text in page.find("button")] == NAMES
    looks = series.looks(NAMES, "uniform")
    assert len({*looks.values()}) == len(NAMES)
    assert looks["uniform"] == series.Look(0, "dash")
    assert "12 methods against uniform" in page.find("h1")[0][1]
    assert [*page.table()] == NAMES


def test_the_baseline_alone_has_a_report(tmp_path):
    page, _ = report(write(tmp_path / "run", run("uniform", FALLING)))
    assert "Only uniform was trained, so there is nothing to compare it with." in page.text()


def test_a_run_that_diverged_is_told_and_drawn_as_a_gap(tmp_path):
    broken = run("history", [2.0, math.nan, math.inf, math.nan, math.nan], test_error=math.nan)
    page, text = report(write(tmp_path / "run", run("uniform", FALLING) + broken))
    assert page.table()["history"]["Train loss at the end"] == "not finite"
    assert markdown_table(text)["history"]["Time to target"] == "not reached"
    assert "No method reached the train loss" in page.text()
    (line,) = (t for t in figures(page)["train_loss-steps"]["data"] if t.get("name") == "history")
    assert line["y"] == [2.0, None, None, None, None]


def test_a_baseline_that_diverged_leaves_no_target(tmp_path):
    broken = run("uniform", [2.0, math.nan])
    page, _ = report(write(tmp_path / "run", broken + run("history", [2.0, 1.0])))
    assert "uniform did not end at a finite train loss" in page.text()
    assert "where each method first met it" not in page.text()


def test_absent_ratios_and_measures_are_words(tmp_path):
    directory = write(tmp_path / "run", WINS)
    summary = json.loads((directory / "summary.json").read_text())
    summary["methods"]["history"] = {"final": {"train_loss": {"mean": 0.25}}}
    (directory / "summary.json").write_text(json.dumps(summary))
    page, _ = report(directory)
    assert page.table()["history"] == {
        "Train loss at the end": "0.25",
        "Worst train loss": "not measured",
        "Test error": "not finite",
        "Steps to target": "not reached",
        "Seeds alone": "not measured",
        "Time to target": "not reached",
        "Cost of a step": "not measured",
        "Seeds": "1",
    }


# An unfinished comparison.


def test_an_unfinished_comparison_says_so_and_gives_no_verdict(made):
    page, text = (
        page_of(made("unfinished")),
        (made("unfinished") / "report.md").read_text(),
    )
    for told in (page.text(), text):
        assert "This comparison is unfinished: 6 of 9 runs have begun" in told
        assert "the furthest is at step 20" in told
        assert "needed" not in told
    for table in (page.table(), markdown_table(text)):
        assert table["history"]["Time to target"] == table["history"]["Seeds alone"] == "open"
        assert table["history"]["Cost of a step"] == "1.20x"
        assert "Train loss so far" in table["history"]
    assert not page.find("dd")


def test_a_line_cut_off_while_it_was_written_does_not_matter(tmp_path):
    directory = write(tmp_path / "run", WINS, finished=False)
    path = directory / "runs.jsonl"
    path.write_text(path.read_text()[:-25])
    assert len(read_comparison(directory).rows) == len(WINS) - 1
    path.write_text(path.read_text() + "\n")
    with pytest.raises(ArgumentError, match="line 10"):
        read_comparison(directory)


def test_methods_that_have_not_begun_and_a_missing_baseline_are_no_obstacle(tmp_path):
    rows = run("history", [2.0])
    directory = write(tmp_path / "run", rows, finished=False, methods=["uniform", "history"])
    page, _ = report(directory)
    assert "1 of 2 runs have begun" in page.text()
    assert page.table()["history"]["Cost of a step"] == "not measured"


# What is missing or damaged.


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.json", None, "is missing: name a directory a comparison wrote to, or run it"),
        ("runs.jsonl", None, "is missing"),
        ("config.json", "{", "is damaged (Expecting property name"),
        ("config.json", "[]", "is damaged (list in place of an object)"),
        ("config.json", b"\xff\xfe", "is damaged ('utf-8' codec"),
        ("runs.jsonl", "", "has no rows: nothing has been measured yet; run the comparison first"),
        ("runs.jsonl", "{}\n", "is damaged (line 1: no 'method')"),
        ("runs.jsonl", "nonsense\n{}\n", "is damaged (line 1: Expecting value"),
        ("runs.jsonl", json.dumps({**WINS[0], "train_loss": "low"}) + "\n", "'low' in place of"),
        ("runs.jsonl", json.dumps({**WINS[0], "step": math.inf}) + "\n", "line 1: cannot convert"),
        ("runs.jsonl", json.dumps(WINS[0]) + "\n", "has no rows of 'history', which summary.json"),
        ("summary.json", "{}", "is damaged (no 'methods')"),
        ("summary.json", '{"methods": {"a": {"final": {}}}}', "is damaged (no 'train_loss')"),
        ("summary.json", '{"methods": {}, "baseline": "uniform"}', "is damaged (no 'uniform')"),
        ("hardest.json", "[1]", "is damaged (list in place of an object)"),
        ("hardest.json", '{"methods": {"a": [{"index": 1}]}}', "is damaged (no 'loss')"),
        (
            "hardest.json",
            '{"methods": {"a": [{"index": 1, "loss": 1, "image": [[1, 2]]}]}}',
            "is damaged (an image has the shape (1, 2), not [channels, height, width])",
        ),
        (
            "hardest.json",
            '{"methods": {"a": [{"index": 1, "loss": 1, "image": [[[256]]]}]}}',
            "pixels that are not whole numbers from 0 to 255",
        ),
    ],
)
def test_a_missing_or_damaged_file_is_refused_by_name(tmp_path, name, content, sentence):
    directory = write(tmp_path / "run", WINS)
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SalienceError, match=re.escape(sentence)) as refusal:
        write_report(directory)
    assert str(directory / name) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not any((directory / written).exists() for written in WRITTEN)


def test_no_directory_and_no_place_to_write_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="there is no directory"):
        write_report(tmp_path / "nowhere")
    directory = write(tmp_path / "run", run("uniform", [2.0, 1.0]))
    (directory / "report.html").mkdir()
    with pytest.raises(ArgumentError, match=r"cannot write .*report\.html"):
        write_report(directory)


# The data are shown, never obeyed.


def figures(page):
    (block,) = re.findall(
        r'<script type="application/json" id="figures">(.*?)</script>', page.source
    )
    return json.loads(block)


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_one_file_that_asks_for_nothing(made, name):
    page = page_of(made(name))
    addresses = [
        value
        for _, attributes, _ in page.elements
        for key, value in attributes.items()
        if key in ("src", "href", "srcset", "action", "data", "poster", "xlink:href")
    ]
    assert all(value.startswith(("data:", "#")) for value in addresses)
    style = page.find("style")[0][1]
    assert not re.search(r"url\(|@import|https?:", style)
    assert {tag for tag, _, _ in page.elements} & {
        "iframe",
        "object",
        "embed",
        "form",
        "base",
    } == set()


def test_only_the_scripts_of_the_page_may_run(made):
    page = page_of(made("nasty"))
    policy = page.find("meta", **{"http-equiv": "Content-Security-Policy"})[0][0]["content"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    scripts = re.findall(r"<script>(.*?)</script>", page.source, re.S)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert len(scripts) == 2
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == " ".join(f"'sha256-{each}'" for each in hashes)
    assert rules["img-src"] == "data:"
    assert "connect-src" not in rules
    assert page.source.index("Content-Security-Policy") < page.source.index("<script")


def test_names_and_texts_from_data_are_shown_and_not_obeyed(made):
    page = page_of(made("nasty"))
    assert len(page.find("script")) == 3
    assert not page.find("b")
    assert not page.find("img")
    assert not any(key.startswith("on") for _, found, _ in page.elements for key in found)
    assert [text for _, text in page.find("button")] == ["uniform", BAD_NAME, BAD_END, LONG]
    assert BAD_TASK in page.find("title")[0][1]
    assert " ".join(BAD_TEXT.split()) in page.text()
    assert [*page.table()] == ["uniform", BAD_NAME, BAD_END, LONG]


def test_names_in_charts_carry_no_markup(made):
    page = page_of(made("nasty"))
    assert {*figures(page)} == {*CHARTS}
    names = [trace["name"] for trace in figures(page)[CHARTS[0]]["data"] if "name" in trace]
    assert len(names) == 4
    assert not any("<" in name or ">" in name for name in names)
    assert unescape(names[2]) == BAD_END[:31] + "…"


def test_a_script_element_cannot_be_ended_by_its_content():
    text = charts.script_json({"a": "</script><!-- & \u2028", "b": [math.nan, 1 / 3]})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028", "b": [None, 0.333333]}


def test_markdown_shows_the_data_too(made):
    text = (made("nasty") / "report.md").read_text()
    prose, fence, config = text.partition("```")
    assert not re.search(r"(?<!\\)[<`]", prose)
    assert [*markdown_table(prose)] == ["uniform", BAD_NAME, BAD_END, LONG]
    assert json.loads((fence + config).strip("`\n").removeprefix("json"))["note"] == BAD_END


def test_a_fence_is_longer_than_any_in_the_configuration(tmp_path):
    _, text = report(write(tmp_path / "run", run("uniform", [2.0, 1.0]), note="````\n# title"))
    assert text.count("`````") == 2


# Figures and examples.


def test_figures_are_pictures_linked_from_the_markdown(made):
    text = (made("wins") / "report.md").read_text()
    for name in WRITTEN[2:]:
        assert f"]({name})" in text
        with Image.open(made("wins") / name) as picture:
            assert picture.format == "PNG"
            assert picture.width > 1000
    assert not [*made("wins").glob("*.part")]


def test_curves_are_means_with_the_range_over_seeds(made):
    drawn = figures(page_of(made("wins")))["train_loss-steps"]["data"]
    (line,) = (trace for trace in drawn if trace.get("name") == "history")
    assert line["x"] == [0, 10, 20, 30, 40]
    assert line["y"] == [2.0, 0.45, 0.125, 0.1, 0.09]
    assert line["customdata"][1] == [0.4, 0.5]
    (band,) = (trace for trace in drawn if trace.get("fill") and trace["meta"] == line["meta"])
    assert band["y"] == [0.5, 0.13, 0.1, 0.08, 0.12, 0.4]
    marks = [(trace["x"], trace["y"]) for trace in drawn if trace["mode"] == "markers"]
    assert marks == [([40], [0.125]), ([20], [0.125])]
    seconds = figures(page_of(made("wins")))["train_loss-seconds"]["data"]
    (line,) = (trace for trace in seconds if trace.get("name") == "history")
    assert line["x"] == pytest.approx([0, 1.2, 2.4, 3.6, 4.8])


def test_runs_of_equal_time_are_matched_by_their_evaluations():
    rows = run("uniform", FALLING, seed=0, every=10) + run("uniform", FALLING, seed=1, every=12)
    found = series.curve(rows, "uniform")
    assert found.steps == [0, 11, 22, 33, 44]
    assert found.mean == FALLING


@pytest.mark.parametrize(
    ("values", "logarithmic"), [(FALLING, False), ([2.0, 0.01], True), ([1.0, 0.0], True)]
)
def test_an_axis_is_logarithmic_where_values_span_much(values, logarithmic):
    found = {"uniform": series.curve(run("uniform", values), "uniform")}
    assert series.is_logarithmic(found) == logarithmic


def test_the_hardest_examples_are_pictures_with_their_losses(made):
    page = page_of(made("wins"))
    pictures = [attributes for attributes, _ in page.find("img")]
    assert [each["alt"] for each in pictures] == [
        f"training example {index}" for index in (8, 7, 7, 9)
    ]
    assert pixels(pictures[0]["src"]).transpose(2, 0, 1).tolist() == COLOURS
    assert pixels(pictures[1]["src"]).tolist() == PIXELS[0]
    about = [text for _, text in page.find("p", **{"class": "about"})]
    assert about == ["#8 not finite", "#7 3.5", "#7 2.5", "#9 2.25"]
    assert "2 of 2 seeds" in page.text()
    assert "1 of 2 seeds" in page.text()
    sparks = page.find("svg", **{"class": "spark"})
    assert [found["aria-label"] for found, _ in sparks][-1] == "loss from 2 to 0.5"


def pixels(address):
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(content)) as picture:
        return np.asarray(picture)


def test_the_hardest_texts_are_texts_and_absent_ones_are_no_section(made):
    assert "a <unk> text" in page_of(made("words")).text()
    assert not page_of(made("many")).find("h2", id="hardest")


def test_examples_that_cannot_be_shown_still_have_their_losses(tmp_path):
    directory = write(
        tmp_path / "run", WINS, hardest={"history": [example(5, 1.25)], "uniform": []}
    )
    page, _ = report(directory)
    assert [text for _, text in page.find("p", **{"class": "about"})] == ["#5 1.25"]


def test_a_sparkline_has_gaps_where_losses_were_not_finite():
    assert sparkline([1.0, math.nan, 0.5, 0.0], top=1.0) == ["2.0,2.0", "66.0,14.0 98.0,26.0"]
    assert sparkline([], top=1.0) == []
    assert sparkline([0.0], top=0.0) == ["2.0,26.0"]


def test_what_draws_is_imported_only_when_something_is_drawn():
    heavy = {"plotly", "jinja2", "markupsafe", "matplotlib", "PIL"}
    for path in Path(curves.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or node.names[0].name]
                assert not {name.partition(".")[0] for name in names} & heavy, path


# In a browser.


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
)
COMPLAINTS = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
PATIENCE = 30.0  # seconds for any one answer


class Browser:
    """Chromium, spoken to through a pipe: JSON with a zero byte after each message."""

    def __init__(self, profile):
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        # The pipes are descriptors 3 and 4 in the browser, whatever numbers they have here.
        start = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", start, "browser", CHROMIUM, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._received, self._sent, self._session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Ask for something; what happens meanwhile is kept in ``events``."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._sent:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self):
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._from], [], [], PATIENCE)
            assert ready, "the browser does not answer"
            self._received += os.read(self._from, 1 << 16)
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def open(self, path, width, scheme="light"):
        """Load a page and wait until it is drawn."""
        self.resize(width)
        self.scheme(scheme)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        self.drawn()

    def resize(self, width):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", **size, mobile=width < 600)
        self.drawn()

    def scheme(self, name):
        feature = {"name": "prefers-color-scheme", "value": name}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def drawn(self):
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, expression):
        """The value of a JavaScript expression, awaited."""
        wanted = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", **wanted)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def heard(self, *methods):
        return [event["params"] for event in self.events if event.get("method") in methods]

    def close(self):
        self._process.terminate()
        self._process.wait(timeout=PATIENCE)
        os.close(self._to)
        os.close(self._from)


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
    assert len(traces) == 4
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
    browser.run("void Plotly.Fx.hover('train_loss-steps', {xval: 20}, ['xy'])")
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
