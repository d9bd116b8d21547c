"""Tables whose primary key their schema does not declare: seen with the key, written without it.

| what says it | who holds it |
|---|---|
| `key=` of a call, `--key` of a command | this call |
| the catalog property `key.<namespace>.<table>` | who runs icefold |
| the table property `icefold.primary-key` | the table: set by `icefold adopt --apply` |
| identifier fields of the schema | the table |

The first one counts; names stand for field ids (`tableformat.spec.believed_key`). Only the last one
is known to other tools. To declare a key is to change the schema: its columns must be required, and
every tool that writes the table has to agree. So the others are put into what is loaded and left
out of what is committed, here and nowhere else: all other code finds the key where Iceberg has it,
in identifier fields, and nothing of it gets into the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pyiceberg.schema import Schema
from pyiceberg.table.update import TableUpdate

from tableformat.catalog.base import KEY_OF_TABLE, Catalog, Identifier, TableCommit, TableState
from tableformat.errors import InvalidInputError, error_context
from tableformat.spec.believed_key import believed_key_ids
from tableformat.spec.names import PRIMARY_KEY


class KeyedCatalog:
    """A `Catalog` that gives each table with its key. All but loads and commits is the real one's.

    Args:
        catalog: The real one.
        given: Columns that a call names, by table.
    """

    def __init__(self, catalog: Catalog, given: Mapping[Identifier, Sequence[str]]) -> None:
        self._catalog = catalog
        self._given = given

    @staticmethod
    def of(catalog: Catalog, given: Mapping[Identifier, Sequence[str]] | None = None) -> Catalog:
        """The catalog with the keys that a call names."""
        return cast("Catalog", KeyedCatalog(real_catalog(catalog), given or {}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def load_table(self, identifier: Identifier) -> TableState:
        """See `Catalog.load_table`."""
        return self.with_key(self._catalog.load_table(identifier))

    def commit(self, base: TableState, updates: Sequence[TableUpdate]) -> TableState:
        """See `Catalog.commit`: a group of one."""
        [state] = self.commit_group([TableCommit(base, updates)])
        return state

    def commit_group(self, commits: Sequence[TableCommit]) -> list[TableState]:
        """See `Catalog.commit_group`."""
        declared = [replace(each, base=each.base.declared) for each in commits]
        return [self.with_key(state) for state in self._catalog.commit_group(declared)]

    def with_key(self, state: TableState) -> TableState:
        """The table as it is seen.

        A key that does not fit the table is no reason to refuse its other uses, the mending among
        them: the table has none then, not even the declared one, and who asks is told why.
        """
        state, ids, problem = state.declared, frozenset[int](), None
        try:
            names = chosen_key(self._catalog, state, self._given.get(state.identifier))
            if names is None:
                return state
            with error_context(table=state.name):
                ids = frozenset(believed_key_ids(state.metadata, names))
        except InvalidInputError as error:
            problem = error
        schemas = [_with_key(each, ids) for each in state.metadata.schemas]
        metadata = state.metadata.model_copy(update={"schemas": schemas})
        return replace(state, metadata=metadata, stored=state.metadata, key_problem=problem)


def real_catalog(catalog: Catalog) -> Catalog:
    """The catalog that gives tables with the keys that their schemas declare."""
    return catalog._catalog if isinstance(catalog, KeyedCatalog) else catalog  # noqa: SLF001


def _with_key(schema: Schema, ids: frozenset[int]) -> Schema:
    """The schema with other identifier fields, which nothing validates: they may be optional."""
    has_all = all(schema.find_column_name(each) is not None for each in ids)
    return schema.model_copy(update={"identifier_field_ids": sorted(ids) if has_all else []})


def chosen_key(
    catalog: Catalog, state: TableState, key: Sequence[str] | None = None
) -> tuple[str, ...] | None:
    """The columns that somebody names, dotted inside structs; None: those that the schema declares.

    Raises:
        InvalidInputError: A property that names none.
    """
    if key:
        return tuple(key)
    places = (
        (catalog.properties, KEY_OF_TABLE + state.name),
        (state.metadata.properties, PRIMARY_KEY),
    )
    for properties, name in places:
        text = properties.get(name)
        if text is not None:
            names = tuple(part.strip() for part in text.split(",") if part.strip())
            if not names:
                raise InvalidInputError(
                    "the property names no column", property=name, table=state.name
                )
            return names
    return None
