"""Iceberg's sink in Kafka Connect, from Maven; its topic is filled at a pace."""

from __future__ import annotations

import json
import threading
import time

from tests.pipeline.service import Service
from tests.support.debezium import missing_debezium, new_connect
from tests.support.kafka import Kafka, kafka, missing_kafka
from tests.support.maven import CACHE, fetch_jars
from tests.writers.events import Events
from tests.writers.job import Job

ICEBERG = "1.12.0"
_PLUGINS = CACHE / f"iceberg-connect-{ICEBERG}"
JARS = (
    f"org.apache.iceberg:iceberg-kafka-connect:{ICEBERG}",
    f"org.apache.iceberg:iceberg-parquet:{ICEBERG}",
    f"org.apache.iceberg:iceberg-orc:{ICEBERG}",
    "org.apache.hadoop:hadoop-client-api:3.4.1",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
)
TOPIC, CONTROL = "events", "control-iceberg"


def missing_connect() -> str | None:
    """What is missing; fetches the jars."""
    missing = missing_kafka() or missing_debezium()
    return missing or fetch_jars(_PLUGINS / "iceberg", JARS, transitive=True)


def connect_writer(job: Job) -> Service:
    """A standalone worker with the sink, which appends what comes; it does not end by itself."""
    broker = kafka()
    for topic in (TOPIC, CONTROL):
        broker.create_topic(topic)
    connector = {
        "name": "iceberg",
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "topics": TOPIC,
        "tasks.max": "1",
        "iceberg.tables": ",".join(job.tables),
        "iceberg.tables.default-commit-branch": job.branch,
        "iceberg.catalog.type": "rest",
        "iceberg.catalog.uri": job.uri,
        "iceberg.control.topic": CONTROL,
        "iceberg.control.commit.interval-ms": str(int(job.checkpoint_s * 1000)),
        "iceberg.kafka.bootstrap.servers": broker.servers,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        # A worker that was killed is missed after that.
        "consumer.override.session.timeout.ms": "8000",
        "consumer.override.auto.offset.reset": "earliest",
    }
    server, _ = new_connect(broker.servers, [connector], _PLUGINS)
    threading.Thread(target=_produce, args=(broker, job), daemon=True).start()
    program = [str(word) for word in server.command]
    return Service("writer", [], job.folder, program=program)


def _produce(broker: Kafka, job: Job) -> None:
    """All events, in order, at their pace."""
    rows = Events.of(job.events, job.keys)
    start, done = time.monotonic(), 0
    while done < job.events:
        due = min(job.events, int((time.monotonic() - start) * job.per_second))
        messages = [
            (str(key), json.dumps({"id": key, "region": region, "v": v}))
            for key, region, v, _ in rows.rows(done, due)
        ]
        broker.send(TOPIC, messages)
        done = due
        time.sleep(0.2)
