"""Iceberg types as Arrow types and back. `docs/types.md` is the table; a test compares the two.

Arrow types that come out are always these, so that callers need to know one form only:
`string`, `binary` and `list` with 32-bit offsets (what Spark's Arrow reader takes; batches are
bounded, so offsets cannot overflow), decimals as `decimal128`, timestamps in `us` or `ns`, `UTC`
for the zoned ones, `pa.uuid()` for uuid. What goes in may be wider: see `write.rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spec.names import (
    LAST_UPDATED_SEQUENCE_NUMBER_FIELD_ID,
    POS_FIELD_ID,
    ROW_ID_FIELD_ID,
)

# The metadata key by which Arrow's Parquet reader and writer carry field ids.
FIELD_ID_KEY = b"PARQUET:field_id"
DOC_KEY = b"doc"
DECIMAL_PRECISION_MAX = 38  # spec: Primitive Types

ROW_ID_FIELD = iceberg.NestedField(ROW_ID_FIELD_ID, "_row_id", iceberg.LongType(), required=False)
LAST_UPDATED_FIELD = iceberg.NestedField(
    LAST_UPDATED_SEQUENCE_NUMBER_FIELD_ID,
    "_last_updated_sequence_number",
    iceberg.LongType(),
    required=False,
)
POS_FIELD = iceberg.NestedField(POS_FIELD_ID, "_pos", iceberg.LongType(), required=True)
LINEAGE_FIELDS = (ROW_ID_FIELD, LAST_UPDATED_FIELD)
_LINEAGE_NAMES = frozenset(field.name for field in LINEAGE_FIELDS)

_ARROW_OF: dict[type[iceberg.IcebergType], pa.DataType] = {
    iceberg.BooleanType: pa.bool_(),
    iceberg.IntegerType: pa.int32(),
    iceberg.LongType: pa.int64(),
    iceberg.FloatType: pa.float32(),
    iceberg.DoubleType: pa.float64(),
    iceberg.DateType: pa.date32(),
    iceberg.TimeType: pa.time64("us"),
    iceberg.TimestampType: pa.timestamp("us"),
    iceberg.TimestamptzType: pa.timestamp("us", tz="UTC"),
    iceberg.TimestampNanoType: pa.timestamp("ns"),
    iceberg.TimestamptzNanoType: pa.timestamp("ns", tz="UTC"),
    iceberg.StringType: pa.string(),
    iceberg.UUIDType: pa.uuid(),
    iceberg.BinaryType: pa.binary(),
    iceberg.UnknownType: pa.null(),
}


def arrow_schema(schema: Schema, *, with_field_ids: bool = True) -> pa.Schema:
    """The Arrow schema that rows of `schema` have in memory.

    Args:
        schema: A table schema or a projection of one.
        with_field_ids: Put the field ids into the metadata of every field, nested ones included.

    Returns:
        Fields in schema order; `nullable` is the opposite of `required`.

    Raises:
        UnsupportedError: A column is variant, geometry or geography; the message names it.
    """
    return pa.schema([arrow_field(field, with_field_ids=with_field_ids) for field in schema.fields])


def arrow_field(
    field: iceberg.NestedField, *, path: str = "", with_field_ids: bool = True
) -> pa.Field:
    """One field as Arrow. `path` is the dotted name of its parent, for error texts."""
    here = f"{path}.{field.name}" if path else field.name
    metadata = {FIELD_ID_KEY: str(field.field_id).encode()} if with_field_ids else {}
    if field.doc:
        metadata[DOC_KEY] = field.doc.encode()
    return pa.field(
        field.name,
        arrow_type(field.field_type, path=here, with_field_ids=with_field_ids),
        nullable=not field.required,
        metadata=metadata or None,
    )


def arrow_type(
    kind: iceberg.IcebergType, *, path: str = "", with_field_ids: bool = True
) -> pa.DataType:
    """The one Arrow type for an Iceberg type; see `arrow_schema`."""

    def child(field: iceberg.NestedField) -> pa.Field:
        return arrow_field(field, path=path, with_field_ids=with_field_ids)

    if isinstance(kind, iceberg.StructType):
        return pa.struct([child(field) for field in kind.fields])
    if isinstance(kind, iceberg.ListType):
        return pa.list_(child(kind.element_field))
    if isinstance(kind, iceberg.MapType):
        return pa.map_(child(kind.key_field), child(kind.value_field))
    if isinstance(kind, iceberg.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, iceberg.FixedType):
        return pa.binary(len(kind))
    simple = _ARROW_OF.get(type(kind))
    if simple is None:
        raise UnsupportedError(
            f"cannot store columns of type {kind}",
            action="leave the column out or store its bytes as binary",
            column=path,
        )
    return simple


def iceberg_schema(schema: pa.Schema) -> Schema:
    """The Iceberg schema for an Arrow schema.

    Field ids are taken from the metadata if every field has one, else fresh ones are given from 1
    on, level by level as the reference implementation does.

    Raises:
        UnsupportedError: An Arrow type has no Iceberg type; the message names the column.
        InvalidInputError: Some fields have ids and some do not, or an id is no number.
    """
    missing: list[str] = []
    placeholder_id = 0

    def id_of(field: pa.Field, path: str) -> int:
        nonlocal placeholder_id
        found = field_id_of(field, path)
        if found is None:
            missing.append(path)
            placeholder_id -= 1
            return placeholder_id
        return found

    fields = tuple(_iceberg_field(field, field.name, id_of) for field in schema)
    result = Schema(*fields)
    if not missing:
        return result
    if any(field_id > 0 for field_id in result.field_ids):
        raise InvalidInputError(
            "some Arrow fields carry a field id and some do not", column=missing[0]
        )
    return assign_fresh_schema_ids(result)


def field_id_of(field: pa.Field, path: str = "") -> int | None:
    """The field id in an Arrow field's metadata; None without one."""
    text = (field.metadata or {}).get(FIELD_ID_KEY)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        raise InvalidInputError(
            "field id is not a number", column=path or field.name, field_id=text
        ) from None
    return None if value < 0 else value


def _iceberg_field(
    field: pa.Field, path: str, id_of: Callable[[pa.Field, str], int]
) -> iceberg.NestedField:
    doc = (field.metadata or {}).get(DOC_KEY)
    field_id = id_of(field, path)
    kind = _iceberg_type(field.type, path, id_of)
    return iceberg.NestedField(
        field_id=field_id,
        name=field.name,
        field_type=kind,
        required=not field.nullable and not isinstance(kind, iceberg.UnknownType),
        doc=doc.decode() if doc else None,
    )


def _iceberg_type(
    kind: pa.DataType, path: str, id_of: Callable[[pa.Field, str], int]
) -> iceberg.IcebergType:
    def child(field: pa.Field, name: str) -> iceberg.NestedField:
        return _iceberg_field(field.with_name(name), f"{path}.{name}", id_of)

    if pa.types.is_struct(kind):
        return iceberg.StructType(*(child(field, field.name) for field in kind))
    if is_list(kind):
        element = child(kind.value_field, "element")
        return iceberg.ListType(element.field_id, element.field_type, element.required)
    if pa.types.is_map(kind):
        key, value = child(kind.key_field, "key"), child(kind.item_field, "value")
        return iceberg.MapType(
            key_id=key.field_id,
            key_type=key.field_type,
            value_id=value.field_id,
            value_type=value.field_type,
            value_required=value.required,
        )
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _iceberg_type(kind.value_type, path, id_of)
    return primitive_of_arrow(kind, path=path)


def primitive_of_arrow(kind: pa.DataType, *, path: str = "") -> iceberg.PrimitiveType:
    """The Iceberg type that holds every value of a flat Arrow type (unsigned ones widen)."""
    for matches, make in _ICEBERG_OF:
        if matches(kind):
            return make(kind)
    raise UnsupportedError(
        f"Arrow type {kind} has no Iceberg type", action="cast the column first", column=path
    )


def is_list(kind: pa.DataType) -> bool:
    """Whether values are sequences of one element type, in any of Arrow's layouts."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def is_string(kind: pa.DataType) -> bool:
    """Whether values are text, in any of Arrow's layouts."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_varying_binary(kind: pa.DataType) -> bool:
    """Whether values are byte strings of any length, in any of Arrow's layouts."""
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def _is_small_integer(kind: pa.DataType) -> bool:
    if not pa.types.is_integer(kind):
        return False
    return bool(kind.bit_width < 32 or (kind.bit_width == 32 and pa.types.is_signed_integer(kind)))


def _timestamp_of(kind: pa.TimestampType) -> iceberg.PrimitiveType:
    if kind.unit == "ns":
        return iceberg.TimestampNanoType() if kind.tz is None else iceberg.TimestamptzNanoType()
    return iceberg.TimestampType() if kind.tz is None else iceberg.TimestamptzType()


def _decimal_of(kind: pa.DataType) -> iceberg.PrimitiveType:
    precision, scale = kind.precision, kind.scale
    if precision > DECIMAL_PRECISION_MAX or not 0 <= scale <= precision:
        raise UnsupportedError(f"Iceberg has no decimal({precision}, {scale})")
    return iceberg.DecimalType(precision, scale)


_ICEBERG_OF: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], iceberg.PrimitiveType]], ...
] = (
    (pa.types.is_null, lambda _: iceberg.UnknownType()),
    (pa.types.is_boolean, lambda _: iceberg.BooleanType()),
    (_is_small_integer, lambda _: iceberg.IntegerType()),
    # uint64 lands here too: values above 2^63 - 1 are refused when they are written.
    (pa.types.is_integer, lambda _: iceberg.LongType()),
    (
        lambda kind: pa.types.is_float16(kind) or pa.types.is_float32(kind),
        lambda _: iceberg.FloatType(),
    ),
    (pa.types.is_float64, lambda _: iceberg.DoubleType()),
    (pa.types.is_decimal, _decimal_of),
    (pa.types.is_date, lambda _: iceberg.DateType()),
    (pa.types.is_time, lambda _: iceberg.TimeType()),
    (pa.types.is_timestamp, _timestamp_of),
    (is_string, lambda _: iceberg.StringType()),
    (lambda kind: isinstance(kind, pa.UuidType), lambda _: iceberg.UUIDType()),
    (pa.types.is_fixed_size_binary, lambda kind: iceberg.FixedType(kind.byte_width)),
    (is_varying_binary, lambda _: iceberg.BinaryType()),
)


def check_new_column_names(names: Iterable[str]) -> None:
    """Refuse top-level columns that would hide row lineage, of new tables and of new columns.

    Raises:
        InvalidInputError: Rows of such a table can neither be compacted nor published with their
            ids. Tables that others made with one are read and staged to.

    Source: spec: Reserved Field IDs.
    """
    for name in names:
        if name.lower() in _LINEAGE_NAMES:
            raise InvalidInputError(
                "cannot make a column of this name: Iceberg stores row lineage under it",
                column=name,
                action="give the column another name",
            )
