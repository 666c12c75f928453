"""What the live page is given: from rows as they come, and from whatever else lies there."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.made_up import BAD_NAME, FALLING, SEEDS, directory, run
from salience.compare.directory import write_rows
from salience.watch import Log
from salience.watch.progress import Pace
from salience.watch.training import MOST_POINTS, Training
from salience.watch.view import View


def look(view):
    return json.loads(view.answer(0))


def line(data, chart, name):
    (found,) = (each for each in data["figures"][chart]["lines"] if each["label"] == name)
    return found


def comparison(at, rows, **options):
    return directory(at, rows, evaluations=4, finished=False, **options)


def test_a_directory_that_is_not_there_yet_is_waited_for(tmp_path):
    view = View(tmp_path / "later")
    assert look(view)["state"] == "waiting"
    assert "no directory" in look(view)["lead"]
    comparison(tmp_path / "later", run("uniform", FALLING[:2]))
    assert look(view)["state"] == "running"


def test_curves_grow_as_rows_come(tmp_path):
    begun = [row for row in SEEDS if row["step"] <= 20]
    view = View(comparison(tmp_path, begun, methods=["uniform", "history", "loss"]))
    data = look(view)
    assert line(data, "train-0", "history")["x"] == [0, 10, 20]
    assert line(data, "train-0", "history")["y"] == [2.0, 0.45, 0.125]
    assert line(data, "train-0", "history")["low"] == [2.0, 0.4, 0.12]
    assert data["progress"] == pytest.approx(0.5)
    seen = int(data["version"])
    assert view.answer(seen) is None
    with (tmp_path / "runs.jsonl").open("a") as file:
        for row in SEEDS:
            if row["step"] == 30 and row["method"] == "history":
                file.write(json.dumps(row) + "\n")
        file.write('{"half": ')
    data = json.loads(view.answer(seen))
    assert int(data["version"]) > seen
    assert line(data, "train-0", "history")["x"] == [0, 10, 20, 30]
    assert line(data, "train-0", "uniform")["x"] == [0, 10, 20]
    assert data["progress"] == pytest.approx((6 * 2 + 2) / (6 * 4))
    assert data["table"]["lines"][1] == ["history", "30", "1.50%", "0.1"]


def test_a_comparison_that_ends_says_so(tmp_path):
    view = View(comparison(tmp_path, SEEDS))
    assert look(view)["state"] == "running"
    directory(tmp_path, SEEDS, evaluations=4)
    data = look(view)
    assert (data["state"], data["progress"], data["left"]) == ("finished", 1.0, None)


def test_rows_that_are_begun_again_replace_the_others(tmp_path):
    view = View(comparison(tmp_path, SEEDS))
    look(view)
    write_rows(tmp_path, run("uniform", FALLING[:2]))
    data = look(view)
    assert line(data, "train-0", "uniform")["x"] == [0, 10]
    assert len(data["figures"]["train-0"]["lines"]) == 1


def test_budgets_are_shown_one_after_the_other(tmp_path):
    rows = [{**row, "budget": 0.5} for row in run("uniform", FALLING)]
    rows += [{**row, "budget": 1.0} for row in run("uniform", FALLING[:3])]
    data = look(View(comparison(tmp_path, rows, budgets=[0.5, 1.0])))
    assert line(data, "train-0", "uniform")["x"] == [0, 10, 20]
    assert data["progress"] == pytest.approx((0.5 + 0.5) / 1.5)
    assert "within 100% of the length" in data["lead"]


def test_what_samplers_do_is_shown(tmp_path):
    rows = run("uniform", FALLING[:3]) + run("auto", FALLING[:3])
    for row, mode in zip(rows[3:], ["off", "focused", "focused"], strict=True):
        row["sampler"] = {"mode": mode, "gain": 1.3}
    data = look(View(comparison(tmp_path, rows)))
    (strip,) = data["figures"]["auto-0"]["strips"]
    assert [part["mode"] for part in strip["parts"]] == ["off", "focused"]
    assert strip["place"] == [each["name"] for each in data["legend"]].index("auto")
    assert [each[-1] for each in data["table"]["lines"]] == ["", "focused"]


def test_a_log_is_shown_with_its_time_left(tmp_path):
    log = Log(tmp_path, steps=40, every=10)
    for place in range(20):
        log.step(train_loss=float(place))
    log.add(test_loss=1.0, accuracy=0.5)
    data = look(View(tmp_path))
    assert data["progress"] == 0.5
    assert line(data, "value-0-0", "train loss")["y"] == [4.5, 14.5]
    assert line(data, "value-0-0", "test loss")["x"] == [20]
    assert line(data, "value-1-0", "accuracy")["y"] == [0.5]
    assert data["table"]["lines"][0] == ["train loss", "14.5"]
    log.close()
    assert look(View(tmp_path))["state"] == "finished"


def test_a_second_run_in_a_log_is_another_line_and_a_resumed_one_is_not(tmp_path):
    for first, losses in ((0, [1.0]), (1, [2.0]), (0, [3.0])):
        with Log(tmp_path, every=1, first_step=first) as log:
            for loss in losses:
                log.step(loss=loss)
    data = look(View(tmp_path))
    assert line(data, "value-0-0", "loss (run 1)")["y"] == [1.0, 2.0]
    assert line(data, "value-0-0", "loss (run 2)")["y"] == [3.0]


def test_a_configuration_of_somebody_else_does_not_hide_a_log(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with Log(tmp_path, every=1) as log:
        log.step(loss=1.0)
    assert look(View(tmp_path))["title"].startswith("Training")


def test_long_logs_keep_their_range_in_few_points():
    training = Training()
    training.add({"log": 1})
    values = [float(place % 7) for place in range(10 * MOST_POINTS)]
    for step, value in enumerate(values):
        training.add({"step": step, "values": {"loss": value}})
    (found,) = training.charts()[0].panels[0].lines
    assert len(found.x) <= MOST_POINTS
    assert found.x[-1] == len(values) - 1
    assert found.x == sorted(found.x)
    assert (min(found.low), max(found.high)) == (0.0, 6.0)
    assert math.fsum(found.y) / len(found.y) == pytest.approx(3.0, abs=0.1)


def test_names_are_handed_on_as_they_are(tmp_path):
    data = look(View(comparison(tmp_path, run("uniform", FALLING) + run(BAD_NAME, FALLING))))
    assert data["legend"][1]["name"] == BAD_NAME
    assert data["table"]["lines"][1][0] == BAD_NAME


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)
KEYS = [
    *("method", "task", "seed", "step", "seconds", "budget", "train_loss", "test_error", "sampler"),
    *("values", "log", "steps", "first", "end", "methods", "seeds", "evaluations", "budgets"),
    *("measures", "primary"),
]
objects = st.dictionaries(st.sampled_from(KEYS), json_values)
odd = st.builds(  # a row with one value that it should not have
    lambda row, key, value: {**row, key: value},
    st.sampled_from(SEEDS[:3]),
    st.sampled_from(KEYS),
    json_values,
)
planned = st.builds(lambda key, value: {key: value}, st.sampled_from(KEYS), json_values)


@given(config=planned, rows=st.lists(odd | objects, min_size=1, max_size=4))
@settings(max_examples=100)
def test_whatever_lies_there_is_survived(tmp_path_factory, config, rows):
    at = tmp_path_factory.mktemp("v")
    (at / "config.json").write_text(json.dumps({"methods": ["uniform"], "seeds": [0], **config}))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (at / "runs.jsonl").write_text(text)
    look(View(at))
    (at / "config.json").unlink()
    (at / "log.jsonl").write_text('{"log": 1}\n' + text)
    look(View(at))


# Time left.


def test_the_time_left_follows_the_pace():
    pace = Pace()
    assert pace.left(0.0) is None
    pace.look(100.0, 0.1)
    assert pace.left(100.0) is None
    assert pace.left(100.0, began=50.0) == pytest.approx(450.0)
    pace.look(110.0, 0.2)
    pace.look(120.0, 0.3)
    assert pace.left(120.0, began=50.0) == pytest.approx(70.0)
    assert pace.left(125.0) == pytest.approx(65.0)
    assert pace.left(500.0) == 0.0
    pace.look(600.0, 0.05)  # begun again
    assert pace.left(600.0) is None
    pace.look(700.0, 1.0)
    assert pace.left(700.0) is None
