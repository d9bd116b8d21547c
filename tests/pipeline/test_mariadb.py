"""Every value that MariaDB has, and a random history, through Debezium, Kafka and `icefold ingest`.

Debezium's connector is that for MySQL, which takes this MariaDB for one (`support/mariadb.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

import tableformat as tf
from tests.support.debezium import (
    MYSQL_CONNECTOR,
    MYSQL_PLUGINS,
    missing_mysql_debezium,
    new_connect,
)
from tests.support.guard import stop_with_this_process
from tests.support.interop_engines import duckdb_connection
from tests.support.jvm_server import JvmServer
from tests.support.kafka import missing_kafka, new_broker
from tests.support.mariadb import PASSWORD, USER, MariaDbServer, mariadb_server
from tests.support.mariadb_tables import (
    GROWTH,
    LATER,
    TABLES,
    SourceTable,
    Workload,
    differences,
    shown_rows,
    source_rows,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.interop,
    pytest.mark.services,
    pytest.mark.timeout(1800),
]
ROOT = Path(__file__).resolve().parents[2]
SEED, TRANSACTIONS = 11, 300
ARRIVAL_S = 300
PROGRAM = "from maintenance.cli.start import main; main()"


@dataclass
class World:
    """The servers, and a warehouse."""

    server: MariaDbServer
    servers: str
    connect: JvmServer
    folder: Path
    marks: int = 0

    def icefold(self, *words: str) -> str:
        command = [sys.executable, "-c", PROGRAM, "--warehouse", str(self.folder / "warehouse")]
        done = subprocess.run(
            [*command, *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def take_in(self) -> str:
        """Wait until Kafka has everything, stage and publish it.

        The first mark may be of the snapshot, which is no transaction; the second is not.
        """
        for _ in range(2):
            self.marks += 1
            self.server.connect("shop").cursor().execute(f"INSERT INTO mark VALUES ({self.marks})")
            deadline = time.monotonic() + ARRIVAL_S
            while self._end("my.shop.mark") < self.marks:
                assert time.monotonic() < deadline, self.connect.log()[-3000:]
                time.sleep(0.2)
        topics = ("--topics", "my.shop.*", "--into", "shop", "--tables", str(self.options()))
        said = self.icefold(
            "ingest", "--kafka", self.servers, *topics, "--engine", "local", "--cut", "transaction"
        )
        self.icefold("resolve", "shop.*", "--cut")
        return said

    def options(self) -> Path:
        file = self.folder / "tables.yaml"
        tables = {t.name: {"columns": t.types} for t in TABLES if t.types}
        defaults = {"schema-evolution": "full", "on-truncate": "apply"}
        file.write_text(json.dumps({"defaults": defaults, "tables": tables}))
        return file

    def compare(self, *tables: SourceTable) -> None:
        catalog = tf.open_catalog("local", warehouse=str(self.folder / "warehouse"))
        duck = duckdb_connection()
        told = self.server.connect("shop", conv={})
        for table in tables:
            location = catalog.load_table(f"shop.{table.name}").metadata_location
            expected = source_rows(told, table)
            assert expected, "there is nothing to compare"
            assert differences(table, expected, shown_rows(duck, location, table)) == []

    def _end(self, topic: str) -> int:
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "look", "log_level": 2})
        try:
            if topic not in consumer.list_topics(timeout=10).topics:
                return 0
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1])
        finally:
            consumer.close()


@pytest.fixture
def world() -> Iterator[World]:
    missing = missing_kafka() or missing_mysql_debezium()
    if missing is not None:
        pytest.skip(missing)
    server = mariadb_server()
    server.connect().cursor().execute("CREATE DATABASE shop")
    folder = Path(tempfile.mkdtemp(prefix="icefold-mariadb-pipeline-"))
    stop_with_this_process(["true"], folder)
    broker, servers = new_broker()
    broker.start()
    connector = MYSQL_CONNECTOR | {
        "name": "my",
        "topic.prefix": "my",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": USER,
        "database.password": PASSWORD,
        "database.server.id": "5400",
        "database.include.list": "shop",
        "provide.transaction.metadata": "true",
        "schema.history.internal.kafka.bootstrap.servers": servers,
        "schema.history.internal.kafka.topic": "history",
    }
    connect, _ = new_connect(servers, [connector], plugins=MYSQL_PLUGINS)
    yield World(server, servers, connect, folder)
    connect.kill()
    broker.kill()


def test_published_rows_are_those_of_mariadb(world: World) -> None:
    connection: Any = world.server.connect("shop")
    cursor = connection.cursor()
    workload = Workload(connection, SEED)
    workload.create()
    cursor.execute("CREATE TABLE mark (id bigint PRIMARY KEY)")
    workload.edges(1000)
    workload.run(20)
    world.connect.start()
    world.take_in()
    world.compare(*TABLES)
    workload.edges(2000)
    workload.run(TRANSACTIONS // 2)
    cursor.execute("FLUSH LOGS")
    world.connect.kill()
    cursor.execute(GROWTH)
    cursor.execute("UPDATE every SET later = 8, plain = 5000000000 WHERE id % 3 = 0")
    workload.run(TRANSACTIONS // 2)
    world.connect.start()
    world.take_in()
    world.compare(*TABLES, LATER)
