"""Arrow arrays that reading and writing both build, lists cut to what they hold, rows as dicts."""

from __future__ import annotations

from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import IcebergType, UUIDType

from tableformat.spec.types import arrow_type
from tableformat.spec.uuid_text import UUID_BYTES

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def constant_array(value: Any, kind: IcebergType, count: int) -> pa.Array:
    """`count` times one value.

    Args:
        value: As PyIceberg holds it (a default or a partition value): temporal values as
            `datetime` objects, as int in the type's unit, or as ISO text; None is null.
        kind: A flat Iceberg type, or any type for a null.
        count: Length of the result.

    Returns:
        Type `arrow_type(kind)`.
    """
    target = arrow_type(kind)
    if value is None:
        return pa.nulls(count, target)
    if isinstance(kind, UUIDType):
        raw = value if isinstance(value, bytes) else value.bytes
        storage = pa.repeat(pa.scalar(raw, pa.binary(UUID_BYTES)), count)
        return pa.ExtensionArray.from_storage(target, storage)
    if isinstance(value, str) and pa.types.is_temporal(target):
        return pa.repeat(pa.scalar(value).cast(target), count)
    return pa.repeat(pa.scalar(value, target), count)


def python_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Rows as dicts, for people.

    A column with moments that Python has no values for (years before 1 or after 9999, nanoseconds)
    becomes texts.
    """
    columns: dict[str, list[Any]] = {}
    for column in rows.schema:
        values = rows.column(column.name)
        try:
            columns[column.name] = values.to_pylist()
        except (OverflowError, ValueError):
            columns[column.name] = values.cast(_with_texts(column.type)).to_pylist()
    return (
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        if columns
        else [{}] * rows.num_rows
    )


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """The type with texts for moments."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_texts(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_with_texts(kind.key_type), _with_texts(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_with_texts(each.type)) for each in kind])
    return kind


def rebased_offsets(values: pa.Array) -> tuple[pa.Array, int, int]:
    """Offsets of a list or map array that start at 0, and which children they span.

    Returns:
        int32 offsets, shape `(len + 1,)`; the first child; the number of children.
    """
    offsets = values.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return pc.subtract(offsets, offsets[0]).cast(pa.int32()), first, last - first


def without_views(rows: Rows) -> Rows:
    """The same rows with plain texts and bytes in place of Arrow's views, nested ones too.

    Arrow takes and filters no views; polars and DuckDB give them. No copy where there are none.
    """
    plain = [field.with_type(_without_views(field.type)) for field in rows.schema]
    wanted = pa.schema(plain, rows.schema.metadata)
    if wanted == rows.schema:
        return rows
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(rows.columns, wanted, strict=True)
    ]
    return type(rows).from_arrays(columns, schema=wanted)


def _without_views(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_struct(kind):
        return pa.struct([each.with_type(_without_views(each.type)) for each in kind])
    if types.is_map(kind):
        fields = (kind.key_field, kind.item_field)
        key, item = (each.with_type(_without_views(each.type)) for each in fields)
        return pa.map_(key, item, kind.keys_sorted)
    for is_kind, make in (
        (types.is_list, pa.list_),
        (types.is_large_list, pa.large_list),
        (types.is_fixed_size_list, lambda each: pa.list_(each, kind.list_size)),
    ):
        if is_kind(kind):
            inner = kind.value_field
            return make(inner.with_type(_without_views(inner.type)))
    return kind
