"""Charts: one description, drawn the same by matplotlib and by a browser."""

import json
import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.made_up import FALLING, NEVER, WINS, directory, run
from compare.pages import Page, figures
from salience.compare.charts import (
    KNOWN,
    Bar,
    Chart,
    Line,
    Look,
    Panel,
    Stretch,
    Strip,
    drawable,
    logarithmic,
    looks,
    y_range,
)
from salience.compare.methods import METHOD_NAMES
from salience.compare.reading import read_comparison
from salience.compare.report.figures import charts, others
from salience.compare.report.interactive import chart_html
from salience.compare.report.png import chart_png

BAND = Line("loss", [0, 1, 2], [0.3, 0.0, 0.6], [-1.0, -1.0, 0.5], [1.0, 1.0, 0.7])


def chart_of(*names, **options):
    lines = [Line(name, [0.0], [1.0]) for name in names]
    return Chart("c", "title", [Panel("a", "x", "y", lines)], **options)


def test_labels_look_the_same_in_every_panel():
    panels = [
        *chart_of("loss", "uniform", "gnorm").panels,
        Panel("b", "x", "y", [Line("pool", [0], [1], like="gnorm")]),
        Panel("c", "x", "y", bars=[Bar("loss", 1.0, [], "1.00x")]),
        Panel("d", "x", "y", strips=[Strip("auto", "seed 0", [])]),
    ]
    assert looks(Chart("c", "title", panels)) == {
        "loss": Look(3, "solid"),
        "uniform": Look(0, "dash"),
        "gnorm": Look(6, "solid"),
        "pool": Look(6, "dot"),
        "auto": Look(1, "solid"),
    }


def test_every_method_has_a_look_of_its_own():
    found = looks(chart_of(*METHOD_NAMES))
    assert {*METHOD_NAMES} - {"uniform"} <= {*KNOWN}
    assert {name: (look.colour, look.dash) for name, look in found.items()} == {
        **KNOWN,
        "uniform": (0, "dash"),
    }
    assert len({*found.values()}) == len(METHOD_NAMES)


@given(st.lists(st.sampled_from(METHOD_NAMES), unique=True), st.text(max_size=200))
def test_a_name_looks_the_same_in_every_report(others, name):
    """Known names always; any other unless one of the same report looks like it."""
    alone, among = looks(chart_of(name)), looks(chart_of(*others, name))
    for other in others:
        assert among[other] == looks(chart_of(other))[other]
    taken = {among[other] for other in others if other != name}
    assert among[name] == alone[name] or alone[name] in taken
    assert len({*among.values()}) == len(among)


def test_a_method_with_options_has_the_colour_of_the_method():
    for name in ("history", "mine"):
        found = looks(chart_of(name, f"{name}:k=1", f"{name}:k=0", f"{name}:k=-1"))
        assert len({look.colour for look in found.values()}) == 1
        assert len({look.dash for look in found.values()}) == 4


def test_the_look_of_an_unknown_name_is_the_same_in_every_process():
    assert looks(chart_of("my-own-sampler"))["my-own-sampler"] == Look(1, "solid")


def test_more_labels_than_colours_differ_by_their_dashes():
    assert len({*looks(chart_of(*map(str, range(24)))).values()}) == 24


# Ranges.

STEEP = [8.0, 4.0, 1.0, *(0.9 - place / 100 for place in range(28))]


def panel_of(y, **options):
    return Panel("a", "x", "y", [Line("loss", [*map(float, range(len(y)))], y)], **options)


def test_the_first_tenth_does_not_decide_the_axis():
    low, high = y_range(panel_of(STEEP))
    assert (low, high) == pytest.approx((0.63 - 0.0135, 0.9 + 0.0135))
    low, high = y_range(panel_of(STEEP, level=0.3))
    assert low < 0.3
    low, high = y_range(panel_of(STEEP, log=True))
    assert (low, high) == pytest.approx((0.615, 0.922), rel=0.01)


@pytest.mark.parametrize(
    "y", [[1.0 - place / 100 for place in range(31)], [8.0, 4.0, 1.0, 0.9], [], [1.0] * 20]
)
def test_nothing_is_left_out_where_that_would_show_no_more(y):
    assert y_range(panel_of(y)) is None


def test_an_axis_goes_by_what_is_after_the_first_steps():
    assert not logarithmic(panel_of(STEEP).lines)
    assert logarithmic(panel_of([*STEEP, 0.01]).lines)


def test_nothing_below_zero_on_a_logarithmic_axis():
    y, low, high = drawable(BAND, True)
    assert (y[0], y[2]) == (0.3, 0.6)
    assert math.isnan(y[1])
    assert low == pytest.approx([0.1, 0.1, 0.5])
    assert high == [1.0, 1.0, 0.7]
    assert drawable(BAND, False) == (BAND.y, BAND.low, BAND.high)


@pytest.mark.parametrize(
    ("values", "log"), [(FALLING, False), ([2.0, 0.01], True), ([1.0, 0.0], False)]
)
def test_an_axis_is_logarithmic_where_values_span_much(tmp_path, values, log):
    found = charts(read_comparison(directory(tmp_path, run("uniform", values))))
    assert {panel.log for panel in found[1].panels} == {log}


@pytest.mark.parametrize("rows", [WINS, NEVER, run("uniform", [1.0, 0.0]), run("uniform", [2.0])])
def test_every_chart_is_a_png(tmp_path, rows):
    for chart in charts(read_comparison(directory(tmp_path, rows))):
        png = chart_png(chart)
        assert png.startswith(b"\x89PNG")
        assert len(png) > 8_000


def test_a_chart_is_plain_values():
    chart = Chart("c", "title", [Panel("a", "x", "y", [BAND, Line("k", [5.0], [6.0])])])
    assert json.loads(json.dumps(asdict(chart)))["panels"][0]["lines"][1]["x"] == [5.0]


def test_bars_have_their_lengths_dots_texts_and_level():
    bars = [Bar("uniform", 1.0, [0.9, 1.1], "1.00x, 3 ms"), Bar("<b>", None, [], "not measured")]
    panel = Panel("cost", "over uniform", "", bars=bars, level=1.0)
    (figure,) = figures(Page(chart_html(Chart("c", "title", [panel])))).values()
    first, second = figure["bars"]
    assert (first["length"], first["dots"], first["text"]) == (1.0, [0.9, 1.1], "1.00x, 3 ms")
    assert (second["label"], second["length"], second["place"]) == ("<b>", None, 1)
    assert figure["level"] == 1


def test_a_page_of_one_chart_shows_text_as_text():
    lines = [Line("<b>", [0, 1], [1, 2]), BAND]
    chart = Chart("c", "a < b", [Panel("<i>", "x", "y", lines, log=True, level=0.5)])
    page = Page(chart_html(chart, "x < y & z"))
    assert page.find("title")[0][1] == page.find("h1")[0][1] == "a < b"
    assert page.find("figcaption")[0][1] == "<i>"
    assert "x < y & z" in page.text()
    assert not page.find("b")
    (figure,) = figures(page).values()
    assert (figure["log"], figure["level"]) == (True, 0.5)
    assert figure["lines"][1]["y"] == [0.3, None, 0.6]


def test_a_strip_has_its_modes_and_why():
    parts = [Stretch(0, 40, "off", "not yet"), Stretch(40, 100, "focused", "it pays")]
    panel = Panel("auto", "steps", "", strips=[Strip("auto", "seed 0", parts)])
    (figure,) = figures(Page(chart_html(Chart("c", "title", [panel])))).values()
    (strip,) = figure["strips"]
    assert (strip["short"], strip["end"]) == ("seed 0", 100)
    assert strip["parts"][1] == {"from": 40, "to": 100, "mode": "focused", "why": "it pays"}
    assert chart_png(Chart("c", "title", [panel])).startswith(b"\x89PNG")


def test_points_are_marked_where_the_target_was_first_reached(tmp_path):
    tested, curves, _ = charts(read_comparison(directory(tmp_path, WINS)))
    steps, seconds = curves.panels
    assert [line.mark for line in steps.lines] == [line.mark for line in seconds.lines] == [4, 2]
    assert (steps.level, steps.level_text) == (0.125, "target 0.125")
    # The ratios of the table, beside the points they are about.
    assert [line.note for line in steps.lines] == ["", "0.50x"]
    assert [line.note for line in seconds.lines] == ["", "0.60x"]
    assert (tested.panels[0].level, tested.panels[0].lines[0].mark) == (None, None)
    assert tested.panels[0].lines[0].y == [2.0] * 5
    assert tested.panels[0].unit == "%"


def test_any_measure_is_drawn_with_its_label_direction_and_unit(tmp_path):
    rows = run("uniform", FALLING, test_auc=0.75, test_error=0.25)
    config = {
        "measures": {
            "test_auc": {"label": "AUC", "better": "higher", "unit": ""},
            "test_error": {"label": "error", "better": "lower", "unit": "%"},
        },
        "primary": "test_auc",
    }
    found = read_comparison(directory(tmp_path, rows, **config))
    (auc, _), (error, _) = charts(found)[0].panels, others(found)[1].panels
    assert (auc.title, auc.unit) == ("Test AUC against steps, higher is better", "")
    assert auc.lines[0].y == [0.75] * 5
    assert (error.title, error.unit, error.lines[0].y) == (
        "Test error against steps",
        "%",
        [25.0] * 5,
    )


def test_the_worst_class_has_a_chart_where_there_are_classes(tmp_path):
    rows = [{**row, "test_error_worst": 0.5} for row in WINS]
    found = {chart.name: chart for chart in charts(read_comparison(directory(tmp_path, rows)))}
    panel = found["worst"].panels[0]
    assert (panel.y, panel.unit) == ("test error of the worst class", "%")
    assert panel.lines[1].y == [50.0] * 5


def test_a_budget_is_marked_where_the_result_is_the_same(tmp_path):
    """Half-way in log time between 0.25 and 1, where the errors are 4 and 2 %: 3 % at 0.5."""
    errors = {"uniform": {0.25: 0.05, 1.0: 0.03}, "history": {0.25: 0.04, 1.0: 0.02}}
    rows = [
        {**row, "budget": budget}
        for name, within in errors.items()
        for budget, error in within.items()
        for row in run(name, FALLING, every=round(40 * budget), test_error=error)
    ]
    panel = charts(read_comparison(directory(tmp_path, rows, budgets=[0.25, 1.0])))[0].panels[0]
    base, line = panel.lines
    assert (base.marked, base.note) == (None, "")
    assert line.marked == pytest.approx((0.5, 3.0))
    assert line.note == "0.50x"
    assert panel.level_text == "uniform: 3%"


def test_a_strip_shows_when_a_sampler_was_on_and_why(tmp_path):
    gains = [("off", 1.0), ("off", 1.05), ("focused", 1.4), ("focused", 1.5), ("focused", 2.5)]
    auto = run("auto", FALLING)
    for row, (mode, gain) in zip(auto, gains, strict=True):
        why = "" if mode != "off" else "too few passes" if gain == 1 else "losses are too even"
        row["sampler"] = {"mode": mode, "gain": gain, "why": why}
    found = read_comparison(directory(tmp_path, run("uniform", FALLING) + auto))
    chart = {each.name: each for each in charts(found)}["auto"]
    (strip,) = chart.panels[0].strips
    assert [(part.start, part.end, part.mode) for part in strip.parts] == [
        (0, 20, "off"),
        (20, 40, "focused"),
    ]
    assert strip.parts[1].why == (
        "focused from step 20 on; examples with a large loss are visited more often; gain 1.40"
    )
    assert strip.parts[0].why == (
        "off from step 0 on; shuffled passes, as without importance sampling; too few passes; "
        "gain 1.00; from step 10 on: losses are too even"
    )
    assert "focused: examples with a large loss are visited more often" in chart.title
