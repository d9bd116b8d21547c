"""Which columns name a row, where the table's schema does not say it.

| what says it | who holds it |
|---|---|
| `key=` of a call, `--key` of a command | this call |
| the catalog property `key.<namespace>.<table>` | who runs icefold |
| the table property `icefold.primary-key` | the table: set by `icefold adopt --apply` |
| identifier fields of the schema | the table |

The first one counts; names stand for field ids (`tableformat.spec.believed_key`). Only the last
one is known to other tools; the table is changed by none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tableformat import InvalidInputError, Table
from tableformat.catalog.base import TableState
from tableformat.catalog.keyed import KeyedCatalog
from tableformat.environment import Environment
from tableformat.errors import error_context
from tableformat.spec.believed_key import believed_key_ids
from tableformat.spec.names import PRIMARY_KEY
from tableformat.table_definition import define_schema

KEY_OF_TABLE = "key."


def chosen_key(
    environment: Environment, state: TableState, key: Sequence[str] | None = None
) -> tuple[str, ...] | None:
    """The columns that somebody names, dotted inside structs; None: those that the schema declares.

    Raises:
        InvalidInputError: A property that names none.
    """
    if key:
        return tuple(key)
    places = (
        (environment.catalog.properties, KEY_OF_TABLE + state.name),
        (state.metadata.properties, PRIMARY_KEY),
    )
    for properties, name in places:
        text = properties.get(name)
        if text is not None:
            names = tuple(part.strip() for part in text.split(",") if part.strip())
            if not names:
                raise InvalidInputError("the property names no column", property=name)
            return names
    return None


def key_columns(state: TableState, names: Sequence[str]) -> tuple[str, ...]:
    """What the columns of a key that somebody names are called now.

    Raises:
        InvalidInputError: See `spec.believed_key`.
    """
    with error_context(table=state.name):
        ids = believed_key_ids(state.metadata, names)
    schema = state.metadata.schema()
    return tuple(str(schema.find_column_name(each)) for each in ids)


def keyed(table: Table, key: Sequence[str] | None = None) -> Table:
    """The table with the key that was chosen; the table itself where the schema declares it.

    Raises:
        InvalidInputError: A column that is not there, or that cannot be a key.

    Effects: none; what is committed through the result declares no key.
    """
    environment = table.environment
    names = chosen_key(environment, table.state, key)
    if names is None or isinstance(environment.catalog, KeyedCatalog):
        return table
    define_schema(table.schema(), key_columns(table.state, names))  # refuses what cannot be a key
    catalog = KeyedCatalog.of(environment.catalog, table.identifier, names)
    return Table(replace(environment, catalog=catalog), catalog.load_table(table.identifier))
