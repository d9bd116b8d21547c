"""Servers for the lock's tests: a database of its own, and object stores that fail at random."""

from __future__ import annotations

import functools
import io
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import requests

from tests.support.azurite import azure_properties, azurite, fresh_container
from tests.support.gcs_server import Gcs, gcs_properties
from tests.support.postgres import postgres_server
from tests.support.s3_server import App, create_bucket, s3_properties, serve


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
class LockServer:
    """A place for locks in an object store, and what goes wrong there."""

    root: str
    properties: dict[str, str]
    faults: S3Faults


@functools.cache
def lock_server(cloud: str) -> LockServer:
    """The store behind a server that fails at random; skips where there is none.

    One request at a time: moto looks first and writes later.
    """
    faults = S3Faults()
    if cloud == "s3":
        from moto.server import create_backend_app

        endpoint = _serve(_with_faults(create_backend_app("s3"), faults))
        create_bucket(endpoint, "locks")
        return LockServer("s3://locks", s3_properties() | {"s3.endpoint": endpoint}, faults)
    if cloud == "gcs":
        endpoint = _serve(_with_faults(Gcs(buckets={"locks": {}}), faults))
        properties = gcs_properties() | {"gcs.service.host": endpoint}
        return LockServer("gs://locks", properties, faults)
    container = fresh_container()
    endpoint = _serve(_with_faults(_forwarding(f"http://{azurite()}"), faults))
    authority = endpoint.removeprefix("http://")
    properties = azure_properties() | {"adls.blob-storage-authority": authority}
    return LockServer(f"abfss://{container}", properties, faults)


def _serve(app: App) -> str:
    return serve(app, threaded=True).endpoint


def _forwarding(target: str) -> App:
    """What another server answers. Azure's signatures do not cover the host."""

    def forward(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = quote(environ["PATH_INFO"].encode("latin-1"))
        headers = {
            name.removeprefix("HTTP_").replace("_", "-"): value
            for name, value in environ.items()
            if name.startswith("HTTP_") or (name == "CONTENT_TYPE" and value)
        }
        reply = requests.request(
            environ["REQUEST_METHOD"],
            f"{target}{path}?{environ['QUERY_STRING']}",
            headers=headers,
            data=environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)),
            timeout=30,
        )
        dropped = {"connection", "keep-alive", "transfer-encoding"}
        kept = [one for one in reply.headers.items() if one[0].lower() not in dropped]
        start(f"{reply.status_code} Status", kept)
        return [reply.content]

    return forward


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
