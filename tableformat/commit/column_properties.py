"""Table properties that end in the name of a column: how it is written.

Readers of a property find no column under an old name, and say nothing: the metrics or the Bloom
filter are gone. So a rename takes such properties along, as Iceberg's schema update in Java does.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pyiceberg.schema import Schema
from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate, TableUpdate

from tableformat.codec.parquet.metrics import MODE_PREFIX
from tableformat.errors import InvalidInputError

_PREFIXES = (
    MODE_PREFIX,
    *(
        f"write.parquet.{what}.column."
        for what in (
            "bloom-filter-enabled",
            "bloom-filter-fpp",
            "bloom-filter-ndv",
            "stats-enabled",
        )
    ),
)


def check_columns_named(properties: Mapping[str, str], schema: Schema) -> None:
    """Refuse properties of columns that there are not.

    Raises:
        InvalidInputError: Names the property, and the nearest column.
    """
    for name, _, column in _named(properties):
        if column not in schema.column_names:
            near = difflib.get_close_matches(column, schema.column_names, n=1)
            raise InvalidInputError(
                "table property names a column that the table does not have",
                property=name,
                action=f"did you mean {near[0]}?" if near else None,
            )


def follow_columns(
    properties: Mapping[str, str], before: Schema, after: Schema
) -> list[TableUpdate]:
    """What brings the properties of columns to their new names; those of dropped ones go.

    Args:
        properties: Of the table.
        before: Its schema, which the properties are about.
        after: The schema that takes its place.
    """
    set_: dict[str, str] = {}
    gone: list[str] = []
    for name, prefix, column in _named(properties):
        if column not in before.column_names:
            continue
        now = after.find_column_name(before.find_field(column).field_id)
        if now == column:
            continue
        gone.append(name)
        if now is not None:
            set_[prefix + now] = properties[name]
    updates: list[TableUpdate] = []
    if gone:
        updates.append(RemovePropertiesUpdate(removals=[n for n in gone if n not in set_]))
    if set_:
        updates.append(SetPropertiesUpdate(updates=set_))
    return updates


def _named(properties: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Property, its prefix and the column."""
    return [
        (name, prefix, name.removeprefix(prefix))
        for name in properties
        for prefix in _PREFIXES
        if name.startswith(prefix)
    ]
