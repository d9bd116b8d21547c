"""A whole pipeline on loopback: PostgreSQL, Debezium in Kafka Connect, Kafka, icefold's commands.

One worker runs a connector per shape of the events over the same tables, and one over the tables
of a workload that tells its transactions.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg

import tableformat as tf
from tests.support.apicurio import CONVERTER_JARS, Apicurio, new_apicurio
from tests.support.debezium import CONNECTOR, Database, missing_debezium, new_connect
from tests.support.guard import stop_with_this_process
from tests.support.jvm_server import JvmServer
from tests.support.kafka import CONNECTOR_JARS, missing_kafka, new_broker, spark_environment
from tests.support.pipeline_cuts import CutWorkload, connector
from tests.support.pipeline_tables import SourceTable, create_tables
from tests.support.postgres import PASSWORD, USER, postgres_server

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("pipeline_worker.py")
PUBLICATION = "icefold"
ARRIVAL_S = 300


@dataclass(frozen=True)
class Shape:
    """How the events of a connector look, and what icefold has to be told of them.

    `said`: encodings that `options` speak of already; those of other columns are told one by one.
    `is_avro`: their schemas are in a registry.
    """

    name: str
    connector: Mapping[str, str]
    options: Mapping[str, str]
    has_schemas: bool
    said: frozenset[str] = frozenset()
    is_avro: bool = False


_ADDED = "op,source.lsn,source.ts_ms"
_BARE = {"key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false"}
_PREDICATES = "org.apache.kafka.connect.transforms.predicates"
_JSON = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("db", {}, {}, has_schemas=True),
        Shape(
            "bare",
            _JSON | _BARE,
            {
                "timestamp-unit": "us",
                "time-unit": "us",
                "decimals": "precise",
                "binaries": "base64",
            },
            has_schemas=False,
            said=frozenset({"us", "precise", "variable", "base64", "days", "iso"}),
        ),
        Shape(
            "flat",
            _JSON
            | _BARE
            | {
                "transforms": "unwrap",
                "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
                "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
                "transforms.unwrap.add.fields": _ADDED,
                # Heartbeats are no rows.
                "predicates": "rows",
                "predicates.rows.type": f"{_PREDICATES}.TopicNameMatches",
                "predicates.rows.pattern": r"flat\\..*",
                "transforms.unwrap.predicate": "rows",
            },
            {"layout": "flattened"},
            has_schemas=False,
        ),
        Shape("avro", {}, {}, has_schemas=True, is_avro=True),
    )
}


@dataclass
class Pipeline:
    """The servers, a warehouse, and how commands are given to them."""

    database: Database
    broker: JvmServer
    servers: str
    connect: JvmServer
    connect_port: int
    folder: Path
    shapes: tuple[str, ...]
    registry: Apicurio | None = None
    worker: CommandWorker | None = field(default=None)

    @property
    def warehouse(self) -> str:
        return str(self.folder / "warehouse")

    @property
    def catalog(self) -> tf.TableCatalog:
        return tf.open_catalog("local", warehouse=self.warehouse)

    def sql(self, *statements: str) -> None:
        """Each in a transaction of its own."""
        with self.connection() as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[arg-type]

    def connection(self) -> psycopg.Connection[Any]:
        database = self.database
        return psycopg.connect(
            host="127.0.0.1",
            port=database.port,
            user=database.user,
            password=database.password,
            dbname=database.name,
            autocommit=True,
        )

    def in_database(self, name: str) -> Pipeline:
        """The same servers, another database of PostgreSQL's."""
        return replace(self, database=replace(self.database, name=name), worker=None)

    def await_arrival(self) -> None:
        """Wait until Kafka has every change that PostgreSQL has committed."""
        self.await_slots([f"{self.database.name}_{name}" for name in self.shapes])

    def await_slots(self, slots: Sequence[str]) -> None:
        """Wait until Kafka has what these replication slots are told of until now.

        A connector confirms to its slot what Kafka has acknowledged; later changes make it. It may
        take long on a busy machine, but does not stand still.
        """
        with self.connection() as connection:
            _mark(connection)
            reached = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
            assert reached is not None
            query = (
                "SELECT count(*), min(confirmed_flush_lsn), min(confirmed_flush_lsn) >= %s::pg_lsn "
                "FROM pg_replication_slots WHERE slot_name = ANY(%s)"
            )
            at: object = ()  # what no slot has, not even one that is not there yet
            while True:
                found = connection.execute(query, (reached[0], list(slots))).fetchone()
                assert found is not None
                if found[0] == len(slots) and found[2]:
                    return
                if found[1] != at:
                    at, deadline = found[1], time.monotonic() + ARRIVAL_S
                assert time.monotonic() < deadline, f"{slots} do not get to {reached[0]}: {at}"
                _mark(connection)
                time.sleep(0.1)

    @contextmanager
    def closed_gate(self) -> Iterator[None]:
        """Hold every snapshot up in its last table."""
        with self.connection() as connection:
            connection.execute("SELECT pg_advisory_lock(1)")
            yield

    def table_name(self, shape: str, table: SourceTable) -> str:
        return f"{shape}.{table.name}"

    def create_table(self, shape: str, table: SourceTable) -> tf.Table:
        name = self.table_name(shape, table)
        return self.catalog.create_table(name, table.schema, primary_key=list(table.key))

    def ingest_words(self, shape: Shape, table: SourceTable, *words: str) -> list[str]:
        """`icefold ingest` as a person types it."""
        name = self.table_name(shape.name, table)
        options = dict(shape.options)
        encodings = "" if shape.has_schemas else table.encodings(shape.said)
        if encodings:
            options["encodings"] = encodings
        return [
            *("--warehouse", self.warehouse, "ingest", name, "--json", "--kafka", self.servers),
            *("--topic", f"{shape.name}.public.{table.name}"),
            *("--connector-jar", str(CONNECTOR_JARS)),
            *("--checkpoint", str(self.folder / "checkpoints" / name)),
            *(word for key, text in options.items() for word in ("-o", f"{key}={text}")),
            *(["--schema-registry", self.registry.url] if shape.is_avro and self.registry else []),
            *words,
        ]

    def icefold(self, *words: str) -> Answer:
        """Run a command in a process that keeps its Spark for the next one."""
        if self.worker is None:
            self.worker = CommandWorker(self.folder)
        return self.worker.run(words)

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
        self.connect.kill()
        self.broker.kill()
        if self.registry is not None:
            self.registry.server.kill()


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)


class CommandWorker:
    """A process that runs `icefold` commands one after the other."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "commands.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=spark_environment() | {"PYTHONPATH": str(ROOT)},
            cwd=folder,
        )

    def run(self, words: Sequence[str]) -> Answer:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(list(words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(Path(self._log.name).read_text(errors="replace")[-3000:])
        return Answer(**json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()
        self._log.close()


def missing_pipeline() -> str | None:
    """What is missing to run it, Avro left out; fetches the jars."""
    return missing_kafka() or missing_debezium()


def start_pipeline(name: str, workload: CutWorkload, shapes: Sequence[str]) -> Pipeline:
    """Everything but the connectors, which are those of a workload and of shapes.

    `name` is that of a new database.
    """
    server = postgres_server()
    database = Database(server.port, USER, PASSWORD, name)
    folder = Path(tempfile.mkdtemp(prefix="icefold-pipeline-"))
    stop_with_this_process(["true"], folder)
    with psycopg.connect(**_admin(database), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[arg-type]
    broker, servers = new_broker()
    broker.start()
    registry = new_apicurio() if any(SHAPES[each].is_avro for each in shapes) else None
    if registry is not None:
        registry.server.start()
    connectors = []
    for shape in map(SHAPES.__getitem__, shapes):
        converters = registry.converters() if registry is not None and shape.is_avro else {}
        connectors.append(connector_of(shape.name, {**shape.connector, **converters}, database))
    connectors.append(connector_of(workload.namespace, connector(workload), database))
    connect, port = new_connect(
        servers, connectors, converters=CONVERTER_JARS if registry else None
    )
    pipeline = Pipeline(database, broker, servers, connect, port, folder, tuple(shapes), registry)
    with pipeline.connection() as connection:
        create_tables(connection)
        for ddl in workload.tables.values():
            connection.execute(ddl)  # type: ignore[arg-type]
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    return pipeline


def _mark(connection: psycopg.Connection[Any]) -> None:
    """Something that is written to the log after what is waited for."""
    connection.execute("CREATE TABLE IF NOT EXISTS mark (id bigint PRIMARY KEY)")
    connection.execute("INSERT INTO mark SELECT coalesce(max(id), 0) + 1 FROM mark")


def _admin(database: Database) -> dict[str, Any]:
    settings = {"host": "127.0.0.1", "port": database.port, "user": database.user}
    return settings | {"password": database.password, "dbname": "postgres"}


def connector_of(name: str, settings: Mapping[str, str], database: Database) -> dict[str, str]:
    """A connector's configuration: over all published tables of a database, but for settings."""
    own = {
        "name": name,
        "topic.prefix": name,
        "slot.name": f"{database.name}_{name}",
        "publication.name": PUBLICATION,
        # The last table of a snapshot is read only while the gate is open.
        "snapshot.select.statement.overrides": "public.wiped",
        "snapshot.select.statement.overrides.public.wiped": (
            "SELECT * FROM public.wiped WHERE passes_gate()"
        ),
    }
    return {**CONNECTOR, **database.settings, **own, **settings}


def wait_until(condition: Callable[[], bool], what: str, seconds: float = ARRIVAL_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)
