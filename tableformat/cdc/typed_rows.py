"""`upsert` and `append`: typed columns, as DataFrames and Parquet files have them.

`upsert` takes the table's columns and optionally a column that says what each row does; without it
every row replaces the older row of its key. `append` takes rows with keys that are not in the table
yet. A column that is unknown or of a wrong type fails the batch; a row with a wrong value is a bad
record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from pyiceberg.schema import Schema

from tableformat.array_types import Bools, Int64s
from tableformat.cdc.changelog_json import kinds_of
from tableformat.cdc.events import (
    FILE,
    KIND,
    ORDINAL,
    POSITION,
    SEQUENCE_PREFIX,
    TIMESTAMP_MS,
    VALUE,
    ChangeCollector,
    EventBatch,
    ParsedEvents,
)
from tableformat.cdc.events import change_schema as change_schema_of
from tableformat.cdc.format_options import FormatOptions, KeyedOptions, SchemaEvolution
from tableformat.cdc.row_codec import key_columns, required_columns
from tableformat.cdc.rowkind import ALL_KINDS, INSERT_ONLY, RowKind, adding
from tableformat.cdc.schema_changes import (
    SchemaChanges,
    arrow_columns,
)
from tableformat.cdc.sequence import check_sequenced
from tableformat.cdc.split_on_failure import read_in_halves
from tableformat.errors import InvalidInputError
from tableformat.spec.missing_columns import MISSING, mask_texts
from tableformat.spec.options import Names
from tableformat.spec.types import arrow_schema, is_list, is_string
from tableformat.write.rows import check_columns, conform_batch

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
    columns: Literal["whole", "partial"] = Field(
        "whole",
        description="what becomes of the table's columns that the rows do not have; whole: they "
        "get the write default or null; partial: they keep their values, `resolve` fills them in",
    )
    left_out_column: str | None = Field(
        None,
        description="column (a list of strings) with the names of columns that a row leaves out: "
        "they keep their values. For columns=partial",
    )

    @property
    def is_partial(self) -> bool:
        """Whether rows may leave columns out.

        Raises:
            InvalidInputError: The options contradict each other.
        """
        partial = self.columns == "partial"
        if self.left_out_column is not None and not partial:
            raise InvalidInputError(
                "left-out-column has no effect on whole rows", action="set columns=partial"
            )
        return partial


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
    is_partial: bool = False
    left_out_column: str | None = None

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
            change_schema=change_schema_of(schema, order, may_lack=values.is_partial),
            evolution=values.evolution,
            is_partial=values.is_partial,
            left_out_column=values.left_out_column,
        )

    @classmethod
    def build_append(cls, schema: Schema, values: AppendOptions) -> Self:
        """The format `append`; see `FormatChoice.build`."""
        return cls(
            schema=schema,
            key=(),  # rows that are added name no older ones
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
        self._check_typed(events.rows.schema)
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
            given = events.rows.filter(pa.array(mask))
            lacks = left_out(given, self.schema, self.left_out_column) if self.is_partial else {}
            columns = self._columns(given, needed, lacks, rows, collector.bad)
            if self.is_partial:
                columns[MISSING] = self._missing(given, columns, lacks, is_key_only=needed)
            sequence = {
                f"{SEQUENCE_PREFIX}{number}": columns[name]
                for number, name in enumerate(self.sequence)
            }
            check_sequenced(sequence, rows, collector.bad)
            collector.add(columns | sequence, kinds.filter(pa.array(mask)), rows)
        return collector.finish()

    def _check_typed(self, given: pa.Schema) -> None:
        """Lines of a text file, and messages of Kafka, are one column of bytes."""
        if VALUE in given.names and VALUE not in self.schema.column_names:
            kind = given.field(VALUE).type
            if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
                raise InvalidInputError(
                    "the events are lines or messages, and the formats 'upsert' and 'append' take "
                    "typed columns",
                    action="write them as Parquet (FILE.parquet), or read JSON with the format "
                    "changelog-json, or with debezium-json and layout=flattened",
                )

    def _schema_changes(self, events: EventBatch) -> SchemaChanges:
        if self.evolution is SchemaEvolution.STRICT:
            return SchemaChanges()
        own = OWN_COLUMNS | {c for c in (self.kind_column, self.left_out_column) if c}
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
        lacks: Mapping[str, Bools],
        numbers: Int64s,
        bad: dict[int, str],
    ) -> dict[str, pa.Array]:
        """The table's columns; only those `needed` (None: as the schema says) must have values.

        `lacks`: where rows leave columns out, by column.
        """
        known = {each.name for each in self.schema.fields}
        dropped = OWN_COLUMNS | ({self.kind_column, self.left_out_column} - known)
        if self.evolution is not SchemaEvolution.STRICT:  # nothing is lost, and no type is known
            dropped |= {c.name for c in rows.schema if pa.types.is_null(c.type)} - known
        names = enumerate(rows.schema.names)  # by number: a name that is there twice is reported
        given = rows.select([number for number, name in names if name not in dropped])
        schema = self.schema
        if needed is None and self.key:
            needed = required_columns(schema)
        elif needed is None:
            needed = frozenset(field.name for field in schema.fields if field.required)
        relaxed = [
            field.model_copy(update={"required": field.name in needed - lacks.keys()})
            for field in schema.fields
        ]
        schema = Schema(*relaxed, schema_id=schema.schema_id)
        check_columns(given.schema, schema)
        conformed, wrong = conform_rows(given, schema)
        for name in needed & lacks.keys():
            absent = conformed[name].is_null().to_numpy(zero_copy_only=False) & ~lacks[name]
            for row in np.flatnonzero(absent).tolist():
                wrong.setdefault(row, f"required column holds nulls; column={name}")
        for row, reason in wrong.items():
            bad.setdefault(int(numbers[row]), reason)
        return conformed

    def _missing(
        self,
        given: pa.RecordBatch,
        columns: Mapping[str, pa.Array],
        lacks: Mapping[str, Bools],
        *,
        is_key_only: frozenset[str] | None,
    ) -> pa.StringArray:
        """Which columns rows leave out; a delete those in which it has no value."""
        if is_key_only is not None:
            lacks = {
                name: columns[name].is_null().to_numpy(zero_copy_only=False)
                for name in columns.keys() - is_key_only
            }
        ids = {field.name: field.field_id for field in self.schema.fields}
        return mask_texts(
            {ids[name]: mask for name, mask in lacks.items()},
            len(given),
            field_ids=list(ids.values()),
            carries=np.ones(len(given), np.bool_),
        )


def left_out(rows: pa.RecordBatch, schema: Schema, left_out_column: str | None) -> dict[str, Bools]:
    """Which rows leave columns out, by column: those that are not there, and those they name.

    Raises:
        InvalidInputError: The column with the names is missing, is no list of texts, or names an
            unknown column.
    """
    names = [each.name for each in schema.fields]
    given = set(rows.schema.names)
    lacks = {name: np.ones(len(rows), np.bool_) for name in names if name not in given}
    if left_out_column is None:
        return lacks
    named = rows.column(left_out_column) if left_out_column in given else pa.nulls(0)
    if not (is_list(named.type) and is_string(named.type.value_type)):
        raise InvalidInputError(
            "left-out-column is not a column with lists of strings",
            column=left_out_column,
            columns=rows.schema.names,
        )
    parents = pc.list_parent_indices(named).to_numpy(zero_copy_only=False)
    texts = pc.list_flatten(named).dictionary_encode()
    codes = pc.fill_null(texts.indices, -1).to_numpy(zero_copy_only=False)
    for code, name in enumerate(texts.dictionary.to_pylist()):
        if name not in names:
            raise InvalidInputError(
                "a row leaves out an unknown column", column=name, columns=names
            )
        lacks.setdefault(name, np.zeros(len(rows), np.bool_))[parents[codes == code]] = True
    return lacks


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
