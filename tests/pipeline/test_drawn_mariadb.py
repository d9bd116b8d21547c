"""Drawn values of MariaDB's types, as columns and keys, in four of Debezium's modes."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

import tableformat as tf
from resolver import resolve
from tests.support.debezium import (
    MYSQL_CONNECTOR,
    MYSQL_PLUGINS,
    missing_mysql_debezium,
    new_connect,
)
from tests.support.drawn_mariadb import MARIADB_TABLES
from tests.support.guard import stop_with_this_process
from tests.support.interop_engines import duckdb_connection
from tests.support.jvm_server import JvmServer
from tests.support.kafka import missing_kafka, new_broker
from tests.support.mariadb import PASSWORD, USER, MariaDbServer, mariadb_server

pytestmark = [
    pytest.mark.long,
    pytest.mark.interop,
    pytest.mark.services,
    pytest.mark.timeout(1800),
]
ROOT = Path(__file__).resolve().parents[2]
SEED, CHANGES, ARRIVAL_S = 5, 12, 300
PROGRAM = "from maintenance.cli.start import main; main()"
TYPED = {"column.propagate.source.type": ".*"}
MODES = {
    "plain": {},
    "texts": TYPED
    | {
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "binary.handling.mode": "hex",
    },
    "nanos": TYPED | {"time.precision.mode": "nanoseconds", "binary.handling.mode": "base64"},
    "millis": TYPED | {"time.precision.mode": "connect", "binary.handling.mode": "base64-url-safe"},
}
BINARIES = {"texts": "hex", "nanos": "base64", "millis": "base64"}
SPANS = ("col_span0", "col_span3", "col_span6")  # no times of a day
COLUMNS = {**dict.fromkeys(SPANS, "long"), "col_dec65": "decimal(38,30)"}
# What Debezium says of them otherwise is in docs/mariadb.md.
LEFT_OUT = {
    "texts": SPANS,
    "nanos": SPANS,
    "millis": (*SPANS, "col_clock6", "key_clock6", "col_stamp6", "key_stamp6"),
}


@dataclass
class World:
    """The servers, and a warehouse."""

    server: MariaDbServer
    servers: str
    connect: JvmServer
    folder: Path
    marks: int = 0

    @property
    def warehouse(self) -> str:
        return str(self.folder / "warehouse")

    def await_arrival(self) -> None:
        """Wait until Kafka has every change: a mark behind them, in each mode's topic."""
        for _ in range(2):
            self.marks += 1
            self.server.connect("drawn").cursor().execute(f"INSERT INTO mark VALUES ({self.marks})")
            deadline = time.monotonic() + ARRIVAL_S
            while any(self._end(f"{mode}.drawn.mark") < self.marks for mode in MODES):
                assert time.monotonic() < deadline, self.connect.log()[-3000:]
                time.sleep(0.2)

    def _end(self, topic: str) -> int:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "look", "log_level": 2})
        try:
            if topic not in consumer.list_topics(timeout=10).topics:
                return 0
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])
        finally:
            consumer.close()

    def write(self, drawn: random.Random, base: int, changes: int) -> None:
        """Rows with every literal, then drawn changes; what breaks a key is rolled back."""
        import pymysql

        cursor = self.server.connect("drawn").cursor()
        for table in MARIADB_TABLES:
            statements = [*table.first(drawn, base)]
            statements += [table.change(drawn, base) for _ in range(changes)]
            for statement in statements:
                with suppress(pymysql.err.IntegrityError):
                    cursor.execute(statement)

    def ingest(self, mode: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", PROGRAM, "--warehouse", self.warehouse, "ingest"]
        words += ["--kafka", self.servers, "--topics", f"{mode}.drawn.*_*", "--into", mode]
        file = self.folder / f"{mode}.yaml"
        lines = [f"  {name}: {{columns: {{c: '{kind}'}}}}\n" for name, kind in COLUMNS.items()]
        file.write_text("tables:\n" + "".join(lines))
        words += ["--engine", "local", "--tables", str(file)]
        if mode in LEFT_OUT:
            left_out = ",".join(f"{mode}.drawn.{name}" for name in LEFT_OUT[mode])
            words += ["--exclude-topics", left_out]
        if mode in BINARIES:
            words += ["-o", f"binaries={BINARIES[mode]}"]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def world() -> Iterator[World]:
    missing = missing_kafka() or missing_mysql_debezium()
    if missing is not None:
        pytest.skip(missing)
    server = mariadb_server()
    cursor = server.connect().cursor()
    cursor.execute("CREATE DATABASE drawn")
    folder = Path(tempfile.mkdtemp(prefix="icefold-drawn-"))
    stop_with_this_process(["true"], folder)
    broker, servers = new_broker()
    broker.start()
    connectors = [
        MYSQL_CONNECTOR
        | {
            "name": mode,
            "topic.prefix": mode,
            "database.hostname": "127.0.0.1",
            "database.port": str(server.port),
            "database.user": USER,
            "database.password": PASSWORD,
            "database.server.id": str(5400 + number),
            "database.include.list": "drawn",
            "schema.history.internal.kafka.bootstrap.servers": servers,
            "schema.history.internal.kafka.topic": f"history_{mode}",
        }
        | settings
        for number, (mode, settings) in enumerate(MODES.items())
    ]
    connect, _ = new_connect(servers, connectors, plugins=MYSQL_PLUGINS)
    cursor.execute("USE drawn")
    for table in MARIADB_TABLES:
        cursor.execute(table.ddl)
    cursor.execute("CREATE TABLE mark (id bigint PRIMARY KEY)")
    yield World(server, servers, connect, folder)
    connect.kill()
    broker.kill()


def test_published_values_are_those_of_mariadb_in_every_mode(world: World) -> None:
    drawn = random.Random(SEED)
    world.write(drawn, 0, 0)
    world.connect.start()
    world.await_arrival()  # the snapshots' rows; the next ones are streamed
    world.write(drawn, 1000, CHANGES)
    world.await_arrival()
    duck = duckdb_connection()
    told = world.server.connect("drawn")
    catalog = tf.open_catalog("local", warehouse=world.warehouse)
    differences: list[str] = []
    compared = 0
    for mode in MODES:
        done = world.ingest(mode)
        differences += [line for line in done.stderr.splitlines() if "set aside" in line]
        for table in MARIADB_TABLES:
            if table.name in LEFT_OUT.get(mode, ()):
                continue
            loaded = catalog.load_table(f"{mode}.{table.name}")
            resolve(loaded)
            expected = table.expected(told)
            compared += len(expected)
            found = table.published(duck, loaded.refresh().metadata_location)
            differences += [f"{mode} {each}" for each in table.differences(expected, found)]
    assert differences == []
    assert compared > 3000
