"""The live page, served to this machine only: two addresses, nothing to write, no files by name."""

import socket
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, final
from urllib.parse import parse_qs, urlsplit

from salience.compare.report.interactive import policy, render, text_of
from salience.errors import ArgumentError
from salience.watch.view import View

__all__ = ["LOOPBACK", "PORT", "make_server", "page"]

LOOPBACK = "127.0.0.1"
PORT = 8042
SCRIPTS = ("charts.js", "salience.watch:watch.js")
PATIENCE = 10.0  # seconds for a request to arrive
SAFE = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def make_server(directory: Path, port: int | None = None) -> ThreadingHTTPServer:
    """A server for ``serve_forever``, on the loopback address. None: the usual port, or any."""
    if directory.exists() and not directory.is_dir():
        raise ArgumentError(f"{directory} is not a directory: name the one that is written to")
    if port is not None and not 0 <= port <= 65535:
        raise ArgumentError(f"port must be between 0 and 65535; got {port}")
    own = policy([text_of(name) for name in SCRIPTS], "'self'")
    allowed = {"Content-Security-Policy": f"{own}; frame-ancestors 'none'"}
    handler = partial(_Handler, View(directory), page(directory).encode(), allowed)
    wanted = [PORT, 0] if port is None else [port]
    for each in wanted:
        try:
            return _Server((LOOPBACK, each), handler)
        except OSError as error:
            why = error.strerror or error
    raise ArgumentError(f"cannot listen on port {port} ({why}): choose another --port")


def page(directory: Path) -> str:
    """The page, which asks for its data itself."""
    title = f"Watching {directory.name or directory}"
    template = "salience.watch:watch.html.jinja"
    return render(template, scripts=SCRIPTS, connect="'self'", title=title)


@final
class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    # Without it a second server on Linux could share the port.
    allow_reuse_port = False

    def server_bind(self) -> None:
        # The base class asks for the name of the machine, which may take long.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, *_: Any) -> None:
        """A browser that went away is no error."""


@final
class _Handler(BaseHTTPRequestHandler):
    """``/`` is the page and ``/data`` its data; everything else is refused."""

    timeout = PATIENCE
    server_version, sys_version = "salience", ""

    def __init__(self, view: View, page: bytes, headers: dict[str, str], *connection: Any) -> None:
        self._view, self._page, self._page_headers = view, page, headers
        super().__init__(*connection)

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if not self._asked_here():
            self._refuse(HTTPStatus.FORBIDDEN, "this page is only for browsers on this machine")
            return
        try:
            asked = urlsplit(self.path)
        except ValueError:
            asked = urlsplit("/none")
        if (asked.scheme, asked.netloc, asked.path) == ("", "", "/"):
            kind = "text/html; charset=utf-8"
            self._send(HTTPStatus.OK, kind, self._page, self._page_headers)
        elif (asked.scheme, asked.netloc, asked.path) == ("", "", "/data"):
            self._send_data(asked.query)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is only / and /data")

    def _asked_here(self) -> bool:
        """Whether the address in the browser is ours.

        A page of somebody else whose name was made to point here would have its own name there.
        """
        port = self.connection.getsockname()[1]
        names = {f"{name}:{port}" for name in (LOOPBACK, "localhost", "[::1]")}
        names |= {LOOPBACK, "localhost", "[::1]"} if port == 80 else set()
        hosts = self.headers.get_all("Host", [])
        return len(hosts) == 1 and hosts[0].strip().lower() in names

    def _send_data(self, query: str) -> None:
        seen = parse_qs(query).get("seen", ["0"])[0]
        short = seen.isascii() and seen.isdecimal() and len(seen) < 30
        content = self._view.answer(int(seen) if short else 0)
        if content is None:
            self._send(HTTPStatus.NO_CONTENT, "", b"")
        else:
            self._send(HTTPStatus.OK, "application/json", content.encode())

    def _send(
        self, status: HTTPStatus, kind: str, content: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.request_version = "HTTP/1.0"  # an older one, or none at all, would get no headers
        self.send_response(status)
        strict = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'"}
        described = {} if status == HTTPStatus.NO_CONTENT else {"Content-Length": str(len(content))}
        typed = {"Content-Type": kind} if kind else {}
        for name, value in {**SAFE, **strict, **typed, **described, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, status: HTTPStatus, sentence: str, headers: Any = None) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{sentence}\n".encode(), headers)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses: requests it cannot read, and methods there are not."""
        del message, explain  # they repeat what was asked
        if code == HTTPStatus.NOT_IMPLEMENTED:
            allowed = {"Allow": "GET, HEAD"}
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "nothing can be written here", allowed)
        else:
            self._refuse(HTTPStatus(code), "this request cannot be read")

    def log_message(self, *_: Any) -> None:
        """The terminal is for what the user wants to know."""
