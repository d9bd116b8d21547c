"""Defaults and partition constants as columns, in every form PyIceberg holds them."""

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField

from tableformat.spec.arrow_arrays import constant_array, python_rows, rebased_offsets
from tests.support.data_files import DataFiles

UTC = dt.UTC
MOMENT = dt.datetime(2024, 2, 29, 1, 2, 3, 4)
MICROS = 1_709_168_523_000_004


@pytest.mark.parametrize(
    ("name", "value", "raw"),
    [
        ("boolean", True, True),
        ("int", -1, -1),
        ("long", 1 << 62, 1 << 62),
        ("float", 1.5, 1.5),
        ("double", -0.0, -0.0),
        ("decimal(9, 2)", Decimal("1.20"), Decimal("1.20")),
        ("date", dt.date(1970, 1, 3), 2),
        ("date", 2, 2),
        ("time", dt.time(0, 0, 1), 1_000_000),
        ("time", 5, 5),
        ("timestamp", MOMENT, MICROS),
        ("timestamp", MICROS, MICROS),
        ("timestamp", "2024-02-29T01:02:03.000004", MICROS),
        ("timestamptz", MOMENT.replace(tzinfo=UTC), MICROS),
        ("timestamptz", MICROS, MICROS),
        ("timestamptz", "2024-02-29T01:02:03.000004+00:00", MICROS),
        ("timestamp_ns", MICROS * 1000 + 5, MICROS * 1000 + 5),
        ("timestamp_ns", "2024-02-29T01:02:03.000004005", MICROS * 1000 + 5),
        ("timestamptz_ns", "2024-02-29T01:02:03.000004005+00:00", MICROS * 1000 + 5),
        ("string", "é", "é"),
        ("uuid", uuid.UUID(int=7), uuid.UUID(int=7).bytes),
        ("uuid", uuid.UUID(int=7).bytes, uuid.UUID(int=7).bytes),
        ("fixed[2]", b"\x00\xff", b"\x00\xff"),
        ("binary", b"", b""),
    ],
)
def test_constant_is_exact(name: str, value: Any, raw: Any) -> None:
    kind = IcebergType.handle_primitive_type(name, None)
    found = constant_array(value, kind, 3)
    flat = found.storage if isinstance(found.type, pa.UuidType) else found
    if pa.types.is_temporal(flat.type):
        flat = flat.view(pa.int32() if flat.type.bit_width == 32 else pa.int64())
    assert repr(flat.to_pylist()) == repr([raw] * 3)
    assert constant_array(None, kind, 2).null_count == 2
    assert constant_array(value, kind, 0).type == found.type


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("date", dt.date(2024, 2, 29)),
        ("uuid", uuid.UUID(int=9)),
        ("decimal(20, 3)", Decimal("-1.250")),
        ("fixed[2]", b"\x01\x02"),
        ("timestamp", MOMENT),
        ("time", dt.time(1, 2, 3)),
        ("string", ""),
        ("boolean", False),
    ],
)
def test_write_default_is_stored_and_initial_default_is_read(name: str, default: Any) -> None:
    kind = IcebergType.handle_primitive_type(name, None)
    key = NestedField(1, "id", "long", required=True)
    written = NestedField(2, "c", kind, required=True, write_default=default)
    files = DataFiles(Schema(key, written))
    file = files.write_one(pa.table({"id": [1]}))
    assert files.read(file).column("c").to_pylist() == [default]
    old = DataFiles(Schema(key))
    added = NestedField(2, "c", kind, required=True, initial_default=default)
    found = old.read(old.write_one(pa.table({"id": [1]})), schema=Schema(key, added))
    assert found.column("c").to_pylist() == [default]


def test_offsets_of_a_slice_start_at_zero() -> None:
    lists = pa.array([[1], [2, 3], [], None, [4]], pa.large_list(pa.int32()))
    offsets, first, count = rebased_offsets(lists.slice(1))
    assert (offsets.to_pylist(), first, count) == ([0, 2, 2, 2, 3], 1, 3)
    assert offsets.type == pa.int32()
    assert rebased_offsets(lists.slice(5))[2] == 0


def test_rows_for_people_have_texts_for_moments_that_python_has_not() -> None:
    far = pa.array([-80_000_000_000_000_000, 0, None]).cast(pa.timestamp("us"))
    near = pa.array([1, 2, 3]).cast(pa.timestamp("us"))
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3, 3], pa.int32()), far)
    structs = pa.StructArray.from_arrays([lists, near], ["a", "b"])
    rows = python_rows(pa.table({"far": far, "near": near, "in": structs}))
    assert rows[0]["far"] == "-0566-11-26 01:46:40.000000"
    assert rows[1]["in"]["a"] == [None]
    assert rows[2]["near"] == dt.datetime(1970, 1, 1, 0, 0, 0, 3)
    assert python_rows(pa.table({"n": [1, 2]})) == [{"n": 1}, {"n": 2}]
