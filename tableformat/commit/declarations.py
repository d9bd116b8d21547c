"""Declare and drop constraints, the sequence column and secondary indexes: table properties.

Each is a metadata commit. What is declared is checked against the version it is committed on, so a
column that somebody drops meanwhile is not declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.table.metadata import TableMetadata

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.evolution import update_declarations
from tableformat.environment import Environment
from tableformat.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from tableformat.spec.constraints import (
    IMMUTABLE_PROPERTIES,
    SEQUENCE_PROPERTIES,
    Enforcement,
    check_not_stored,
    define_immutable,
    define_sequence,
    immutable_columns,
    sequence_field_id,
)
from tableformat.spec.secondary_indexes import define_index, index_properties, secondary_indexes


def set_immutable_columns(
    environment: Environment,
    identifier: Identifier,
    columns: Sequence[str],
    *,
    name: str | None = None,
    enforced: Enforcement = False,
) -> TableState:
    """Declare the IMMUTABLE constraint, or change its name or enforcement for the same columns.

    Rows that are there are not checked: the caller says that they follow it.

    Raises:
        AlreadyExistsError: The table has a constraint on other columns; there is at most one.
        InvalidInputError: See `define_immutable`.
    """

    def plan(metadata: TableMetadata) -> tuple[Mapping[str, str], Sequence[str]]:
        check_not_stored(metadata, columns, "IMMUTABLE")
        wanted = define_immutable(metadata.schema(), columns, name=name, enforced=enforced)
        present = immutable_columns(metadata)
        if present is not None and set(present.columns) != set(columns):
            raise AlreadyExistsError(
                "a table has at most one IMMUTABLE constraint",
                table=".".join(identifier),
                constraint=present.name,
                columns=list(present.columns),
                action="drop it first",
            )
        return wanted, ()

    return update_declarations(environment, identifier, plan)


def drop_immutable_columns(environment: Environment, identifier: Identifier) -> TableState:
    """Drop the IMMUTABLE constraint. Batches planned under it are refused at their commit.

    Raises:
        NotFoundError: There is none.
    """
    return _drop(environment, identifier, IMMUTABLE_PROPERTIES, "IMMUTABLE constraint")


def declare_sequence_column(
    environment: Environment, identifier: Identifier, column: str
) -> TableState:
    """Declare the column that orders the versions of a row; the resolver then guards by it.

    Raises:
        InvalidInputError: See `define_sequence`; or another column is declared already.
    """

    def plan(metadata: TableMetadata) -> tuple[Mapping[str, str], Sequence[str]]:
        check_not_stored(metadata, [column], "the sequence column")
        wanted = define_sequence(metadata.schema(), column)
        present = sequence_field_id(metadata)
        if present is not None and str(present) not in wanted.values():
            raise InvalidInputError(
                "the table has another sequence column",
                table=".".join(identifier),
                column=column,
                declared=metadata.schema().find_column_name(present),
                action="use that one, or drop the declaration first",
            )
        return wanted, ()

    return update_declarations(environment, identifier, plan)


def drop_sequence_column(environment: Environment, identifier: Identifier) -> TableState:
    """Drop the declaration; the column stays. Changes are then taken in arrival order.

    Raises:
        NotFoundError: There is none.
    """
    return _drop(environment, identifier, SEQUENCE_PROPERTIES, "sequence column")


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


def _drop(
    environment: Environment, identifier: Identifier, properties: Sequence[str], what: str
) -> TableState:
    def plan(metadata: TableMetadata) -> tuple[Mapping[str, str], Sequence[str]]:
        if not any(name in metadata.properties for name in properties):
            raise NotFoundError(f"the table has no {what}", table=".".join(identifier))
        return {}, properties

    return update_declarations(environment, identifier, plan)
