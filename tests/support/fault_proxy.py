"""An HTTP proxy on loopback that loses, delays, repeats and spoils answers on demand.

It stands before a real server, so what goes wrong is what a network, a load balancer or a gateway
does, and what the server did is real. Faults are data: each is used up by the requests it fits.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.support.ports import free_port

PAGE = b"<html><body><h1>Sign in to the network</h1></body></html>"
_UPSTREAM_TIMEOUT_S = 60.0
_OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
# Compressed, nobody here could tell which answers show a table.
_NOT_SENT_ON = _OF_ONE_HOP - {"content-length"} | {"accept-encoding"}


@dataclass
class Fault:
    """What the next `times` requests that fit run into, after `skip` of them.

    | kind | the server gets it | the client gets |
    |---|---|---|
    | `refuse` | no | `status` and `body` |
    | `hang` | no | nothing for `delay_s`, then a connection that breaks off |
    | `answer` | yes | `status` and `body`, whatever the server said |
    | `reset` | yes | a connection that breaks off |
    | `late` | `delay_s` later | a connection that breaks off |
    | `slow` | yes | its answer `delay_s` later |
    | `twice` | twice | the second answer |
    | `cut` | yes | half of the body, and a length that says so |
    | `short` | yes | half of the body, as if that were all |
    | `stale` | no | the answer of `back` versions ago; the server's, if there is none |

    Attributes:
        method: A regular expression, of the whole method.
        path: A regular expression, anywhere in the path and its query.
        headers: More headers of an answer that is made up.
    """

    kind: str
    method: str = ".*"
    path: str = ""
    skip: int = 0
    times: int = 1
    status: int = 503
    body: bytes = PAGE
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    back: int = 1
    used: int = 0

    def fits(self, method: str, path: str) -> bool:
        return bool(re.fullmatch(self.method, method) and re.search(self.path, path))


_taking = threading.Lock()


def next_fault(faults: Iterable[Fault], method: str, path: str) -> Fault | None:
    """The fault of a request, and note it as used; proxies may share faults."""
    with _taking:
        for fault in faults:
            if fault.times <= 0 or not fault.fits(method, path):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            fault.times -= 1
            fault.used += 1
            return fault
    return None


@dataclass
class Answer:
    """Of a server, as a client gets it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class FaultProxy:
    """Stands before the server at `upstream`; clients use `uri`."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        self._host, self._upstream_port = parts.hostname, parts.port
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._versions: dict[str, list[Answer]] = {}  # bodies of loaded tables, oldest first
        self._server: ThreadingHTTPServer | None = None
        self._under_way = 0  # requests that the server has and has not answered
        self.listen()

    def listen(self) -> None:
        """Take connections; after `refuse_connections` again."""

        class Bound(_Handler):
            proxy = self

        server = _Server(("127.0.0.1", self.port), Bound)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self._server = server

    def refuse_connections(self) -> None:
        """Nobody listens, until `listen`, and what is connected breaks off; also the end of it."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self._lock:
            open_ones = list(self.connections)
        for each in open_ones:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def take(self, method: str, path: str) -> Fault | None:
        """The fault of this request, and note it as used."""
        with self._lock:
            self.requests.append(f"{method} {path}")
        return next_fault(self.faults, method, path)

    def forward(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> Answer:
        """What the server says. Remembers each version of what a `GET` or a commit shows."""
        with self._lock:
            self._under_way += 1
        try:
            return self._forward(method, path, headers, body)
        finally:
            with self._lock:
                self._under_way -= 1

    def settle(self) -> None:
        """Wait until the server has answered what it was sent, also by a client that is gone."""
        while self._under_way:
            time.sleep(0.01)

    def _forward(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> Answer:
        connection = HTTPConnection(self._host, self._upstream_port, timeout=_UPSTREAM_TIMEOUT_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers:
                if name.lower() not in _NOT_SENT_ON:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = _read(connection.getresponse(), method)
        finally:
            connection.close()
        if (
            answer.status == 200
            and method in ("GET", "POST")
            and b'"metadata-location"' in answer.body
        ):
            with self._lock:
                known = self._versions.setdefault(path, [])
                if not known or known[-1].body != answer.body:
                    known.append(answer)
        return answer

    def older(self, path: str, back: int) -> Answer | None:
        """What `path` showed `back` versions ago."""
        with self._lock:
            known = self._versions.get(path, [])
            return known[-1 - min(back, len(known) - 1)] if known else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed, or that we cut off."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy

    def setup(self) -> None:
        super().setup()
        self.proxy.connections.add(self.connection)

    def finish(self) -> None:
        self.proxy.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            self._answer()
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        sent = (self.command, self.path, list(self.headers.items()), body)
        fault = self.proxy.take(self.command, self.path)
        kind = "" if fault is None else fault.kind
        if fault is None:
            self._send(self.proxy.forward(*sent))
            return
        if kind == "hang":
            time.sleep(fault.delay_s)
            self._reset()
            return
        if kind == "late":
            threading.Timer(fault.delay_s, _quietly, [self.proxy, sent]).start()
            self._reset()
            return
        made_up = Answer(
            fault.status, [("Content-Type", "text/html"), *fault.headers.items()], fault.body
        )
        if kind == "refuse":
            self._send(made_up)
            return
        if kind == "stale":
            self._send(self.proxy.older(self.path, fault.back) or self.proxy.forward(*sent))
            return
        answer = self.proxy.forward(*sent)
        if kind == "twice":
            answer = self.proxy.forward(*sent)
        if kind == "slow":
            time.sleep(fault.delay_s)
        if kind == "answer":
            self._send(made_up)
        elif kind == "reset":
            self._reset()
        elif kind == "short":
            self._send(Answer(answer.status, answer.headers, answer.body[: len(answer.body) // 2]))
        else:
            self._send(answer, cut=kind == "cut")

    def _send(self, answer: Answer, *, cut: bool = False) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        has_body = self.command != "HEAD" and answer.status not in (204, 304)
        if has_body:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if has_body:
            self.wfile.write(answer.body[: len(answer.body) // 2] if cut else answer.body)
        if cut:
            self._reset()

    def _reset(self) -> None:
        """Break the connection off, as one that a gateway forgot."""
        self.close_connection = True
        self.wfile.flush()
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def __getattr__(self, name: str) -> object:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)


def _quietly(proxy: FaultProxy, sent: tuple[str, str, list[tuple[str, str]], bytes]) -> None:
    with contextlib.suppress(OSError, HTTPException):
        proxy.forward(*sent)


def _read(reply: HTTPResponse, method: str) -> Answer:
    body = reply.read()
    keep = _OF_ONE_HOP if method != "HEAD" else _OF_ONE_HOP - {"content-length"}
    headers = [(name, value) for name, value in reply.getheaders() if name.lower() not in keep]
    return Answer(reply.status, headers, body)
