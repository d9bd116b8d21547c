"""From what a caller gives as keys to columns of the key's own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from numbers import Integral
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, UUIDType

from tableformat.errors import InvalidInputError
from tableformat.scan.key_fields import key_path
from tableformat.spec.decimal_casts import exact_cast
from tableformat.spec.types import arrow_type

_ONE_ZONE = "of the key and its column one has a time zone, the other has none"


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The columns of a key in field-id order; names are dotted inside structs.

    Attributes:
        paths: The names that lead to each column; a name may hold dots itself.
    """

    fields: tuple[NestedField, ...]
    names: tuple[str, ...]
    paths: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(schema: Schema, field_ids: Sequence[int], *, what: str) -> KeyColumns:
        """The columns with these ids.

        Raises:
            InvalidInputError: One is not in the schema.
        """
        fields, names = [], []
        for field_id in sorted(field_ids):
            name = schema.find_column_name(field_id)
            if name is None:
                raise InvalidInputError(
                    f"a column of {what} does not exist in this snapshot", field_id=field_id
                )
            fields.append(schema.find_field(field_id))
            names.append(name)
        if not fields:
            raise InvalidInputError("a table without a primary key has no rows by key")
        paths = tuple(key_path(schema, field.field_id) for field in fields)
        return KeyColumns(tuple(fields), tuple(names), paths)

    @property
    def field_ids(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(field.field_id for field in self.fields)

    @property
    def roots(self) -> tuple[str, ...]:
        """The top-level columns they are in, each once."""
        return tuple(dict.fromkeys(path[0] for path in self.paths))

    def leaf(self, rows: pa.Table, ordinal: int) -> pa.ChunkedArray:
        """The column of one key field in rows that have its root; null below a null struct."""
        root, *below = self.paths[ordinal]
        column = rows.column(root)
        for name in below:
            parts = [chunk.flatten()[chunk.type.get_field_index(name)] for chunk in column.chunks]
            kind = column.type.field(column.type.get_field_index(name)).type
            column = pa.chunked_array(parts, kind)
        return column


def parse_keys(given: Any, columns: KeyColumns) -> pa.Table:
    """Keys as a table with exactly the key's columns and types, in field-id order.

    Args:
        given: A table or record batch (Arrow, polars, pandas: anything with Arrow's stream
            interface), a dict of one key or of columns, a list of dicts, of tuples in field-id
            order or, for a key of one column, of values; or one such value.
        columns: The key.

    Raises:
        InvalidInputError: Missing or unknown key columns, or values that do not fit their types.
    """
    by_name = _by_name(given, columns)
    _check_names(by_name, columns)
    arrays = [
        _typed(by_name[name], field, name)
        for name, field in zip(columns.names, columns.fields, strict=True)
    ]
    if len({len(array) for array in arrays}) > 1:
        raise InvalidInputError("key columns differ in length", columns=", ".join(columns.names))
    return pa.table(arrays, names=list(columns.names))


def _by_name(given: Any, columns: KeyColumns) -> Mapping[str, Any]:
    if isinstance(given, pa.RecordBatch):
        given = pa.table(given)
    if not isinstance(given, pa.Table) and hasattr(given, "__arrow_c_stream__"):
        given = pa.table(given)
    if isinstance(given, pa.Table):
        if len(set(given.column_names)) != given.num_columns:
            raise InvalidInputError("two columns of the keys have the same name")
        return dict(zip(given.column_names, given.columns, strict=True))
    if isinstance(given, Mapping):
        several = any(_is_column(value) for value in given.values())
        return given if several else {name: [value] for name, value in given.items()}
    if not isinstance(given, Sequence) and _is_column(given):
        given = _one_column(given)
    is_one = isinstance(given, str | bytes) or not isinstance(given, Sequence | set | frozenset)
    rows = [given] if is_one else list(given)
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = {name for row in rows for name in row}
        for row in rows:
            if set(row) != names:
                raise InvalidInputError(
                    "keys have different columns", columns=", ".join(sorted(map(str, names)))
                )
        return {name: [row[name] for row in rows] for name in names}
    if len(columns.names) == 1:
        return {columns.names[0]: [_only(row) for row in rows]}
    if not all(isinstance(row, tuple | list) and len(row) == len(columns.names) for row in rows):
        raise InvalidInputError(
            "a key of several columns is a dict, or a tuple of its values",
            columns=", ".join(columns.names),
        )
    return {name: [row[at] for row in rows] for at, name in enumerate(columns.names)}


def _only(row: Any) -> Any:
    return row[0] if isinstance(row, tuple | list) and len(row) == 1 else row


def _one_column(given: Any) -> list[Any]:
    try:
        return list(pa.array(given).to_pylist())
    except pa.ArrowException as error:
        raise InvalidInputError(f"an array of keys is not a column: {error}") from error


def _is_column(value: Any) -> bool:
    if isinstance(value, list | tuple | pa.Array | pa.ChunkedArray):
        return True
    return hasattr(value, "dtype") and not isinstance(value, np.generic)


def _check_names(given: Mapping[str, Any], columns: KeyColumns) -> None:
    unknown = sorted(str(name) for name in given if name not in columns.names)
    missing = [name for name in columns.names if name not in given]
    if unknown or missing:
        problem = (
            f"{unknown[0]!r} is no column of the key" if unknown else f"{missing[0]!r} is missing"
        )
        raise InvalidInputError(
            f"keys do not have the key's columns: {problem}", key=", ".join(columns.names)
        )


def _typed(values: Any, field: NestedField, name: str) -> pa.Array:
    target = arrow_type(field.field_type, path=name)
    try:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # without a chunk
            values = pa.array([], values.type)
        if not isinstance(values, pa.Array):
            if isinstance(field.field_type, UUIDType):
                return _uuids(values, target)
            if hasattr(values, "dtype"):
                values = pa.array(values)
            else:
                return _from_python(list(values), target)
        if values.type == target:
            return values
        if isinstance(target, pa.BaseExtensionType):
            return _uuids(values.to_pylist(), target)
        return _cast(values, target)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InvalidInputError(
            f"a key value does not fit its column: {error}", column=name, type=field.field_type
        ) from error


def _from_python(values: list[Any], target: pa.DataType) -> pa.Array:
    """Values in the column's type; what Arrow would cut off is refused."""
    if any(isinstance(value, float) for value in values):
        raise TypeError("a floating-point number is no key")
    if pa.types.is_integer(target):
        for value in values:
            if value is not None and not isinstance(value, Integral):
                raise TypeError(f"{value!r} is no integer")
    if pa.types.is_temporal(target):
        for value in values:
            if value is not None and getattr(value, "type", None) != target:
                _check_moment(value, target)
    return pa.array(values, target)


def _check_moment(value: Any, target: pa.DataType) -> None:
    """Arrow takes any number for a moment, and leaves out zones and nanoseconds."""
    kinds: tuple[type, ...] = (datetime, np.datetime64)
    if not pa.types.is_timestamp(target):
        kinds = (date,) if pa.types.is_date(target) else (time,)
    if not isinstance(value, kinds) or (date in kinds and isinstance(value, datetime)):
        raise TypeError(f"{value!r} is no {kinds[0].__name__}")
    if (getattr(value, "tzinfo", None) is None) != (getattr(target, "tz", None) is None):
        raise TypeError(_ONE_ZONE)
    if getattr(value, "nanosecond", 0) and target.unit != "ns":  # of pandas
        raise ValueError(f"{value!r} holds more than {target}")


def _cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_floating(values.type):
        raise TypeError("a floating-point number is no key")
    are_moments = pa.types.is_timestamp(values.type) and pa.types.is_timestamp(target)
    if are_moments and (values.type.tz is None) != (target.tz is None):
        raise TypeError(_ONE_ZONE)
    cast = exact_cast(values, target)
    if pa.types.is_timestamp(values.type) and not cast.cast(values.type).equals(values):
        raise ValueError(f"{values.type} holds more than {target}")
    return cast


def _uuids(values: Any, target: pa.DataType) -> pa.Array:
    stored = [None if value is None else _uuid(value).bytes for value in values]
    return pa.ExtensionArray.from_storage(target, pa.array(stored, pa.binary(16)))


def _uuid(value: Any) -> UUID:
    if isinstance(value, UUID):
        return value
    return UUID(bytes=value) if isinstance(value, bytes) else UUID(str(value))
