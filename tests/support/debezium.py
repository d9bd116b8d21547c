"""Kafka Connect (standalone) with Debezium's connectors, fetched by Maven."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tableformat.spark.java import find_java
from tests.support.jvm_server import (
    JvmServer,
    answers,
    class_archive,
    server_folder,
    shared_classes,
)
from tests.support.kafka import BROKER, SERVER_JARS, new_broker
from tests.support.maven import fetch_jars
from tests.support.ports import free_port

DEBEZIUM = "3.3.1.Final"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / f"debezium-{DEBEZIUM}"
WORKER_JARS, PLUGINS = CACHE / "connect", CACHE / "plugins"
MYSQL_PLUGINS = CACHE / "plugins-mysql"
WORKER = (f"org.apache.kafka:connect-runtime:{BROKER}", "org.slf4j:slf4j-simple:1.7.36")
PLUGIN = (
    f"io.debezium:debezium-connector-postgres:{DEBEZIUM}",
    f"io.debezium:debezium-core:{DEBEZIUM}",
)
# Against MariaDB, too; the connector of its own has types that this one lacks (docs/mariadb.md).
MYSQL_PLUGIN = (
    f"io.debezium:debezium-connector-mysql:{DEBEZIUM}",
    f"io.debezium:debezium-core:{DEBEZIUM}",
)
SETTINGS = """\
bootstrap.servers={servers}
listeners=http://127.0.0.1:{port}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
offset.storage.file.filename={folder}/{offsets}
offset.flush.interval.ms=500
plugin.path={plugins}
plugin.discovery=service_load
"""
OFFSETS = "offsets"
_END_OF_MAP = b"x"  # of a map as Java serializes it
CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled",
    "tasks.max": "1",
    "skipped.operations": "none",  # by default Debezium does not tell of TRUNCATE
    "heartbeat.interval.ms": "500",
    "topic.creation.default.replication.factor": "1",
    "topic.creation.default.partitions": "1",
    "errors.retry.timeout": "-1",
    "retriable.restart.connector.wait.ms": "1000",
}


MYSQL_CONNECTOR = {
    "connector.class": "io.debezium.connector.mysql.MySqlConnector",
    "tasks.max": "1",
    "database.ssl.mode": "disabled",
    "skipped.operations": "none",
    "bigint.unsigned.handling.mode": "precise",
    "enable.time.adjuster": "false",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.replace.null.with.default": "false",
    "schema.history.internal.store.only.captured.tables.ddl": "true",
    "topic.creation.default.replication.factor": "1",
    "topic.creation.default.partitions": "1",
    "errors.retry.timeout": "-1",
    "retriable.restart.connector.wait.ms": "1000",
}


@dataclass(frozen=True)
class Database:
    """Where the connectors read."""

    port: int
    user: str
    password: str
    name: str

    @property
    def settings(self) -> dict[str, str]:
        """Of a connector."""
        return {
            "database.hostname": "127.0.0.1",
            "database.port": str(self.port),
            "database.user": self.user,
            "database.password": self.password,
            "database.dbname": self.name,
        }


class ConnectServer(JvmServer):
    """A worker, which is never killed while it writes its offsets.

    It writes the file in place. If that is torn, it takes it for missing, and every connector
    begins with a new snapshot: then nobody tells of rows that were deleted meanwhile.
    """

    def kill(self) -> None:
        """`kill -9`."""
        offsets = self.folder / OFFSETS
        while self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if not offsets.exists() or offsets.read_bytes()[-1:] == _END_OF_MAP:
                break
            self.process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        super().kill()


def missing_debezium() -> str | None:
    """What is missing for Connect; fetches the jars."""
    missing = fetch_jars(WORKER_JARS, WORKER, transitive=True)
    return missing or fetch_jars(PLUGINS / "debezium", PLUGIN, transitive=True)


def missing_mysql_debezium() -> str | None:
    """What is missing for Connect with the connector for MySQL; fetches the jars."""
    missing = fetch_jars(WORKER_JARS, WORKER, transitive=True)
    return missing or fetch_jars(MYSQL_PLUGINS / "debezium", MYSQL_PLUGIN, transitive=True)


def new_connect(
    servers: str,
    connectors: Sequence[Mapping[str, str]],
    plugins: Path = PLUGINS,
    converters: Path | None = None,
) -> tuple[JvmServer, int]:
    """A standalone worker with connectors, not started, and the port of its REST interface.

    `converters` is a folder of jars with those that the connectors name.
    """
    java = find_java()
    assert java is not None
    folder = server_folder("connect")
    port = free_port()
    worker = folder / "connect.properties"
    worker.write_text(
        SETTINGS.format(
            servers=servers,
            port=port,
            folder=folder,
            offsets=OFFSETS,
            plugins=plugins.absolute(),
        )
    )
    files = [worker]
    for connector in connectors:
        files.append(folder / f"{connector['name']}.properties")
        files[-1].write_text("".join(f"{key}={text}\n" for key, text in connector.items()))
    command = [java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += shared_classes(java, WORKER_JARS)
    jars = [f"{folder}/*" for folder in (WORKER_JARS, converters) if folder is not None]
    command += ["-cp", os.pathsep.join(jars), "org.apache.kafka.connect.cli.ConnectStandalone"]
    names = [connector["name"] for connector in connectors]
    server = ConnectServer("Connect", folder, [*command, *files], lambda: _run(port, names))
    return server, port


def make_class_archives() -> None:
    """Lay out the classes of a broker and of Connect, if they are not. Both start without, too."""
    java = find_java()
    assert java is not None
    if shared_classes(java, SERVER_JARS) and shared_classes(java, WORKER_JARS):
        return
    broker, servers = new_broker()
    with class_archive(broker, SERVER_JARS):
        connect, port = new_connect(servers, [])
        connect.is_ready = lambda: answers(f"http://127.0.0.1:{port}/connectors")
        with class_archive(connect, WORKER_JARS):
            pass


def add_connector(port: int, connector: Mapping[str, str]) -> None:
    """Start one more in a worker that runs."""
    body = json.dumps({"name": connector["name"], "config": dict(connector)}).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"http://127.0.0.1:{port}/connectors", body, headers), timeout=60):
        pass


def states(port: int, name: str) -> list[str]:
    """States of a connector and its tasks; empty while nobody answers."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/connectors/{name}/status", timeout=5) as answer:
            status: dict[str, Any] = json.load(answer)
    except (OSError, ValueError, http.client.HTTPException):
        return []
    for task in status["tasks"]:
        if task["state"] == "FAILED":
            raise RuntimeError(f"connector {name} failed: {task.get('trace', '')[:3000]}")
    return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]


def _run(port: int, names: Sequence[str]) -> bool:
    return all(states(port, name) == ["RUNNING", "RUNNING"] for name in names)
