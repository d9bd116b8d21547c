"""Change the table as the events ask: add, widen and relax columns. Never rename, never drop.

The edit is made on the table's newest schema. If somebody else evolves the table at the same time,
what is still missing afterwards is asked for again; two drivers that add the same column add it
once.

Rows written before a column was added read its `initial-default`: the default that the event's
schema declares, or null. Either is logged, because no event says what older rows hold: PostgreSQL
gives them the default of `ADD COLUMN`, which is not the one that was set later.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table.update.schema import UpdateSchema

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.connect_schema import columns_with_replaced_nulls, declared_default
from tableformat.cdc.events import OWN_NAMES, SEQUENCE_PREFIX
from tableformat.cdc.schema_changes import SchemaChanges
from tableformat.commit.evolution import update_schema
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, InvalidInputError
from tableformat.spec.promotion import wider_parts

ATTEMPTS_MAX = 20
_REPLACED_NULLS = (
    "; Kafka Connect writes its nulls as the default, and no event says so, unless the converter "
    "has replace.null.with.default=false (JSON) or ignore.default.for.nullables=true (Confluent's)"
)
logger = logging.getLogger("icefold.ingest")
_NOT_SENT_TOLD: set[tuple[str, str]] = set()  # once per table and column in a process
_UNITS_TOLD: set[tuple[str, str, str]] = set()  # once more where the unit changes


def evolve_table(
    environment: Environment, identifier: Identifier, schema_changes: SchemaChanges
) -> TableState:
    """Add, widen and relax columns; what the table has by now is left alone.

    Raises:
        InvalidInputError: A column has a name that change streams use themselves.
        CommitConflictError: Others kept changing the schema.

    Effects: at most one metadata commit that changes the schema; a warning for each column that is
    added or becomes optional.
    """
    for name in schema_changes.added:
        if name in OWN_NAMES or name.startswith(SEQUENCE_PREFIX):
            raise InvalidInputError(
                "cannot add a column: change streams use its name themselves", column=name
            )
    attempt = 0
    while True:
        attempt += 1
        state = environment.catalog.load_table(identifier)
        schema = state.metadata.schema()
        missing = _missing(schema_changes, schema)
        if not missing:
            return state

        def edit(
            update: UpdateSchema,
            missing: SchemaChanges = missing,
            have: Schema = schema,
        ) -> None:
            for name, kind in missing.added.items():
                default = declared_default(kind, missing.declared.get(name, {}))
                update.add_column((name,), kind, default_value=default)
            for name, kind in missing.widened.items():
                for path, wider in wider_parts(have.find_field(name).field_type, kind).items():
                    update.update_column((name, *path), field_type=wider)
            for name in missing.relaxed:
                update.make_column_optional((name,))

        try:
            evolved = update_schema(environment, identifier, edit)
        except CommitConflictError:
            if attempt >= ATTEMPTS_MAX:
                raise
        else:
            _log_defaults(evolved, missing)
            return evolved


def log_replaced_nulls(table: str, fields: Mapping[str, Mapping[str, Any]]) -> None:
    """Say which columns of a new table may hold defaults where the source has null."""
    columns = columns_with_replaced_nulls(fields)
    if columns:
        names = ", ".join(f"'{name}'" for name in columns)
        logger.warning("table %s: %s may be null, with a default%s", table, names, _REPLACED_NULLS)


def log_not_sent(table: str, columns: Collection[str]) -> None:
    """Say once which columns get null because the events' schema does not have them.

    A source that drops a column looks like one that no longer sends it (`column.exclude.list`, a
    publication without generated columns), and like one that never had it.
    """
    for name in sorted(columns):
        if (table, name) not in _NOT_SENT_TOLD:
            _NOT_SENT_TOLD.add((table, name))
            logger.warning(
                "table %s: the events' schema does not have column '%s', so their rows get null "
                "there, also where the row had a value; if the source still has the column, see "
                "what leaves it out (column.exclude.list, a publication, a generated column)",
                table,
                name,
            )


def log_units_not_taken(table: str, columns: Collection[tuple[str, str]]) -> None:
    """Say once of each column and unit that nobody looks at what its numbers count."""
    for name, sentence in sorted(columns):
        if (table, name, sentence) not in _UNITS_TOLD:
            _UNITS_TOLD.add((table, name, sentence))
            logger.warning(
                "table %s: column '%s' %s: where the source's type and with it the unit changes, "
                "rows before and after count differently",
                table,
                name,
                sentence,
            )


def _log_defaults(state: TableState, added: SchemaChanges) -> None:
    for name in sorted(added.relaxed):
        logger.warning(
            "table %s: column '%s' is optional from now on: the source allows null there, or no "
            "longer sends it",
            state.name,
            name,
        )
    replaced = columns_with_replaced_nulls(added.declared)
    for name in added.added:
        default = state.metadata.schema().find_field(name).initial_default
        if default is not None:
            logger.warning(
                "table %s: column '%s' was added, and rows written before it read %r, the default "
                "of the events' schema; if the source set that default after it had added the "
                "column, they hold null there%s",
                state.name,
                name,
                default,
                _REPLACED_NULLS if name in replaced else "",
            )
        else:
            logger.warning(
                "table %s: column '%s' was added, and rows written before it read null; if the "
                "source added it with DEFAULT, they hold that there, and no event says so: UPDATE "
                "them, or add such columns yourself before their first event%s",
                state.name,
                name,
                _REPLACED_NULLS if name in replaced else "",
            )


def _missing(schema_changes: SchemaChanges, schema: Schema) -> SchemaChanges:
    have = {each.name: each.field_type for each in schema.fields}
    required = {each.name for each in schema.fields if each.required}
    return SchemaChanges(
        added={name: kind for name, kind in schema_changes.added.items() if name not in have},
        declared=schema_changes.declared,
        widened={
            name: kind
            for name, kind in schema_changes.widened.items()
            if name in have and wider_parts(have[name], kind)
        },
        relaxed=schema_changes.relaxed & required,
    )
