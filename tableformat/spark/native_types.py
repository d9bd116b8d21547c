"""Which schemas Spark's own Parquet reader can read by field id, and how it is told the ids."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.types import (
    FixedType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    TimeType,
    UnknownType,
    UUIDType,
)
from pyspark.sql import types as spark

from tableformat.spark.types import spark_type

FIELD_ID_KEY = "parquet.field.id"

# Spark has no such type, or another one than the values are stored in.
_NOT_NATIVE = (UUIDType, FixedType, TimeType, TimestampNanoType, TimestamptzNanoType, UnknownType)


def is_native(kind: IcebergType) -> bool:
    """Whether Spark reads values of this type from Parquet exactly as `spark.types` wants them.

    Defaults inside structs are not filled in by Spark, so such structs are not native either.
    """
    if isinstance(kind, StructType):
        return all(
            is_native(field.field_type) and field.initial_default is None for field in kind.fields
        )
    if isinstance(kind, ListType):
        return is_native(kind.element_type)
    if isinstance(kind, MapType):
        return is_native(kind.key_type) and is_native(kind.value_type)
    return not isinstance(kind, _NOT_NATIVE)


def read_schema(fields: Iterable[NestedField]) -> spark.StructType:
    """A Spark schema that finds columns by field id; everything nullable."""
    return spark.StructType([_field(field) for field in fields])


def _field(field: NestedField) -> spark.StructField:
    return spark.StructField(
        field.name, _type(field.field_type), True, {FIELD_ID_KEY: field.field_id}
    )


def _type(kind: IcebergType) -> spark.DataType:
    if isinstance(kind, StructType):
        return spark.StructType([_field(field) for field in kind.fields])
    if isinstance(kind, ListType):
        return spark.ArrayType(_type(kind.element_type))
    if isinstance(kind, MapType):
        return spark.MapType(_type(kind.key_type), _type(kind.value_type))
    return spark_type(kind)
