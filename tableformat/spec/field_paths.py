"""Where a field is in a schema. A name may hold dots itself, so dotted names do not tell."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType


def field_path(schema: Schema, field_id: int) -> tuple[str, ...] | None:
    """The names that lead to a field, from the top; None for one inside a list or a map."""
    return _walk(schema.fields, field_id)


def _walk(fields: Sequence[NestedField], field_id: int) -> tuple[str, ...] | None:
    for field in fields:
        if field.field_id == field_id:
            return (field.name,)
        if isinstance(field.field_type, StructType):
            below = _walk(field.field_type.fields, field_id)
            if below is not None:
                return (field.name, *below)
    return None
