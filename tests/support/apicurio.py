"""Apicurio's schema registry on loopback, and its converter for Connect; Maven fetches both."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tableformat.spark.java import find_java
from tests.support.jvm_server import (
    JvmServer,
    answers,
    make_class_archive,
    server_folder,
    shared_classes,
)
from tests.support.maven import CACHE, fetch_jars, one_at_a_time
from tests.support.ports import free_port

APICURIO = "2.6.13.Final"
CONVERTER_JARS = CACHE / f"apicurio-converter-{APICURIO}"
_ARCHIVE, _SERVER = CACHE / f"apicurio-archive-{APICURIO}", CACHE / f"apicurio-{APICURIO}"
_CONVERTER = "io.apicurio.registry.utils.converter.AvroConverter"


@dataclass(frozen=True)
class Apicurio:
    """A server, and where it is."""

    server: JvmServer
    root: str

    @property
    def url(self) -> str:
        """For clients of Confluent's registry."""
        return f"{self.root}/ccompat/v7"

    def converters(self) -> dict[str, str]:
        """Settings of a connector that writes Avro in Confluent's wire format."""
        own = {
            "url": f"{self.root}/registry/v2",
            "auto-register": "true",
            "headers.enabled": "false",
            "as-confluent": "true",
            "use-id": "contentId",
        }
        settings = {"schema.name.adjustment.mode": "avro"}
        for part in ("key", "value"):
            settings[f"{part}.converter"] = _CONVERTER
            for name, text in own.items():
                settings[f"{part}.converter.apicurio.registry.{name}"] = text
        return settings


def missing_apicurio() -> str | None:
    """What is missing; fetches the server and the converter."""
    converter = f"io.apicurio:apicurio-registry-utils-converter:{APICURIO}"
    server = f"io.apicurio:apicurio-registry-app:{APICURIO}:all:zip"
    missing = fetch_jars(CONVERTER_JARS, [converter], transitive=True)
    missing = missing or fetch_jars(_ARCHIVE, [server], transitive=False)
    if missing is None:
        _unpack()
    return missing


def _unpack() -> None:
    with one_at_a_time():
        if _SERVER.exists():
            return
        with tempfile.TemporaryDirectory(dir=CACHE) as fresh:
            (archive,) = _ARCHIVE.iterdir()
            shutil.unpack_archive(archive, Path(fresh, "server"))
            Path(fresh, "server").rename(_SERVER)


def new_apicurio() -> Apicurio:
    """A server that keeps its schemas in memory, not started."""
    java = find_java()
    assert java is not None
    port = free_port()
    root = f"http://127.0.0.1:{port}/apis"
    command = [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += shared_classes(java, _SERVER)
    command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    jar = _SERVER / f"apicurio-registry-app-{APICURIO}-runner.jar"
    subjects = f"{root}/ccompat/v7/subjects"
    server = JvmServer(
        "Apicurio", server_folder("apicurio"), [*command, "-jar", jar], lambda: answers(subjects)
    )
    return Apicurio(server, root)


def make_apicurio_archive() -> None:
    """Lay out the server's classes, if they are not. It starts without, too."""
    make_class_archive(new_apicurio().server, _SERVER)
