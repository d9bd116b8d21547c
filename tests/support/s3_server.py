"""An S3 server for tests: moto on loopback, started at first use, with faults on demand."""

from __future__ import annotations

import atexit
import functools
import itertools
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

SECRET = "s3cret-of-the-test"
_buckets = itertools.count(1)

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass
class Fault:
    """What the next `times` requests of one method run into.

    `before`: the answer is `status` and nothing happens. `after`: it happens, and the answer is
    `status` all the same. `cut`: the body stops half-way.
    """

    method: str
    kind: str
    status: str = "503 Slow Down"
    times: int = 1


@dataclass
class S3Server:
    """Where it listens, and what goes wrong."""

    endpoint: str
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@functools.cache
def s3_server() -> S3Server:
    """The server of this test run."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    server = S3Server(f"http://127.0.0.1:{port}")
    # One request at a time: moto looks whether a key exists and writes it in two steps.
    app = _with_faults(DomainDispatcherApplication(create_backend_app), server)
    http = make_server("127.0.0.1", port, app, threaded=False, request_handler=Quiet)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    atexit.register(http.shutdown)
    return server


def s3_properties() -> dict[str, str]:
    """Catalog properties that reach the server."""
    return {
        "s3.endpoint": s3_server().endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": "testing",
        "s3.secret-access-key": SECRET,
    }


def fresh_bucket() -> str:
    """A new, empty bucket."""
    name = f"bucket-{next(_buckets)}"
    _client().create_bucket(Bucket=name)
    return name


@functools.cache
def _client() -> Any:
    """One for all buckets: making one takes a tenth of a second."""
    from tableformat.store.s3_session import create_client

    return create_client(s3_properties())


def _with_faults(app: App, server: S3Server) -> App:
    def faulty(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        server.requests.append(f"{method} {environ['PATH_INFO']}")
        fault = next((one for one in server.faults if one.method == method), None)
        if fault is None:
            return app(environ, start)
        fault.times -= 1
        if fault.times <= 0:
            server.faults.remove(fault)
        if fault.kind == "cut":
            body = b"".join(app(environ, start))
            return [body[: len(body) // 2]]
        if fault.kind == "after":
            b"".join(app(environ, lambda *_: None))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        code = fault.status.split(" ", 1)[1].replace(" ", "")
        start(fault.status, [("Content-Type", "application/xml")])
        return [f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()]

    return faulty
