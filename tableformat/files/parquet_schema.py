"""What of a table schema is stored in a Parquet file: everything but columns of type unknown."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, MapType, NestedField, StructType, UnknownType

from tableformat.errors import UnsupportedError
from tableformat.spec.types import arrow_field


def stored_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a file's stored columns, with field ids.

    Raises:
        UnsupportedError: Nothing would be left of the table, a struct, a list or a map.
    """
    kept = [
        arrow_field(field)
        for field in schema.fields
        if not isinstance(field.field_type, UnknownType)
    ]
    for field in schema.fields:
        _check_stored(field, field.name)
    if not kept:
        raise UnsupportedError("cannot write a file without a stored column")
    return pa.schema(kept)


def _check_stored(field: NestedField, path: str) -> None:
    """Unknown is stored nowhere, so only a top-level column of that type can be left out."""
    kind = field.field_type
    children: tuple[NestedField, ...] = ()
    if isinstance(kind, StructType):
        children = kind.fields
    elif isinstance(kind, ListType):
        children = (kind.element_field,)
    elif isinstance(kind, MapType):
        children = (kind.key_field, kind.value_field)
    for child in children:
        here = f"{path}.{child.name}"
        if isinstance(child.field_type, UnknownType):
            raise UnsupportedError("cannot store type unknown inside another type", column=here)
        _check_stored(child, here)
    if isinstance(kind, StructType) and not children:
        raise UnsupportedError("cannot store a struct without fields", column=path)
