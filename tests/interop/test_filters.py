"""Filters give the same rows everywhere: no engine is misled by the bounds and counts we write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from datafusion import SessionContext
from pyiceberg_core.datafusion import IcebergDataFusionTable

from tests.support.interop_engines import duckdb_connection
from tests.support.interop_tables import InteropCase, Row
from tests.support.java_iceberg import java_iceberg

pytestmark = pytest.mark.interop


@dataclass(frozen=True)
class Filter:
    """SQL that every engine understands, and what it means."""

    case: str
    sql: str
    passes: Callable[[Row], Any]


FILTERS = (
    Filter("partitioned", "region = 'EU'", lambda r: r["region"] == "EU"),
    Filter("partitioned", "region IS NULL", lambda r: r["region"] is None),
    Filter("partitioned", "id >= 20 AND id < 50", lambda r: 20 <= r["id"] < 50),
    Filter("partitioned", "id = 8", lambda r: r["id"] == 8),
    Filter("partitioned", "note = 'first'", lambda r: r["note"] == "first"),
    Filter("partitioned", "amount > 3.5", lambda r: r["amount"] and r["amount"] > Decimal("3.5")),
    Filter("evolved_partition", "id IN (31, 77, 100)", lambda r: r["id"] in (31, 77, 100)),
    Filter("evolved_partition", "note = 'second'", lambda r: r["note"] == "second"),
    Filter("dv_replaced_twice", "id < 9 OR id = 106", lambda r: r["id"] < 9 or r["id"] == 106),
    Filter("evolved_schema", "id > 4294967296", lambda r: r["id"] > 2**32),
    Filter("evolved_schema", "id = 30", lambda r: r["id"] == 30),
    Filter("evolved_schema", "score = 7", lambda r: r["score"] == 7),
    Filter("evolved_schema", "score IS NULL", lambda r: r["score"] is None),
    Filter("evolved_schema", "gone IS NOT NULL", lambda r: r["gone"] is not None),
    Filter("evolved_schema", "name = 'x'", lambda r: r["name"] == "x"),
    Filter("text_keys", "name = 'a/b=c d'", lambda r: r["name"] == "a/b=c d"),
    Filter("text_keys", "name = ''", lambda r: not r["name"]),
    Filter("text_keys", "day < DATE '1970-01-01'", lambda r: r["day"] < date(1970, 1, 1)),
    Filter("text_keys", "rate >= 0.030", lambda r: r["rate"] >= Decimal("0.030")),
    Filter("types", "small = -2147483648", lambda r: r["small"] == -(2**31)),
    Filter("types", "large = 9223372036854775807", lambda r: r["large"] == 2**63 - 1),
    Filter("types", "text = ''", lambda r: r["text"] == ""),
    Filter("types", "text > 'y'", lambda r: r["text"] is not None and r["text"] > "y"),
    Filter("types", "huge > 0", lambda r: r["huge"] is not None and r["huge"] > 0),
    Filter("types", "day < DATE '1950-01-01'", lambda r: r["day"] and r["day"].year < 1950),
    Filter("types", "double = 0.0", lambda r: r["double"] == 0.0),
    Filter("types", "single IS NULL", lambda r: r["single"] is None),
    Filter("types", "flag = true", lambda r: r["flag"]),
    Filter("rewritten", "id BETWEEN 15 AND 55", lambda r: 15 <= r["id"] <= 55),
    Filter("large_file", "id > 149990", lambda r: r["id"] > 149_990),
)


def _icefold(case: InteropCase, column: str, sql: str) -> pa.Table:
    return case.table.scan(filter=sql.replace("DATE ", ""), columns=[column]).to_arrow()


def _java(case: InteropCase, column: str, sql: str) -> pa.Table:
    return java_iceberg().read(case.location, [column], where=sql)


def _duckdb(case: InteropCase, column: str, sql: str) -> pa.Table:
    query = f"SELECT {column} FROM iceberg_scan('{case.location}') WHERE {sql}"
    return duckdb_connection().execute(query).to_arrow_table()


def _datafusion(case: InteropCase, column: str, sql: str) -> pa.Table:
    context = SessionContext()
    context.register_table("t", IcebergDataFusionTable(["interop", "t"], case.location, {}))
    return context.sql(f"SELECT {column} FROM t WHERE {sql}").to_arrow_table()


def _polars(case: InteropCase, column: str, sql: str) -> pa.Table:
    frame = pl.scan_iceberg(case.location).filter(pl.sql_expr(sql))
    return frame.select(column).collect().to_arrow()


READERS = [
    _icefold,
    pytest.param(_java, marks=pytest.mark.spark),
    _duckdb,
    _datafusion,
    _polars,
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("wanted", FILTERS, ids=lambda f: f"{f.case}: {f.sql}")
def test_filter_gives_the_rows_that_pass_it(case_named, wanted, read) -> None:
    case = case_named(wanted.case)
    column = "id" if "id" in case.schema.names else "value"
    expected = Counter(row[column] for row in case.rows if wanted.passes(row))
    found = read(case, column, wanted.sql)
    assert Counter(found[column].to_pylist()) == expected
