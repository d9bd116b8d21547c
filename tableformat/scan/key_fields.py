"""Columns by id over the whole schema history, for deletes that outlive their columns (R22)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, promote
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DateType, NestedField, StructType, TimestampNanoType, TimestampType

from tableformat.errors import CorruptDataError
from tableformat.spec.field_paths import field_path


def key_fields(metadata: TableMetadata, schema: Schema | None = None) -> dict[int, NestedField]:
    """Every field that is not inside a list or map, by id, from all schemas of the table.

    A field that occurs with several types has the one the others were promoted to. Of types that
    promote to none of each other, as REPLACE TABLE leaves them under one id, it has the one in
    `schema`, that of what is read; None: the current one.
    """
    return merged_fields([*metadata.schemas, schema or metadata.schema()])


def merged_fields(
    schemas: Iterable[Schema], wanted: Collection[int] | None = None
) -> dict[int, NestedField]:
    """See `key_fields`; among equal types a later schema's field (name, default) wins.

    `wanted`: ids of fields; None: all.
    """
    merged: dict[int, NestedField] = {}
    for schema in schemas:
        for field in _leaves(schema.fields):
            if wanted is not None and field.field_id not in wanted:
                continue
            known = merged.get(field.field_id)
            if known is None or is_promotion(known, field) or not is_promotion(field, known):
                merged[field.field_id] = field
    return merged


def key_schema(schemas: Iterable[Schema], equality_ids: Iterable[int]) -> Schema:
    """A schema that reads just the key columns, optional, nested ones inside their structs.

    `schemas`: all of the table, then the one of what is read, as `key_fields` has them.

    Columns keep their ids; names only have to be distinct, since files are read by id.

    Raises:
        CorruptDataError: No schema of the table knows an id.
    """
    ordered = tuple(schemas)
    wanted = list(equality_ids)
    merged = merged_fields(ordered, frozenset(wanted))
    for field_id in wanted:
        if field_id not in merged:
            raise CorruptDataError(f"Cannot find required field for ID {field_id}")
    fields: dict[int, NestedField] = {}
    for field_id in wanted:
        for schema in reversed(ordered):
            found = _enclosing(schema.fields, merged[field_id])
            if found is not None:
                known = fields.get(found.field_id)
                fields[found.field_id] = found if known is None else _merge(known, found)
                break
    return Schema(*(_renamed(field) for field in fields.values()))


def current_key_schema(metadata: TableMetadata, field_ids: Iterable[int]) -> Schema:
    """`key_schema` for what is read by the current schema of a table."""
    return key_schema([*metadata.schemas, metadata.schema()], field_ids)


def key_path(schema: Schema, field_id: int) -> tuple[str, ...]:
    """Names that lead to a field that is not inside a list or map."""
    path = field_path(schema, field_id)
    assert path is not None, f"field {field_id} is not in the schema"
    return path


def _leaves(fields: Iterable[NestedField]) -> Iterable[NestedField]:
    for field in fields:
        if isinstance(field.field_type, StructType):
            yield from _leaves(field.field_type.fields)
        elif field.field_type.is_primitive:
            yield field


def is_promotion(known: NestedField, field: NestedField) -> bool:
    """Whether values of `known` can be read as `field`, a later version of it."""
    if known.field_type is field.field_type or known.field_type == field.field_type:
        return True  # most are one object, and to compare types takes microseconds
    if isinstance(known.field_type, DateType):
        return isinstance(field.field_type, TimestampType | TimestampNanoType)
    try:
        promote(known.field_type, field.field_type)
    except ResolveError:
        return False
    return True


def _enclosing(fields: Iterable[NestedField], leaf: NestedField) -> NestedField | None:
    """The field that holds `leaf`, cut down to the way that leads to it."""
    for field in fields:
        if field.field_id == leaf.field_id:
            return _optional(leaf, field.name)
        if isinstance(field.field_type, StructType):
            inner = _enclosing(field.field_type.fields, leaf)
            if inner is not None:
                return NestedField(
                    field_id=field.field_id,
                    name=field.name,
                    field_type=StructType(inner),
                    required=False,
                )
    return None


def _optional(leaf: NestedField, name: str) -> NestedField:
    return NestedField(
        field_id=leaf.field_id,
        name=name,
        field_type=leaf.field_type,
        required=False,
        initial_default=leaf.initial_default,
    )


def _merge(left: NestedField, right: NestedField) -> NestedField:
    if not isinstance(left.field_type, StructType) or not isinstance(right.field_type, StructType):
        return left
    fields = {field.field_id: field for field in left.field_type.fields}
    for field in right.field_type.fields:
        known = fields.get(field.field_id)
        fields[field.field_id] = field if known is None else _merge(known, field)
    return NestedField(
        field_id=left.field_id,
        name=left.name,
        field_type=StructType(*fields.values()),
        required=False,
    )


def _renamed(field: NestedField) -> NestedField:
    """Two columns of one name can be keys when one of them was dropped: name them by id."""
    return NestedField(
        field_id=field.field_id,
        name=f"k{field.field_id}",
        field_type=field.field_type,
        required=False,
        initial_default=field.initial_default,
    )
