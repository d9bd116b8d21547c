"""A real Kafka broker (KRaft, one node, loopback) and Spark's Kafka connector, fetched by Maven.

Both live as jars in `<checkout>/.cache/kafka-<version>`, made once. Where Maven or Java is missing,
the tests say so and are skipped. One broker serves all tests of a process and ends with it.
"""

from __future__ import annotations

import fcntl
import functools
import shutil
import socket
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tableformat.spark.java import find_java
from tests.support.guard import stop_with_this_process

BROKER = "4.1.0"
# The newest releases that Maven Central serves; the connector does not have to be Spark's own.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.0",
    "org.apache.commons:commons-pool2:2.12.0",
)
SERVER = (f"org.apache.kafka:kafka_2.13:{BROKER}",)
CACHE = Path(__file__).resolve().parents[2] / ".cache" / f"kafka-{BROKER}"
START_S = 60
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={logs}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
Message = tuple[str | None, str | None]  # key and value; None is a null


@dataclass(frozen=True)
class Kafka:
    """A running broker, and the jars that let Spark read from it."""

    servers: str
    connector: Path

    def create_topic(self, name: str, *, partitions: int = 1) -> str:
        client = AdminClient(self._settings)  # answers end with it
        client.create_topics([NewTopic(name, partitions, 1)])[name].result()
        return name

    def send(self, topic: str, messages: Iterable[Message]) -> None:
        """Send in order; the key decides the partition."""
        producer = Producer(self._settings | {"enable.idempotence": True})
        for key, value in messages:
            producer.produce(topic, value, key)
            producer.poll(0)
        assert producer.flush(30) == 0, "the broker did not take all messages"

    @property
    def _settings(self) -> dict[str, str | int]:
        return {"bootstrap.servers": self.servers, "log_level": 2}


def kafka() -> Kafka:
    """The broker of this process; skips the test where it cannot be had."""
    started = _started()
    if isinstance(started, str):
        pytest.skip(started)
    if isinstance(started, Exception):
        raise started
    return started


@functools.cache
def _started() -> Kafka | str | Exception:
    """The broker, why there can be none, or how it failed; tried once."""
    java = find_java()
    if java is None:
        return "there is no Java: Kafka cannot run"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = _fetch("server", SERVER, transitive=True)
        missing = missing or _fetch("connector", CONNECTOR, transitive=False)
    if missing is not None:
        return missing
    try:
        return Kafka(_start(java), CACHE / "connector")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return error


def _start(java: Path) -> str:
    folder = Path(tempfile.mkdtemp(prefix="icefold-kafka-"))
    port, controller = _free_ports(2)
    settings = folder / "server.properties"
    text = SETTINGS.format(port=port, controller=controller, logs=folder / "logs")
    settings.write_text(text)
    run = [str(java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    run += ["-cp", f"{CACHE / 'server'}/*"]
    formatting = [*run, "kafka.tools.StorageTool", "format", "-t", "aWNlZm9sZC10ZXN0cy0wMQ"]
    done = subprocess.run(
        [*formatting, "-c", settings], capture_output=True, text=True, check=False, timeout=START_S
    )
    if done.returncode:
        raise RuntimeError(
            f"Kafka's storage could not be made: {(done.stdout + done.stderr)[-500:]}"
        )
    with (folder / "log").open("wb") as log:
        broker = subprocess.Popen(
            [*run, "kafka.Kafka", settings], stdout=log, stderr=log, cwd=folder
        )
    stop_with_this_process(["kill", "-9", str(broker.pid)], folder)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if broker.poll() is not None:
            raise RuntimeError(f"Kafka ended: {(folder / 'log').read_text()[-1000:]}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                broker.returncode = 0  # it lives until this process ends
                return f"127.0.0.1:{port}"
        time.sleep(0.1)
    raise RuntimeError("Kafka did not start")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _fetch(name: str, artifacts: Sequence[str], *, transitive: bool) -> str | None:
    """Copy jars into a folder of the cache, whole or not at all; why not, if not."""
    if (CACHE / name).exists():
        return None
    maven = shutil.which("mvn")
    if maven is None:
        return "mvn is not installed: Kafka cannot be fetched"
    with tempfile.TemporaryDirectory(dir=CACHE) as fresh:
        Path(fresh, "pom.xml").write_text(_pom(artifacts, transitive=transitive))
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
        command = [maven, "-q", "-B", goal, "-DincludeScope=runtime", "-DoutputDirectory=jars"]
        done = subprocess.run(command, cwd=fresh, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"mvn could not fetch {artifacts[0]}: {(done.stdout + done.stderr)[-300:]}"
        for jar in Path(fresh, "jars").glob("*.jar"):
            zipfile.ZipFile(jar).close()
        Path(fresh, "jars").rename(CACHE / name)
    return None


def _pom(artifacts: Sequence[str], *, transitive: bool) -> str:
    everything = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    alone = f"<exclusions>{everything}</exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{'' if transitive else alone}</dependency>"
        for group, artifact, version in (one.split(":") for one in artifacts)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>icefold.tests</groupId><artifactId>kafka</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
