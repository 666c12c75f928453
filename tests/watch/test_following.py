"""A file that grows is read whole, once, whatever its writer is in the middle of."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience.watch import following
from salience.watch.following import Follower

ROWS = [{"step": place, "text": "ä\u2028" * place} for place in range(12)]


def line(row):
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


@given(cuts=st.lists(st.integers(0, len(b"".join(map(line, ROWS)))), max_size=8))
def test_every_row_comes_once_wherever_the_writer_pauses(tmp_path_factory, cuts):
    path, whole = tmp_path_factory.mktemp("f") / "rows", b"".join(map(line, ROWS))
    follower, found, done = Follower(path), [], 0
    for cut in [*sorted(cuts), len(whole)]:
        with path.open("ab") as file:
            file.write(whole[done:cut])
        done = max(done, cut)
        news = follower.read()
        assert not news.again
        assert not news.more
        found += news.rows
    assert found == ROWS
    assert follower.read() == ([], False, False)


def test_a_half_written_row_counts_once_it_is_whole(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(line(ROWS[1]) + line(ROWS[2])[:9])
    follower = Follower(path)
    assert follower.read().rows == [ROWS[1]]
    assert follower.read().rows == []
    with path.open("ab") as file:
        file.write(line(ROWS[2])[9:])
    assert follower.read().rows == [ROWS[2]]


@pytest.mark.parametrize(
    "bad", [b"{", b"\xff\xfe", b"[1]", b"7", b"", b"\0" * 50, b"[" * 100_000, b'{"a": NaN}x']
)
def test_what_is_no_row_is_left_out(tmp_path, bad):
    path = tmp_path / "rows"
    path.write_bytes(line(ROWS[1]) + bad + b"\n" + line(ROWS[2]))
    assert Follower(path).read().rows == ROWS[1:3]


@pytest.mark.parametrize("change", ["replaced", "cut", "written over", "gone"])
def test_a_file_that_is_not_the_same_any_more_is_read_anew(tmp_path, change):
    path = tmp_path / "rows"
    path.write_bytes(b"".join(map(line, ROWS[1:4])))
    follower = Follower(path)
    assert follower.read().rows == ROWS[1:4]
    after = {
        "replaced": ROWS[5:],
        "cut": ROWS[1:2],
        "written over": ROWS[6:],
        "gone": [],
    }[change]
    if change == "replaced":
        (tmp_path / "new").write_bytes(b"".join(map(line, after)))
        (tmp_path / "new").replace(path)
    elif change == "gone":
        path.unlink()
    else:
        path.write_bytes(b"".join(map(line, after)))
    assert follower.read() == (after, True, False)
    assert follower.read() == ([], False, False)


def test_a_file_that_is_not_there_is_waited_for(tmp_path):
    follower = Follower(tmp_path / "later" / "rows")
    assert follower.read() == ([], False, False)
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "rows").write_bytes(line(ROWS[1]))
    assert follower.read() == ([ROWS[1]], False, False)


def test_a_pipe_or_a_directory_in_its_place_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "rows")
    assert Follower(tmp_path / "rows").read() == ([], False, False)
    assert Follower(tmp_path).read() == ([], False, False)


def test_a_large_file_comes_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "MOST", 64)
    path = tmp_path / "rows"
    path.write_bytes(b"".join(line({"step": place}) for place in range(100)))
    follower, found, more = Follower(path), [], True
    while more:
        rows, again, more = follower.read()
        assert not again
        found += rows
    assert [row["step"] for row in found] == [*range(100)]


def test_a_line_that_never_ends_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "MOST", 64)
    monkeypatch.setattr(following, "LONGEST", 64)
    path = tmp_path / "rows"
    path.write_bytes(b'{"step": "' + b"x" * 500 + b'"}\n' + line({"step": 1}))
    follower, found, more = Follower(path), [], True
    while more:
        rows, _, more = follower.read()
        found += rows
    assert found == [{"step": 1}]
