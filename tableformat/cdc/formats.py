"""Change formats by name: found and validated early, built late (on the machine that parses).

A format is a function from event batches to change rows. Its factory declares an identifier, the
options, and the row kinds it produces. `FormatChoice` is a checked choice that can be shipped to
Spark's executors as plain values. Formats of other packages are found by the entry points
`icefold.change_formats`, on executors too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from tableformat.cdc import changelog_json, debezium, debezium_options, typed_rows
from tableformat.cdc.events import EventBatch, ParsedEvents
from tableformat.cdc.format_options import WHOLE_ROW, FormatOptions, SchemaEvolution
from tableformat.cdc.rowkind import INSERT_ONLY, TRUNCATE, ChangelogMode, RowKind
from tableformat.entry_points import EntryPoints
from tableformat.spec.options import GivenOptions, Options


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
    options: type[Options]
    is_typed: bool
    build: Callable[[Schema, Any], ChangeFormat]


EXTENSIONS = EntryPoints("icefold.change_formats", "change format")
BUILT_IN: Mapping[str, FormatFactory] = {
    factory.identifier: factory
    for factory in (
        FormatFactory(
            identifier="debezium-json",
            help="JSON of Debezium's connectors: envelope or flattened, with or without schema",
            mode=debezium_options.MODE,
            options=debezium_options.DebeziumOptions,
            is_typed=False,
            build=debezium.DebeziumFormat.build,
        ),
        FormatFactory(
            identifier="changelog-json",
            help="JSON rows with a row kind: +I, -U, +U, -D",
            mode=changelog_json.MODE,
            options=changelog_json.ChangelogJsonOptions,
            is_typed=False,
            build=changelog_json.ChangelogJsonFormat.build,
        ),
        FormatFactory(
            identifier="upsert",
            help="typed columns; a column may say which rows are deletes",
            mode=typed_rows.UPSERT_MODE,
            options=typed_rows.UpsertOptions,
            is_typed=True,
            build=typed_rows.TypedRowsFormat.build_upsert,
        ),
        FormatFactory(
            identifier="append",
            help="typed columns, every row a new one",
            mode=typed_rows.APPEND_MODE,
            options=typed_rows.AppendOptions,
            is_typed=True,
            build=typed_rows.TypedRowsFormat.build_append,
        ),
    )
}


def format_names() -> list[str]:
    """Every format there is: icefold's own, then those of other packages."""
    return list(dict.fromkeys([*BUILT_IN, *EXTENSIONS.names()]))


@cache
def find_format(identifier: str) -> FormatFactory:
    """The factory of this name.

    Raises:
        InvalidInputError: There is none (the message names the nearest), its package cannot be
            imported, or what it declares is no format.
    """
    if identifier in BUILT_IN:
        return BUILT_IN[identifier]
    found = EXTENSIONS.load(identifier)
    if found is None:
        raise EXTENSIONS.unknown(identifier, list(BUILT_IN))
    if not isinstance(found, FormatFactory):
        raise EXTENSIONS.refused(identifier, f"it is a {type(found).__name__}, no FormatFactory")
    if found.identifier != identifier:
        raise EXTENSIONS.refused(identifier, f"it calls itself '{found.identifier}'")
    if RowKind.UPDATE_BEFORE in found.mode and RowKind.UPDATE_AFTER not in found.mode:
        reason = f"it produces {found.mode}: old rows of updates, and not the new ones"
        raise EXTENSIONS.refused(identifier, reason)
    return found


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """A format and its checked options. Plain values: it pickles and prints."""

    identifier: str
    values: Options

    @property
    def factory(self) -> FormatFactory:
        """The factory chosen."""
        return find_format(self.identifier)

    @property
    def deletes_carry_rows(self) -> bool:
        """Whether deletes come with the old row's values, not only with its key."""
        every_row = getattr(self.values, "kind_column", None) is None
        return (self.identifier == "upsert" and every_row) or self.deletes_are_whole

    @property
    def deletes_are_whole(self) -> bool:
        """Whether the option `deletes` says so."""
        return getattr(self.values, "deletes", None) == WHOLE_ROW

    @property
    def is_partial(self) -> bool:
        """Whether changes set the columns that they have, and no others."""
        return bool(getattr(self.values, "is_partial", False))

    @property
    def evolution(self) -> SchemaEvolution:
        """What the sink may change about the table.

        Raises:
            InvalidInputError: See `JsonOptions.evolution`.
        """
        if isinstance(self.values, FormatOptions):
            return self.values.evolution
        return SchemaEvolution.STRICT

    @property
    def deletes_rows(self) -> bool:
        """Whether older rows of the keys go."""
        return self.factory.mode != INSERT_ONLY

    @property
    def truncates(self) -> bool:
        """Whether an event may remove all rows of the table."""
        return getattr(self.values, "on_truncate", None) == debezium_options.APPLY

    @property
    def stops_at_truncates(self) -> bool:
        """Whether such an event is a bad record."""
        return getattr(self.values, "on_truncate", None) == "fail"

    def check_kinds(self, kinds: pa.ChunkedArray) -> None:
        """Hold a format to the row kinds that it declares: the sink was asked for those.

        Raises:
            InvalidInputError: It produced another kind, or a row without one.
        """
        allowed = {int(kind) for kind in self.factory.mode.kinds}
        if self.truncates:
            allowed.add(TRUNCATE)
        for kind in pc.unique(kinds).to_pylist():
            if kind not in allowed:
                name = RowKind(kind).short if kind in list(RowKind) else str(kind)
                reason = f"it declares {self.factory.mode} and produced {name}"
                raise EXTENSIONS.refused(self.identifier, reason)

    def build(self, schema: Schema) -> ChangeFormat:
        """The format for a table of this schema.

        Raises:
            InvalidInputError: An option does not fit the table.
            UnsupportedError: The format cannot read a column of the table.
        """
        return self.factory.build(schema, self.values)


def choose_format(identifier: str, given: GivenOptions, *beside: type[Options]) -> FormatChoice:
    """Check a format and the options given for it, and for others (the sink) in one set.

    Raises:
        InvalidInputError: See `find_format`; or an option is unknown, missing or wrong.
    """
    return FormatChoice(identifier, find_format(identifier).options.parse(given, *beside))
