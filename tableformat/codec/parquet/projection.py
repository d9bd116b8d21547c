"""Turn what was read from an old file into rows of the wanted schema (spec: Column Projection).

A field is found by id. Where the file has it, it is renamed, reordered and promoted; where not, it
is its `initial-default`, else null. Identity-partition constants are the caller's, they are known
for top-level fields only.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg import types as iceberg

from tableformat.codec.parquet.columns import FileColumn
from tableformat.errors import CorruptDataError
from tableformat.spec.arrow_arrays import constant_array, rebased_offsets
from tableformat.spec.types import arrow_type, is_list, is_string, is_varying_binary


def project_column(
    values: pa.Array, column: FileColumn, wanted: iceberg.NestedField, path: str
) -> pa.Array:
    """One stored column as the wanted field.

    Args:
        values: As read, with the pruned type of `column`.
        column: What was read.
        wanted: The field in the schema asked for.
        path: Its dotted name, for error texts.

    Returns:
        Same length, type `arrow_type` of the wanted field.

    Raises:
        CorruptDataError: The stored type cannot be promoted to the wanted one, or a required field
            holds nulls.
    """
    if wanted.required and values.null_count:
        raise CorruptDataError("required column holds nulls", column=path)
    kind = wanted.field_type
    if isinstance(kind, iceberg.StructType) and pa.types.is_struct(values.type):
        return _struct(values, column, kind, path)
    if isinstance(kind, iceberg.ListType) and is_list(values.type):
        return _list(values, column, kind, path)
    if isinstance(kind, iceberg.MapType) and pa.types.is_map(values.type):
        return _map(values, column, kind, path)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    target = arrow_type(kind, path=path)
    if column.is_int96 and pa.types.is_timestamp(target):
        # Spark's and Hive's INT96 has no annotation: it is what the column says.
        values = values.cast(pa.timestamp(values.type.unit, target.tz))
    return promote(values, kind, path)


def missing_column(wanted: iceberg.NestedField, count: int, path: str) -> pa.Array:
    """A field that the file does not have: its initial default, else null.

    Raises:
        CorruptDataError: The field is required and has no initial default.
    """
    if wanted.initial_default is None and wanted.required:
        raise CorruptDataError(
            "required column is missing in the file",
            column=path,
            action="if the column came later (REPLACE TABLE, or without a default), read snapshots "
            "of before by their ids, or by a tag: those have their own schema",
        )
    return constant_array(wanted.initial_default, wanted.field_type, count)


def promote(values: pa.Array, kind: iceberg.IcebergType, path: str) -> pa.Array:
    """Flat values in the wanted type, by the spec's promotions and nothing else."""
    target = arrow_type(kind, path=path)
    if values.type == target:
        return values
    if pa.types.is_null(values.type) or isinstance(kind, iceberg.UnknownType):
        if values.null_count != len(values):
            raise CorruptDataError("a column of type unknown holds values", column=path)
        return pa.nulls(len(values), target)
    if not _is_promotion(values.type, kind, target):
        raise CorruptDataError(f"stored type {values.type} cannot be read as {kind}", column=path)
    try:
        if isinstance(kind, iceberg.UUIDType):
            return pa.ExtensionArray.from_storage(target, values.cast(pa.binary(16)))
        if isinstance(values.type, pa.UuidType):
            return values.storage.cast(target)
        return values.cast(target, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CorruptDataError(
            f"stored value cannot be read as {kind}: {error}", column=path
        ) from error


def _is_promotion(stored: pa.DataType, kind: iceberg.IcebergType, target: pa.DataType) -> bool:
    """The spec's type promotions, and other layouts of the same values."""
    types = pa.types
    if types.is_integer(stored) and types.is_integer(target):
        # Foreign files: INT_8, UINT_16 ... are ints; the cast checks that values fit.
        return bool(stored.bit_width <= target.bit_width)
    if types.is_floating(stored) and types.is_floating(target):
        return bool(stored.bit_width <= target.bit_width)
    if types.is_decimal(stored) and isinstance(kind, iceberg.DecimalType):
        return bool(stored.scale == kind.scale and stored.precision <= kind.precision)
    if types.is_date(stored):
        return bool(
            isinstance(kind, iceberg.DateType) or (types.is_timestamp(target) and target.tz is None)
        )
    if types.is_timestamp(stored) and types.is_timestamp(target):
        # A zone in the file says "instant"; foreign writers leave it out or name another one.
        return (stored.tz is None) == (target.tz is None)
    if types.is_time(stored):
        return bool(types.is_time(target))
    if is_string(stored):
        return is_string(target)
    if is_varying_binary(stored):
        return is_varying_binary(target) or is_string(target) or isinstance(kind, iceberg.FixedType)
    if types.is_fixed_size_binary(stored):
        return isinstance(kind, iceberg.UUIDType) and stored.byte_width == 16
    return isinstance(stored, pa.UuidType) and target == pa.binary(16)


def _struct(
    values: pa.StructArray, column: FileColumn, kind: iceberg.StructType, path: str
) -> pa.Array:
    has_nulls = values.null_count > 0
    valid = values.is_valid() if has_nulls else None
    by_id = {child.field_id: index for index, child in enumerate(column.children)}
    children = []
    for field in kind.fields:
        here = f"{path}.{field.name}"
        index = by_id.get(field.field_id)
        if index is None:
            children.append(missing_column(field, len(values), here))
            continue
        child = values.field(index)
        if field.required and valid is not None and child.null_count:
            if child.filter(valid).null_count:
                raise CorruptDataError("required column holds nulls", column=here)
            field = field.model_copy(update={"required": False})
        children.append(project_column(child, column.children[index], field, here))
    target = arrow_type(kind, path=path)
    mask = values.is_null() if has_nulls else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _list(values: pa.Array, column: FileColumn, kind: iceberg.ListType, path: str) -> pa.Array:
    target = arrow_type(kind, path=path)
    offsets, first, count = rebased_offsets(values)
    stored = values.values.slice(first, count)
    elements = project_column(stored, column.children[0], kind.element_field, f"{path}.element")
    mask = values.is_null() if values.null_count else None
    return pa.ListArray.from_arrays(offsets, elements, type=target, mask=mask)


def _map(values: pa.MapArray, column: FileColumn, kind: iceberg.MapType, path: str) -> pa.Array:
    target = arrow_type(kind, path=path)
    offsets, first, count = rebased_offsets(values)
    key, value = column.children
    keys = project_column(values.keys.slice(first, count), key, kind.key_field, f"{path}.key")
    items = values.items.slice(first, count)
    items = project_column(items, value, kind.value_field, f"{path}.value")
    mask = values.is_null() if values.null_count else None
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=mask)


def columns_by_id(columns: Sequence[FileColumn]) -> dict[int, int]:
    """Position in what is read, by field id."""
    return {
        column.field_id: index
        for index, column in enumerate(columns)
        if column.field_id is not None
    }
