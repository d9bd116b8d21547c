"""What goes into a format and what comes out: events, change rows, bad records.

Events in (`EventBatch`): one row per event with the columns

| column | type | |
|---|---|---|
| `value` | string or binary | the event; of the JSON formats |
| `key` | string or binary | optional, the message key |
| `_ordinal` | int64 | optional, arrival order; default: the row's number |
| `_file` | string | optional, orders before `_ordinal`: the file the event stands in |
| `_position` | string | optional, where the event is, for people: `topic-3@1042` |
| `_timestamp_ms` | int64 | optional, when it was sent; its source may know better |

Changes out (`ParsedEvents.changes`): the table's columns, then the order columns, then

| column | type | |
|---|---|---|
| `_ordinal` | int64 | arrival order; ties the order columns |
| `_kind` | int8 | `RowKind` |
| `_file` | string | if the events have it; orders before `_ordinal` |
| `_icefold_missing_columns` | string | of formats whose changes may leave columns out: which |

Every event is a change (or two, when it changes the key), a bad record, or counted in `skipped`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from tableformat.array_types import Int64s
from tableformat.cdc.schema_changes import SchemaChanges
from tableformat.errors import InternalError, InvalidInputError, UnsupportedError, one_line
from tableformat.spec.arrow_arrays import python_rows, without_views
from tableformat.spec.missing_columns import MISSING
from tableformat.spec.types import arrow_schema

VALUE = "value"
KEY = "key"
ORDINAL = "_ordinal"
FILE = "_file"
POSITION = "_position"
TIMESTAMP_MS = "_timestamp_ms"
KIND = "_kind"
EVENT_COLUMNS = (VALUE, KEY, ORDINAL, FILE, POSITION, TIMESTAMP_MS)
SEQUENCE_PREFIX = "_sequence_"
OWN_NAMES = (ORDINAL, FILE, POSITION, TIMESTAMP_MS, KIND)
ORDER_FIELD = pa.field(ORDINAL, pa.int64())
KIND_FIELD = pa.field(KIND, pa.int8())
FILE_FIELD = pa.field(FILE, pa.string())

BAD_RECORD_SCHEMA = pa.schema(
    [
        pa.field("position", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
    ]
)


def change_schema(
    schema: Schema, order: Sequence[pa.Field], *, may_lack: bool = False
) -> pa.Schema:
    """The columns of change rows: everything nullable, since a delete may know its key only.

    Args:
        schema: The table's.
        order: Columns that order the changes.
        may_lack: Changes may leave columns out.

    Raises:
        UnsupportedError: A column of the table has a name that change rows use themselves.
    """
    table = arrow_schema(schema, with_field_ids=False)
    for name in table.names:
        if name in (*OWN_NAMES, MISSING) or name.startswith(SEQUENCE_PREFIX):
            raise UnsupportedError(
                "change streams use this column name themselves",
                action="rename the column",
                column=name,
            )
    columns = [column.with_nullable(True).remove_metadata() for column in table]
    lacks = [pa.field(MISSING, pa.string())] if may_lack else []
    return pa.schema([*columns, *order, *lacks, ORDER_FIELD, KIND_FIELD])


@dataclass(frozen=True, slots=True)
class PayloadSchemas:
    """Kafka Connect's schemas of payloads that do not carry their own.

    `numbers`: of each row's schema in `declared`, shape `(rows,)`; negative: none.
    """

    numbers: Int64s
    declared: Sequence[Mapping[str, Any]]

    def of(self, row: int) -> Mapping[str, Any] | None:
        """The schema of one row."""
        number = int(self.numbers[row])
        return None if number < 0 else self.declared[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedMessages:
    """What messages of a schema registry say, as formats read it.

    Attributes:
        texts: JSON of `value` and of `key`, one per event.
        schemas: Of the same.
        bad: Events that cannot be decoded, and why; their texts are null.
    """

    texts: Mapping[str, pa.Array]
    schemas: Mapping[str, PayloadSchemas]
    bad: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events, one per row; see the module's table.

    With `decoded`, formats see that; bad records keep what came. `in_order`: the source made them
    in this order, as it did messages of one partition.
    """

    rows: pa.RecordBatch
    decoded: DecodedMessages | None = None
    in_order: bool = False

    @classmethod
    def split(cls, rows: pa.Table, most: int, *, in_order: bool = False) -> list[EventBatch]:
        """The events of a table in order, in batches of at most `most`; at least one batch.

        Chunks of the table are no borders: a stream that is asked often brings small ones.
        """
        pieces = (rows.slice(start, most) for start in range(0, rows.num_rows, most))
        pieces = (without_views(piece).combine_chunks() for piece in pieces)
        batches = [batch for piece in pieces for batch in piece.to_batches()]
        empty = pa.RecordBatch.from_pylist([], schema=rows.schema)
        return [cls(batch, in_order=in_order) for batch in batches or [empty]]

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def required(self, name: str) -> pa.Array:
        """A column that must be there.

        Raises:
            InvalidInputError: It is not.
        """
        found = self.optional(name)
        if found is None:
            raise InvalidInputError(
                f"the events have no column '{name}'", columns=self.rows.schema.names
            )
        return found

    def optional(self, name: str) -> pa.Array | None:
        """A column, or None without it."""
        if self.decoded is not None and name in self.decoded.texts:
            return self.decoded.texts[name]
        index = self.rows.schema.get_field_index(name)
        return None if index < 0 else self.rows.column(index)

    def schemas(self, name: str) -> PayloadSchemas | None:
        """The schemas of `value` or `key`, if its texts do not carry their own."""
        return None if self.decoded is None else self.decoded.schemas.get(name)

    def ordinals(self) -> pa.Array:
        """Arrival order, int64."""
        given = self.optional(ORDINAL)
        return pa.array(np.arange(len(self), dtype=np.int64)) if given is None else given

    def bad_records(self, reasons: Mapping[int, str]) -> pa.Table:
        """The events of some rows as `BAD_RECORD_SCHEMA`, in row order; typed rows as JSON."""
        rows = sorted(reasons)
        if not rows:
            return BAD_RECORD_SCHEMA.empty_table()
        indices = pa.array(rows, pa.int64())
        bad = EventBatch(self.rows.take(indices))  # as they came, not as they were decoded
        position = bad.optional(POSITION)
        if position is None:
            ordinals = self.ordinals().take(indices).cast(pa.string())
            position = pc.binary_join_element_wise("event ", ordinals, "")
            file = bad.optional(FILE)
            if file is not None:
                position = pc.binary_join_element_wise(file, position, ":")
        columns = [
            pc.fill_null(position, "unknown"),
            pa.array([one_line(reasons[row]) for row in rows], pa.string()),
            *(bad._raw(name) for name in (VALUE, KEY)),
        ]
        return pa.Table.from_arrays(columns, schema=BAD_RECORD_SCHEMA)

    def _raw(self, name: str) -> pa.Array:
        column = self.optional(name)
        if column is None and name == VALUE:
            given = [each for each in self.rows.schema.names if each not in EVENT_COLUMNS]
            rows = python_rows(self.rows.select(given))
            return pa.array([json.dumps(row, default=str).encode() for row in rows], pa.binary())
        return pa.nulls(len(self), pa.binary()) if column is None else column.cast(pa.binary())


class Decoder(Protocol):
    """Makes JSON of messages that are none: of a schema registry."""

    def decode(self, events: EventBatch) -> EventBatch:
        """The same events, with what they say.

        Raises:
            StoreUnavailableError: A schema cannot be had now.
            UnsupportedError: The messages are of a kind that is not read.
        """

    def learn(self, messages: Iterable[pa.Table]) -> None:
        """Fetch what decoding messages of these tables takes, so that it does no I/O.

        Raises:
            StoreUnavailableError: As `decode`.
        """


@dataclass(slots=True)
class ParsedEvents:
    """Change rows, bad records, and how many events of which kind are neither.

    `rows`: the event of the batch that each change came from, shape `(changes,)`.
    `schema_changes`: how the table has to change before the events can be parsed; while there are
    any, the rest means nothing. `source_ms`: the highest time at which a source made one of the
    changes, if they say. `not_sent`: columns of the table that the events' schema does not have, so
    that their rows get null there. `units_not_taken`: see `connect_schema.units_not_taken`.
    """

    changes: pa.Table
    bad: pa.Table
    rows: Int64s
    skipped: Counter[str] = field(default_factory=Counter)
    schema_changes: SchemaChanges = field(default_factory=SchemaChanges)
    source_ms: int | None = None
    not_sent: frozenset[str] = frozenset()
    units_not_taken: frozenset[tuple[str, str]] = frozenset()

    def without(self, reasons: Mapping[int, str], events: EventBatch) -> ParsedEvents:
        """The same with some more events bad, by row; none of their changes is left."""
        if not reasons:
            return self
        keep = ~np.isin(self.rows, np.fromiter(reasons, np.int64, len(reasons)))
        return replace(
            self,
            changes=self.changes.filter(pa.array(keep)),
            bad=pa.concat_tables([self.bad, events.bad_records(reasons)]),
            rows=self.rows[keep],
        )


@dataclass(slots=True)
class ChangeCollector:
    """Gathers the change rows of one batch, with the event each came from.

    Bad rows may become known late (the message key differs): changes of such events are left out.
    """

    batch: EventBatch
    schema: pa.Schema
    bad: dict[int, str] = field(default_factory=dict)
    tables: list[pa.Table] = field(default_factory=list)
    rows: list[Int64s] = field(default_factory=list)
    skipped: list[tuple[str, Int64s]] = field(default_factory=list)
    schema_changes: SchemaChanges = field(default_factory=SchemaChanges)
    source_ms: int | None = None
    not_sent: set[str] = field(default_factory=set)
    units_not_taken: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.schema_changes.in_order = self.batch.in_order
        if self.batch.decoded is not None:
            self.bad.update(self.batch.decoded.bad)

    def skip(self, what: str, rows: Int64s) -> None:
        """Note events that are no changes; those that are bad too count as bad."""
        self.skipped.append((what, rows))

    def add(self, columns: Mapping[str, pa.Array], kinds: pa.Array, rows: Int64s) -> None:
        """Change rows of the events `rows`; columns not given are null."""
        full = {
            name: columns[name] if name in columns else pa.nulls(len(rows), kind)
            for name, kind in zip(self.schema.names, self.schema.types, strict=True)
            if name not in (ORDINAL, KIND)
        }
        full[ORDINAL] = self.batch.ordinals().take(pa.array(rows))
        full[KIND] = kinds
        self.tables.append(pa.table(full, schema=self.schema))
        self.rows.append(rows)

    def finish(self) -> ParsedEvents:
        """Everything gathered, after checking that no event was lost on the way."""
        rows = np.concatenate([np.empty(0, np.int64), *self.rows])
        # Not `empty_table()`, which cannot make a list of extension values (uuid).
        nothing = [pa.nulls(0, kind) for kind in self.schema.types]
        empty = pa.table(nothing, schema=self.schema)
        changes = pa.concat_tables([empty, *self.tables])
        skipped: Counter[str] = Counter()
        bad_rows = np.fromiter(self.bad, np.int64, len(self.bad))
        for what, skipped_rows in self.skipped:
            skipped[what] += int((~np.isin(skipped_rows, bad_rows)).sum())
        if self.bad:
            good = ~np.isin(rows, bad_rows)
            changes, rows = changes.filter(pa.array(good)), rows[good]
        file = self.batch.optional(FILE)
        if file is not None:
            changes = changes.append_column(FILE_FIELD, file.take(pa.array(rows)))
        accounted = len(np.unique(rows)) + len(self.bad) + skipped.total()
        if accounted != len(self.batch):
            raise InternalError(
                "events were lost while parsing", events=len(self.batch), accounted=accounted
            )
        return ParsedEvents(
            changes=changes,
            bad=self.batch.bad_records(self.bad),
            rows=rows,
            skipped=+skipped,
            schema_changes=self.schema_changes,
            source_ms=self.source_ms,
            not_sent=frozenset(self.not_sent),
            units_not_taken=frozenset(self.units_not_taken),
        )
