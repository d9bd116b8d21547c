"""The way to Spark types and back: documented, lossless, and true in a real Spark."""

import datetime as dt
import re
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    GeometryType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    TimeType,
    UnknownType,
    UUIDType,
)
from pyspark.sql import types as spark

from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spark.types import (
    from_spark_batch,
    spark_schema,
    spark_type,
    to_spark_batch,
    to_spark_schema,
    travelling_type,
)
from tableformat.spec.types import arrow_schema

DOC = Path(__file__).parents[4] / "docs" / "types.md"
NESTED: dict[str, IcebergType] = {
    "struct<1: a: optional int>": StructType(NestedField(1, "a", "int", required=False)),
    "list<int>": ListType(2, "int", element_required=False),
    "map<string, int>": MapType(2, "string", 3, "int", value_required=False),
}
DOCUMENTED = [
    (cells[0].strip("`"), cells[4].strip("`"))
    for line in DOC.read_text().splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    if cells[1] != "refused"
]


@pytest.mark.parametrize(("iceberg", "documented"), DOCUMENTED)
def test_spark_type_is_the_documented_one(iceberg: str, documented: str) -> None:
    kind = NESTED.get(iceberg) or IcebergType.handle_primitive_type(iceberg, None)
    assert spark_type(kind).simpleString() == documented


def _field(field_id: int, name: str, kind: IcebergType) -> NestedField:
    return NestedField(field_id, name, kind, required=False)


def _primitives() -> list[tuple[str, Any]]:
    utc = dt.UTC
    return [
        ("boolean", True),
        ("int", -5),
        ("long", 1 << 60),
        ("float", 1.5),
        ("double", 0.1),
        ("decimal(38, 10)", Decimal("1.0000000001")),
        ("date", dt.date(1500, 1, 1)),
        ("time", dt.time(23, 59, 59, 999999)),
        ("timestamp", dt.datetime(1960, 1, 1, 0, 0, 0, 1)),
        ("timestamptz", dt.datetime(1960, 1, 1, 0, 0, 0, 1, utc)),
        ("timestamp_ns", 1_234_567_890_123_456_789),
        ("timestamptz_ns", -1),
        ("string", "é\U0001f600"),
        ("uuid", uuid.UUID(int=77)),
        ("fixed[3]", b"\x00\xff\x01"),
        ("binary", b"\xff"),
        ("unknown", None),
    ]


def _array(kind: IcebergType, values: list[Any]) -> pa.Array:
    target = arrow_schema(Schema(_field(1, "c", kind))).field("c").type
    if isinstance(target, pa.UuidType):
        raw = pa.array([value and value.bytes for value in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(target, raw)
    return pa.array(values, target)


def _everything() -> tuple[Schema, pa.RecordBatch]:
    """Every type at the top, in a struct, in a list and as a map's value; with nulls everywhere."""
    fields, columns = [NestedField(1, "id", LongType(), required=True)], [pa.array([1, 2, 3, 4])]
    for index, (name, value) in enumerate(_primitives()):
        kind = IcebergType.handle_primitive_type(name, None)
        first = 100 * (index + 1)
        flat = _array(kind, [value, None, None, value])
        fields.append(_field(first, f"c{index}", kind))
        columns.append(flat)
        if isinstance(kind, UnknownType):
            continue
        struct_kind = StructType(_field(first + 2, "x", kind))
        fields.append(_field(first + 1, f"s{index}", struct_kind))
        target = arrow_schema(Schema(fields[-1])).field(0).type
        mask = pa.array([False, False, True, False])
        columns.append(pa.StructArray.from_arrays([flat], fields=list(target), mask=mask))
        offsets = pa.array([0, 2, 2, None, 4], pa.int32())
        fields.append(_field(first + 3, f"l{index}", ListType(first + 4, kind, False)))
        target = arrow_schema(Schema(fields[-1])).field(0).type
        columns.append(pa.ListArray.from_arrays(offsets, flat, type=target))
        map_kind = MapType(first + 6, StringType(), first + 7, kind, False)
        fields.append(_field(first + 5, f"m{index}", map_kind))
        target = arrow_schema(Schema(fields[-1])).field(0).type
        keys = pa.array(["a", "b", "c", "d"])
        columns.append(pa.MapArray.from_arrays(offsets, keys, flat, type=target))
    schema = Schema(*fields)
    return schema, pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))


def test_every_type_travels_and_returns_unchanged() -> None:
    schema, batch = _everything()
    for part in (batch, batch.slice(1), batch.slice(3, 1), batch.slice(0, 0)):
        there = to_spark_batch(part, schema)
        assert there.schema.equals(to_spark_schema(schema))
        back = from_spark_batch(there, schema)
        back.validate(full=True)
        assert back.to_pylist() == part.to_pylist()
        assert back.schema.equals(part.schema)


def test_columns_return_in_any_order_and_missing_ones_are_null() -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True), _field(2, "at", TimestampNanoType())
    )
    given = pa.record_batch({"at": pa.array([5]), "id": pa.array([1])})
    assert from_spark_batch(given, schema).column("at").cast(pa.int64()).to_pylist() == [5]
    short = from_spark_batch(pa.record_batch({"id": [1]}), schema)
    assert short.column("at").to_pylist() == [None]


@pytest.mark.parametrize(
    ("kind", "given", "column"),
    [
        (TimestampNanoType(), pa.array([1], pa.timestamp("us")), "c"),
        (ListType(2, TimestamptzNanoType(), False), pa.array([["x"]]), "c.element"),
        (UUIDType(), pa.array(["no"]), "c"),
        (TimeType(), pa.array([1], pa.time64("ns")), "c"),
        (StructType(_field(3, "x", TimestampNanoType())), pa.array([{"y": 1}]), "c.y"),
        (StructType(_field(3, "x", TimestampNanoType())), pa.array([1]), "c"),
    ],
)
def test_what_does_not_fit_on_return_is_refused(
    kind: IcebergType, given: pa.Array, column: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        from_spark_batch(pa.record_batch({"c": given}), Schema(_field(1, "c", kind)))
    assert caught.value.context["column"] == column


def test_type_that_cannot_be_stored_is_refused_by_column() -> None:
    inside = StructType(_field(2, "shape", GeometryType()))
    with pytest.raises(UnsupportedError, match=r"column=place\.shape"):
        spark_schema(Schema(_field(1, "place", inside)))


def test_time_needs_a_spark_that_has_it(monkeypatch: Any) -> None:
    monkeypatch.delattr(spark, "TimeType")
    with pytest.raises(UnsupportedError, match=re.escape("column=opens; use Spark 4.1")):
        spark_schema(Schema(_field(1, "opens", TimeType())))


def test_frames_arrive_in_the_types_that_tables_are_sent_in() -> None:
    flat = ["boolean", "int", "long", "float", "double", "decimal(12, 3)", "string", "binary"]
    for kind in (*flat, "date", "time", "timestamp", "timestamptz", "unknown"):
        schema = Schema(NestedField(1, "c", kind, required=False))
        [sent] = to_spark_schema(schema)
        assert travelling_type(spark_schema(schema).fields[0].dataType, path="c") == sent.type
    nested = spark.ArrayType(spark.MapType(spark.StringType(), spark.ShortType()))
    inner = travelling_type(spark.StructType([spark.StructField("a", nested)]), path="c")
    assert inner.field("a").type.value_type.item_type == pa.int16()
    with pytest.raises(UnsupportedError, match=r"Spark's type interval.*column=c\.element"):
        travelling_type(spark.ArrayType(spark.DayTimeIntervalType()), path="c")


def test_nullability_follows_required() -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        _field(2, "l", ListType(3, LongType(), element_required=True)),
    )
    found = spark_schema(schema)
    assert [field.nullable for field in found] == [False, True]
    assert found["l"].dataType == spark.ArrayType(spark.LongType(), containsNull=False)


@pytest.mark.spark
def test_every_type_passes_through_a_real_spark() -> None:
    from tableformat.spark.session import local_session

    session = local_session("types", cores=1)
    schema, batch = _everything()
    # Spark has no value of a column without a type, but it has the column.
    there = pa.Table.from_batches([to_spark_batch(batch, schema)])
    frame = session.createDataFrame(there, schema=spark_schema(schema))
    assert frame.schema == spark_schema(schema)
    passed = frame.mapInArrow(lambda batches: batches, frame.schema)
    back = [from_spark_batch(each, schema).to_pylist() for each in passed.toArrow().to_batches()]
    assert [row for rows in back for row in rows] == batch.to_pylist()
