"""S3 and STS for tests: moto on loopback, started at first use, with faults on demand."""

from __future__ import annotations

import atexit
import functools
import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests

from tests.support.ports import free_port

SECRET = "s3cret-of-the-test"
_buckets = itertools.count(1)

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass
class Fault:
    """What the next `times` requests of one method run into.

    `before`: the answer is `status` and nothing happens. `after`: it happens, and the answer is
    `status` all the same. `cut`: the body stops half-way. `shortened`: it does, and its length
    is said to be that.
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
    authorizations: list[str] = field(default_factory=list)  # headers, of signed requests


@functools.cache
def s3_server() -> S3Server:
    """The server of this test run."""
    pytest.importorskip("moto", reason="moto is not installed")
    from moto.server import create_backend_app

    # Without moto's dispatcher, which lists a folder for each request to find whose it is.
    s3, sts = create_backend_app("s3"), create_backend_app("sts")

    def of_either(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        is_sts = "/sts/aws4_request" in environ.get("HTTP_AUTHORIZATION", "")
        return (sts if is_sts else s3)(environ, start)

    # One request at a time: moto looks whether a key exists and writes it in two steps.
    return serve(of_either, threaded=False)


def serve(app: App, *, threaded: bool) -> S3Server:
    """Any such server on loopback, with faults on demand."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    port = free_port()
    server = S3Server(f"http://127.0.0.1:{port}")
    app = _with_faults(app, server)
    http = make_server("127.0.0.1", port, app, threaded=threaded, request_handler=Quiet)
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
    create_bucket(s3_server().endpoint, name)
    return name


def create_bucket(endpoint: str, name: str) -> None:
    """A bucket of that name; moto asks nobody who they are."""
    requests.put(f"{endpoint}/{name}", timeout=10).raise_for_status()


def _with_faults(app: App, server: S3Server) -> App:
    def faulty(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        server.requests.append(f"{method} {environ['PATH_INFO']}")
        server.authorizations.append(environ.get("HTTP_AUTHORIZATION", ""))
        fault = next((one for one in server.faults if one.method == method), None)
        if fault is None:
            return app(environ, start)
        fault.times -= 1
        if fault.times <= 0:
            server.faults.remove(fault)
        if fault.kind == "shortened":
            return _shortened(app, environ, start)
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


def _shortened(app: App, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    told: list[Any] = []
    body = b"".join(app(environ, lambda *arguments: told.extend(arguments)))
    half = body[: len(body) // 2]
    headers = [one for one in told[1] if one[0].lower() != "content-length"]
    start(told[0], [*headers, ("Content-Length", str(len(half)))])
    return [half]
