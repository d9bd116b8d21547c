"""Row filters as Spark columns, with the semantics of `scan.row_filter`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression, BoundTerm
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.visitors import visit
from pyiceberg.types import (
    DateType,
    IcebergType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyspark.sql import Column
from pyspark.sql import functions as sf

from tableformat.errors import UnsupportedError
from tableformat.scan.row_filter import FilterBuilder
from tableformat.spark.types import spark_type
from tableformat.spec.arrow_arrays import constant_array

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ColumnOf = Callable[[int], Column]


def spark_filter(bound: BooleanExpression, column_of: ColumnOf) -> Column:
    """The filter as a Spark column; null where SQL says unknown.

    Args:
        bound: From `bind_filter`.
        column_of: The Spark column of a field id.
    """
    built: Column = visit(bound, _SparkFilter(column_of))
    return built


def spark_literal(value: Any, kind: IcebergType) -> Column:
    """A value in PyIceberg's internal form (days, microseconds, ...) as a typed Spark literal."""
    if value is None:
        return sf.lit(None).cast(spark_type(kind))
    try:
        if isinstance(kind, DateType):
            # PySpark writes dates before the year 1000 as texts that Java does not read.
            return sf.date_from_unix_date(sf.lit(value))
        if isinstance(kind, TimestamptzType):
            return sf.timestamp_micros(sf.lit(value).cast("long"))
        if isinstance(kind, TimestampType):
            moment = (EPOCH + timedelta(microseconds=value)).replace(tzinfo=None)
            return sf.to_timestamp_ntz(sf.lit(moment.isoformat(sep=" ", timespec="microseconds")))
    except OverflowError as error:
        raise UnsupportedError(f"{kind} literal outside the years 1 to 9999: {value}") from error
    if isinstance(kind, UUIDType):  # Spark has their text
        return sf.lit(str(value if isinstance(value, UUID) else UUID(bytes=value)))
    if isinstance(value, time):
        return sf.lit(value)  # Spark refuses casts to TIME
    if isinstance(value, Decimal):
        return sf.lit(str(value)).cast(spark_type(kind))
    if isinstance(value, bytes):
        return sf.lit(bytearray(value))
    return sf.lit(value).cast(spark_type(kind))


def spark_default(value: Any, kind: IcebergType) -> Column:
    """An `initial-default`, in whatever form the schema holds it, as a typed Spark literal."""
    array = constant_array(value, kind, 1)
    if isinstance(kind, DateType):
        array = array.cast(pa.int32())
    elif pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    return spark_literal(array[0].as_py(), kind)


class _SparkFilter(FilterBuilder):
    def __init__(self, column_of: ColumnOf) -> None:
        self._column_of = column_of

    def visit_true(self) -> Column:
        return sf.lit(True)

    def visit_false(self) -> Column:
        return sf.lit(False)

    def visit_is_null(self, term: BoundTerm) -> Column:
        return self.column(term).isNull()

    def visit_not_null(self, term: BoundTerm) -> Column:
        return self.column(term).isNotNull()

    def visit_is_nan(self, term: BoundTerm) -> Column:
        return sf.isnan(self.column(term))

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> Column:
        return self.column(term).isin([self.literal(term, value) for value in literals])

    def visit_starts_with(self, term: BoundTerm, literal: Literal[Any]) -> Column:
        return sf.startswith(self.column(term), self.literal(term, literal.value))

    def column(self, term: BoundTerm) -> Column:
        return self._column_of(term.ref().field.field_id)

    def literal(self, term: BoundTerm, value: Any) -> Column:
        if isinstance(value, float) and value == 0:
            # Iceberg's runtime skips row groups whose only zero has the other sign.
            raise UnsupportedError("it takes 0.0 and -0.0 for two values")
        return spark_literal(value, term.ref().field.field_type)
