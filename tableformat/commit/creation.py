"""A table is created: its definition is checked, then it appears, empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from tableformat.catalog.base import TableState
from tableformat.catalog.new_table import wanted_version
from tableformat.commit.property_check import check_properties
from tableformat.commit.request import check_publishing
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.spec.constraints import FORBIDDEN, NO_KEY, Enforcement, define_immutable
from tableformat.spec.names import (
    IMMUTABLE_COLUMNS,
    IMMUTABLE_DELETES,
    IMMUTABLE_ENFORCED,
    IMMUTABLE_NAME,
    SNAPSHOTS_MAX,
)
from tableformat.spec.types import check_new_column_names
from tableformat.table_definition import define_partition_spec, define_schema, parse_table_name

# A commit a second is 86,400 snapshots a day. Each commit writes the list of those that are kept
# into a file of its own, which by Iceberg's defaults nothing deletes before orphan removal.
KEPT_HISTORY = {SNAPSHOTS_MAX: "1000", "write.metadata.delete-after-commit.enabled": "true"}


def create_table(
    environment: Environment,
    name: str,
    schema: Schema | pa.Schema,
    *,
    primary_key: Sequence[str],
    partition_by: Sequence[str] = (),
    immutable_columns: Sequence[str] | None = None,
    enforce_immutable: Enforcement = False,
    properties: Mapping[str, str] | None = None,
    location: str | None = None,
) -> TableState:
    """Create an empty table; arguments and errors are those of `TableCatalog.create_table`.

    Effects: creates the namespace, then the table. A crash between leaves an empty namespace.
    """
    identifier = parse_table_name(name)
    if not primary_key and immutable_columns:
        raise InvalidInputError(NO_KEY)
    if not primary_key:
        raise InvalidInputError(
            "a table needs a primary key",
            table=name,
            action="name the columns that tell rows apart with primary_key=[...]",
        )
    if enforce_immutable and not immutable_columns:
        raise InvalidInputError(
            "there is no IMMUTABLE constraint to enforce",
            table=name,
            action="name its columns with immutable_columns=[...]",
        )
    definition = define_schema(schema, primary_key)
    check_new_column_names(field.name for field in definition.fields)
    spec = define_partition_spec(definition, partition_by)
    check_properties(properties or {}, definition)
    check_publishing(properties or {}, wanted_version(properties or {}), table=name)
    all_properties = KEPT_HISTORY | dict(properties or {})
    by_hand = all_properties.get(IMMUTABLE_COLUMNS, "").split(",")
    immutable = [name.strip() for name in by_hand if name.strip()]
    if immutable_columns is not None or immutable:
        all_properties |= define_immutable(
            definition,
            immutable if immutable_columns is None else list(immutable_columns),
            name=all_properties.get(IMMUTABLE_NAME),
            enforced=enforce_immutable or _enforced_by_hand(all_properties),
        )
    environment.catalog.create_namespace(identifier[:-1])
    return environment.catalog.create_table(
        identifier,
        schema=definition,
        partition_spec=spec,
        sort_order=UNSORTED_SORT_ORDER,
        location=location,
        properties=all_properties,
    )


def _enforced_by_hand(properties: Mapping[str, str]) -> Enforcement:
    if properties.get(IMMUTABLE_ENFORCED) != "true":
        return False
    return properties.get(IMMUTABLE_DELETES) == FORBIDDEN or "except-delete"
