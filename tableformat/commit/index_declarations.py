"""Declare and drop secondary indexes; each is a metadata commit. See `spec.secondary_indexes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.table.metadata import TableMetadata

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.evolution import update_declarations
from tableformat.environment import Environment
from tableformat.errors import AlreadyExistsError, NotFoundError
from tableformat.spec.secondary_indexes import define_index, index_properties, secondary_indexes


def add_index(
    environment: Environment, identifier: Identifier, name: str, columns: Sequence[str]
) -> TableState:
    """Declare an index; declaring the same one again changes nothing.

    Raises:
        AlreadyExistsError: There is one of that name on other columns.
        InvalidInputError: See `define_index`.
    """

    def plan(metadata: TableMetadata) -> tuple[Mapping[str, str], Sequence[str]]:
        wanted = define_index(metadata.schema(), name, columns)
        present = secondary_indexes(metadata).get(name)
        ids = wanted[index_properties(name)[1]]
        if present is not None and ",".join(map(str, present.field_ids)) != ids:
            raise AlreadyExistsError(
                f"there is an index {name!r} on other columns",
                table=".".join(identifier),
                columns=", ".join(present.columns),
                action="drop it first, or choose another name",
            )
        return ({}, ()) if present is not None else (wanted, ())

    return update_declarations(environment, identifier, plan)


def drop_index(environment: Environment, identifier: Identifier, name: str) -> TableState:
    """Drop the declaration; its files on disk go with the next `resolve`.

    Raises:
        NotFoundError: There is none of that name.
    """

    def plan(metadata: TableMetadata) -> tuple[Mapping[str, str], Sequence[str]]:
        if name not in secondary_indexes(metadata):
            raise NotFoundError(f"there is no index {name!r}", table=".".join(identifier))
        return {}, index_properties(name)

    return update_declarations(environment, identifier, plan)
