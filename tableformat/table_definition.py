"""From what a user types to an Iceberg schema and partition spec. Pure, all checks up front."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    NestedField,
    StructType,
)

from tableformat.errors import InvalidInputError
from tableformat.spec.column_defaults import with_fresh_ids
from tableformat.spec.key_column import check_key_column
from tableformat.spec.names import USER_FIELD_ID_MAX
from tableformat.spec.types import iceberg_schema

TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)+")
PARTITION_CALL = re.compile(
    r"(?P<transform>\w+)\(\s*((?P<width>\d{1,9})\s*,\s*)?(?P<column>[^(),]+?)\s*\)"
)
PLAIN_TRANSFORMS: dict[str, Callable[[], Transform[Any, Any]]] = {
    "identity": IdentityTransform,
    "year": YearTransform,
    "month": MonthTransform,
    "day": DayTransform,
    "hour": HourTransform,
    "void": VoidTransform,
}
WIDTH_TRANSFORMS: dict[str, Callable[[int], Transform[Any, Any]]] = {
    "bucket": BucketTransform,
    "truncate": TruncateTransform,
}
TRANSFORM_NAMES = "identity, year, month, day, hour, void, bucket(N, column), truncate(N, column)"


def parse_table_name(name: str) -> tuple[str, ...]:
    """Split `namespace.table`.

    Raises:
        InvalidInputError: The name has no namespace or holds other than letters, digits, `_`, `-`.
    """
    if not TABLE_NAME.fullmatch(name):
        raise InvalidInputError(
            "not a table name",
            table=repr(name),
            action="write NAMESPACE.TABLE with letters, digits, _ and -",
        )
    return tuple(name.split("."))


def define_schema(schema: Schema | pa.Schema, primary_key: Sequence[str]) -> Schema:
    """The table's schema with its identifier fields.

    Args:
        schema: Column names and types; Iceberg's or Arrow's. Field ids are assigned afresh.
        primary_key: Key columns, in any order; nested ones with dots. Made required, as the spec
            demands of identifier fields.

    Raises:
        InvalidInputError: No key, an unknown or repeated key column, a key of a float, nested or
            unknown type, names that are not distinct.
    """
    top = list(schema) if isinstance(schema, pa.Schema) else schema.fields
    _check_column_names([each.name for each in top])
    try:
        wanted = iceberg_schema(schema) if isinstance(schema, pa.Schema) else schema
        fresh = with_fresh_ids(wanted)
    except ValueError as error:  # two fields of a struct have one name
        raise InvalidInputError(f"not a schema: {error}") from error
    if fresh.highest_field_id > USER_FIELD_ID_MAX:
        raise InvalidInputError("the schema has too many fields", fields=fresh.highest_field_id)
    if not primary_key:
        return fresh
    key_ids = [_key_field_id(fresh, column) for column in primary_key]
    if len(set(key_ids)) != len(key_ids):
        repeated = next(c for c in primary_key if list(primary_key).count(c) > 1)
        raise InvalidInputError("a primary key column is named twice", column=repeated)
    fields = [_with_required(field, frozenset(key_ids)) for field in fresh.fields]
    return Schema(*fields, schema_id=0, identifier_field_ids=key_ids)


def _check_column_names(names: Sequence[str]) -> None:
    if not names:
        raise InvalidInputError("a table needs at least one column")
    folded = [name.lower() for name in names]
    for name in names:
        if not name or folded.count(name.lower()) > 1:
            raise InvalidInputError(
                "column names must be distinct, also when case is ignored (Spark reads them so)",
                column=repr(name),
            )


def _key_field_id(schema: Schema, column: str) -> int:
    try:
        field = schema.find_field(column)
    except ValueError as error:
        raise InvalidInputError(
            "the primary key names an unknown column",
            column=column,
            columns=list(schema.column_names),
        ) from error
    check_key_column(schema, field.field_id)
    return field.field_id


def _with_required(field: NestedField, key_ids: frozenset[int]) -> NestedField:
    inner = field.field_type
    holds_key = field.field_id in key_ids
    if isinstance(inner, StructType):
        children = tuple(_with_required(child, key_ids) for child in inner.fields)
        holds_key = holds_key or any(_holds(child, key_ids) for child in inner.fields)
        inner = StructType(*children)
    return field.model_copy(update={"field_type": inner, "required": field.required or holds_key})


def _holds(field: NestedField, key_ids: frozenset[int]) -> bool:
    if field.field_id in key_ids:
        return True
    inner = field.field_type
    return isinstance(inner, StructType) and any(_holds(child, key_ids) for child in inner.fields)


def define_partition_spec(schema: Schema, partition_by: Sequence[str]) -> PartitionSpec:
    """The partition spec of `partition_by`, e.g. `["month(ts)", "bucket(16, id)", "region"]`.

    Raises:
        InvalidInputError: An unknown transform or column, or a transform its type cannot take.
    """
    fields: list[PartitionField] = []
    for position, text in enumerate(partition_by):
        transform, name, column = _parse_partition(text)
        try:
            source = schema.find_field(column)
        except ValueError as error:
            raise InvalidInputError(
                "the partition spec names an unknown column",
                column=column,
                columns=list(schema.column_names),
            ) from error
        if not transform.can_transform(source.field_type):
            raise InvalidInputError(
                "this partition transform cannot take a column of this type",
                transform=text,
                type=source.field_type,
            )
        if any(field.name == name for field in fields):
            raise InvalidInputError("two partition fields have the same name", field=name)
        fields.append(
            PartitionField(source.field_id, PARTITION_FIELD_ID_START + position, transform, name)
        )
    return PartitionSpec(*fields, spec_id=0)


def _parse_partition(text: str) -> tuple[Transform[Any, Any], str, str]:
    call = PARTITION_CALL.fullmatch(text.strip())
    if call is None:
        if "(" in text or ")" in text or "," in text or not text.strip():
            raise _unknown_transform(text)
        return IdentityTransform(), text.strip(), text.strip()
    name, column, width = call["transform"].lower(), call["column"], call["width"]
    base = column.replace(".", "_")
    if name in PLAIN_TRANSFORMS and width is None:
        transform = PLAIN_TRANSFORMS[name]()
        return transform, base if name == "identity" else f"{base}_{name}", column
    if name in WIDTH_TRANSFORMS and width is not None and int(width) > 0:
        suffix = "trunc" if name == "truncate" else name
        return WIDTH_TRANSFORMS[name](int(width)), f"{base}_{suffix}", column
    raise _unknown_transform(text)


def _unknown_transform(text: str) -> InvalidInputError:
    return InvalidInputError(
        "not a partition transform", transform=repr(text), action=f"write one of {TRANSFORM_NAMES}"
    )
