"""`upsert` and `append`: typed columns, as DataFrames and Parquet files have them.

`upsert` takes the table's columns and optionally a column that says what each row does; without it
every row replaces the older row of its key. `append` takes rows with keys that are not in the table
yet. There are no bad records: a value of a wrong type fails the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from tableformat.cdc.changelog_json import kinds_of
from tableformat.cdc.deletes import DELETES_OPTION
from tableformat.cdc.events import (
    FILE,
    KIND,
    ORDINAL,
    POSITION,
    SEQUENCE_PREFIX,
    ChangeCollector,
    EventBatch,
    ParsedEvents,
)
from tableformat.cdc.events import change_schema as change_schema_of
from tableformat.cdc.options import Option, OptionKind, OptionTable, OptionValues
from tableformat.cdc.row_codec import key_columns
from tableformat.cdc.rowkind import ALL_KINDS, INSERT_ONLY, RowKind
from tableformat.cdc.schema_wishes import (
    SCHEMA_EVOLUTION_OPTION,
    SchemaEvolution,
    SchemaWishes,
    arrow_wishes,
    evolution_of,
)
from tableformat.errors import InvalidInputError
from tableformat.spec.types import arrow_schema
from tableformat.write.rows import check_columns, conform_batch

UPSERT_MODE = ALL_KINDS
APPEND_MODE = INSERT_ONLY
OWN_COLUMNS = frozenset({ORDINAL, FILE, POSITION, KIND})

UPSERT_OPTIONS = OptionTable(
    "format 'upsert'",
    (
        Option(
            name="kind-column",
            help="column with +I, -U, +U or -D (also insert, update, delete, c, u, d); "
            "default: every row is an upsert",
        ),
        Option(
            name="sequence",
            kind=OptionKind.LIST,
            help="columns that order the changes of a row; default: arrival order",
        ),
        DELETES_OPTION,
        SCHEMA_EVOLUTION_OPTION,
    ),
)
APPEND_OPTIONS = OptionTable("format 'append'", (SCHEMA_EVOLUTION_OPTION,))


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
    def build_upsert(cls, schema: Schema, values: OptionValues) -> Self:
        """The format `upsert`; see `FormatChoice.build`."""
        key = key_columns(schema)
        if not key:
            raise InvalidInputError("the format 'upsert' needs a table with a primary key")
        columns = arrow_schema(schema, with_field_ids=False)
        order = []
        for number, name in enumerate(values.names("sequence")):
            if name not in columns.names:
                raise InvalidInputError(
                    "the sequence names an unknown column", column=name, columns=columns.names
                )
            order.append(pa.field(f"{SEQUENCE_PREFIX}{number}", columns.field(name).type))
        return cls(
            schema=schema,
            key=key,
            kind_column=values.optional_text("kind-column"),
            default_kind=RowKind.UPDATE_AFTER,
            sequence=values.names("sequence"),
            order=tuple(order),
            change_schema=change_schema_of(schema, order),
            evolution=evolution_of(values),
        )

    @classmethod
    def build_append(cls, schema: Schema, values: OptionValues) -> Self:
        """The format `append`; see `FormatChoice.build`."""
        return cls(
            schema=schema,
            key=key_columns(schema),
            kind_column=None,
            default_kind=RowKind.INSERT,
            sequence=(),
            order=(),
            change_schema=change_schema_of(schema, ()),
            evolution=evolution_of(values),
        )

    def parse(self, events: EventBatch) -> ParsedEvents:
        """Change rows of a batch of typed rows.

        Raises:
            InvalidInputError: Columns or values do not fit the table, a required value is missing,
                or a row's kind is none. The message names the column.
        """
        collector = ChangeCollector(batch=events, schema=self.change_schema)
        collector.wishes = self._wishes(events)
        if collector.wishes:
            collector.skip("unparsed", np.arange(len(events)))
            return collector.finish()
        kinds = self._kinds(events)
        adds = np.isin(kinds.to_numpy(), [kind.value for kind in RowKind if kind.adds])
        for mask, needed in ((adds, None), (~adds, frozenset(self.key))):
            if not mask.any():
                continue
            rows = np.flatnonzero(mask)
            columns = self._columns(events.rows.filter(pa.array(mask)), needed)
            for number, name in enumerate(self.sequence):
                sequence = columns[name]
                if sequence.null_count:
                    raise InvalidInputError("a row lacks its sequence", column=name)
                columns[f"{SEQUENCE_PREFIX}{number}"] = sequence
            collector.add(columns, kinds.filter(pa.array(mask)), rows)
        return collector.finish()

    def _wishes(self, events: EventBatch) -> SchemaWishes:
        if self.evolution is SchemaEvolution.STRICT:
            return SchemaWishes()
        own = {*OWN_COLUMNS, *([self.kind_column] if self.kind_column else [])}
        return arrow_wishes(events.rows.schema, self.schema, self.evolution, without=own)

    def _kinds(self, events: EventBatch) -> pa.Array:
        if self.kind_column is None:
            return pa.array(np.full(len(events), self.default_kind.value, np.int8))
        kinds = kinds_of(events.required(self.kind_column))
        if kinds.null_count:
            row = pc.index(kinds.is_null(), True).as_py()
            raise InvalidInputError(
                "not a row kind",
                column=self.kind_column,
                value=repr(events.required(self.kind_column)[row].as_py()),
            )
        return kinds

    def _columns(self, rows: pa.RecordBatch, needed: frozenset[str] | None) -> dict[str, pa.Array]:
        """The table's columns; only those `needed` (None: as the schema says) must have values."""
        dropped = OWN_COLUMNS | {self.kind_column}
        if self.evolution is not SchemaEvolution.STRICT:  # nothing is lost, and no type is known
            known = {each.name for each in self.schema.fields}
            dropped |= {c.name for c in rows.schema if pa.types.is_null(c.type)} - known
        given = rows.select([name for name in rows.schema.names if name not in dropped])
        schema = self.schema
        if needed is not None:
            relaxed = [
                field.model_copy(update={"required": field.name in needed})
                for field in schema.fields
            ]
            schema = Schema(*relaxed, schema_id=schema.schema_id)
        check_columns(given.schema, schema)
        conformed = conform_batch(given, schema, arrow_schema(schema))
        return dict(zip(conformed.schema.names, conformed.columns, strict=True))
