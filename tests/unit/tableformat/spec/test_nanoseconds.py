"""Nanosecond timestamps as text, defaults and filter values; DuckDB parses the same texts."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IcebergType,
    LongType,
    NestedField,
    TimestampNanoType,
    TimestamptzNanoType,
)

import tableformat as tf
from tableformat.spec.nanoseconds import format_nanoseconds, parse_nanoseconds

MOMENT = 1_704_067_200_123_456_789  # 2024-01-01T00:00:00.123456789
INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
DUCKDB = st.integers(-(2**63) + 10**10, 2**63 - 10**10)  # it stops a little before the ends


@given(INT64, st.booleans())
def test_format_and_parse_give_the_value_back(value: int, zoned: bool) -> None:
    assert parse_nanoseconds(format_nanoseconds(value, zoned=zoned), zoned=zoned) == value


@given(DUCKDB)
def test_format_is_what_duckdb_reads(value: int) -> None:
    text = format_nanoseconds(value, zoned=False)
    found = duckdb.execute("SELECT epoch_ns(?::TIMESTAMP_NS)", [text]).fetchone()
    assert found == (value,)


@pytest.mark.parametrize(
    ("text", "zoned", "value"),
    [
        ("2024-01-01T00:00:00.123456789", False, MOMENT),
        ("2024-01-01 00:00:00.1", False, MOMENT // 10**9 * 10**9 + 10**8),
        ("2024-01-01T00:00", False, MOMENT // 10**9 * 10**9),
        ("2024-01-01", False, MOMENT // 10**9 * 10**9),
        ("2024-01-01T01:30:00.123456789+01:30", True, MOMENT),
        ("2023-12-31T19:00:00.123456789-0500", True, MOMENT),
        ("2024-01-01T00:00:00.123456789Z", True, MOMENT),
        ("1969-12-31T23:59:59.999999999", False, -1),
    ],
)
def test_parse_takes_iso_forms(text: str, zoned: bool, value: int) -> None:
    assert parse_nanoseconds(text, zoned=zoned) == value


@pytest.mark.parametrize(
    ("text", "zoned"),
    [
        ("yesterday", False),
        ("2024-13-01T00:00:00", False),
        ("2024-01-01T00:00:00.1234567890", False),
        ("2024-01-01T00:00:00", True),
        ("2024-01-01T00:00:00Z", False),
        ("1500-01-01T00:00:00", False),
        ("", False),
    ],
)
def test_parse_refuses_what_is_no_such_time(text: str, zoned: bool) -> None:
    with pytest.raises(ValueError):
        parse_nanoseconds(text, zoned=zoned)


@pytest.fixture
def table(tmp_path: Path) -> tf.Table:
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "t", TimestampNanoType()),
        NestedField(3, "z", TimestamptzNanoType()),
    )
    table = catalog.create_table("shop.events", schema, primary_key=["id"])
    moments = [MOMENT, MOMENT + 1, None]
    table.append(
        pa.table(
            {
                "id": [1, 2, 3],
                "t": pa.array(moments, pa.timestamp("ns")),
                "z": pa.array(moments, pa.timestamp("ns", "UTC")),
            }
        )
    )
    return table


@pytest.mark.parametrize(
    ("row_filter", "ids"),
    [
        ("t > '2024-01-01T00:00:00.123456789'", [2]),
        ("t = '2024-01-01T00:00:00.123456789'", [1]),
        ("t in ('2024-01-01T00:00:00.123456789', '2024-01-01T00:00:00.123456790')", [1, 2]),
        ("t < '2024-01-01'", []),
        ("z <= '2024-01-01T01:00:00.123456789+01:00'", [1]),
        ("z is null", [3]),
    ],
)
def test_filter_compares_nanoseconds(table: tf.Table, row_filter: str, ids: list[int]) -> None:
    assert sorted(table.scan(row_filter).to_arrow()["id"].to_pylist()) == ids


@pytest.mark.parametrize(
    ("kind", "default", "text"),
    [
        (TimestampNanoType(), "2024-01-01T00:00:00.123456789", "2024-01-01T00:00:00.123456789"),
        (
            TimestamptzNanoType(),
            "2024-01-01T01:00:00.123456789+01:00",
            "2024-01-01T00:00:00.123456789+00:00",
        ),
        (TimestampNanoType(), MOMENT, "2024-01-01T00:00:00.123456789"),
        (TimestampNanoType(), dt.datetime(1960, 1, 1, 0, 0, 0, 7), "1960-01-01T00:00:00.000007000"),
    ],
)
def test_default_of_a_new_column_is_read_and_stored_by_the_spec(
    table: tf.Table, kind: IcebergType, default: object, text: str
) -> None:
    table.update_schema(lambda s: s.add_column("added", kind, default_value=default))
    path = Path(table.metadata_location.removeprefix("file://"))
    schema = json.loads(path.read_text())["schemas"][-1]
    assert schema["fields"][-1]["initial-default"] == text
    again = tf.open_catalog("local", warehouse=str(path.parents[3])).load_table("shop.events")
    values = again.scan(columns=["added"]).to_arrow()["added"].cast(pa.int64())
    assert values.to_pylist() == [parse_nanoseconds(text, zoned="+" in text)] * 3
