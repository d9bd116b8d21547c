"""What of a table's rows is stored in a Parquet file: everything but columns of type unknown.

Unknown is always null and stored nowhere (spec: Parquet appendix), so it is cut out of structs too;
readers put it back as a missing column. What would leave nothing to store cannot be written:
Parquet has no empty groups.

A struct that is null may have nulls in its required fields, too. Nothing of them is stored, but
Arrow's writer refuses them: they get empty values.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StructType,
    UnknownType,
)

from tableformat.array_types import Bools
from tableformat.errors import UnsupportedError
from tableformat.spec.arrow_arrays import rebased_offsets
from tableformat.spec.missing_columns import replaced
from tableformat.spec.types import arrow_field


def stored_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a file's stored columns, with field ids.

    Raises:
        UnsupportedError: Nothing would be left of the row, a struct, a list or a map.
    """
    kept = _stored_fields(tuple(schema.fields), "")
    if not kept:
        raise UnsupportedError("cannot write a file without a stored column")
    return pa.schema([arrow_field(field) for field in kept])


def stored_rows(rows: pa.Table, stored: pa.Schema) -> pa.Table:
    """Rows cut to the stored columns and struct fields, found by name.

    Args:
        rows: Columns as `arrow_schema` of a schema that contains the stored one.
        stored: `stored_schema` of the file.

    Returns:
        Same rows with schema `stored`; no copy of flat columns.
    """
    columns = []
    for field in stored:
        column = rows.column(field.name)
        if column.type != field.type or _requires(field.type):
            chunks = [_narrowed(chunk, field.type) for chunk in column.chunks]
            column = pa.chunked_array(chunks, type=field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=stored)


def _stored_fields(fields: tuple[NestedField, ...], path: str) -> tuple[NestedField, ...]:
    return tuple(
        field.model_copy(update={"field_type": _stored_type(field.field_type, path + field.name)})
        for field in fields
        if not isinstance(field.field_type, UnknownType)
    )


def _stored_type(kind: IcebergType, path: str) -> IcebergType:
    if isinstance(kind, StructType):
        fields = _stored_fields(kind.fields, f"{path}.")
        if not fields:
            raise UnsupportedError("cannot store a struct without a stored field", column=path)
        return StructType(*fields)
    if isinstance(kind, ListType):
        element = _stored_child(kind.element_field, path)
        return ListType(kind.element_id, element, kind.element_required)
    if isinstance(kind, MapType):
        key = _stored_child(kind.key_field, path)
        value = _stored_child(kind.value_field, path)
        return MapType(kind.key_id, key, kind.value_id, value, kind.value_required)
    return kind


def _stored_child(field: NestedField, path: str) -> IcebergType:
    here = f"{path}.{field.name}"
    if isinstance(field.field_type, UnknownType):
        raise UnsupportedError("cannot store type unknown in a list or map", column=here)
    return _stored_type(field.field_type, here)


def _requires(kind: pa.DataType) -> bool:
    """Whether a struct in it has a required field."""
    if pa.types.is_struct(kind):
        return any(not each.nullable or _requires(each.type) for each in kind)
    if pa.types.is_map(kind):
        return _requires(kind.key_type) or _requires(kind.item_type)
    return bool(pa.types.is_list(kind) and _requires(kind.value_type))


def _narrowed(values: pa.Array, target: pa.DataType, gone: Bools | None = None) -> pa.Array:
    """`gone`: where a struct around it is null; None: nowhere."""
    if values.type == target and not _requires(target):
        return values
    mask = values.is_null() if values.null_count else None
    if pa.types.is_struct(target):
        if mask is not None:
            null = mask.to_numpy(zero_copy_only=False)
            gone = null if gone is None else null | gone
        children = [
            _narrowed(
                _filled(values.field(values.type.get_field_index(field.name)), field, gone),
                field.type,
                gone,
            )
            for field in target
        ]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    offsets, first, count = rebased_offsets(values)
    if pa.types.is_list(target):
        elements = _narrowed(values.values.slice(first, count), target.value_type)
        return pa.ListArray.from_arrays(offsets, elements, type=target, mask=mask)
    keys = _narrowed(values.keys.slice(first, count), target.key_type)
    items = _narrowed(values.items.slice(first, count), target.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=mask)


def _filled(values: pa.Array, field: pa.Field, gone: Bools | None) -> pa.Array:
    """A field's values without nulls that are of no struct; those of one are for the writer."""
    if field.nullable or gone is None or not values.null_count:
        return values
    lost = gone & values.is_null().to_numpy(zero_copy_only=False)
    return replaced(values, _empty(values.type), np.where(lost, 0, -1))


def _empty(kind: pa.DataType) -> pa.Array:
    """One value of a type: the emptiest that is not null."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _empty(kind.storage_type))
    if pa.types.is_struct(kind):
        children = [pa.nulls(1, each.type) if each.nullable else _empty(each.type) for each in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    outer = pa.struct([pa.field("value", kind, nullable=False)])
    return pa.array([None], outer).field(0)
