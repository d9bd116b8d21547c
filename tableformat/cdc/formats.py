"""Change formats by name: found and validated early, built late (on the machine that parses).

A format is a function from event batches to change rows. Its factory declares an identifier, the
options, and the row kinds it produces. `FormatChoice` is a checked choice that can be shipped to
Spark's executors as plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from pyiceberg.schema import Schema

from tableformat.cdc import changelog_json, debezium, debezium_options, typed_rows
from tableformat.cdc.deletes import DELETES, WHOLE_ROW
from tableformat.cdc.events import EventBatch, ParsedEvents
from tableformat.cdc.options import GivenOptions, OptionTable, OptionValues, parse_options
from tableformat.cdc.rowkind import ChangelogMode
from tableformat.errors import InvalidInputError


class ChangeFormat(Protocol):
    """A format built for one table."""

    @property
    def order(self) -> Sequence[pa.Field]:
        """Columns of the change rows that order changes of one key, before `_ordinal`."""

    @property
    def change_schema(self) -> pa.Schema:
        """Columns of the change rows."""

    def parse(self, events: EventBatch) -> ParsedEvents:
        """Change rows of some events. Raises `InvalidInputError` for what fails the whole batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFactory:
    """How a format is named, configured and built. `is_typed`: events are rows, not JSON."""

    identifier: str
    help: str
    mode: ChangelogMode
    options: OptionTable
    is_typed: bool
    build: Callable[[Schema, OptionValues], ChangeFormat]


FACTORIES: Mapping[str, FormatFactory] = {
    factory.identifier: factory
    for factory in (
        FormatFactory(
            identifier="debezium-json",
            help="JSON of Debezium's connectors: envelope or flattened, with or without schema",
            mode=debezium_options.MODE,
            options=debezium_options.OPTIONS,
            is_typed=False,
            build=debezium.DebeziumFormat.build,
        ),
        FormatFactory(
            identifier="changelog-json",
            help="JSON rows with a row kind: +I, -U, +U, -D",
            mode=changelog_json.MODE,
            options=changelog_json.OPTIONS,
            is_typed=False,
            build=changelog_json.ChangelogJsonFormat.build,
        ),
        FormatFactory(
            identifier="upsert",
            help="typed columns; a column may say which rows are deletes",
            mode=typed_rows.UPSERT_MODE,
            options=typed_rows.UPSERT_OPTIONS,
            is_typed=True,
            build=typed_rows.TypedRowsFormat.build_upsert,
        ),
        FormatFactory(
            identifier="append",
            help="typed columns, every row a new one",
            mode=typed_rows.APPEND_MODE,
            options=typed_rows.APPEND_OPTIONS,
            is_typed=True,
            build=typed_rows.TypedRowsFormat.build_append,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """A format and its checked options. Plain values: it pickles and prints."""

    identifier: str
    values: OptionValues = field(default_factory=lambda: OptionValues({}))

    @property
    def factory(self) -> FormatFactory:
        """The factory chosen."""
        return FACTORIES[self.identifier]

    @property
    def deletes_carry_rows(self) -> bool:
        """Whether deletes come with the old row's values, not only with its key."""
        given = self.values.values
        only_upserts = self.identifier == "upsert" and given.get("kind-column") is None
        return only_upserts or given.get(DELETES) == WHOLE_ROW

    @property
    def deletes_rows(self) -> bool:
        """Whether older rows of the keys go: all formats but `append`."""
        return self.identifier != "append"

    @property
    def truncates(self) -> bool:
        """Whether an event may remove all rows of the table."""
        return self.values.values.get(debezium_options.ON_TRUNCATE) == debezium_options.APPLY

    def build(self, schema: Schema) -> ChangeFormat:
        """The format for a table of this schema.

        Raises:
            InvalidInputError: An option does not fit the table.
            UnsupportedError: The format cannot read a column of the table.
        """
        return self.factory.build(schema, self.values)


def choose_format(
    identifier: str, given: GivenOptions, *other_tables: OptionTable
) -> tuple[FormatChoice, list[OptionValues]]:
    """Check a format and options given for it and for others (the sink) in one set.

    Returns:
        The choice, and the values of `other_tables`.

    Raises:
        InvalidInputError: No such format (the message lists those there are), or an option is
            unknown, missing or wrong.
    """
    factory = FACTORIES.get(identifier)
    if factory is None:
        raise InvalidInputError(
            f"unknown change format '{identifier}'", action=f"use one of {', '.join(FACTORIES)}"
        )
    values, *others = parse_options([factory.options, *other_tables], given)
    return FormatChoice(identifier, values), others
