"""A table with the key that a call names (`tableformat.catalog.keyed` has the order of things)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tableformat import Table
from tableformat.catalog.base import TableState
from tableformat.catalog.keyed import KeyedCatalog
from tableformat.errors import error_context
from tableformat.spec.believed_key import believed_key_ids


def key_columns(state: TableState, names: Sequence[str]) -> tuple[str, ...]:
    """What the columns of a key that somebody names are called now.

    Raises:
        InvalidInputError: See `spec.believed_key`.
    """
    with error_context(table=state.name):
        ids = believed_key_ids(state.declared.metadata, names)
    schema = state.metadata.schema()
    return tuple(str(schema.find_column_name(each)) for each in ids)


def keyed(table: Table, key: Sequence[str] | None = None) -> Table:
    """The table with the columns that a call names as its key; itself where it names none.

    Effects: none; what is committed through the result declares no key. Columns that cannot be a
    key are refused by whoever needs one.
    """
    environment = table.environment
    if not key:
        return table
    catalog = KeyedCatalog.of(environment.catalog, {table.identifier: tuple(key)})
    return Table(replace(environment, catalog=catalog), catalog.load_table(table.identifier))
