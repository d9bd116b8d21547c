"""Defaults of columns: a value that the column can hold exactly, or a refusal.

PyIceberg takes the largest int for whatever is beyond it, cuts texts of numbers and times of day,
writes an infinity as JSON's null, and forgets defaults where it assigns field ids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any, TypeAlias

import numpy as np
from pyiceberg import types as iceberg
from pyiceberg.expressions.literals import Literal, literal
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from tableformat.errors import CorruptDataError, InvalidInputError
from tableformat.spec.types import DECIMAL_PRECISION_MAX

_Change: TypeAlias = Callable[[iceberg.NestedField], iceberg.NestedField]
_TOO_FINE = re.compile(r"\.\d{7}")
_Numeric = (
    iceberg.IntegerType
    | iceberg.LongType
    | iceberg.FloatType
    | iceberg.DoubleType
    | iceberg.DecimalType
)


def exact_default(value: Any, kind: iceberg.IcebergType, column: str) -> Any:
    """A default as PyIceberg holds it in a schema.

    Args:
        value: A Python value, or its text, as PyIceberg's literals are made of.
        kind: The column's type. A float's default is the nearest float.
        column: Its name, for error texts.

    Raises:
        InvalidInputError: The column cannot hold it.
    """
    try:
        return _literal(value, kind).value
    except (ValueError, TypeError, InvalidOperation, OverflowError) as error:
        raise InvalidInputError(
            f"the column cannot have this default: {error}",
            column=column,
            type=kind,
            value=repr(value)[:80],
        ) from error


def check_defaults(schema: Schema, known: Collection[int] = ()) -> None:
    """Refuse defaults that nobody reads as they were meant, but for those of `known` fields.

    Raises:
        InvalidInputError: A column, at any level, cannot hold its default.
    """
    for field_id in schema.field_ids.difference(known):
        field = schema.find_field(field_id)
        for value in (field.initial_default, field.write_default):
            if value is not None:
                exact_default(value, field.field_type, schema.find_column_name(field_id) or "")


def check_held_defaults(schema: Schema) -> None:
    """Refuse a schema out of metadata with defaults that are no values of their columns.

    PyIceberg takes most JSON values as they are; Java refuses such metadata, too.

    Raises:
        CorruptDataError: Names the first such column.
    """
    for field in _fields(schema.as_struct()):
        for value in (field.initial_default, field.write_default):
            if value is not None and not _is_held(value, field.field_type):
                raise CorruptDataError(
                    "table metadata cannot be read: a column has a default of another type",
                    column=schema.find_column_name(field.field_id),
                    type=field.field_type,
                    value=repr(value)[:80],
                )


def _is_held(value: Any, kind: iceberg.IcebergType) -> bool:
    if isinstance(kind, iceberg.IntegerType | iceberg.LongType):
        return type(value) is int and kind.min <= value <= kind.max
    if isinstance(kind, iceberg.FloatType | iceberg.DoubleType):
        return type(value) in (int, float)
    expected = _HELD.get(type(kind))
    return expected is None or type(value) is expected


_HELD: dict[type[iceberg.IcebergType], type] = {
    iceberg.BooleanType: bool,
    iceberg.StringType: str,
}


def has_defaults(field: iceberg.NestedField) -> bool:
    """Whether a column has a default of either kind."""
    return field.initial_default is not None or field.write_default is not None


def with_fresh_ids(schema: Schema) -> Schema:
    """PyIceberg's `assign_fresh_schema_ids`, which forgets the defaults."""
    fresh = assign_fresh_schema_ids(schema)
    return _changed(fresh, _restoring(schema.as_struct()))


def with_defaults_of(have: iceberg.IcebergType, fresh: iceberg.IcebergType) -> iceberg.IcebergType:
    """`fresh`, the same type with other field ids, with the defaults that fields of `have` have."""
    return _changed_type(fresh, _restoring(have))


def with_widened_defaults(schema: Schema, before: Schema) -> Schema:
    """A schema some of whose columns have become wider: rows go on reading the same defaults.

    Metadata says 0.1 of a float that is 0.10000000149011612, and so it is as a double.
    """
    wider = {
        field_id
        for field_id in schema.field_ids & before.field_ids
        if isinstance(schema.find_type(field_id), iceberg.DoubleType)
        and isinstance(before.find_type(field_id), iceberg.FloatType)
    }

    def widened(field: iceberg.NestedField) -> iceberg.NestedField:
        if field.field_id not in wider or not has_defaults(field):
            return field
        initial, write = (
            None if value is None else float(np.float32(value))
            for value in (field.initial_default, field.write_default)
        )
        return field.model_copy(update={"initial_default": initial, "write_default": write})

    return _changed(schema, widened) if wider else schema


def _restoring(have: iceberg.IcebergType) -> _Change:
    """Gives the fields of a type with the same fields in the same order the defaults of `have`."""
    olds = _fields(have)

    def restored(field: iceberg.NestedField) -> iceberg.NestedField:
        old = next(olds)
        update = {"initial_default": old.initial_default, "write_default": old.write_default}
        return field.model_copy(update=update) if has_defaults(old) else field

    return restored


def _fields(kind: iceberg.IcebergType) -> Iterator[iceberg.NestedField]:
    """All fields of structs, each before those below it."""
    for field in kind.fields if isinstance(kind, iceberg.StructType) else ():
        yield field
        yield from _fields(field.field_type)
    for inner in _parts(kind):
        yield from _fields(inner)


def _parts(kind: iceberg.IcebergType) -> tuple[iceberg.IcebergType, ...]:
    match kind:
        case iceberg.ListType():
            return (kind.element_type,)
        case iceberg.MapType():
            return (kind.key_type, kind.value_type)
    return ()


def _changed(schema: Schema, change: _Change) -> Schema:
    """The schema with each field of a struct changed, in the order of `_fields`."""
    struct = _changed_type(schema.as_struct(), change)
    assert isinstance(struct, iceberg.StructType)
    return Schema(
        *struct.fields,
        schema_id=schema.schema_id,
        identifier_field_ids=schema.identifier_field_ids,
    )


def _changed_type(kind: iceberg.IcebergType, change: _Change) -> iceberg.IcebergType:
    match kind:
        case iceberg.StructType():
            return iceberg.StructType(*(_changed_field(each, change) for each in kind.fields))
        case iceberg.ListType():
            element = _changed_type(kind.element_type, change)
            return kind.model_copy(update={"element_type": element})
        case iceberg.MapType():
            key, value = (_changed_type(each, change) for each in _parts(kind))
            return kind.model_copy(update={"key_type": key, "value_type": value})
    return kind


def _changed_field(field: iceberg.NestedField, change: _Change) -> iceberg.NestedField:
    made = change(field)
    return made.model_copy(update={"field_type": _changed_type(field.field_type, change)})


def _literal(value: Any, kind: iceberg.IcebergType) -> Literal[Any]:
    if isinstance(kind, iceberg.TimeType) and _TOO_FINE.search(str(value)):
        raise ValueError("it has digits beyond microseconds")
    if isinstance(kind, _Numeric) and not isinstance(value, bool):
        value = _number(value, kind)
    made: Literal[Any] = literal(value).to(kind)
    return made


def _number(value: Any, kind: iceberg.IcebergType) -> int | float | Decimal:
    if isinstance(kind, iceberg.FloatType | iceberg.DoubleType):
        number = float(value)
        if isinstance(kind, iceberg.FloatType):
            with np.errstate(over="ignore"):
                number = float(np.float32(number))
        if not math.isfinite(number):
            raise ValueError("it is no finite number of this type")
        return number
    exact = Decimal(str(value))  # a float is meant as it prints
    scale = kind.scale if isinstance(kind, iceberg.DecimalType) else 0
    with localcontext(prec=2 * DECIMAL_PRECISION_MAX):
        fitted = exact.quantize(Decimal(1).scaleb(-scale))
    if fitted != exact:
        raise ValueError("it has more digits behind its point")
    if isinstance(kind, iceberg.DecimalType):
        if len(fitted.as_tuple().digits) > kind.precision:
            raise ValueError("it has more digits")
        return fitted
    whole = int(fitted)
    assert isinstance(kind, iceberg.IntegerType | iceberg.LongType)
    if not kind.min <= whole <= kind.max:
        raise ValueError("it is out of range")
    return whole
