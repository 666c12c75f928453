"""The report of a comparison: what it says, and that nothing in it obeys the data."""

import ast
import base64
import hashlib
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from compare.conftest import WRITTEN
from compare.made_up import (
    BAD_END,
    BAD_NAME,
    BAD_TASK,
    BAD_TEXT,
    COLOURS,
    EVEN,
    FALLING,
    LONG,
    LOSES,
    MADE,
    NAMES,
    NEVER,
    PIXELS,
    WINS,
    directory,
    example,
    run,
)
from compare.pages import figures, markdown_table, page_of, report
from salience import compare
from salience.compare.reading import read_comparison
from salience.compare.report import numbers
from salience.compare.report.figures import charts
from salience.compare.report.hardest import sparkline
from salience.compare.report.interactive import script_json
from salience.compare.report.page import escape
from salience.compare.report.table import terminal
from salience.compare.report.words import outcome, sentences

BEST = "Best of the run"
SAME = "1.00x (1.00 to 1.00)"
CHARTS = ["test-0", "test-1", "curves-0", "curves-1", "cost-0"]
OTHERS = [f"other-{name}-{on}" for name in ("train_max_loss", "test_loss") for on in (0, 1)]


def methods(page):
    """The names on the buttons that hide a method."""
    return [text for found, text in page.find("button") if "data-method" in found]


def drawn(page, chart, method):
    """A line of a chart."""
    (line,) = (each for each in figures(page)[chart]["lines"] if each["label"] == method)
    return line


# What it says.


ONE = (
    "One seed gives no verdict, so add some with --seeds 3 --resume: in equal time the test error "
    "of "
)
GOAL = "the train loss at which uniform ended (0.125)"


@pytest.mark.parametrize(
    ("rows", "outcome", "cells"),
    [
        (
            WINS,
            f"{ONE}history is 2.00% against 2.00%, and it reaches {GOAL} in 60% of the time of "
            f"uniform.",
            ("0.50x", "0.60x", "1.20x"),
        ),
        (
            LOSES,
            f"{ONE}history is 2.00% against 2.00%, and it reaches {GOAL} in 150% of the time of "
            f"uniform. A step costs 3.00 times one of uniform and 50% of the steps are needed.",
            ("0.50x", "1.50x", "3.00x"),
        ),
        (
            NEVER,
            f"{ONE}history is 4.00% against 2.00%, and it does not reach {GOAL}: it ends at 0.6.",
            ("not reached", "not reached", "1.00x"),
        ),
        (
            EVEN,
            "There is no difference: history trained exactly as uniform.",
            ("1.00x", "1.00x", "1.00x"),
        ),
    ],
    ids=["wins", "loses", "never", "even"],
)
def test_the_report_says_what_came_out(tmp_path, rows, outcome, cells):
    page, text = report(directory(tmp_path / "run", rows))
    assert page.find("p", **{"class": "lead"})[0][1] == outcome
    assert f"**{escape(outcome)}**" in text
    for table in (page.table(), markdown_table(text)):
        found = table["history"]
        assert (found["Steps to target"], found["Time to target"], found["Cost of a step"]) == cells
        assert found["Seeds"] == "1"


def test_the_table_has_means_spreads_ratios_and_seeds(made):
    page, text = page_of(made("wins")), (made("wins") / "report.md").read_text()
    assert page.table() == markdown_table(text)
    assert page.table()["history"] == {
        "Test error": "1.50 ± 0.71%",
        "Difference in equal time": "-1.00 (-4.67 to +2.67)",  # errors in steps of 1 %
        "Best of the run": "1.50 ± 0.71%",
        "Train loss at the end": "0.090 ± 0.014",
        "Worst train loss": "0.90 ± 0.14",
        "Steps to target": "0.50x",
        "Single seeds": "0.50x to 0.75x",
        "Time to target": "0.60x",
        "Cost of a step": "1.20x",
        "Seeds": "2",
    }
    assert page.table()["loss"]["Steps to target"] == "not reached"
    assert page.table()["loss"]["Single seeds"] == "1.00x (1 of 2)"
    assert [*page.table()["history"]][:3] == ["Test error", "Difference in equal time", BEST]
    assert page.table()["uniform"]["Difference in equal time"] == ""
    assert "Target: train loss 0.125, where uniform ended." in page.text()


def test_the_head_names_the_fastest_the_seeds_and_the_machine(made):
    page = page_of(made("wins"))
    title = "Importance sampling on made up: history and loss against uniform"
    assert page.find("h1")[0][1] == page.find("title")[0][1] == title
    lead = page.find("p", **{"class": "lead"})[0][1]
    assert lead.startswith(
        "No difference between history and uniform: in equal time the test error of history is "
        "1.50% against 2.50% (-1.00 points, 95% interval -4.67 to +2.67), and it reaches the train "
        "loss at which uniform ended (0.125) in 60% of the time of uniform, which is no difference"
    )
    assert "loss did not pay." in lead
    assert "With 2 seeds only a difference of more than 3.67 points would show; --seeds" in lead
    assert "with uniform, history and loss: 2 seeds each, 40 steps." in page.text()
    assert "A Processor @ 2.80GHz · salience 0.1.0 · torch 2.13.0" in page.text()
    assert [text for _, text in page.find("dd")][:3] == ["1.50%", "0.60x", "1.20x"]


def test_every_method_has_its_sentence_in_both(made):
    page, text = page_of(made("wins")), (made("wins") / "report.md").read_text()
    for part in (
        "the test error of history was 1.50% against 2.50% (no difference: -1.00 points",
        "it needed 50% of the steps and 60%",
        "it did not reach the train loss",
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


def test_language_models_are_told_by_their_perplexity(made):
    page, text = page_of(made("words")), (made("words") / "report.md").read_text()
    for table in (page.table(), markdown_table(text)):
        assert table["history"]["Test perplexity"] == "130"
        assert "Test error" not in table["history"]
    assert "test perplexity of history was 130 against 140 (one seed)" in page.text()
    assert [text for _, text in page.find("figcaption")][:2] == [
        "Test perplexity against steps",
        "Test perplexity against seconds",
    ]


def test_many_methods_all_look_different(made):
    page = page_of(made("many"))
    assert methods(page) == NAMES
    strokes = [found for found, _ in page.find("line") if "stroke-dasharray" in found]
    looks = [(found["style"], found["stroke-dasharray"]) for found in strokes]
    assert len({*looks}) == len(NAMES)
    assert looks[0] == ("stroke: var(--series-0)", "7 4")
    assert "12 methods against uniform" in page.find("h1")[0][1]
    assert [*page.table()] == NAMES


def test_the_baseline_alone_has_a_report(tmp_path):
    page, _ = report(directory(tmp_path / "run", run("uniform", FALLING)))
    assert "Only uniform was trained, so there is nothing to compare it with." in page.text()


def test_a_run_that_diverged_is_told_and_drawn_as_a_gap(tmp_path):
    broken = run("history", [2.0, math.nan, math.inf, math.nan, math.nan], test_error=math.nan)
    page, text = report(directory(tmp_path / "run", run("uniform", FALLING) + broken))
    assert page.table()["history"]["Train loss at the end"] == "not finite"
    assert markdown_table(text)["history"]["Time to target"] == "not reached"
    assert "No method ended at a finite test error." in page.text()
    assert "it did not reach the train loss" in page.text()
    assert drawn(page, "curves-0", "history")["y"] == [2.0, None, None, None, None]


def test_a_baseline_that_diverged_leaves_no_target(tmp_path):
    broken = run("uniform", [2.0, math.nan])
    page, _ = report(directory(tmp_path / "run", broken + run("history", [2.0, 1.0])))
    assert "uniform did not end at a finite train loss" in page.text()
    assert "where each first reached it" not in page.text()


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
        assert table["history"]["Time to target"] == table["history"]["Single seeds"] == "open"
        assert table["history"]["Cost of a step"] == "1.20x"
        assert "Train loss so far" in table["history"]
    assert not page.find("dl", **{"class": "facts"})


def test_methods_that_have_not_begun_and_a_missing_baseline_are_no_obstacle(tmp_path):
    rows = run("history", [2.0])
    page, _ = report(
        directory(tmp_path / "run", rows, finished=False, methods=["uniform", "history"])
    )
    assert "1 of 2 runs have begun" in page.text()
    assert page.table()["history"]["Cost of a step"] == "not measured"


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        (WINS, ["needed 50% of the steps and 60% of the training time", "1.20 times the cost"]),
        (LOSES, ["needed 50% of the steps but 150% of the training time", "3.00 times the cost"]),
        (NEVER, ["did not reach", "(0.125)", "in 40 steps", "ended at 0.6", "4.00% against 2.00%"]),
    ],
)
def test_the_sentence_follows_the_numbers(tmp_path, rows, parts):
    (sentence,) = sentences(read_comparison(directory(tmp_path, rows)))
    for part in [*parts, "In equal time, the test error of history was"]:
        assert part in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize(("errors", "noise"), [((0.03, 0.01), True), ((0.06, 0.05), False)])
def test_a_difference_in_test_error_is_called_noise_only_where_it_may_be(tmp_path, errors, noise):
    rows = [
        *run("uniform", FALLING, seed=0, test_error=0.02),
        *run("uniform", FALLING, seed=1, test_error=0.01),
        *run("history", FALLING, seed=0, test_error=errors[0]),
        *run("history", FALLING, seed=1, test_error=errors[1]),
    ]
    (sentence,) = sentences(read_comparison(directory(tmp_path, rows)))
    assert ("(no difference: +" in sentence) == noise
    assert ("(higher: +" in sentence) != noise


def judged(rows, tmp_path):
    found = read_comparison(directory(tmp_path, rows))
    return outcome(found), sentences(found)


def pairs(ours, theirs, **more):
    """Runs whose train loss falls sooner with history; test errors by seed."""
    return [
        row
        for seed, errors in enumerate(zip(ours, theirs, strict=True))
        for row in (
            *run("uniform", FALLING, seed=seed, test_error=errors[1], **more),
            *run("history", [2, 0.1, 0.1, 0.1, 0.1], seed=seed, test_error=errors[0], **more),
        )
    ]


def test_better_train_but_worse_test_is_told_by_the_test_first(tmp_path):
    lead, (sentence,) = judged(pairs([0.05, 0.06, 0.05], [0.02, 0.03, 0.01]), tmp_path)
    assert lead.startswith(
        "history does not pay: it reaches the train loss at which uniform ended (0.125) sooner, in "
        "25% of the time of uniform (95% interval"
    )
    assert (
        "but its test error in equal time is higher: 5.33% against 2.00% (+3.33 points, 95% "
        "interval +1.90 to +4.77)"
    ) in lead
    assert "overfitting" in lead
    assert "(higher: +3.33 points, 95% interval +1.90 to +4.77)" in sentence


def test_an_interval_that_includes_zero_is_no_difference(tmp_path):
    lead, (sentence,) = judged(pairs([0.01, 0.03, 0.02], [0.02, 0.02, 0.03]), tmp_path)
    assert lead.startswith("history trains faster: it reaches the train loss at which uniform")
    assert "with no difference in test error: in equal time the test error of history is" in lead
    assert "(no difference: -0.33 points, 95% interval -3.20 to +2.54)" in sentence


def test_the_worst_class_is_told_where_there_are_classes(tmp_path):
    rows = pairs([0.01, 0.02], [0.03, 0.04])
    for row in rows:
        worst = {"uniform": 0.10, "history": 0.06}[row["method"]]
        row["test_error_worst"] = worst + row["seed"] / 100
    _, (sentence,) = judged(rows, tmp_path)
    assert "of the worst class 6.50% against 10.50% (lower: -4.00 points" in sentence
    page, text = report(tmp_path)
    for table in (page.table(), markdown_table(text)):
        assert table["history"]["Worst class"] == "6.50 ± 0.71%"
    assert "6.50%" in [value for _, value in page.find("dd")]


def test_clock_noise_is_never_called_faster(tmp_path):
    rows = run("uniform", FALLING) + run("auto", FALLING, cost=0.09)
    rows += run("history", [2.0, 1.0, 0.5, 0.3, 0.2])
    lead, (same, _) = judged(rows, tmp_path)
    assert same == "auto trained exactly as uniform: no difference."
    assert "auto trained exactly as the baseline." in lead
    assert "faster" not in lead
    assert "it does not reach the train loss" in lead


# Budgets.


def test_budgets_have_a_table_a_chart_and_a_sentence(made):
    page, text = page_of(made("budgets")), (made("budgets") / "report.md").read_text()
    lead = page.find("p", **{"class": "lead"})[0][1]
    assert (
        "Over all budgets, history came to the test error of uniform at its whole length in" in lead
    )
    assert "in at most 50% of its time (95% interval 50% to 50%)." in lead
    assert "50% and 100% of 40 steps" in page.text()
    table = page.table("budgets numbers")
    assert table["uniform"] == {"50%": "4.50 ± 0.71%", "100%": "2.50 ± 0.71%", "Same in": SAME}
    assert table["history"] == {
        "50%": "2.50 ± 0.71%; -2.00 (-5.67 to +1.67)",
        "100%": "1.50 ± 0.71%; -1.00 (-4.67 to +2.67)",
        "Same in": "at most 0.50x (0.50 to 0.50)",
    }
    assert page.table()["history"]["Same test result in"] == "at most 0.50x (0.50 to 0.50)"
    assert "![Test results of whole trainings against their time](budgets.png)" in text
    assert "| history | 2.50 ± 0.71%; -2.00" in text
    line = drawn(page, "budgets-0", "history")
    assert line["x"] == [0.5, 1.0]
    assert line["y"] == pytest.approx([2.5, 1.5])
    assert [*figures(page)] == ["budgets-0", *CHARTS, *OTHERS]


@pytest.mark.parametrize("losses", [[1.5, 1.2, 0.9], [2.5, 2.4, 2.3]])
def test_a_baseline_that_ends_above_where_it_began_has_no_time_to_compare_with(tmp_path, losses):
    rows = run("uniform", [1.0, 1.5, 2.0]) + run("history", losses)
    page, _ = report(directory(tmp_path, rows))
    (sentence,) = sentences(read_comparison(tmp_path))
    assert "there is no time to compare: uniform ended no lower than it began" in sentence
    assert f"history ended at {losses[-1]}" in sentence
    lead = page.find("p", **{"class": "lead"})[0][1]
    assert "has no train loss to reach: uniform ended no lower than it began (2)" in lead


def test_the_terminal_has_the_same_table_one_column_per_method(tmp_path):
    console = Console(file=io.StringIO(), width=100)
    found = read_comparison(directory(tmp_path, NEVER))
    console.print(*terminal(found, 100))
    text = console.file.getvalue()
    assert text.count("not reached") == 2
    assert re.search(r"Single seeds +1.00x +none", text)
    assert "One seed, no spread. Target: train loss 0.125" in text


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (0.0019103, 0.000303, "0.00191 ± 0.00030"),
        (12.3, 0.0, "12.3 ± 0"),
        (0.0, 0.0, "0 ± 0"),
        (0.125, None, "0.125"),
        (0.0000123, None, "1.23e-05"),
    ],
)
def test_numbers_show_as_many_digits_as_their_spread_carries(mean, std, text):
    assert numbers.spread({"mean": mean, "std": std, "n": 3}) == text


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
    assert methods(page) == ["uniform", BAD_NAME, BAD_END, LONG]
    assert BAD_TASK in page.find("title")[0][1]
    assert " ".join(BAD_TEXT.split()) in page.text()
    assert [*page.table()] == ["uniform", BAD_NAME, BAD_END, LONG]


def test_names_in_charts_cannot_end_their_element(made):
    page = page_of(made("nasty"))
    assert [*figures(page)] == [*CHARTS, *OTHERS]
    names = [line["label"] for line in figures(page)[CHARTS[0]]["lines"]]
    assert names == ["uniform", BAD_NAME, BAD_END, LONG]
    block = page.source.partition('id="figures">')[2].partition("</script>")[0]
    assert not {*"<>&"} & {*block}


def test_a_script_element_cannot_be_ended_by_its_content():
    text = script_json({"a": "</script><!-- & \u2028", "b": [math.nan, 1 / 3]})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028", "b": [None, 0.333333]}


def test_markdown_shows_the_data_too(made):
    text = (made("nasty") / "report.md").read_text()
    prose, fence, config = text.partition("```")
    assert not re.search(r"(?<!\\)[<`]", prose)
    assert [*markdown_table(prose)] == ["uniform", BAD_NAME, BAD_END, LONG]
    assert json.loads((fence + config).strip("`\n").removeprefix("json"))["note"] == BAD_END


def test_a_fence_is_longer_than_any_in_the_configuration(tmp_path):
    _, text = report(directory(tmp_path / "run", run("uniform", [2.0, 1.0]), note="````\n# title"))
    assert text.count("`````") == 2


def test_figures_are_pictures_linked_from_the_markdown(made):
    text = (made("wins") / "report.md").read_text()
    for name in WRITTEN[2:]:
        assert f"]({name})" in text
        with Image.open(made("wins") / name) as picture:
            assert picture.format == "PNG"
            assert picture.width > 1000
    assert not [*made("wins").glob("*.part")]


def test_curves_are_means_with_the_range_over_seeds(made):
    page = page_of(made("wins"))
    line = drawn(page, "curves-0", "history")
    assert line["x"] == [0, 10, 20, 30, 40]
    assert line["y"] == [2.0, 0.45, 0.125, 0.1, 0.09]
    # The band is there from the first evaluation on.
    assert line["low"] == [2.0, 0.4, 0.12, 0.1, 0.08]
    assert line["high"] == [2.0, 0.5, 0.13, 0.1, 0.1]
    marks = [each["mark"] for each in figures(page)["curves-0"]["lines"]]
    assert marks == [[40, 0.125], [20, 0.125], None]
    assert drawn(page, "curves-1", "history")["x"] == pytest.approx([0, 1.2, 2.4, 3.6, 4.8])


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
    hardest = {"history": [example(5, 1.25)], "uniform": []}
    page, _ = report(directory(tmp_path / "run", WINS, hardest=hardest))
    assert [text for _, text in page.find("p", **{"class": "about"})] == ["#5 1.25"]


def test_a_sparkline_has_gaps_where_losses_were_not_finite():
    assert sparkline([1.0, math.nan, 0.5, 0.0], top=1.0) == ["2.0,2.0", "66.0,14.0 98.0,26.0"]
    assert sparkline([], top=1.0) == []
    assert sparkline([0.0], top=0.0) == ["2.0,26.0"]


def test_what_draws_is_imported_only_when_something_is_drawn():
    heavy = {"jinja2", "markupsafe", "matplotlib", "PIL"}
    for path in Path(compare.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or node.names[0].name]
                assert not {name.partition(".")[0] for name in names} & heavy, path


def test_a_seed_without_steps_has_no_time_of_a_step(tmp_path):
    """Found by fuzz: a division by zero."""
    rows = [*run("uniform", [2.0]), *run("uniform", [2.0, 1.0], seed=1), *run("auto", [2.0, 1.0])]
    chart = next(c for c in charts(read_comparison(directory(tmp_path, rows))) if c.name == "cost")
    assert [bar.text for bar in chart.panels[0].bars] == ["not measured", "1.00x, 100 ms"]
