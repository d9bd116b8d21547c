"""Bring incoming Arrow rows into exactly the form of a table schema, or say what is wrong.

Columns are matched by name, nested ones too. A value is never changed to fit: widenings and
changes of layout are done (`int8` to `long`, dictionary to `string`, any zone to UTC), everything
that would lose something is an `InvalidInputError` that names the column.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from tableformat.errors import InvalidInputError
from tableformat.spec.arrow_arrays import constant_array, rebased_offsets
from tableformat.spec.decimal_casts import exact_cast
from tableformat.spec.missing_columns import MISSING
from tableformat.spec.types import arrow_type, is_list, is_string, is_varying_binary
from tableformat.spec.uuid_text import UUID_BYTES, parse_uuids

DAY_US = 86_400_000_000


def arrow_rows(given: object) -> pa.Table | pa.RecordBatchReader:
    """What a caller gives as rows: Arrow, or anything with Arrow's stream interface.

    Raises:
        InvalidInputError: Neither.
    """
    if isinstance(given, pa.Table | pa.RecordBatchReader):
        return given
    if isinstance(given, pa.RecordBatch) or hasattr(given, "__arrow_c_stream__"):
        return pa.table(given)
    raise InvalidInputError(
        "rows are an Arrow table, or a frame with Arrow's stream interface (polars, pandas)",
        given=type(given).__name__,
        action="pa.table(...) makes one of a dict of columns, pa.Table.from_pylist(...) of dicts",
    )


def arrow_table(given: object) -> pa.Table:
    """`arrow_rows`, read whole."""
    rows = arrow_rows(given)
    return rows if isinstance(rows, pa.Table) else rows.read_all()


def check_columns(given: pa.Schema, schema: Schema) -> None:
    """Check names and types of incoming columns, before any row is looked at.

    Raises:
        InvalidInputError: A column is unknown, given twice, missing although required and without
            a write default, or of a type that cannot become the table's type without loss.
    """
    _check_struct(list(given), schema.fields, path="")


def conform_batch(batch: pa.RecordBatch, schema: Schema, target: pa.Schema) -> pa.RecordBatch:
    """One batch in the form of the schema.

    Args:
        batch: Columns that passed `check_columns`, in any order.
        schema: The table's schema.
        target: `arrow_schema(schema)`.

    Returns:
        Same rows; columns as `target`. Missing columns hold the write default, else null. No copy
        of columns that have the right layout already.

    Raises:
        InvalidInputError: A value does not fit, or a required column holds a null.
    """
    names = batch.schema.names
    columns = [
        _column(batch.column(names.index(field.name)), field, field.name)
        if field.name in names
        else default_array(field, len(batch))
        for field in schema.fields
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def default_array(field: iceberg.NestedField, count: int) -> pa.Array:
    """`count` times the field's write default, or null."""
    return constant_array(field.write_default, field.field_type, count)


def _check_struct(
    given: Sequence[pa.Field], wanted: Sequence[iceberg.NestedField], *, path: str
) -> None:
    by_name: dict[str, pa.Field] = {}
    for field in given:
        if field.name in by_name:
            raise InvalidInputError("column is given twice", column=_join(path, field.name))
        by_name[field.name] = field
    known = {field.name: field for field in wanted}
    for name in by_name:
        if name not in known:
            names = sorted(known.keys() - {MISSING})  # which is icefold's own
            near = difflib.get_close_matches(name, names, n=1)
            raise InvalidInputError(
                "unknown column",
                column=_join(path, name),
                known=",".join(names),
                action=f"did you mean '{near[0]}'?" if near else None,
            )
    for name, field in known.items():
        found = by_name.get(name)
        if found is not None:
            _check_type(found.type, field, _join(path, name))
        elif field.required and field.write_default is None:
            raise InvalidInputError("required column is missing", column=_join(path, name))


def _check_type(given: pa.DataType, field: iceberg.NestedField, path: str) -> None:
    kind = field.field_type
    if pa.types.is_dictionary(given) or pa.types.is_run_end_encoded(given):
        _check_type(given.value_type, field, path)
    elif isinstance(given, pa.BaseExtensionType) and not isinstance(given, pa.UuidType):
        _check_type(given.storage_type, field, path)
    elif pa.types.is_null(given):
        if field.required:
            raise InvalidInputError("required column holds nulls", column=path)
    elif isinstance(kind, iceberg.StructType) and pa.types.is_struct(given):
        _check_struct(list(given), kind.fields, path=path)
    elif isinstance(kind, iceberg.ListType) and is_list(given):
        _check_type(given.value_type, kind.element_field, f"{path}.element")
    elif isinstance(kind, iceberg.MapType) and pa.types.is_map(given):
        _check_type(given.key_type, kind.key_field, f"{path}.key")
        _check_type(given.item_type, kind.value_field, f"{path}.value")
    elif not _fits(given, kind):
        raise InvalidInputError(
            f"Arrow type {given} does not fit the column's type {kind}",
            column=path,
            action="cast it before writing",
        )


def _fits(given: pa.DataType, kind: iceberg.IcebergType) -> bool:
    """Whether values of a flat Arrow type may be stored in a column (each value still may not)."""
    types = pa.types
    match kind:
        case iceberg.UnknownType():
            return True
        case iceberg.BooleanType():
            fits = types.is_boolean(given)
        case iceberg.IntegerType() | iceberg.LongType():
            fits = types.is_integer(given)
        case iceberg.FloatType():
            fits = types.is_float16(given) or types.is_float32(given)
        case iceberg.DoubleType():
            fits = types.is_floating(given)
        case iceberg.DecimalType():
            fits = types.is_decimal(given)
        case iceberg.DateType():
            fits = types.is_date(given)
        case iceberg.TimeType():
            fits = types.is_time(given)
        case iceberg.TimestampType() | iceberg.TimestampNanoType():
            fits = types.is_timestamp(given) and given.tz is None
        case iceberg.TimestamptzType() | iceberg.TimestamptzNanoType():
            fits = types.is_timestamp(given) and given.tz is not None
        case iceberg.StringType():
            fits = is_string(given)
        case iceberg.UUIDType():
            fits = isinstance(given, pa.UuidType) or is_string(given) or _is_binary(given)
        case iceberg.FixedType():
            fits = is_varying_binary(given) or (
                types.is_fixed_size_binary(given) and given.byte_width == len(kind)
            )
        case iceberg.BinaryType():
            fits = _is_binary(given)
        case _:
            fits = False
    return bool(fits)


def _is_binary(given: pa.DataType) -> bool:
    return is_varying_binary(given) or bool(pa.types.is_fixed_size_binary(given))


def _column(values: pa.Array, field: iceberg.NestedField, path: str) -> pa.Array:
    """One column, or one nested level of it, in the schema's form; required means no null."""
    if field.required and values.null_count:
        raise InvalidInputError(
            "required column holds nulls", column=path, null_count=values.null_count
        )
    kind = field.field_type
    if pa.types.is_dictionary(values.type):
        values = _decoded(values)
        if field.required and values.null_count:
            raise InvalidInputError("required column holds nulls", column=path)
    elif pa.types.is_run_end_encoded(values.type):
        return _unrolled(values, field, path)
    elif isinstance(values.type, pa.BaseExtensionType) and not isinstance(values.type, pa.UuidType):
        return _column(values.storage, field, path)
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), arrow_type(kind, path=path))
    if isinstance(kind, iceberg.StructType):
        return _struct(values, kind, path)
    if isinstance(kind, iceberg.ListType):
        return _list(values, kind, path)
    if isinstance(kind, iceberg.MapType):
        return _map(values, kind, path)
    return _primitive(values, kind, path)


def _decoded(values: pa.DictionaryArray) -> pa.Array:
    dictionary = values.dictionary
    if pa.types.is_string_view(dictionary.type) or pa.types.is_binary_view(dictionary.type):
        plain = pa.string() if is_string(dictionary.type) else pa.binary()
        values = pa.DictionaryArray.from_arrays(values.indices, dictionary.cast(plain))
    return values.dictionary_decode()


def _unrolled(values: pa.RunEndEncodedArray, field: iceberg.NestedField, path: str) -> pa.Array:
    """The runs are brought into the schema's form first: Arrow repeats no views and no UUIDs."""
    first, count = values.find_physical_offset(), values.find_physical_length()
    runs = _column(values.values.slice(first, count), field, path)
    numbers = pa.array(np.arange(-first, len(values.run_ends) - first))
    of_rows = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(values.run_ends, numbers))
    return runs.take(of_rows.slice(values.offset, len(values)))


def _primitive(values: pa.Array, kind: iceberg.IcebergType, path: str) -> pa.Array:
    if isinstance(kind, iceberg.UnknownType):
        if values.null_count != len(values):
            raise InvalidInputError("a column of type unknown holds values", column=path)
        return pa.nulls(len(values))
    target = arrow_type(kind, path=path)
    try:
        if isinstance(kind, iceberg.TimeType):
            return _times(values, target)
        if values.type == target:
            return values
        if isinstance(kind, iceberg.UUIDType):
            return _uuids(values)
        if isinstance(kind, iceberg.FixedType | iceberg.BinaryType) or is_string(values.type):
            return _change_layout(values, target)
        return exact_cast(values, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise InvalidInputError(
            f"a value of Arrow type {values.type} does not fit the column's type {kind}: {error}",
            column=path,
        ) from error


def _times(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Arrow takes any number for a time; readers make different ones of what is none of a day."""
    times = values.cast(target, safe=True)
    bounds = pc.min_max(times.cast(pa.int64())).as_py()
    if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] < DAY_US:
        raise pa.ArrowInvalid("not a time of day")
    return times


def _uuids(values: pa.Array) -> pa.Array:
    if is_string(values.type):
        return parse_uuids(_change_layout(values, pa.string()))
    storage = _change_layout(values, pa.binary(UUID_BYTES))
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


def _change_layout(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast between layouts of text or bytes, through the plain one where Arrow has no kernel."""
    plain = pa.string() if is_string(values.type) else pa.binary()
    if not pa.types.is_fixed_size_binary(values.type) and values.type != plain:
        # A short slice of a long column has offsets beyond 32 bits: copy it to offset 0 first.
        if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type):
            values = pa.concat_arrays([values, values[:0]]) if values.offset else values
        values = values.cast(plain)
    return values if values.type == target else values.cast(target)


def _struct(values: pa.StructArray, kind: iceberg.StructType, path: str) -> pa.Array:
    target = arrow_type(kind, path=path)
    has_nulls = values.null_count > 0
    valid = values.is_valid() if has_nulls else None
    children = []
    for field in kind.fields:
        index = values.type.get_field_index(field.name)
        here = f"{path}.{field.name}"
        if index < 0:
            children.append(default_array(field, len(values)))
            continue
        child = values.field(index)
        if field.required and valid is not None and child.null_count:
            # A null struct has no fields, so its children may be null although required.
            if child.filter(valid).null_count:
                raise InvalidInputError("required column holds nulls", column=here)
            field = field.model_copy(update={"required": False})
        children.append(_column(child, field, here))
    mask = values.is_null() if has_nulls else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _list(values: pa.Array, kind: iceberg.ListType, path: str) -> pa.Array:
    # Lengths and `flatten` mean the same in all layouts, skip what hides under null lists, and
    # hold for slices; Arrow's cast of a sliced list view makes an invalid array.
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    elements = _column(values.flatten(), kind.element_field, f"{path}.element")
    mask = values.is_null() if values.null_count else None
    target = arrow_type(kind, path=path)
    return pa.ListArray.from_arrays(offsets, elements, type=target, mask=mask)


def _map(values: pa.MapArray, kind: iceberg.MapType, path: str) -> pa.Array:
    target = arrow_type(kind, path=path)
    if values.null_count:  # drop what hides under null maps
        values = values.take(pa.array(np.arange(len(values))))
    offsets, first, count = rebased_offsets(values)
    keys = _column(values.keys.slice(first, count), kind.key_field, f"{path}.key")
    items = _column(values.items.slice(first, count), kind.value_field, f"{path}.value")
    mask = values.is_null() if values.null_count else None
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=mask)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
