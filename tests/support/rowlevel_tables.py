"""The tables of the statement corpus, in icefold and in DuckDB, with the same rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, StringType

from tableformat import Table, TableCatalog, open_catalog
from tests.support.rowlevel_corpus import (
    CHANGES_ROWS,
    CHANGES_SCHEMA,
    PEOPLE_SCHEMA,
    people_rows,
)

NAMESPACE = "c"
TABLES = ("people", "changes", "empty", "parts", "evolved")
REGIONS = ["EU", "US", None, "ÄÖ"]
_SMALL = [("id", pa.int64()), ("n", pa.int32()), ("s", pa.string())]


def build_catalog(folder: Path) -> TableCatalog:
    """Every table with several files, vectors and, where it says so, several schemas and specs."""
    catalog = open_catalog("local", warehouse=str(folder))
    people = _create(catalog, "people", PEOPLE_SCHEMA)
    rows = people_rows()
    for start in range(0, len(rows), 16):
        people.append(pa.Table.from_pylist(rows[start : start + 16], schema=PEOPLE_SCHEMA))
    changes = catalog.create_table(
        f"{NAMESPACE}.changes", CHANGES_SCHEMA, primary_key=["op"], partition_by=[]
    )
    changes.append(pa.Table.from_pylist(CHANGES_ROWS, schema=CHANGES_SCHEMA))
    _create(catalog, "empty", pa.schema(_SMALL))
    _build_parts(catalog)
    _build_evolved(catalog)
    return catalog


def _create(catalog: TableCatalog, name: str, schema: pa.Schema, by: Iterable[str] = ()) -> Table:
    return catalog.create_table(
        f"{NAMESPACE}.{name}",
        schema,
        primary_key=["id"],
        partition_by=[*by],
        properties={"icefold.sql.check-primary-key": "false"},  # as DuckDB's tables without a key
    )


def _build_parts(catalog: TableCatalog) -> None:
    schema = pa.schema([*_SMALL, ("region", pa.string())])
    table = _create(catalog, "parts", schema, ["region"])
    for first in (0, 20):
        rows = [
            {"id": i, "n": i % 6, "s": f"s{i}", "region": REGIONS[i % 4]}
            for i in range(first, first + 20)
        ]
        table.append(pa.Table.from_pylist(rows, schema=schema))
    table.delete("id IN (3, 4, 8, 25)")  # vectors to merge with


def _build_evolved(catalog: TableCatalog) -> None:
    first = pa.schema([*_SMALL, ("old", pa.string())])
    table = _create(catalog, "evolved", first)
    rows = [{"id": i, "n": i % 5, "s": f"s{i}", "old": "xy"[i % 2]} for i in range(10)]
    table.append(pa.Table.from_pylist(rows, schema=first))

    def edit(update: Any) -> None:
        update.rename_column("old", "renamed")
        update.update_column("n", LongType())
        update.add_column("late", LongType(), default_value=7)
        update.add_column("more", StringType())

    table.update_schema(edit)
    table.update_partitioning(lambda spec: spec.add_field("id", BucketTransform(2), "id_bucket"))
    second = [
        {"id": i, "n": i + 3_000_000_000 * (i % 2), "s": None, "renamed": None, "late": i % 9}
        for i in range(10, 24)
    ]
    columns = ["id", "n", "s", "renamed", "late"]
    table.append(pa.table({name: [row[name] for row in second] for name in columns}))
    table.delete("id IN (2, 11)")


def build_oracle(catalog: TableCatalog) -> duckdb.DuckDBPyConnection:
    """DuckDB with the rows as Arrow has them; statements run in transactions that are undone."""
    connection = duckdb.connect()
    for name in TABLES:
        given = catalog.load_table(f"{NAMESPACE}.{name}").scan().to_arrow()
        given = given.replace_schema_metadata(None)
        connection.register("given", given)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        connection.unregister("given")
    connection.execute("ALTER TABLE evolved ALTER late SET DEFAULT 7")  # the write default
    return connection


def oracle_rows(connection: duckdb.DuckDBPyConnection, table: str, sql: str) -> Counter[str]:
    connection.execute("BEGIN")
    try:
        connection.execute(sql)
        found = connection.execute(f"SELECT * FROM {table}").to_arrow_table()
        return canonical(found.to_pylist())
    finally:
        connection.execute("ROLLBACK")


def canonical(rows: list[dict[str, Any]]) -> Counter[str]:
    """Rows as a multiset; NaN equals NaN, -0.0 equals 0.0."""
    return Counter(repr({key: _plain(value) for key, value in row.items()}) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value
