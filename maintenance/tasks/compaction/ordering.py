"""The order that a compaction is asked for."""

from __future__ import annotations

from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import PrimitiveType

from maintenance.tasks.options import CompactOptions
from tableformat.errors import InvalidInputError
from tableformat.write.ordering import COLUMNS_MAX, Ordering, SortColumn, sort_order_columns


def parse_ordering(options: CompactOptions, metadata: TableMetadata) -> Ordering | None:
    """The ordering that the options ask for; None keeps rows as they are.

    Raises:
        InvalidInputError: No columns, too many, an unknown one, or one that has no order.
        UnsupportedError: The table's sort order has a transform.
    """
    if options.strategy == "bin-pack":
        return None
    schema = metadata.schema()
    columns = [_parse_column(text, schema) for text in options.sort_by]
    if not columns and options.strategy == "sort":
        columns = sort_order_columns(metadata)
        for column in columns:
            _check_sortable(".".join(column.path), schema)
    if not columns:
        raise InvalidInputError(
            f"{options.strategy} needs columns to order rows by",
            action="name them with sort_by, e.g. --sort-by 'region, at desc'",
        )
    is_z_order = options.strategy == "z-order"
    if is_z_order and not 2 <= len(columns) <= COLUMNS_MAX:
        raise InvalidInputError(f"z-order takes 2 to {COLUMNS_MAX} columns", columns=len(columns))
    if is_z_order and any(column.descending for column in columns):
        raise InvalidInputError("a z-order has no direction", action="leave out desc")
    return Ordering(columns=tuple(columns), is_z_order=is_z_order)


def _parse_column(text: str, schema: Schema) -> SortColumn:
    name, _, direction = text.strip().partition(" ")
    direction = direction.strip().lower() or "asc"
    if direction not in ("asc", "desc"):
        raise InvalidInputError("not a sort column", column=repr(text), action="write NAME [desc]")
    _check_sortable(name, schema)
    is_descending = direction == "desc"
    return SortColumn(
        path=tuple(name.split(".")), descending=is_descending, nulls_first=not is_descending
    )


def _check_sortable(name: str, schema: Schema) -> None:
    try:
        found: Any = schema.find_field(name)
    except ValueError:
        raise InvalidInputError(
            "there is no column to sort by",
            column=repr(name),
            columns=", ".join(schema.column_names),
        ) from None
    inside = name.split(".")[1:]
    if not isinstance(found.field_type, PrimitiveType) or any(
        part in ("element", "key", "value") for part in inside
    ):
        raise InvalidInputError(
            f"cannot sort by a column of type {found.field_type}", column=repr(name)
        )
