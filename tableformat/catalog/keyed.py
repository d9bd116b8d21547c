"""A table whose primary key its schema does not declare: seen with the key, written without it.

Tables of other tools often have no identifier fields, and to declare them is to change the schema:
the columns must be required, and every tool that writes the table has to agree. So the key is put
into what is loaded, and taken out of what is committed: nothing of it gets into the metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pyiceberg.table.update import AddSchemaUpdate, TableUpdate

from tableformat.catalog.base import Catalog, Identifier, TableCommit, TableState
from tableformat.errors import InvalidInputError, error_context
from tableformat.spec.believed_key import believed_key_ids

_KeyIds = tuple[int, ...]


class KeyedCatalog:
    """A `Catalog` in which the current schema of one table has another key.

    Everything but loading and committing that table is the real catalog's.
    """

    def __init__(self, catalog: Catalog, identifier: Identifier, key: Sequence[str]) -> None:
        self._catalog = catalog
        self._identifier = identifier
        self._key = tuple(key)
        # A schema never changes: what an id declared once it declares for ever.
        self._declared: dict[tuple[str, int], _KeyIds] = {}

    @staticmethod
    def of(catalog: Catalog, identifier: Identifier, key: Sequence[str]) -> Catalog:
        """The catalog, as one that gives the table with the key."""
        return cast("Catalog", KeyedCatalog(catalog, identifier, key))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def load_table(self, identifier: Identifier) -> TableState:
        """See `Catalog.load_table`.

        Raises:
            InvalidInputError: The table has no such columns (`spec.believed_key`).
        """
        state = self._catalog.load_table(identifier)
        return self.with_key(state) if identifier == self._identifier else state

    def commit(self, base: TableState, updates: Sequence[TableUpdate]) -> TableState:
        """See `Catalog.commit`: a group of one."""
        [state] = self.commit_group([TableCommit(base, updates)])
        return state

    def commit_group(self, commits: Sequence[TableCommit]) -> list[TableState]:
        """See `Catalog.commit_group`.

        Raises:
            InvalidInputError: The table's schema would be changed, and the key with it.
        """
        states = self._catalog.commit_group([self._as_declared(each) for each in commits])
        return [
            self.with_key(state) if state.identifier == self._identifier else state
            for state in states
        ]

    def _as_declared(self, commit: TableCommit) -> TableCommit:
        if commit.base.identifier != self._identifier:
            return commit
        if any(isinstance(update, AddSchemaUpdate) for update in commit.updates):
            raise InvalidInputError(
                "cannot change the schema of a table that was opened with a key of its own",
                table=commit.base.name,
                action="open it without",
            )
        return replace(commit, base=self._without(commit.base))

    def with_key(self, state: TableState) -> TableState:
        """The table as it is seen."""
        metadata = state.metadata
        schema = metadata.schema()
        with error_context(table=state.name):
            ids = believed_key_ids(metadata, self._key)
        place = (str(metadata.table_uuid), schema.schema_id)
        self._declared[place] = tuple(schema.identifier_field_ids)
        return _with_ids(state, {schema.schema_id: ids})

    def _without(self, state: TableState) -> TableState:
        uuid, schemas = str(state.metadata.table_uuid), state.metadata.schemas
        own = {
            each.schema_id: self._declared[uuid, each.schema_id]
            for each in schemas
            if (uuid, each.schema_id) in self._declared
        }
        return _with_ids(state, own)


def _with_ids(state: TableState, ids: Mapping[int, _KeyIds]) -> TableState:
    """The state with other identifier fields of some schemas; nothing validates them."""
    schemas = [
        each.model_copy(update={"identifier_field_ids": list(ids[each.schema_id])})
        if each.schema_id in ids
        else each
        for each in state.metadata.schemas
    ]
    return replace(state, metadata=state.metadata.model_copy(update={"schemas": schemas}))
