"""Servers for the lock's tests: a database of its own, and an S3 that fails at random."""

from __future__ import annotations

import atexit
import functools
import io
import random
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.support.postgres import PASSWORD, postgres_server


@functools.cache
def postgres_url() -> str:
    """A database of our own: some tests cut off everyone who is connected to it."""
    import psycopg

    with psycopg.connect(libpq_url(postgres_server().url()), autocommit=True) as connection:
        connection.execute("CREATE DATABASE icefold_locks")
    return postgres_server().url("icefold_locks")


def libpq_url(url: str) -> str:
    """The same without SQLAlchemy's driver name."""
    return url.replace("+psycopg", "")


@dataclass
class S3Faults:
    """What goes wrong with writes; each a probability.

    `error_before` (503, nothing landed), `error_after` (landed, then 500), `conflict` (409, nothing
    landed), `resent` (landed, then 412 as if the transport had sent it twice).
    """

    rates: dict[str, float] = field(default_factory=dict)
    hits: dict[str, int] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def strikes(self, fault: str) -> bool:
        if self._random.random() >= self.rates.get(fault, 0.0):
            return False
        self.hits[fault] = self.hits.get(fault, 0) + 1
        return True


@dataclass(frozen=True)
class S3Server:
    """Where it listens, and what goes wrong."""

    endpoint: str
    faults: S3Faults

    @property
    def properties(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": "testing",
            "s3.secret-access-key": PASSWORD,
        }


@functools.cache
def s3_server() -> S3Server:
    """moto with a bucket `locks`. One request at a time: moto itself looks first, writes later."""
    import boto3
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            pass

    faults = S3Faults()
    app = _with_faults(DomainDispatcherApplication(create_backend_app), faults)
    port = _free_port()
    server = make_server("127.0.0.1", port, app, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    atexit.register(server.shutdown)
    found = S3Server(f"http://127.0.0.1:{port}", faults)
    client = boto3.client(
        "s3",
        endpoint_url=found.endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key=PASSWORD,
    )
    client.create_bucket(Bucket="locks")
    client.close()
    return found


App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def _with_faults(app: App, faults: S3Faults) -> App:
    def reply(start: Callable[..., Any], status: str, code: str) -> Iterable[bytes]:
        start(status, [("Content-Type", "application/xml")])
        return [f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()]

    mutex = threading.Lock()

    def in_turn(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with mutex:
            return list(faulty(environ, start))

    def faulty(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT":
            return app(environ, start)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if faults.strikes("error_before"):
            return reply(start, "503 Slow Down", "SlowDown")
        if faults.strikes("conflict"):
            return reply(start, "409 Conflict", "ConditionalRequestConflict")
        if faults.strikes("error_after"):
            b"".join(app(environ, lambda *_: None))
            return reply(start, "500 Internal Server Error", "InternalError")
        if faults.strikes("resent"):
            b"".join(app(environ, lambda *_: None))
            return reply(start, "412 Precondition Failed", "PreconditionFailed")
        return app(environ, start)

    return in_turn


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
