"""Iceberg types as Spark types, and Arrow batches on their way to Spark and back.

Nothing is lost in either direction. Where Spark has no such type, the value travels as one that
holds it exactly: uuid as text, fixed as binary, nanosecond timestamps as long (nanoseconds since
the epoch). `docs/types.md` has the table.
"""

from __future__ import annotations

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyspark.sql import types as spark

from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spec.arrow_arrays import rebased_offsets
from tableformat.spec.types import arrow_schema, arrow_type
from tableformat.spec.uuid_text import format_uuids
from tableformat.write.rows import check_columns, conform_batch

_TIME_PRECISION = 6  # microseconds, Iceberg's

_SPARK_OF: dict[str, spark.DataType] = {
    "boolean": spark.BooleanType(),
    "int": spark.IntegerType(),
    "long": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampNTZType(),
    "timestamptz": spark.TimestampType(),
    "timestamp_ns": spark.LongType(),
    "timestamptz_ns": spark.LongType(),
    "string": spark.StringType(),
    "uuid": spark.StringType(),
    "binary": spark.BinaryType(),
    "unknown": spark.NullType(),
}


_ARROW_OF = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def spark_schema(schema: Schema) -> spark.StructType:
    """The Spark schema of a table's rows; columns in order, required means not nullable.

    Raises:
        UnsupportedError: A column is variant, geometry or geography, or time before Spark 4.1;
            the message names it.
    """
    return spark.StructType([_spark_field(field, field.name) for field in schema.fields])


def to_spark_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema that `to_spark_batch` produces, without field ids."""
    return pa.schema([_travel_field(field) for field in schema.fields])


def to_spark_batch(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """A batch as Spark's JVM takes it.

    Args:
        batch: Columns as `arrow_schema(schema)`.
        schema: What was read.

    Returns:
        Same rows, columns as `to_spark_schema(schema)`.
    """
    target = to_spark_schema(schema)
    columns = [
        _to_travel(column, field.field_type)
        for column, field in zip(batch.columns, schema.fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def from_spark_batch(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """A batch that Spark produced, as rows of the schema.

    Args:
        batch: Columns by name, in any order; nanosecond timestamps as long, uuid as text.
        schema: The table's schema.

    Returns:
        Same rows, columns as `arrow_schema(schema)`; missing optional ones hold the write default.

    Raises:
        InvalidInputError: A column or value does not fit; the message names it.
    """
    known = {field.name: field for field in schema.fields}
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        field = known.get(name)
        if field is not None:
            kind = _restored(column.type, field.field_type, name)
            column = column if kind == column.type else column.cast(kind)
        columns.append(column)
    restored = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    check_columns(restored.schema, schema)
    return conform_batch(restored, schema, arrow_schema(schema))


def _spark_field(field: iceberg.NestedField, path: str) -> spark.StructField:
    kind = spark_type(field.field_type, path=path)
    return spark.StructField(field.name, kind, nullable=not field.required)


def spark_type(kind: iceberg.IcebergType, *, path: str = "") -> spark.DataType:
    """The Spark type for an Iceberg type; see `spark_schema`."""
    arrow_type(kind, path=path)  # refuses what cannot be stored at all, and names it
    if isinstance(kind, iceberg.StructType):
        fields = [_spark_field(field, f"{path}.{field.name}") for field in kind.fields]
        return spark.StructType(fields)
    if isinstance(kind, iceberg.ListType):
        element = spark_type(kind.element_type, path=f"{path}.element")
        return spark.ArrayType(element, containsNull=not kind.element_required)
    if isinstance(kind, iceberg.MapType):
        return spark.MapType(
            spark_type(kind.key_type, path=f"{path}.key"),
            spark_type(kind.value_type, path=f"{path}.value"),
            valueContainsNull=not kind.value_required,
        )
    if isinstance(kind, iceberg.FixedType):
        return spark.BinaryType()
    if isinstance(kind, iceberg.TimeType):
        return _time_type(path)
    name = str(kind)
    if name.startswith("decimal"):
        travel = arrow_type(kind)
        return spark.DecimalType(travel.precision, travel.scale)
    return _SPARK_OF[name]


def _time_type(path: str) -> spark.DataType:
    make = getattr(spark, "TimeType", None)
    if make is None:
        raise UnsupportedError(
            "this Spark has no type for time", column=path, action="use Spark 4.1 or newer"
        )
    made: spark.DataType = make(_TIME_PRECISION)
    return made


def _travel_field(field: iceberg.NestedField) -> pa.Field:
    return pa.field(field.name, _travel_type(field.field_type), nullable=not field.required)


def _travel_type(kind: iceberg.IcebergType) -> pa.DataType:
    """The Arrow type that holds the column between Python and the JVM."""
    if isinstance(kind, iceberg.StructType):
        return pa.struct([_travel_field(field) for field in kind.fields])
    if isinstance(kind, iceberg.ListType):
        return pa.list_(_travel_field(kind.element_field))
    if isinstance(kind, iceberg.MapType):
        return pa.map_(_travel_field(kind.key_field), _travel_field(kind.value_field))
    if isinstance(kind, iceberg.UUIDType):
        return pa.string()
    if isinstance(kind, iceberg.FixedType):
        return pa.binary()
    if isinstance(kind, iceberg.TimeType):
        return pa.time64("ns")
    if isinstance(kind, iceberg.TimestampNanoType | iceberg.TimestamptzNanoType):
        return pa.int64()
    return arrow_type(kind)


def _to_travel(values: pa.Array, kind: iceberg.IcebergType) -> pa.Array:
    target = _travel_type(kind)
    if values.type == target:
        return values
    if isinstance(kind, iceberg.PrimitiveType):
        return format_uuids(values) if isinstance(kind, iceberg.UUIDType) else values.cast(target)
    mask = values.is_null() if values.null_count else None
    if isinstance(kind, iceberg.StructType):
        children = [
            _to_travel(values.field(index), field.field_type)
            for index, field in enumerate(kind.fields)
        ]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    offsets, first, count = rebased_offsets(values)
    if isinstance(kind, iceberg.ListType):
        elements = _to_travel(values.values.slice(first, count), kind.element_type)
        return pa.ListArray.from_arrays(offsets, elements, type=target, mask=mask)
    assert isinstance(kind, iceberg.MapType)
    keys = _to_travel(values.keys.slice(first, count), kind.key_type)
    items = _to_travel(values.items.slice(first, count), kind.value_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=mask)


def _restored(given: pa.DataType, kind: iceberg.IcebergType, path: str) -> pa.DataType:
    """Undoes what `conform_batch` cannot guess: long to timestamp; the rest it does itself.

    Other types stay as they are: its check names what is wrong.
    """
    if isinstance(kind, iceberg.TimestampNanoType | iceberg.TimestamptzNanoType):
        if pa.types.is_null(given):
            return given
        if not pa.types.is_int64(given):
            raise InvalidInputError(
                f"{kind} travels through Spark as long, found {given}", column=path
            )
        return arrow_type(kind)

    def inner(field: pa.Field, part: iceberg.IcebergType, name: str) -> pa.Field:
        return field.with_type(_restored(field.type, part, f"{path}.{name}"))

    if isinstance(kind, iceberg.StructType) and pa.types.is_struct(given):
        known = {field.name: field.field_type for field in kind.fields}
        nothing = iceberg.UnknownType()
        return pa.struct([inner(each, known.get(each.name, nothing), each.name) for each in given])
    if isinstance(kind, iceberg.ListType) and pa.types.is_list(given):
        return pa.list_(inner(given.value_field, kind.element_type, "element"))
    if isinstance(kind, iceberg.MapType) and pa.types.is_map(given):
        key = inner(given.key_field, kind.key_type, "key")
        return pa.map_(key, inner(given.item_field, kind.value_type, "value"))
    return given


def travelling_type(kind: spark.DataType, *, path: str) -> pa.DataType:
    """The Arrow type in which values of a Spark type reach Python.

    Raises:
        UnsupportedError: No column can hold such values; the message names it.
    """
    if isinstance(kind, spark.StructType):
        fields = [
            (field.name, travelling_type(field.dataType, path=f"{path}.{field.name}"))
            for field in kind.fields
        ]
        return pa.struct(fields)
    if isinstance(kind, spark.ArrayType):
        return pa.list_(travelling_type(kind.elementType, path=f"{path}.element"))
    if isinstance(kind, spark.MapType):
        key = travelling_type(kind.keyType, path=f"{path}.key")
        return pa.map_(key, travelling_type(kind.valueType, path=f"{path}.value"))
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    found = _ARROW_OF.get(kind.typeName())
    if found is None:
        raise UnsupportedError(
            f"no column can hold Spark's type {kind.simpleString()}", column=path
        )
    return found
