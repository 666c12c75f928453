"""The live page is for this machine, for reading, and for two addresses."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from compare.made_up import FALLING, directory, run
from salience.errors import ArgumentError
from salience.watch.server import make_server


@contextmanager
def served(at):
    server = make_server(at, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def port(tmp_path):
    (tmp_path / "outside.txt").write_text("a secret")
    directory(tmp_path / "run", run("uniform", FALLING), finished=False, evaluations=4)
    with served(tmp_path / "run") as found:
        yield found


def ask(port, path="/", method="GET", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content.decode()


def test_the_page_and_its_data_are_served(port):
    answer, page = ask(port)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "Watching run" in page
    answer, text = ask(port, "/data?seen=0")
    data = json.loads(text)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert data["title"] == "Comparison on made up: run"
    answer, text = ask(port, f"/data?seen={data['version']}")
    assert (answer.status, text) == (204, "")


def test_head_has_the_headers_alone(port):
    answer, text = ask(port, method="HEAD")
    assert (answer.status, text) == (200, "")
    assert int(answer.headers["Content-Length"]) == len(ask(port)[1].encode())


@pytest.mark.parametrize("path", ["/", "/data", "/none"])
def test_nothing_is_kept_framed_or_fetched_from_elsewhere(port, path):
    answer, _ = ask(port, path)
    policy = answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"script-src[^;]*unsafe", policy)
    assert "Python" not in answer.headers["Server"]


def test_the_policy_of_the_page_is_that_of_its_headers(port):
    answer, page = ask(port)
    written = re.search('http-equiv="Content-Security-Policy" content="(.*?)"', page)[1]
    own = answer.headers["Content-Security-Policy"]
    assert own == written.replace("&#39;", "'") + "; frame-ancestors 'none'"
    assert "connect-src 'self'" in own


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_names_of_this_machine_are_answered(port, name):
    assert ask(port, Host=f"{name}:{port}")[0].status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "127.0.0.1:{port}.evil.example",
        "evil.example@127.0.0.1:{port}",
        "0.0.0.0:{port}",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/", "/data"])
def test_other_names_are_refused(port, host, path):
    answer, text = ask(port, path, Host=host.format(port=port))
    assert answer.status == 403
    assert "made up" not in text


def raw(port, request):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /data HTTP/1.0\r\n\r\n", b"403"),  # no host at all
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nHost: evil.example\r\n\r\n", b"403"),
        (b"GET http://127.0.0.1:%d/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", b"404"),
        (b"GET //evil.example/data HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", b"404"),
        (b"GET [ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", b"404"),
        (b"GET http://[/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", b"404"),
        (b"GET / HTTP/nonsense\r\n\r\n", b"400"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /\r\n\r\n", b"403"),
        (b"<script>alert(1)</script> / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", b"405"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431"),
    ],
)
def test_odd_requests_are_refused_in_plain_text(port, request_, status):
    head, _, body = raw(port, request_.replace(b"%d", str(port).encode())).partition(b"\r\n\r\n")
    assert head.split()[1] == status
    assert b"text/plain" in head
    assert b"<script>" not in body


@pytest.mark.parametrize(
    "path",
    [
        "/config.json",
        "/runs.jsonl",
        "/../outside.txt",
        "/..%2foutside.txt",
        "/%2e%2e/outside.txt",
        "/data/../../outside.txt",
        "/data/",
        "/data;x",
        "/index.html",
        "/favicon.ico",
        "/../../../../../../etc/passwd",
    ],
)
def test_no_file_has_an_address(port, path):
    answer, text = ask(port, path)
    assert answer.status == 404
    assert text == "there is only / and /data\n"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "MOVE"])
def test_nothing_can_be_written(port, tmp_path, method):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for path in ("/", "/data", "/config.json"):
        answer, text = ask(port, path, method, body=b"{}")
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
        assert text == "nothing can be written here\n"
    ask(port, "/data")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("seen", ["x", "-1", "1e9", "9" * 5000, "%00", "%C2%B2", ""])
def test_an_odd_version_gets_everything(port, seen):
    answer, text = ask(port, f"/data?seen={seen}")
    assert answer.status == 200
    assert json.loads(text)["state"] == "running"


def test_only_the_loopback_address_listens(port):
    with socket.socket() as probe:
        probe.settimeout(2)
        probe.connect(("127.0.0.1", port))
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for address in {"127.0.0.2", *others} - {"127.0.0.1", "::1"}:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.settimeout(2)
            assert probe.connect_ex((address, port)) != 0


def test_a_client_that_says_nothing_does_not_keep_others_waiting(port):
    with socket.create_connection(("127.0.0.1", port)):
        assert ask(port)[0].status == 200


def test_bad_arguments_are_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="is not a directory"):
        make_server(tmp_path / "file")
    with pytest.raises(ArgumentError, match="between 0 and 65535; got 70000"):
        make_server(tmp_path, 70000)
    with (
        served(tmp_path) as port,
        pytest.raises(ArgumentError, match=rf"port {port} .* choose another --port"),
    ):
        make_server(tmp_path, port)


def test_the_command_tells_its_address_and_ends_quietly(tmp_path):
    command = [sys.executable, "-m", "salience", "watch", str(tmp_path / "later"), "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Else deaf to Ctrl-C where the tests run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    told = process.stdout.readline()
    port = int(re.search(r"at http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)", told)[1])
    assert json.loads(ask(port, "/data")[1])["state"] == "waiting"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode == 0
