"""Downloads against a server on loopback that also misbehaves, and the commands round them."""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import salience
from salience.cli import data
from salience.cli.main import make_app
from salience.errors import DataError
from salience.paper.data import catalogue
from salience.paper.data import fetch as fetching
from salience.paper.data.catalogue import CATALOGUE, Collection, Download, File, checked, inspect
from salience.paper.data.fetch import fetch

HASTY = {"TIMEOUT": 0.3, "ATTEMPTS": 3, "PAUSE": 0.01}
BODY = bytes(range(256)) * 1200  # several chunks
HALF = len(BODY) // 2
REST = f"bytes={HALF}-"
PARTS = {"one.txt": b"first\n" * 50, "two.txt": b"second\n" * 70}


def md5(content):
    return hashlib.md5(content).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``files``; the n-th request is answered as ``moods[n]`` says, later ones well."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.moods, self.asked = {}, [], []
        self.closing = threading.Event()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}/some/where"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        range_ = self.headers["Range"]
        self.server.asked.append(range_)
        moods = self.server.moods
        mood = moods.pop(0) if moods else "well"
        body = self.server.files.get(self.path.removeprefix("/some/where/"))
        if isinstance(mood, int) or body is None:
            return self.send_error(mood if isinstance(mood, int) else 404)
        start = int(range_[len("bytes=") : -1]) if range_ and mood != "no range" else 0
        if start and start >= len(body):
            return self.send_error(416)
        return self.answer(body, start, mood)

    def answer(self, body, start, mood):
        start += mood == "wrong place"
        rest = body[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if mood != "no length":
            self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if mood == "corrupt":
            rest = rest[:-1] + bytes([rest[-1] ^ 1])
        self.wfile.write(rest[: HALF - start] if mood in ("truncated", "hangs") else rest)
        if mood == "hangs":
            self.server.closing.wait(20)


@pytest.fixture
def server(monkeypatch):
    for name, value in HASTY.items():
        monkeypatch.setattr(fetching, name, value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


def one_file(server):
    server.files["data.bin"] = BODY
    file = File("data.bin", len(BODY), md5(BODY))
    source = Download(f"{server.address}/data.bin", file.md5, (file,))
    return Collection("bytes", "none", ("tiny", "elsewhere/tiny"), (source,))


def pack(members):
    """A .tgz of (name, content) pairs, or of members made by hand."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members:
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = info.size if info is content else len(content)
            tar.addfile(info, None if info is content else io.BytesIO(content))
    return packed.getvalue()


def archived(server, packed):
    """A set whose two files come in the archive ``packed``, in its folder ``top/data``."""
    server.files["set.tgz"] = packed
    files = tuple(File(name, len(content), md5(content)) for name, content in PARTS.items())
    source = Download(f"{server.address}/set.tgz", md5(packed), files, inside="top/data")
    return Collection("text", "none", ("tiny",), (source,))


def good_members():
    return [(f"./top/data/{name}", content) for name, content in PARTS.items()]


def names(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


# Single files.


def test_a_file_arrives_whole_and_is_not_fetched_again(server, tmp_path):
    tiny = one_file(server)
    seen = []
    watch = lambda name: lambda there, total: seen.append((name, there, total))  # noqa: E731
    assert fetch(tiny, tmp_path, progress=watch) == list(tiny.files)
    assert names(tmp_path) == ["tiny", "tiny/data.bin"]
    assert (tmp_path / "tiny/data.bin").read_bytes() == BODY
    assert seen[0] == ("data.bin", 0, len(BODY))
    assert seen[-1] == ("data.bin", len(BODY), len(BODY))
    assert len(seen) > 3
    assert fetch(tiny, tmp_path) == []
    assert server.asked == [None]


@pytest.mark.parametrize(
    ("moods", "asked"),
    [
        (["truncated"], [None, REST]),
        (["hangs"], [None, REST]),
        (["truncated", "no range"], [None, REST]),  # the server begins again
        (["truncated", "wrong place"], [None, REST, None]),  # and we do
        (["no length"], [None]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_an_imperfect_server(server, tmp_path, moods, asked):
    server.moods = moods
    began = time.monotonic()
    fetch(one_file(server), tmp_path)
    assert time.monotonic() - began < 10
    assert (tmp_path / "tiny/data.bin").read_bytes() == BODY
    assert server.asked == asked


def test_a_passing_fault_is_retried_and_a_lasting_one_ends_with_what_is_there(server, tmp_path):
    tiny = one_file(server)
    server.moods = ["truncated", 503, 503]
    with pytest.raises(DataError, match=r"in 3 attempts \(the server answered 503 .*again to cont"):
        fetch(tiny, tmp_path)
    assert names(tmp_path) == ["tiny", "tiny/data.bin.part"]
    assert (tmp_path / "tiny/data.bin.part").read_bytes() == BODY[:HALF]
    fetch(tiny, tmp_path)
    assert server.asked[-1] == REST
    assert names(tmp_path) == ["tiny", "tiny/data.bin"]


@pytest.mark.parametrize(
    ("mood", "sentence"),
    [(404, "the server answered 404"), ("corrupt", "checksum differs; nothing was kept")],
)
def test_a_wrong_answer_is_not_asked_for_again(server, tmp_path, mood, sentence):
    server.moods = [mood]
    with pytest.raises(DataError, match=sentence):
        fetch(one_file(server), tmp_path)
    assert server.asked == [None]
    assert names(tmp_path) == ["tiny"]


def test_no_server(server, tmp_path, monkeypatch):
    monkeypatch.setenv("SALIENCE_MIRROR", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"in 3 attempts .*refused"):
        fetch(one_file(server), tmp_path)


@pytest.mark.parametrize(
    ("left", "asked"),
    [
        (b"something else", ["bytes=14-", None]),  # continued, wrong, and begun again
        (BODY + b"more", [f"bytes={len(BODY) + 4}-", None]),
        (BODY, []),  # stopped before the new name
    ],
)
def test_what_lies_there_is_used_only_if_it_is_right(server, tmp_path, left, asked):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/data.bin.part").write_bytes(left)
    fetch(one_file(server), tmp_path)
    assert (tmp_path / "tiny/data.bin").read_bytes() == BODY
    assert names(tmp_path) == ["tiny", "tiny/data.bin"]
    assert server.asked == asked


def test_a_download_that_was_killed_goes_on_from_there(server, tmp_path):
    tiny = one_file(server)
    server.moods = ["hangs"]
    program = (
        "import sys; from pathlib import Path; from salience.paper.data.fetch import fetch\n"
        "from salience.paper.data.catalogue import Collection, Download, File\n"
        f"fetch({tiny!r}, Path(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(salience.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path], env=environment)
    part = tmp_path / "tiny/data.bin.part"
    deadline = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size == HALF) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert names(tmp_path) == ["tiny", "tiny/data.bin.part"]
    fetch(tiny, tmp_path)
    assert (tmp_path / "tiny/data.bin").read_bytes() == BODY
    assert server.asked == [None, REST]


def test_a_damaged_file_is_replaced_where_it_lies(server, tmp_path):
    place = tmp_path / "elsewhere/tiny"
    place.mkdir(parents=True)
    (place / "data.bin").write_bytes(BODY[:-1] + b"!")
    tiny = one_file(server)
    assert inspect(tiny, tmp_path, thorough=False) == {place / "data.bin": "ok"}
    assert inspect(tiny, tmp_path, thorough=True) == {place / "data.bin": "damaged"}
    (place / "data.bin").write_bytes(BODY[:-1])
    assert inspect(tiny, tmp_path, thorough=False) == {place / "data.bin": "damaged"}
    fetch(tiny, tmp_path)
    assert inspect(tiny, tmp_path, thorough=True) == {place / "data.bin": "ok"}
    assert not (tmp_path / "tiny").exists()


def test_an_endless_body_ends(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "MOST", 100_000)
    with pytest.raises(DataError, match="does not end"):
        fetch(one_file(server), tmp_path)


def test_a_place_that_cannot_be_written_to_is_named(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot write to .*file"):
        fetch(one_file(server), tmp_path / "file")
    (tmp_path / "tiny/data.bin.part").mkdir(parents=True)
    with pytest.raises(DataError, match=r"cannot write .*data\.bin\.part"):
        fetch(one_file(server), tmp_path)


@pytest.mark.parametrize("mirror", ["file:///etc", "ftp://127.0.0.1", "elsewhere"])
def test_only_http_addresses_can_be_mirrors(server, tmp_path, mirror, monkeypatch):
    monkeypatch.setenv("SALIENCE_MIRROR", mirror)
    with pytest.raises(DataError, match="begins with http"):
        fetch(one_file(server), tmp_path)


# Archives.


def test_an_archive_gives_its_known_files_and_nothing_else(server, tmp_path):
    extra = [("top/data/three.txt", b"not asked for"), ("top/readme", b"neither")]
    fetch(archived(server, pack(good_members() + extra)), tmp_path)
    assert names(tmp_path) == ["tiny", "tiny/one.txt", "tiny/two.txt"]
    for name, content in PARTS.items():
        assert (tmp_path / "tiny" / name).read_bytes() == content


def link(name, target, kind=tarfile.SYMTYPE, size=0):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return (name, info)


RIGHT_BUT_LINKED = [
    good_members()[0],
    ("top/data/other", PARTS["two.txt"]),
    link("top/data/two.txt", "other", size=len(PARTS["two.txt"])),
]


@pytest.mark.parametrize(
    "bad",
    [
        ("../escaped.txt", b"out"),
        ("top/../../escaped.txt", b"out"),
        ("/escaped.txt", b"out"),
        link("top/link", "/etc/passwd"),
        link("top/link", "../../escaped.txt"),
        link("top/hard", "../escaped.txt", tarfile.LNKTYPE),
        link("top/device", "", tarfile.CHRTYPE),
    ],
    ids=lambda member: member[0],
)
@pytest.mark.parametrize("first", [True, False])
def test_an_archive_that_points_outside_is_refused_whole(server, tmp_path, bad, first):
    members = [bad, *good_members()] if first else [*good_members(), bad]
    home = tmp_path / "home"
    with pytest.raises(DataError, match="is refused, nothing was unpacked"):
        fetch(archived(server, pack(members)), home)
    assert names(tmp_path) == ["home", "home/tiny"]


@pytest.mark.parametrize(
    "members",
    [
        good_members()[:1],
        [good_members()[0], ("top/data/two.txt", PARTS["two.txt"][:-1])],
        [good_members()[0], ("top/data/two.txt", PARTS["two.txt"].upper())],
        [good_members()[0], ("data/two.txt", PARTS["two.txt"])],
        RIGHT_BUT_LINKED,
    ],
    ids=["missing", "short", "altered", "elsewhere", "a link"],
)
def test_all_files_of_an_archive_or_none(server, tmp_path, members):
    with pytest.raises(DataError, match=r"does not hold the published two\.txt"):
        fetch(archived(server, pack(members)), tmp_path)
    assert names(tmp_path) == ["tiny"]


def test_a_file_of_another_size_is_not_even_unpacked(server, tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(tarfile.TarFile, "extractfile", lambda _, member: taken.append(member.name))
    members = [("top/data/two.txt", b"far too large" * 1000), good_members()[0]]
    with pytest.raises(DataError, match="does not hold"):
        fetch(archived(server, pack(members)), tmp_path)
    assert taken == ["./top/data/one.txt"]


@pytest.mark.parametrize(
    "packed",
    [pack(good_members())[:-40], b"no archive", gzip.compress(b"nor this one"), b""],
    ids=["cut", "text", "gzip", "empty"],
)
def test_what_is_no_archive_is_said_to_be_none(server, tmp_path, packed):
    with pytest.raises(DataError, match=r"cannot be unpacked|does not hold"):
        fetch(archived(server, packed), tmp_path)
    assert names(tmp_path) == ["tiny"]


# The catalogue.


def test_the_catalogue_has_the_canonical_addresses():
    addresses = [each.address for set_ in CATALOGUE.values() for each in set_.downloads]
    assert addresses == [
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz",
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-labels-idx1-ubyte.gz",
        "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-images-idx3-ubyte.gz",
        "https://ossci-datasets.s3.amazonaws.com/mnist/t10k-labels-idx1-ubyte.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
    ]


def test_checked_files_are_found_or_refused_with_the_remedy(tmp_path, monkeypatch):
    content = PARTS["one.txt"]
    file = File("one.txt", len(content), md5(content))
    tiny = Collection("", "", ("tiny",), (Download("http://x/one.txt", file.md5, (file,)),))
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", tiny)
    remedy = f"with `salience data fetch tiny --data-dir {tmp_path}`"
    path = tmp_path / "tiny/one.txt"
    with pytest.raises(DataError) as missing:
        checked("tiny", tmp_path, ["one.txt"])
    assert str(missing.value) == f"{path} is missing: get it {remedy}"
    path.parent.mkdir()
    for wrong in (content[:-1], content.upper()):
        path.write_bytes(wrong)
        with pytest.raises(DataError) as damaged:
            checked("tiny", tmp_path, ["one.txt"])
        assert str(damaged.value) == f"{path} is not the published file: replace it {remedy}"
    path.write_bytes(content)
    assert checked("tiny", tmp_path, ["one.txt"]) == [path]
    monkeypatch.setenv("SALIENCE_DATA", str(tmp_path))
    assert checked("tiny", None, ["one.txt"]) == [path]
    monkeypatch.delenv("SALIENCE_DATA")
    with pytest.raises(DataError, match="pass --data-dir DIR, or set SALIENCE_DATA"):
        checked("tiny", None, ["one.txt"])


# The commands.


@pytest.fixture
def shop(server, monkeypatch):
    """A catalogue of two small sets, and the mirror that has them."""
    monkeypatch.delenv("SALIENCE_DATA", raising=False)
    monkeypatch.setenv("SALIENCE_MIRROR", server.address + "/")
    first = one_file(server)
    elsewhere = replace(first.downloads[0], address="https://nowhere.invalid/data.bin")
    second = replace(archived(server, pack(good_members())), folders=("text",))
    sets = {"tiny": replace(first, downloads=(elsewhere,)), "text": second}
    monkeypatch.setattr(catalogue, "CATALOGUE", sets)
    return server


def invoke(*arguments):
    return CliRunner().invoke(make_app(), ["data", *map(str, arguments)])


def test_list_fetch_and_verify_tell_the_same_story(shop, tmp_path):
    listed = invoke("list", "--data-dir", tmp_path)
    assert listed.exit_code == 0
    assert "1 missing of 1" in listed.output
    assert "2 missing of 2" in listed.output

    fetched = invoke("fetch", "tiny", "--data-dir", tmp_path)
    assert (fetched.exit_code, fetched.stderr) == (0, "")
    assert fetched.stdout == f"tiny: fetched 1 files, in {tmp_path / 'tiny'}\n"
    assert "complete" in invoke("list", "--data-dir", tmp_path).output
    assert invoke("verify", "tiny", "--data-dir", tmp_path).exit_code == 0

    verified = invoke("verify", "--data-dir", tmp_path)
    assert verified.exit_code == 2
    assert verified.stderr == (
        "salience: not complete: text (2 missing of 2); "
        f"mend with `salience data fetch text --data-dir {tmp_path}`\n"
    )
    assert invoke("fetch", "--data-dir", tmp_path).exit_code == 0
    verified = invoke("verify", "--data-dir", tmp_path)
    assert (verified.exit_code, verified.stdout.count("ok ")) == (0, 3)
    assert "were there and right" in invoke("fetch", "--data-dir", tmp_path).output
    assert len(shop.asked) == 2


@pytest.mark.usefixtures("shop")
def test_verify_detects_one_changed_bit_and_fetch_mends_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SALIENCE_DATA", str(tmp_path))
    assert invoke("fetch").exit_code == 0
    path = tmp_path / "text/one.txt"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    result = invoke("verify")
    assert result.exit_code == 2
    assert f"damaged  {path}" in result.stdout
    assert "text (1 damaged of 2)" in result.stderr
    assert invoke("fetch", "text").exit_code == 0
    assert invoke("verify").exit_code == 0


@pytest.mark.usefixtures("shop")
def test_without_a_directory_the_list_still_names_the_sets():
    result = invoke("list")
    assert result.exit_code == 0
    assert {"tiny", "text"} <= set(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fetch", "tiny"], "no data directory was given"),
        (["verify"], "no data directory was given"),
        (["fetch", "imagenet", "--data-dir", "."], "no data set 'imagenet': choose from tiny, te"),
        (["fetch", "gone", "--data-dir", "{tmp}"], "the server answered 404"),
    ],
)
def test_refusals_are_one_sentence(shop, tmp_path, arguments, sentence):
    gone = one_file(shop)
    gone = replace(gone, downloads=(replace(gone.downloads[0], address="http://x.invalid/gone"),))
    catalogue.CATALOGUE["gone"] = gone
    result = invoke(*(part.format(tmp=tmp_path) for part in arguments))
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.startswith("salience: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.usefixtures("shop")
def test_a_terminal_gets_a_bar_for_each_file(tmp_path, monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(data, "Console", lambda: console)
    data.fetch(data_dir=tmp_path)
    text = console.file.getvalue()
    assert "data.bin" in text
    assert "set.tgz" in text
    assert "307.2/307.2 kB" in text
