"""Drawn values of PostgreSQL's types, as columns, arrays and keys, in three of Debezium's modes."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from resolver import resolve
from tests.support.apicurio import CONVERTER_JARS, missing_apicurio, new_apicurio
from tests.support.debezium import CONNECTOR, Database, new_connect
from tests.support.drawn_types import DRAWN_TABLES, TYPES
from tests.support.guard import stop_with_this_process
from tests.support.interop_engines import duckdb_connection
from tests.support.kafka import new_broker
from tests.support.pipeline import PUBLICATION, Pipeline, missing_pipeline
from tests.support.postgres import PASSWORD, USER, postgres_server

pytestmark = [
    pytest.mark.long,
    pytest.mark.interop,
    pytest.mark.services,
    pytest.mark.timeout(1800),
]
ROOT = Path(__file__).resolve().parents[2]
SEED, CHANGES = 5, 12
PROGRAM = "from maintenance.cli.start import main; main()"
MODES = {
    "plain": {},
    "texts": {
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "binary.handling.mode": "hex",
        "interval.handling.mode": "string",
        "column.propagate.source.type": ".*",
    },
    "avro": {
        "time.precision.mode": "nanoseconds",
        "binary.handling.mode": "base64",
        "interval.handling.mode": "string",
        "column.propagate.source.type": ".*",
    },
}
BINARIES = {"plain": [], "texts": ["-o", "binaries=hex"], "avro": ["-o", "binaries=base64"]}
OPEN = "decimal(38,9)"  # numeric has no digits of its own
COLUMNS = {"col_open": OPEN, "key_open": OPEN, "arr_open": f"list<{OPEN}>"}


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    missing = missing_pipeline() or missing_apicurio()
    if missing is not None:
        pytest.skip(missing)
    server = postgres_server()
    database = Database(server.port, USER, PASSWORD, "drawn")
    folder = Path(tempfile.mkdtemp(prefix="icefold-drawn-"))
    stop_with_this_process(["true"], folder)
    broker, servers = new_broker()
    broker.start()
    registry = new_apicurio()
    registry.server.start()
    connectors = [
        {
            **CONNECTOR,
            **database.settings,
            "name": mode,
            "topic.prefix": mode,
            "slot.name": f"drawn_{mode}",
            "publication.name": PUBLICATION,
            **(registry.converters() if mode == "avro" else {}),
            **settings,
        }
        for mode, settings in MODES.items()
    ]
    connect, port = new_connect(servers, connectors, converters=CONVERTER_JARS)
    made = Pipeline(database, broker, servers, connect, port, folder, tuple(MODES), registry)
    with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE drawn")
    made.sql("ALTER DATABASE drawn SET timezone = 'UTC'", *TYPES)
    made.sql(*(table.ddl for table in DRAWN_TABLES))
    made.sql(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    yield made
    made.close()


def _write(pipeline: Pipeline, drawn: random.Random, base: int, changes: int) -> None:
    """Rows with every literal, then drawn changes; what breaks a key is rolled back."""
    with pipeline.connection() as connection:
        for table in DRAWN_TABLES:
            statements = [*table.first(drawn, base)]
            statements += [table.change(drawn, base) for _ in range(changes)]
            for statement in statements:
                with suppress(psycopg.errors.UniqueViolation):
                    connection.execute(statement)  # type: ignore[call-overload]


def _ingest(pipeline: Pipeline, mode: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PROGRAM, "--warehouse", pipeline.warehouse, "ingest"]
    words += ["--kafka", pipeline.servers, "--topics", f"{mode}.public.*_*", "--into", mode]
    file = pipeline.folder / f"{mode}.yaml"
    lines = [f"  {name}: {{columns: {{c: '{kind}'}}}}\n" for name, kind in COLUMNS.items()]
    file.write_text("tables:\n" + "".join(lines))
    words += ["--engine", "local", "--tables", str(file), *BINARIES[mode]]
    if mode == "avro":
        assert pipeline.registry is not None
        words += ["--schema-registry", pipeline.registry.url]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def test_published_values_are_those_of_postgresql_in_every_mode(pipeline: Pipeline) -> None:
    drawn = random.Random(SEED)
    _write(pipeline, drawn, 0, 0)
    pipeline.connect.start()
    pipeline.await_arrival()  # the snapshots' rows; the next ones are streamed
    _write(pipeline, drawn, 1000, CHANGES)
    pipeline.await_arrival()
    duck = duckdb_connection()
    differences: list[str] = []
    compared = 0
    with pipeline.connection() as connection:
        for mode in MODES:
            done = _ingest(pipeline, mode)
            differences += [line for line in done.stderr.splitlines() if "set aside" in line]
            for table in DRAWN_TABLES:
                loaded = pipeline.catalog.load_table(f"{mode}.{table.name}")
                resolve(loaded)
                expected = table.expected(connection)
                compared += len(expected)
                found = table.published(duck, loaded.refresh().metadata_location)
                differences += [f"{mode} {each}" for each in table.differences(expected, found)]
    assert differences == []
    assert compared > 3000
