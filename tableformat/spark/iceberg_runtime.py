"""Reads a snapshot through Apache Iceberg's Spark runtime, in sessions that have it.

The runtime is given the metadata file that was loaded, not a name in a catalog: the frame keeps
reading that version of the table, and the session needs no catalog of Iceberg's.
"""

from __future__ import annotations

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.types import UUIDType
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark_types

from tableformat.catalog.base import TableState
from tableformat.errors import UnsupportedError
from tableformat.scan.metadata_columns import PARTITION_NAME
from tableformat.scan.projection import Projection
from tableformat.scan.row_filter import bind_filter, filter_field_ids
from tableformat.scan.snapshot_selection import SelectedSnapshot
from tableformat.spark.filters import spark_filter
from tableformat.spark.types import spark_schema
from tableformat.spec.field_paths import field_path


class NotReadableError(Exception):
    """The runtime does not give the rows as they are meant here; the text says why."""


def runtime_frame(
    spark: SparkSession,
    state: TableState,
    selected: SelectedSnapshot,
    *,
    row_filter: BooleanExpression,
    projection: Projection,
) -> DataFrame:
    """The rows of a snapshot as a lazy frame of the runtime's.

    Args:
        spark: The session.
        state: The table; the runtime opens its metadata file itself.
        selected: The snapshot, and the schema to read it with.
        row_filter: Unbound, over that schema.
        projection: Result columns.

    Raises:
        NotReadableError: No runtime, a file it cannot open, or a type that it reads as another.
    """
    _check_there(spark)
    schema = selected.schema

    def column_of(field_id: int) -> Column:
        path = field_path(schema, field_id)
        assert path is not None, "filters are not inside lists and maps"
        column = sf.col(_quoted(path[0]))
        for name in path[1:]:
            column = column.getField(name)
        return column

    reader = spark.read.format("iceberg").options(**_version(state, selected))
    names = [field.name for field in projection.schema.fields]
    if PARTITION_NAME in names:
        raise NotReadableError(f"it reads {PARTITION_NAME} as another struct")
    bound = bind_filter(row_filter, schema)
    kinds = (field.field_type for field in projection.schema.fields)
    used = (schema.find_type(field_id) for field_id in filter_field_ids(bound))
    if any(isinstance(each, UUIDType) for each in (*kinds, *used)):
        # apache/iceberg#14216; a filter that is put on the frame later reaches it, too.
        raise NotReadableError("it orders UUIDs as signed numbers, and skips files by that")
    try:
        frame = reader.load(state.metadata_location)
        if not isinstance(row_filter, AlwaysTrue):
            frame = frame.where(spark_filter(bound, column_of))
        found = frame.schema
        # Every step is analysed anew: a whole table is left as the runtime gives it. Its notes on
        # columns go, which other sources would take for their own.
        if found.names != names or any(field.metadata for field in found.fields):
            outputs = [sf.col(_quoted(name)).alias(name, metadata={}) for name in names]
            frame = frame.select(*outputs)
            found = frame.schema
    except UnsupportedError as error:
        raise NotReadableError(error.message) from error
    except (PySparkException, Py4JJavaError) as error:
        raise NotReadableError(f"it says: {_first_line(error)}") from error
    _check_types(found, projection.schema)
    return frame


def _check_there(spark: SparkSession) -> None:
    jvm = getattr(spark, "_jvm", None)
    found = None if jvm is None else jvm.org.apache.iceberg.spark.source.IcebergSource
    if not isinstance(found, JavaClass):
        raise NotReadableError("it is not on the session's class path")


def _version(state: TableState, selected: SelectedSnapshot) -> dict[str, str]:
    """The runtime's options: a snapshot comes with its own schema, a branch with the table's."""
    snapshot, schema_id = selected.snapshot, selected.schema.schema_id
    if snapshot is None:
        raise NotReadableError("the table is empty")
    if snapshot.schema_id in (None, schema_id):
        return {"versionAsOf": str(snapshot.snapshot_id)}
    for name, ref in state.metadata.refs.items():
        if ref.snapshot_ref_type == "branch" and ref.snapshot_id == snapshot.snapshot_id:
            return {"branch": name}
    raise NotReadableError("it reads the snapshot with another schema")


def _check_types(found: spark_types.StructType, schema: Schema) -> None:
    for field, wanted in zip(found.fields, spark_schema(schema).fields, strict=True):
        if field.dataType.simpleString() != wanted.dataType.simpleString():
            raise NotReadableError(
                f"it reads column {field.name} as {field.dataType.simpleString()}"
            )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _first_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.toString())
    return text.strip().splitlines()[0][:200]
