"""Column statistics: exact, in Iceberg's serialization, or absent."""

import datetime as dt
import math
import struct
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal

from tableformat.codec.parquet.metrics import lower_bound, serialize_value, upper_bound
from tableformat.spec.data_file import DataFile
from tests.support.data_files import DataFiles

GROUPS = {"write.parquet.row-group-limit": "2"}


def _write(
    kind: IcebergType, values: Any, properties: dict[str, str] | None = None
) -> tuple[DataFiles, DataFile]:
    files = DataFiles(
        Schema(NestedField(1, "c", kind, required=False)), properties=properties or GROUPS
    )
    array = values if isinstance(values, pa.Array) else None
    if array is None:
        table = pa.Table.from_pylist([{"c": value} for value in values])
        table = table if table.num_columns else pa.table({"c": pa.nulls(len(values))})
    else:
        table = pa.table({"c": array})
    return files, files.write_one(table)


def _bounds(file: DataFile) -> tuple[bytes | None, bytes | None]:
    return (file.lower_bounds or {}).get(1), (file.upper_bounds or {}).get(1)


ORDERED: list[tuple[str, Any, bytes, bytes]] = [
    ("boolean", [True, None, False], b"\x00", b"\x01"),
    ("int", pa.array([5, -7, None, 3], pa.int32()), struct.pack("<i", -7), struct.pack("<i", 5)),
    ("long", [5, -7, None, 3], struct.pack("<q", -7), struct.pack("<q", 5)),
    ("float", pa.array([1.5, -2, 0], pa.float32()), struct.pack("<f", -2), struct.pack("<f", 1.5)),
    ("double", [1.5, -2.0, 0.0], struct.pack("<d", -2), struct.pack("<d", 1.5)),
    (
        "date",
        [dt.date(1969, 12, 30), None, dt.date(1970, 1, 3)],
        struct.pack("<i", -2),
        struct.pack("<i", 2),
    ),
    ("time", [dt.time(0, 0, 1), dt.time(0)], struct.pack("<q", 0), struct.pack("<q", 1_000_000)),
    ("timestamp", pa.array([9, -9], pa.timestamp("us")), b"\xf7" + b"\xff" * 7, b"\t" + bytes(7)),
    (
        "timestamptz",
        pa.array([9, -9], pa.timestamp("us", "UTC")),
        b"\xf7" + b"\xff" * 7,
        b"\t" + bytes(7),
    ),
    (
        "timestamp_ns",
        pa.array([9, -9], pa.timestamp("ns")),
        b"\xf7" + b"\xff" * 7,
        b"\t" + bytes(7),
    ),
    (
        "timestamptz_ns",
        pa.array([9, -9], pa.timestamp("ns", "UTC")),
        b"\xf7" + b"\xff" * 7,
        b"\t" + bytes(7),
    ),
    ("decimal(9, 2)", [Decimal("1.28"), Decimal("-1.28"), None], b"\x80", b"\x00\x80"),
    ("decimal(18, 2)", [Decimal("1.27"), Decimal("-1.29")], b"\xff\x7f", b"\x7f"),
    ("decimal(38, 0)", [Decimal(10**37), Decimal(-1)], b"\xff", (10**37).to_bytes(16, "big")),
    ("string", ["b", "a", None, "é"], b"a", "é".encode()),
    (
        "uuid",
        pa.array([b"\xff" * 16, b"\x00" * 16, b"\x7f" * 16], pa.binary(16)),
        b"\x00" * 16,
        b"\xff" * 16,
    ),
    ("fixed[2]", pa.array([b"\xff\x00", b"\x00\xff"], pa.binary(2)), b"\x00\xff", b"\xff\x00"),
    ("binary", [b"\xff", b"", b"a"], b"", b"\xff"),
]


@pytest.mark.parametrize(
    ("name", "values", "low", "high"), ORDERED, ids=[case[0] for case in ORDERED]
)
def test_bounds_are_exact_and_of_the_type_s_width(
    name: str, values: Any, low: bytes, high: bytes
) -> None:
    kind = IcebergType.handle_primitive_type(name, None)
    _, file = _write(kind, values)
    assert _bounds(file) == (low, high)
    assert file.value_counts == {1: len(values)}
    nulls = sum(
        value is None for value in (values.to_pylist() if isinstance(values, pa.Array) else values)
    )
    assert file.null_value_counts == {1: nulls}


@settings(max_examples=50, deadline=None)
@given(st.integers(-(10**38) + 1, 10**38 - 1))
def test_decimals_serialize_to_the_shortest_twos_complement(unscaled: int) -> None:
    found = serialize_value(unscaled, DecimalType(38, 3))
    assert int.from_bytes(found, "big", signed=True) == unscaled
    if len(found) > 1:
        shorter = found[1:]
        assert int.from_bytes(shorter, "big", signed=True) != unscaled
    assert found == to_bytes(DecimalType(38, 3), unscaled_to_decimal(unscaled, 3))


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()])
def test_nans_are_counted_and_are_no_bounds(kind: PrimitiveType) -> None:
    arrow = pa.float32() if isinstance(kind, FloatType) else pa.float64()
    mixed = pa.array([math.nan, 1, None, math.nan, -1, math.nan], arrow)
    _, file = _write(kind, mixed)
    assert file.nan_value_counts == {1: 3}
    assert file.null_value_counts == {1: 1}
    assert _bounds(file) == (serialize_value(-1.0, kind), serialize_value(1.0, kind))
    _, only = _write(kind, pa.array([math.nan, None, math.nan], arrow))
    assert only.nan_value_counts == {1: 2}
    assert _bounds(only) == (None, None)


def test_zero_bounds_span_both_signs() -> None:
    for zero in (0.0, -0.0):
        _, file = _write(DoubleType(), [zero])
        assert _bounds(file) == (struct.pack("<d", -0.0), struct.pack("<d", 0.0))


def test_nans_inside_structs_are_counted_where_the_struct_is() -> None:
    inner = StructType(NestedField(2, "x", DoubleType(), required=False))
    files = DataFiles(Schema(NestedField(1, "s", inner, required=False)))
    children = pa.array([math.nan, math.nan, 1.0])
    struct_array = pa.StructArray.from_arrays(
        [children], ["x"], mask=pa.array([False, True, False])
    )
    file = files.write_one(pa.table({"s": struct_array}))
    assert file.nan_value_counts == {2: 1}
    assert file.null_value_counts == {2: 1}
    assert file.value_counts == {2: 3}


def test_all_null_column_has_counts_and_no_bounds() -> None:
    _, file = _write(LongType(), [None, None, None])
    assert (file.value_counts, file.null_value_counts) == ({1: 3}, {1: 3})
    assert (file.lower_bounds, file.upper_bounds) == ({}, {})


def test_row_group_without_bounds_drops_the_columns_bounds() -> None:
    # Arrow keeps no minimum for values above 4 KiB: that group may hold anything.
    _, file = _write(StringType(), ["b", "c", "z" * 5000, "a"])
    assert _bounds(file) == (None, None)
    assert file.null_value_counts == {1: 0}
    _, nulls = _write(StringType(), ["b", "c", None, None])
    assert _bounds(nulls) == (b"b", b"c")


def test_columns_inside_lists_have_sizes_only() -> None:
    files = DataFiles(
        Schema(
            NestedField(
                1,
                "l",
                ListType(
                    2,
                    StructType(NestedField(3, "x", DoubleType(), required=False)),
                    element_required=False,
                ),
                required=False,
            )
        )
    )
    file = files.write_one(pa.table({"l": [[{"x": math.nan}], None]}))
    assert set(file.column_sizes or ()) == {3}
    for counts in (file.value_counts, file.null_value_counts, file.nan_value_counts):
        assert counts == {}
    assert file.lower_bounds == {}


@pytest.mark.parametrize(
    ("mode", "value", "low", "high"),
    [
        ("truncate(3)", "abcdef", b"abc", b"abd"),
        ("truncate(3)", "abc", b"abc", b"abc"),
        ("truncate(2)", "a\U0010ffffz", "a\U0010ffff".encode(), b"b"),
        ("truncate(1)", "\ud7ffz", "\ud7ff".encode(), "\ue000".encode()),
        ("truncate(1)", "\U0010ffff\U0010ffff", "\U0010ffff".encode(), None),
        (
            "truncate(2)",
            "\U0001f600\U0001f600\U0001f600",
            "\U0001f600\U0001f600".encode(),
            "\U0001f600\U0001f601".encode(),
        ),
        ("full", "x" * 100, b"x" * 100, b"x" * 100),
        ("counts", "x", None, None),
    ],
)
def test_text_bounds_follow_the_metrics_mode(
    mode: str, value: str, low: bytes | None, high: bytes | None
) -> None:
    _, file = _write(StringType(), [value], {"write.metadata.metrics.default": mode})
    assert _bounds(file) == (low, high)
    assert file.value_counts == {1: 1}


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        (b"\x01\x02\x03", b"\x01\x02", b"\x01\x03"),
        (b"\x01\xff\x03", b"\x01\xff", b"\x02"),
        (b"\xff\xff\x00", b"\xff\xff", None),
        (b"\xff\xff", b"\xff\xff", b"\xff\xff"),
    ],
)
def test_binary_bounds_are_truncated_and_rounded(
    value: bytes, low: bytes, high: bytes | None
) -> None:
    _, file = _write(BinaryType(), [value], {"write.metadata.metrics.default": "truncate(2)"})
    assert _bounds(file) == (low, high)


def test_default_mode_truncates_text_and_binary_and_nothing_else() -> None:
    _, text = _write(StringType(), ["x" * 20], {})
    assert _bounds(text) == (b"x" * 16, b"x" * 15 + b"y")
    fixed = IcebergType.handle_primitive_type("fixed[20]", None)
    _, file = _write(fixed, pa.array([b"f" * 20], pa.binary(20)), {})
    assert _bounds(file) == (b"f" * 20, b"f" * 20)


def test_mode_is_found_by_column_then_table_then_count_of_columns() -> None:
    fields = [NestedField(i, f"c{i}", LongType(), required=False) for i in range(1, 4)]
    rows = pa.table({f"c{i}": [i] for i in range(1, 4)})
    inferred = "write.metadata.metrics.max-inferred-column-defaults"
    file = DataFiles(Schema(*fields), properties={inferred: "2"}).write_one(rows)
    assert set(file.value_counts or ()) == {1, 2}
    assert set(file.column_sizes or ()) == {1, 2, 3}
    properties = {
        inferred: "2",
        "write.metadata.metrics.default": "none",
        "write.metadata.metrics.column.c3": "full",
    }
    file = DataFiles(Schema(*fields), properties=properties).write_one(rows)
    assert set(file.value_counts or ()) == set(file.lower_bounds or ()) == {3}


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)


@settings(max_examples=200, deadline=None)
@given(TEXT, st.integers(1, 4))
def test_truncated_text_bounds_hold(value: str, length: int) -> None:
    raw = value.encode()
    low = lower_bound(raw, StringType(), length)
    high = upper_bound(raw, StringType(), length)
    assert low.decode() <= value
    assert len(low.decode()) <= length
    if high is None:
        assert set(value[:length]) == {chr(0x10FFFF)}
    else:
        assert high >= raw
        assert len(high.decode()) <= length


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=6), st.integers(1, 4))
def test_truncated_binary_bounds_hold(value: bytes, length: int) -> None:
    low = lower_bound(value, BinaryType(), length)
    high = upper_bound(value, BinaryType(), length)
    assert low <= value
    assert len(low) <= length
    assert high is None or (high >= value and len(high) <= length)
    assert high is not None or set(value[:length]) == {255}


def test_pyiceberg_reads_every_bound_back() -> None:
    for name, values, _, _ in ORDERED:
        kind = IcebergType.handle_primitive_type(name, None)
        assert isinstance(kind, PrimitiveType)
        _, file = _write(kind, values)
        for bound in _bounds(file):
            assert bound is not None
            value = from_bytes(kind, bound)
            if isinstance(value, uuid.UUID):
                assert value.bytes == bound
            else:
                assert to_bytes(kind, value) == bound
