"""Which columns can be part of a key."""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, UnknownType

from tableformat.errors import InvalidInputError
from tableformat.spec.field_paths import field_path


def check_key_column(schema: Schema, field_id: int) -> None:
    """Refuse a column that cannot be in a key.

    Raises:
        InvalidInputError: It is of a float, nested or unknown type, or inside a list or a map.
    """
    field, column = schema.find_field(field_id), schema.find_column_name(field_id)
    if isinstance(field.field_type, FloatType | DoubleType):
        raise InvalidInputError(
            "a float or double column cannot be in a primary key: NaN and -0.0 have no one value",
            column=column,
            action="use a decimal, an integer or a string",
        )
    if isinstance(field.field_type, UnknownType):
        raise InvalidInputError(
            "a primary key column has no type: there is no value to tell it by", column=column
        )
    if not field.field_type.is_primitive:
        raise InvalidInputError(
            "a primary key column must have a primitive type",
            column=column,
            type=field.field_type,
        )
    if field_path(schema, field_id) is None:
        raise InvalidInputError(
            "a primary key column cannot be inside a list or a map", column=column
        )
