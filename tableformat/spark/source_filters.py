"""Filters that Spark's planner offers to a Python data source, as filters of a scan.

Only what both sides understand alike is taken: a comparison of one column with a literal of the
column's own kind. The rest stays with Spark.
"""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.expressions import (
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotNull,
    StartsWith,
)
from pyiceberg.schema import Schema
from pyspark.sql import datasource as offered

from tableformat.errors import InvalidInputError
from tableformat.scan.row_filter import bind_filter

# PyIceberg's constructors take positional arguments, but do not say so to type checkers.
_NULLS: dict[str, Any] = {"IsNull": IsNull, "IsNotNull": NotNull}
_IN: Any = In
_COMPARISONS: dict[str, Any] = {
    "StringStartsWith": StartsWith,
    "EqualTo": EqualTo,
    "GreaterThan": GreaterThan,
    "GreaterThanOrEqual": GreaterThanOrEqual,
    "LessThan": LessThan,
    "LessThanOrEqual": LessThanOrEqual,
}


def scan_filter(given: offered.Filter, schema: Schema) -> BooleanExpression | None:
    """The filter for a scan of `schema`; None if Spark has to keep it."""
    found = _convert(given, schema)
    if found is None:
        return None
    try:
        bind_filter(found, schema)
    except InvalidInputError:
        return None
    return found


def _convert(given: offered.Filter, schema: Schema) -> BooleanExpression | None:
    if isinstance(given, offered.Not):
        inner = _convert(given.child, schema)
        return None if inner is None else Not(inner)
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    if len(attribute) != 1:
        return None  # inside a struct: Spark's dots and ours are not the same thing
    name = attribute[0]
    fields = {field.name: field.field_type for field in schema.fields}
    if name not in fields or "." in name:
        return None
    return _leaf(given, name, fields[name])


def _leaf(given: offered.Filter, name: str, kind: iceberg.IcebergType) -> BooleanExpression | None:
    make = _NULLS.get(type(given).__name__)
    if make is not None:
        return _expression(make(name))
    value: Any = getattr(given, "value", None)
    if isinstance(given, offered.In):
        fits = bool(value) and all(_fits(each, kind) for each in value)
        return _expression(_IN(name, value)) if fits else None
    make = _COMPARISONS.get(type(given).__name__)
    if make is None or not _fits(value, kind):
        return None
    return _expression(make(name, value))


def _expression(made: Any) -> BooleanExpression:
    assert isinstance(made, BooleanExpression), made
    return made


def _fits(value: Any, kind: iceberg.IcebergType) -> bool:
    """Whether the literal is of the column's kind and compares in Spark as it does here."""
    match kind:
        case iceberg.BooleanType():
            return isinstance(value, bool)
        case iceberg.IntegerType() | iceberg.LongType():
            return isinstance(value, int) and not isinstance(value, bool)
        case iceberg.FloatType() | iceberg.DoubleType():
            return isinstance(value, float) and math.isfinite(value)
        case iceberg.StringType():
            return isinstance(value, str)
        case iceberg.DecimalType():
            return isinstance(value, Decimal)
        case iceberg.DateType():
            return isinstance(value, date) and not isinstance(value, datetime)
        case iceberg.TimestamptzType():
            return isinstance(value, datetime) and value.tzinfo is not None
        case iceberg.TimestampType():
            return isinstance(value, datetime) and value.tzinfo is None
    return False
