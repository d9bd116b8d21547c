"""Assigned values that this process computes itself: literals, columns, `+`, `-` and `*`.

Results are those of Spark in ANSI mode, or the value is left to Spark: what may round, compare as
text or depend on the session is not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from sqlglot import exp

from tableformat.errors import InvalidInputError
from tableformat.spec.arrow_arrays import constant_array
from tableformat.spec.types import arrow_type
from tableformat.sql.columns import TargetColumns
from tableformat.sql.predicates import literal_value
from tableformat.sql.statement import Assignment, to_sql

Compute = Callable[[pa.RecordBatch], pa.Array]

_ARITHMETIC: dict[type[exp.Expr], tuple[str, Callable[[Any, Any], Any]]] = {
    exp.Add: ("+", pc.add_checked),
    exp.Sub: ("-", pc.subtract_checked),
    exp.Mul: ("*", pc.multiply_checked),
}
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LocalValue:
    """The new values of one top-level column, computed from a batch of old rows."""

    field: iceberg.NestedField
    compute: Compute


def local_value(assignment: Assignment, columns: TargetColumns) -> LocalValue | None:
    """How this process computes an assignment; None: Spark has to.

    Raises:
        InvalidInputError: The column is unknown.
    """
    fields = columns.assigned(assignment.path)
    if len(fields) != 1:
        return None
    field = fields[0]
    if assignment.is_default and columns.find_tree(assignment.value) is None:
        return LocalValue(field, lambda batch: constant_default(field, batch.num_rows))
    compute = _of_type(assignment.value.unnest(), field.field_type, columns)
    return None if compute is None else LocalValue(field, compute)


def constant_default(field: iceberg.NestedField, count: int) -> pa.Array:
    """`count` times the column's write default, null without one."""
    return constant_array(field.write_default, field.field_type, count)


def _of_type(tree: exp.Expr, kind: iceberg.IcebergType, columns: TargetColumns) -> Compute | None:
    """A value that may be stored in a column of type `kind` as it is."""
    if isinstance(tree, exp.Null):
        target = arrow_type(kind)
        return lambda batch: pa.nulls(batch.num_rows, target)
    found = columns.find_tree(tree)
    if found is not None:
        source = found[0]
        if len(found) != 1 or not _widens(source.field_type, kind):
            return None
        target = arrow_type(kind)
        return lambda batch: _cast(batch.column(source.name), target)
    constant = _constant(tree, kind)
    if constant is not None:
        return constant
    if isinstance(kind, iceberg.IntegerType | iceberg.LongType | iceberg.DoubleType):
        computed = _arithmetic(tree, kind, columns)
        if computed is not None:
            return computed
    return None


def _constant(tree: exp.Expr, kind: iceberg.IcebergType) -> Compute | None:
    _refuse_wrong_literal(tree, kind)
    value = literal_value(tree, kind)
    if value is None or not isinstance(kind, iceberg.PrimitiveType):
        return None
    if isinstance(kind, iceberg.IntegerType | iceberg.LongType):
        if not isinstance(value, int):
            return None  # a fraction: Spark truncates it
        if not kind.min <= value <= kind.max:
            raise InvalidInputError(
                "a value does not fit the column's type", value=value, type=kind
            )
    if isinstance(value, Decimal) and isinstance(kind, iceberg.DecimalType):
        if -int(value.as_tuple().exponent) > kind.scale:
            return None  # Spark rounds
        if value and value.adjusted() >= kind.precision - kind.scale:
            raise InvalidInputError(
                "a value does not fit the column's type", value=value, type=kind
            )
    return lambda batch: constant_array(value, kind, batch.num_rows)


def _refuse_wrong_literal(tree: exp.Expr, kind: iceberg.IcebergType) -> None:
    """Spark's rule for stored values: no text into other types, no truth value into numbers."""
    if isinstance(kind, iceberg.StringType):
        return
    is_text = isinstance(tree, exp.Literal) and tree.is_string
    is_truth = isinstance(tree, exp.Boolean) and not isinstance(kind, iceberg.BooleanType)
    is_number = isinstance(tree.this if isinstance(tree, exp.Neg) else tree, exp.Literal) and (
        not isinstance(
            kind,
            iceberg.IntegerType
            | iceberg.LongType
            | iceberg.FloatType
            | iceberg.DoubleType
            | iceberg.DecimalType,
        )
    )
    if is_text or is_truth or is_number:
        raise InvalidInputError(
            "an assigned value has the wrong type", value=to_sql(tree), type=kind
        )


def _arithmetic(
    tree: exp.Expr, kind: iceberg.IcebergType, columns: TargetColumns
) -> Compute | None:
    """Integer arithmetic into integer columns, double arithmetic into double columns."""
    typed = _number(tree.unnest(), columns, double=isinstance(kind, iceberg.DoubleType))
    if typed is None:
        return None
    result, compute = typed
    target = arrow_type(kind)
    if isinstance(kind, iceberg.DoubleType):
        return compute if pa.types.is_float64(result) else None
    return lambda batch: _cast(compute(batch), target)


def _number(
    tree: exp.Expr, columns: TargetColumns, *, double: bool
) -> tuple[pa.DataType, Compute] | None:
    """An arithmetic expression, with Spark's types: int and int is int, any double is double."""
    tree = tree.unnest()
    if type(tree) in _ARITHMETIC:
        if double and tree.find(exp.Column) is None:
            return None  # of literals alone, which Spark computes as integers or decimals
        left = _number(tree.this, columns, double=double)
        right = _number(tree.expression, columns, double=double)
        if left is None or right is None:
            return None
        return _combine(_ARITHMETIC[type(tree)], left, right)
    found = columns.find_tree(tree)
    if found is not None:
        kinds = (iceberg.DoubleType,) if double else (iceberg.IntegerType, iceberg.LongType)
        if len(found) != 1 or not isinstance(found[0].field_type, kinds):
            return None
        name = found[0].name
        return arrow_type(found[0].field_type), lambda batch: batch.column(name)
    if double:
        value = literal_value(tree, iceberg.DoubleType())
        if value is None:
            return None
        return pa.float64(), lambda batch: pa.repeat(pa.scalar(value, pa.float64()), len(batch))
    number = literal_value(tree, iceberg.LongType())
    if not isinstance(number, int) or abs(number) > _LONG_MAX:
        return None
    narrow = pa.int32() if abs(number) <= _INT_MAX else pa.int64()
    return narrow, lambda batch: pa.repeat(pa.scalar(number, narrow), len(batch))


def _combine(
    operator: tuple[str, Callable[[Any, Any], Any]],
    left: tuple[pa.DataType, Compute],
    right: tuple[pa.DataType, Compute],
) -> tuple[pa.DataType, Compute]:
    symbol, function = operator
    wide = left[0] if left[0] == right[0] else pa.int64()

    def compute(batch: pa.RecordBatch) -> pa.Array:
        try:
            return function(left[1](batch).cast(wide), right[1](batch).cast(wide))
        except pa.ArrowInvalid as error:
            raise InvalidInputError(f"arithmetic overflow in {symbol}: {error}") from error

    return wide, compute


def _widens(source: iceberg.IcebergType, target: iceberg.IcebergType) -> bool:
    """Whether every value of `source` is one of `target`, by the same bits or a wider number."""
    if source == target:
        return True
    return (
        isinstance(source, iceberg.IntegerType)
        and isinstance(target, iceberg.LongType | iceberg.DoubleType)
    ) or (isinstance(source, iceberg.FloatType) and isinstance(target, iceberg.DoubleType))


def _cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    if values.type == target:
        return values
    try:
        return values.cast(target, safe=True)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(f"a value does not fit the column's type: {error}") from error
