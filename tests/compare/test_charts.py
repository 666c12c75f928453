"""Charts: one description, drawn the same by matplotlib and by plotly."""

import json
import math
from dataclasses import asdict

import pytest

from compare.made_up import FALLING, NEVER, WINS, directory, run
from compare.pages import Page, figures
from salience.compare.charts import Bar, Chart, Line, Look, Panel, drawable, looks
from salience.compare.reading import read_comparison
from salience.compare.report.figures import charts
from salience.compare.report.interactive import chart_html
from salience.compare.report.png import chart_png

BAND = Line("loss", [0, 1, 2], [0.3, 0.0, 0.6], [-1.0, -1.0, 0.5], [1.0, 1.0, 0.7])


def test_labels_look_the_same_in_every_panel():
    panels = [
        Panel("a", "x", "y", [Line(name, [0.0], [1.0]) for name in ("loss", "uniform", "gnorm")]),
        Panel("b", "x", "y", [Line("pool", [0], [1], like="gnorm")]),
        Panel("c", "x", "y", bars=[Bar("loss", 1.0, [], "1.00x")]),
    ]
    assert looks(Chart("c", "title", panels)) == {
        "loss": Look(1, "solid"),
        "uniform": Look(0, "dash"),
        "gnorm": Look(2, "solid"),
        "pool": Look(2, "dot"),
    }


def test_more_labels_than_colours_differ_by_their_dashes():
    lines = [Line(str(place), [0.0], [1.0]) for place in range(18)]
    assert len({*looks(Chart("c", "title", [Panel("a", "x", "y", lines)])).values()}) == 18


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
    assert {panel.log for panel in found[0].panels} == {log}


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
    bar, dots, text, other, *_ = figure["data"]
    assert (bar["x"], dots["x"], other["x"]) == ([1.0], [0.9, 1.1], [0])
    assert text["text"] == "<b>uniform</b>  1.00x, 3 ms"
    assert figure["data"][-1]["text"] == "<b>&lt;b&gt;</b>  not measured"
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [1]


def test_a_page_of_one_chart_shows_text_as_text():
    lines = [Line("<b>", [0, 1], [1, 2]), BAND]
    chart = Chart("c", "a < b", [Panel("<i>", "x", "y", lines, log=True, level=0.5)])
    page = Page(chart_html(chart, "x < y & z"))
    assert page.find("title")[0][1] == page.find("h1")[0][1] == "a < b"
    assert page.find("figcaption")[0][1] == "<i>"
    assert "x < y & z" in page.text()
    assert not page.find("b")
    (figure,) = figures(page).values()
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert [trace["y"] for trace in figure["data"] if trace["line"].get("dash") == "dot"] == [
        [0.5, 0.5]
    ]


def test_points_are_marked_where_the_target_was_first_reached(tmp_path):
    curves, tested, _ = charts(read_comparison(directory(tmp_path, WINS)))
    assert [line.mark for line in curves.panels[0].lines] == [4, 2]
    assert curves.panels[0].level == 0.125
    assert (tested.panels[0].level, tested.panels[0].lines[0].mark) == (None, None)
    assert tested.panels[0].lines[0].y == [2.0] * 5
    assert tested.panels[0].unit == "%"
