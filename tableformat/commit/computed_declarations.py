"""Declare and drop computed columns; each is a metadata commit. See `spec.computed_columns`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update.schema import UpdateSchema

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.evolution import update_declarations, update_schema
from tableformat.environment import Environment
from tableformat.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from tableformat.spec.computed_columns import TYPES, ComputedColumn, computed_columns
from tableformat.sql.computed_columns import define


def add_virtual_column(
    environment: Environment, identifier: Identifier, name: str, expression: str, kind: str
) -> TableState:
    """Declare a virtual column; declaring the same one again changes nothing. A metadata commit.

    Raises:
        AlreadyExistsError: There is one of that name with another expression or type, or a column.
        InvalidInputError: See `sql.computed_columns.define`.
    """

    def plan(metadata: TableMetadata) -> tuple[Mapping[str, str], Sequence[str]]:
        wanted = define(metadata.schema(), name, expression, kind)
        present = computed_columns(metadata.properties).get(name)
        if present not in (None, wanted):
            raise _taken(present)
        return wanted.properties, ()

    return update_declarations(environment, identifier, plan)


def add_stored_column(
    environment: Environment,
    identifier: Identifier,
    name: str,
    expression: str,
    kind: str,
    *,
    may_have_rows: bool,
) -> TableState:
    """Add a column and declare what it is computed from, in one metadata commit.

    Declaring the same one again changes nothing.

    Args:
        environment: Catalog and clock.
        identifier: The table.
        name: Of the new column.
        expression: What it is.
        kind: Its type.
        may_have_rows: The caller has the rows that are there written again; they hold NULL.

    Raises:
        AlreadyExistsError: See `add_virtual_column`.
        InvalidInputError: The table has rows; the expression names another stored column; or see
            `sql.computed_columns.define`.
        CommitConflictError: The schema was changed by somebody else meanwhile.
    """
    state = environment.catalog.load_table(identifier)
    schema = state.metadata.schema()
    there = computed_columns(state.metadata.properties).get(name)
    if there is not None:
        others = Schema(*(each for each in schema.fields if each.field_id != there.field_id))
        same = replace(define(others, name, expression, kind), field_id=there.field_id)
        if not there.is_stored or there != same:
            raise _taken(there)
        return state
    wanted = define(schema, name, expression, kind)

    def declare(now: TableMetadata, schema: Schema) -> Mapping[str, str]:
        stored = {each.field_id: each for each in computed_columns(now.properties).values()}
        for used, field_id in wanted.inputs.items():
            if field_id in stored:
                raise InvalidInputError(
                    "the expression of a stored column names another one",
                    column=used,
                    action=f"write its expression instead: {stored[field_id].expression}",
                )
        if now.refs and not may_have_rows:
            raise InvalidInputError(
                "the table has rows, and they would hold no value of the column",
                table=state.name,
                column=name,
                action="publish what is staged (resolve), then add it with backfill: their values "
                "are written by UPDATE ... SET column = DEFAULT",
            )
        field = schema.find_field(name)
        return replace(wanted, field_id=field.field_id).properties

    def edit(update: UpdateSchema) -> None:
        update.add_column(name, TYPES[kind], doc=f"computed: {expression}")

    return update_schema(environment, identifier, edit, declare=declare)


def drop_computed_column(environment: Environment, identifier: Identifier, name: str) -> TableState:
    """Drop the declaration; of a stored one the column stays, with its values. A metadata commit.

    Raises:
        NotFoundError: There is none of that name.
    """

    def plan(metadata: TableMetadata) -> tuple[Mapping[str, str], Sequence[str]]:
        present = computed_columns(metadata.properties).get(name)
        if present is None:
            raise NotFoundError(f"there is no computed column {name!r}", table=".".join(identifier))
        return {}, tuple(present.properties)

    return update_declarations(environment, identifier, plan)


def _taken(present: ComputedColumn) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"there is another computed column {present.name!r}",
        expression=present.expression,
        type=present.type,
        stored=present.is_stored,
        action="drop it first",
    )
