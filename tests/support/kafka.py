"""A real Kafka broker (KRaft, one node, loopback) and Spark's Kafka connector, fetched by Maven.

Both live as jars in `<checkout>/.cache/kafka-<version>`, made once. Where Maven or Java is missing,
the tests say so and are skipped. One broker serves all tests of a process and ends with it.
"""

from __future__ import annotations

import functools
import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tableformat.spark.java import find_java
from tableformat.spark.kafka_source import connector_class_path
from tests.support.guard import let_run
from tests.support.jvm_server import START_S, JvmServer, listens, server_folder, shared_classes
from tests.support.maven import fetch_jars
from tests.support.ports import free_ports
from tests.support.spark_archive import spark_options

BROKER = "4.1.0"
# By Spark's minor version; Spark 4.3 runs with the one of 4.2.
CONNECTORS = {"4.1": "4.1.1", "4.2": "4.2.0", "4.3": "4.2.0"}
SPARK_CONNECTOR = CONNECTORS.get(pyspark.__version__.rpartition(".")[0], CONNECTORS["4.3"])
CONNECTOR = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_CONNECTOR}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK_CONNECTOR}",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
SERVER = (f"org.apache.kafka:kafka_2.13:{BROKER}",)
CACHE = Path(__file__).resolve().parents[2] / ".cache" / f"kafka-{BROKER}"
SERVER_JARS, CONNECTOR_JARS = CACHE / "server", CACHE / f"connector-{SPARK_CONNECTOR}"
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

    def delete_topic(self, name: str) -> None:
        client = AdminClient(self._settings)
        client.delete_topics([name])[name].result()
        while name in client.list_topics(timeout=30).topics:
            time.sleep(0.1)

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
    missing = missing_kafka()
    if missing is not None:
        return missing
    try:
        broker, servers = new_broker()
        broker.start()
        assert broker.process is not None
        let_run(broker.process)  # it lives until this process ends
        return Kafka(servers, CONNECTOR_JARS)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return error


def missing_kafka() -> str | None:
    """What is missing for a broker and for Spark to read from it; fetches the jars."""
    if find_java() is None:
        return "there is no Java: Kafka cannot run"
    missing = fetch_jars(SERVER_JARS, SERVER, transitive=True)
    return missing or fetch_jars(CONNECTOR_JARS, CONNECTOR, transitive=False)


def connector_path() -> str:
    """The class path of Spark that the connector's jars make."""
    return connector_class_path([CONNECTOR_JARS])


def spark_environment() -> dict[str, str]:
    """The environment of a command whose Spark reads from Kafka: it starts fast."""
    return os.environ | spark_options(connector_path())


def new_broker() -> tuple[JvmServer, str]:
    """A broker with formatted storage, not started, and its address."""
    java = find_java()
    assert java is not None
    folder = server_folder("kafka")
    port, controller = free_ports(2)
    settings = folder / "server.properties"
    text = SETTINGS.format(port=port, controller=controller, logs=folder / "logs")
    settings.write_text(text)
    run = [str(java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    run += shared_classes(java, SERVER_JARS)
    run += ["-cp", f"{SERVER_JARS}/*"]
    formatting = [*run, "kafka.tools.StorageTool", "format", "-t", "aWNlZm9sZC10ZXN0cy0wMQ"]
    done = subprocess.run(
        [*formatting, "-c", settings], capture_output=True, text=True, check=False, timeout=START_S
    )
    if done.returncode:
        raise RuntimeError(
            f"Kafka's storage could not be made: {(done.stdout + done.stderr)[-500:]}"
        )
    command = [*run, "kafka.Kafka", settings]
    return JvmServer("Kafka", folder, command, lambda: listens(port)), f"127.0.0.1:{port}"
