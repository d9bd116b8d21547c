"""Metadata of a table that does not exist yet (format version 3, or 2 where that is asked for)."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PartitionSpec, assign_fresh_partition_spec_ids
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder, assign_fresh_sort_order_ids

from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spec.column_defaults import check_defaults, has_defaults, with_fresh_ids
from tableformat.spec.metadata_models import IndexedMetadataV2, IndexedMetadataV3

FORMAT_VERSION = "format-version"


def wanted_version(properties: Mapping[str, str]) -> int:
    """The `format-version` of a table to create; 3 unless 2 is asked for.

    Raises:
        InvalidInputError: Another one is.
    """
    text = str(properties.get(FORMAT_VERSION, "3"))
    if text not in ("2", "3"):
        raise InvalidInputError("only v2 and v3 tables are created", key=FORMAT_VERSION, value=text)
    return int(text)


def new_metadata(
    schema: Schema,
    partition_spec: PartitionSpec,
    sort_order: SortOrder,
    *,
    location: str,
    properties: Mapping[str, str],
    table_uuid: UUID,
    now_ms: int,
) -> TableMetadata:
    """First metadata of a table; field ids are assigned anew, from 1, as in every catalog.

    Raises:
        InvalidInputError: Spec or sort order do not fit the schema, or another format version is
            asked for.
    """
    kept = {key: str(value) for key, value in properties.items() if key != FORMAT_VERSION}
    version = wanted_version(properties)
    _check_defaults(schema, version)
    try:
        schema.check_format_version_compatibility(version)
        fresh_schema = with_fresh_ids(schema)
        spec = assign_fresh_partition_spec_ids(partition_spec, schema, fresh_schema)
        order = assign_fresh_sort_order_ids(sort_order, schema, fresh_schema)
        spec.check_compatible(fresh_schema)
        order.check_compatible(fresh_schema)
    except (ValidationError, ValueError) as error:
        raise InvalidInputError(f"table cannot be created: {error}") from error
    model = IndexedMetadataV2 if version == 2 else IndexedMetadataV3
    return model(
        location=location,
        table_uuid=table_uuid,
        last_updated_ms=now_ms,
        last_column_id=fresh_schema.highest_field_id,
        schemas=[fresh_schema],
        current_schema_id=fresh_schema.schema_id,
        partition_specs=[spec],
        default_spec_id=spec.spec_id,
        last_partition_id=spec.last_assigned_field_id,
        sort_orders=[order],
        default_sort_order_id=order.order_id,
        properties=kept,
    )


def _check_defaults(schema: Schema, version: int) -> None:
    check_defaults(schema)
    for field_id in schema.field_ids if version < 3 else ():
        if has_defaults(schema.find_field(field_id)):
            column = schema.find_column_name(field_id)
            raise UnsupportedError("column defaults need v3", column=column)
