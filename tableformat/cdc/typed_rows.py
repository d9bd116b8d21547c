"""`upsert` and `append`: typed columns, as DataFrames and Parquet files have them.

`upsert` takes the table's columns and optionally a column that says what each row does; without it
every row replaces the older row of its key. `append` takes rows with keys that are not in the table
yet. A column that is unknown or of a wrong type fails the batch; a row with a wrong value is a bad
record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from pyiceberg.schema import Schema

from tableformat.cdc.changelog_json import kinds_of
from tableformat.cdc.events import (
    FILE,
    KIND,
    ORDINAL,
    POSITION,
    SEQUENCE_PREFIX,
    TIMESTAMP_MS,
    ChangeCollector,
    EventBatch,
    ParsedEvents,
)
from tableformat.cdc.events import change_schema as change_schema_of
from tableformat.cdc.format_options import FormatOptions, KeyedOptions, SchemaEvolution
from tableformat.cdc.row_codec import key_columns
from tableformat.cdc.rowkind import ALL_KINDS, INSERT_ONLY, RowKind, adding
from tableformat.cdc.schema_changes import (
    SchemaChanges,
    arrow_columns,
)
from tableformat.cdc.sequence import check_sequenced
from tableformat.cdc.split_on_failure import read_in_halves
from tableformat.errors import InvalidInputError
from tableformat.spec.options import Names
from tableformat.spec.types import arrow_schema
from tableformat.write.rows import check_columns, conform_batch

RowNumbers = npt.NDArray[np.int64]

UPSERT_MODE = ALL_KINDS
APPEND_MODE = INSERT_ONLY
OWN_COLUMNS = frozenset({ORDINAL, FILE, POSITION, TIMESTAMP_MS, KIND})


class UpsertOptions(KeyedOptions):
    """Of the format `upsert`."""

    owner = "format 'upsert'"
    kind_column: str | None = Field(
        None,
        description="column with +I, -U, +U or -D (also insert, update, delete, c, u, d); default: "
        "every row is an upsert",
    )
    sequence: Names = Field(
        (), description="columns that order the changes of a row; default: arrival order"
    )


class AppendOptions(FormatOptions):
    """Of the format `append`."""

    owner = "format 'append'"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRowsFormat:
    """Typed rows for one table; see the module's text."""

    schema: Schema
    key: tuple[str, ...]
    kind_column: str | None
    default_kind: RowKind
    sequence: tuple[str, ...]
    order: tuple[pa.Field, ...]
    change_schema: pa.Schema
    evolution: SchemaEvolution

    @classmethod
    def build_upsert(cls, schema: Schema, values: UpsertOptions) -> Self:
        """The format `upsert`; see `FormatChoice.build`."""
        key = key_columns(schema)
        if not key:
            raise InvalidInputError("the format 'upsert' needs a table with a primary key")
        columns = arrow_schema(schema, with_field_ids=False)
        order = []
        for number, name in enumerate(values.sequence):
            if name not in columns.names:
                raise InvalidInputError(
                    "the sequence names an unknown column", column=name, columns=columns.names
                )
            order.append(pa.field(f"{SEQUENCE_PREFIX}{number}", columns.field(name).type))
        return cls(
            schema=schema,
            key=key,
            kind_column=values.kind_column,
            default_kind=RowKind.UPDATE_AFTER,
            sequence=values.sequence,
            order=tuple(order),
            change_schema=change_schema_of(schema, order),
            evolution=values.evolution,
        )

    @classmethod
    def build_append(cls, schema: Schema, values: AppendOptions) -> Self:
        """The format `append`; see `FormatChoice.build`."""
        return cls(
            schema=schema,
            key=key_columns(schema),
            kind_column=None,
            default_kind=RowKind.INSERT,
            sequence=(),
            order=(),
            change_schema=change_schema_of(schema, ()),
            evolution=values.evolution,
        )

    def parse(self, events: EventBatch) -> ParsedEvents:
        """Change rows of a batch of typed rows.

        Raises:
            InvalidInputError: A column is unknown, missing or of a type that does not fit the
                table's. The message names the column.
        """
        collector = ChangeCollector(batch=events, schema=self.change_schema)
        collector.schema_changes = self._schema_changes(events)
        if collector.schema_changes:
            collector.skip("unparsed", np.arange(len(events)))
            return collector.finish()
        kinds = self._kinds(events, collector.bad)
        adds = adding(kinds)
        for mask, needed in ((adds, None), (~adds, frozenset(self.key))):
            if not mask.any():
                continue
            rows = np.flatnonzero(mask)
            columns = self._columns(events.rows.filter(pa.array(mask)), needed, rows, collector.bad)
            sequence = {
                f"{SEQUENCE_PREFIX}{number}": columns[name]
                for number, name in enumerate(self.sequence)
            }
            check_sequenced(sequence, rows, collector.bad)
            collector.add(columns | sequence, kinds.filter(pa.array(mask)), rows)
        return collector.finish()

    def _schema_changes(self, events: EventBatch) -> SchemaChanges:
        if self.evolution is SchemaEvolution.STRICT:
            return SchemaChanges()
        own = {*OWN_COLUMNS, *([self.kind_column] if self.kind_column else [])}
        return arrow_columns(events.rows.schema, self.schema, self.evolution, without=own)

    def _kinds(self, events: EventBatch, bad: dict[int, str]) -> pa.Array:
        if self.kind_column is None:
            return pa.array(np.full(len(events), self.default_kind.value, np.int8))
        given = events.required(self.kind_column)
        kinds = kinds_of(given)
        for row in pc.indices_nonzero(kinds.is_null()).to_pylist():
            bad[row] = f"column '{self.kind_column}': {given[row].as_py()!r} is not a row kind"
        return kinds

    def _columns(
        self,
        rows: pa.RecordBatch,
        needed: frozenset[str] | None,
        numbers: RowNumbers,
        bad: dict[int, str],
    ) -> dict[str, pa.Array]:
        """The table's columns; only those `needed` (None: as the schema says) must have values."""
        known = {each.name for each in self.schema.fields}
        dropped = OWN_COLUMNS | ({self.kind_column} - known)
        if self.evolution is not SchemaEvolution.STRICT:  # nothing is lost, and no type is known
            dropped |= {c.name for c in rows.schema if pa.types.is_null(c.type)} - known
        names = enumerate(rows.schema.names)  # by number: a name that is there twice is reported
        given = rows.select([number for number, name in names if name not in dropped])
        schema = self.schema
        if needed is not None:
            relaxed = [
                field.model_copy(update={"required": field.name in needed})
                for field in schema.fields
            ]
            schema = Schema(*relaxed, schema_id=schema.schema_id)
        check_columns(given.schema, schema)
        conformed, wrong = conform_rows(given, schema)
        for row, reason in wrong.items():
            bad.setdefault(int(numbers[row]), reason)
        return conformed


def conform_rows(
    rows: pa.RecordBatch, schema: Schema
) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """The columns in the schema's form; wrong rows are null, and returned with the reason, by row.

    Args:
        rows: Columns that passed `check_columns`.
        schema: What they must be.
    """
    target = arrow_schema(schema)
    bad: dict[int, str] = {}
    pieces: list[list[pa.Array]] = []

    def conform(start: int, stop: int) -> pa.RecordBatch:
        return conform_batch(rows.slice(start, stop - start), schema, target)

    for start, _, found in read_in_halves(len(rows), conform, (InvalidInputError,)):
        if isinstance(found, Exception):
            bad[start] = str(found)
            pieces.append([pa.nulls(1, kind) for kind in target.types])
        else:
            pieces.append(found.columns)
    whole = pieces[0] if len(pieces) == 1 else map(pa.concat_arrays, zip(*pieces, strict=True))
    return dict(zip(target.names, whole, strict=True)), bad
