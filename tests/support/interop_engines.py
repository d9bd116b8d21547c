"""Other engines, each reading an `InteropCase` as an Arrow table, and how rows are compared."""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tests.support.interop_tables import EQUALITY_DELETES, SHARED_DELETES, InteropCase
from tests.support.java_iceberg import java_iceberg
from tests.support.trino import trino

LINEAGE = ("_row_id", "_last_updated_sequence_number")


@dataclass(frozen=True)
class Engine:
    """One way to read a table.

    Attributes:
        name: For people.
        read: Rows of the named columns.
        refuses: Features that it says it does not have, and the text it says so with.
        lineage: It shows `_row_id` and `_last_updated_sequence_number`.
        checks_vectors: It notices a DV whose checksum is wrong.
    """

    name: str
    read: Callable[[InteropCase, list[str]], pa.Table]
    refuses: tuple[tuple[str, str], ...] = ()
    lineage: bool = False
    checks_vectors: bool = True

    def refusal(self, case: InteropCase) -> str | None:
        """What it says to this table, if it cannot read it."""
        return next((text for feature, text in self.refuses if feature in case.features), None)


def canonical_rows(table: pa.Table, schema: pa.Schema) -> Counter[tuple[Any, ...]]:
    """Rows as a multiset of comparable values, with the schema's columns and types."""
    columns = [_as_type(table[each.name], each.type).to_pylist() for each in schema]
    return Counter(tuple(_canonical(value) for value in row) for row in zip(*columns, strict=True))


def expected_rows(case: InteropCase) -> Counter[tuple[Any, ...]]:
    """The case's rows in the same form."""
    table = pa.Table.from_pylist(list(case.rows), case.schema)
    return canonical_rows(table, case.schema)


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as they are, sorted."""
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def check_rows(expected: Counter[tuple[Any, ...]], found: Counter[tuple[Any, ...]]) -> None:
    """Equal multisets; an AssertionError shows a few rows of the difference."""
    missing, extra = expected - found, found - expected
    assert not missing, f"{missing.total()} rows are missing: {missing.most_common(3)}"
    assert not extra, f"{extra.total()} rows too many: {extra.most_common(3)}"


def _as_type(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if column.type == wanted or pa.types.is_nested(wanted) or isinstance(wanted, pa.UuidType):
        return column
    return column.cast(wanted)


def _canonical(value: Any) -> Any:
    match value:
        case float():
            return "NaN" if math.isnan(value) else (value, math.copysign(1.0, value))
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC)
        case dict():
            return tuple(_canonical(each) for each in value.values())
        case list() | tuple():
            return tuple(_canonical(each) for each in value)
        case UUID():
            return str(value)
        case memoryview() | bytearray():
            return bytes(value)
    return value


def metadata_with_main_at(case: InteropCase) -> str:
    """A copy of the metadata in which main is the case's branch, for readers without branches."""
    path = Path(case.location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    metadata["refs"]["main"]["snapshot-id"] = case.snapshot_id
    metadata["current-snapshot-id"] = case.snapshot_id
    metadata["snapshot-log"] = []
    copy = path.with_name(f"{case.branch}-as-main.metadata.json")
    copy.write_text(json.dumps(metadata))
    return copy.as_uri()


def _location(case: InteropCase) -> str:
    return case.location if case.is_main else metadata_with_main_at(case)


def _icefold(case: InteropCase, columns: list[str]) -> pa.Table:
    return case.table.scan(columns=columns, branch=case.ref).to_arrow()


def _pyiceberg_table(case: InteropCase) -> Any:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(case.location)


def _pyiceberg(case: InteropCase, columns: list[str]) -> pa.Table:
    scan = _pyiceberg_table(case).scan(selected_fields=tuple(columns))
    return (scan if case.is_main else scan.use_ref(case.branch)).to_arrow()


def _java(case: InteropCase, columns: list[str]) -> pa.Table:
    options = {} if case.is_main else {"branch": case.branch}
    return java_iceberg().read(case.location, columns, **options)


def _java_row_by_row(case: InteropCase, columns: list[str]) -> pa.Table:
    options = {} if case.is_main else {"branch": case.branch}
    return java_iceberg().read(case.location, columns, vectorization_enabled="false", **options)


def _trino(case: InteropCase, columns: list[str]) -> pa.Table:
    types = {field.name: field.type for field in case.schema} | dict.fromkeys(LINEAGE, pa.int64())
    schema = pa.schema([(name, types[name]) for name in columns])
    return trino().read(case.location, schema, case.ref)


def _duckdb(case: InteropCase, columns: list[str]) -> pa.Table:
    snapshot = "" if case.is_main else f", snapshot_from_id={case.snapshot_id}"
    names = ", ".join(f'"{name}"' for name in columns)
    connection = duckdb_connection()
    query = f"SELECT {names} FROM iceberg_scan('{case.location}'{snapshot})"
    return connection.execute(query).to_arrow_table()


@functools.cache
def duckdb_connection() -> Any:
    """DuckDB with its Iceberg reader; the file cache misreads several DVs in one Puffin file."""
    connection = new_duckdb_connection()
    connection.execute("SET enable_external_file_cache=false")
    return connection


def new_duckdb_connection() -> Any:
    """One with default settings. Extensions come as wheels: nothing is downloaded."""
    import duckdb
    from duckdb_extensions import import_extension

    folder = tempfile.mkdtemp(prefix="icefold-duckdb-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    connection = duckdb.connect(config={"extension_directory": folder})
    for name in ("avro", "iceberg"):
        import_extension(name, con=connection)
    connection.execute("LOAD avro; LOAD iceberg; SET TimeZone='UTC'")
    return connection


def _datafusion(case: InteropCase, columns: list[str]) -> pa.Table:
    from datafusion import SessionContext
    from pyiceberg_core.datafusion import IcebergDataFusionTable

    context = SessionContext()
    provider = IcebergDataFusionTable(["interop", "t"], _location(case), {})
    context.register_table("t", provider)
    names = ", ".join(f'"{name}"' for name in columns)
    return context.sql(f"SELECT {names} FROM t").to_arrow_table()


def _polars_planned_by(planner: str) -> Callable[[InteropCase, list[str]], pa.Table]:
    def read(case: InteropCase, columns: list[str]) -> pa.Table:
        import polars as pl

        snapshot_id = None if case.is_main else case.snapshot_id
        with _environment("POLARS_ICEBERG_PLANNER", planner):
            frame = pl.scan_iceberg(case.location, snapshot_id=snapshot_id)
            return frame.select(columns).collect().to_arrow()

    return read


def _polars_pyiceberg(case: InteropCase, columns: list[str]) -> pa.Table:
    import polars as pl

    snapshot_id = None if case.is_main else case.snapshot_id
    frame = pl.scan_iceberg(case.location, snapshot_id=snapshot_id, reader_override="pyiceberg")
    return frame.select(columns).collect().to_arrow()


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


_NO_EQUALITY = ((EQUALITY_DELETES, "equality delete"),)
ENGINES = (
    Engine("icefold", _icefold, lineage=True),
    Engine("java", _java, lineage=True),
    Engine("java-row-by-row", _java_row_by_row, lineage=True),
    Engine("trino", _trino, lineage=True),
    Engine("duckdb", _duckdb, lineage=True),
    Engine("datafusion", _datafusion),
    Engine(
        "polars",
        _polars_planned_by("plugin"),
        (*_NO_EQUALITY, (SHARED_DELETES, "not limited to one data file")),
        checks_vectors=False,
    ),
    Engine("polars-alone", _polars_planned_by("pyiceberg"), _NO_EQUALITY, checks_vectors=False),
    Engine("polars-pyiceberg", _polars_pyiceberg, _NO_EQUALITY, checks_vectors=False),
    Engine("pyiceberg", _pyiceberg, _NO_EQUALITY, checks_vectors=False),
)


def engine_parameters(wanted: Callable[[Engine], bool] = lambda _: True) -> list[Any]:
    """For `parametrize`: the engines wanted, those that start Spark marked so."""
    return [
        pytest.param(
            engine, id=engine.name, marks=[pytest.mark.spark] if "java" in engine.name else []
        )
        for engine in ENGINES
        if wanted(engine)
    ]
