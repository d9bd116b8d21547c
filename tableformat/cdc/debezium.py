"""`debezium-json`: change events of Debezium's connectors.

| event | change |
|---|---|
| `c` | +I |
| `u` | +U; if `before` has another key, -D of that key first |
| `r` (snapshot read) | +I; +U if `source.snapshot` does not say, or says `incremental`: overlaps |
| `d` | -D of the key in `before`, or in the message key where `before` is null |
| null value (tombstone) | skipped behind its `d`; alone, or with `layout=flattened`, a delete |
| `t` (truncate) | bad record; skipped with `on-truncate=ignore`; with `apply` all rows go |
| `m` (logical message), heartbeat, transaction marker | skipped and counted |
| CockroachDB's `resolved` | skipped and counted |
| another `op` | bad record, or skipped with `on-unknown-op=ignore` |
| anything else | bad record |

A message key that contradicts the row is a bad record, and so is a value that its column cannot
hold. A column that the table does not have fails the batch: nothing is known about it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from tableformat.array_types import Int64s
from tableformat.cdc import wrong_format
from tableformat.cdc.connect_schema import (
    PayloadGroup,
    row_fields,
    row_hints,
    split_payloads,
    units_not_taken,
)
from tableformat.cdc.debezium_options import FLATTENED, DebeziumOptions
from tableformat.cdc.debezium_rows import (
    HEARTBEAT,
    RESOLVED,
    RESOLVED_FIELDS,
    SNAPSHOT_MARK,
    DebeziumRows,
    as_mask,
    delete_by_key,
)
from tableformat.cdc.encodings import EncodingDefaults, Hint, overlaid
from tableformat.cdc.events import VALUE, ChangeCollector, EventBatch, ParsedEvents
from tableformat.cdc.events import change_schema as change_schema_of
from tableformat.cdc.format_options import WHOLE_ROW, SchemaEvolution
from tableformat.cdc.json_objects import (
    JsonLayout,
    JsonObjects,
    Path,
    parse_json_objects,
    utf8_rows,
)
from tableformat.cdc.mangled_names import check_names, names_in
from tableformat.cdc.message_keys import MessageKeys
from tableformat.cdc.placeholders import Placeholder
from tableformat.cdc.row_codec import RowCodec, user_hints
from tableformat.cdc.schema_changes import (
    check_certain,
    connect_columns,
    json_columns,
    long_columns,
    new_columns,
)
from tableformat.cdc.sequence import SequenceFields, check_binlog_order
from tableformat.cdc.source_time import declare_source_time, latest_of, latest_source_ms
from tableformat.cdc.tombstones import lone_tombstones
from tableformat.errors import InvalidInputError, refusing_deep_nesting


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumFormat:
    """The format for one table; see the module's text."""

    schema: Schema
    codec: RowCodec
    hints: Mapping[str, Hint]
    defaults: EncodingDefaults
    values: DebeziumOptions
    placeholder: Placeholder
    sequence: SequenceFields
    order: tuple[pa.Field, ...]
    change_schema: pa.Schema
    evolution: SchemaEvolution

    @classmethod
    def build(cls, schema: Schema, values: DebeziumOptions) -> Self:
        """The format for a table of this schema; see `FormatChoice.build`."""
        defaults = values.defaults
        hints = user_hints(schema, values.encodings)
        codec = RowCodec.of(schema, hints, defaults)
        if not codec.key:
            raise InvalidInputError("the format 'debezium-json' needs a table with a primary key")
        check_binlog_order(values.sequence)
        sequence = SequenceFields.of(values.sequence)
        return cls(
            schema=schema,
            codec=codec,
            hints=hints,
            defaults=defaults,
            values=values,
            placeholder=Placeholder.of(values.unavailable_value),
            sequence=sequence,
            order=tuple(sequence.order),
            change_schema=change_schema_of(
                schema, sequence.order, may_lack=values.keeps_unavailable
            ),
            evolution=values.evolution,
        )

    def parse(self, events: EventBatch) -> ParsedEvents:
        """Change rows of a batch of events.

        Raises:
            InvalidInputError: There is no column `value`, an event has a column that the table
                does not have and may not get, or the source's key is wider than the table's.
        """
        collector = ChangeCollector(batch=events, schema=self.change_schema)
        values = events.required(VALUE)
        keys = MessageKeys.parse(events, self.codec, self._codec_for, collector.bad)
        self._check_key(keys.others & self.codec.decoders.keys() | keys.added)
        texts = utf8_rows(values, collector.bad)
        tombstones = [np.flatnonzero(as_mask(values.is_null()))]
        for group in split_payloads(texts, collector.bad, events.schemas(VALUE)):
            absent = as_mask(pc.equal(group.payloads, "null"))
            if absent.any():
                tombstones.append(group.rows[absent])
                group = group.filter(~absent)
            if self._is_flattened and self.values.unknown_columns == "ignore" and len(group.rows):
                wrong_format.check_foreign(group.payloads[0].as_py(), self.codec.decoders)
            codec = self._codec_for(group.schema, *self._row_path)
            declared = row_fields(group.schema, *self._row_path)
            # What a later schema has was added, and is told of if it goes.
            collector.not_sent -= declared.keys()
            collector.not_sent |= self._not_sent(group)
            collector.units_not_taken |= units_not_taken(declared, self.schema, self.hints)
            parsed = parse_json_objects(group.payloads, self._layout(codec))
            self._check_names(group, parsed)
            self._note_columns(group, parsed, collector)
            for row, reason in parsed.bad.items():
                collector.bad.setdefault(int(group.rows[row]), reason)
            for rows, table in parsed.pieces:
                latest = latest_source_ms(table, flattened=self._is_flattened)
                collector.source_ms = latest_of([collector.source_ms, latest])
                piece = DebeziumRows(
                    values=self.values,
                    placeholder=self.placeholder,
                    sequence=self.sequence,
                    codec=codec,
                    absent=self._absent(group),
                    may_be_null=self._may_be_null(group),
                    keys=keys,
                    collector=collector,
                    table=table,
                    rows=group.rows[rows],
                )
                if self.values.layout == FLATTENED:
                    piece.flattened()
                else:
                    piece.envelope()
            self._note_long_integers(group, collector)
        self._tombstones(np.sort(np.concatenate(tombstones)), keys, collector)
        parsed_events = collector.finish()
        if not (parsed_events.changes.num_rows or parsed_events.schema_changes):
            self._check_format(values, collector)
        return parsed_events

    def _check_format(self, values: pa.Array, collector: ChangeCollector) -> None:
        quiet = [rows for what, rows in collector.skipped if what in (HEARTBEAT, RESOLVED)]
        unread = np.concatenate([np.array(sorted(collector.bad), np.int64), *quiet])
        flattened = self.values.layout == FLATTENED
        read_as = wrong_format.FLATTENED if flattened else wrong_format.DEBEZIUM
        events = (values[row].as_py() for row in unread.tolist())
        wrong_format.check_format(events, read_as=read_as, key=self.codec.key)

    def _check_key(self, wider: Collection[str]) -> None:
        """Refuse events that are told apart by columns that do not tell the table's rows apart."""
        if wider and self.values.on_wider_key == "fail":
            raise InvalidInputError(
                "message keys have columns that are not in the table's primary key: of rows that "
                "agree in it, one would be left",
                columns=sorted(wider),
                primary_key=list(self.codec.key),
                action="if the source has a new primary key, load it into a new table; if this one "
                "is unique at the source, set on-wider-key=ignore",
            )

    def _tombstones(self, rows: Int64s, keys: MessageKeys, collector: ChangeCollector) -> None:
        if not len(rows):
            return
        whole = self.values.deletes == WHOLE_ROW
        if self.values.layout == FLATTENED:
            delete_by_key(rows, keys, self.sequence, {}, collector, keys_suffice=not whole)
            return
        # What has a null value does not say which row it was, nor when.
        can_delete = not whole and not self.sequence.order
        lone = lone_tombstones(rows, keys, collector) & can_delete
        collector.skip("tombstone", rows[~lone])
        if lone.any():
            delete_by_key(rows[lone], keys, self.sequence, {}, collector, keys_suffice=True)

    def _codec_for(self, connect_schema: Mapping[str, object] | None, *path: str) -> RowCodec:
        """The columns as a Connect schema, which has the row at `path`, encodes them."""
        if connect_schema is None:
            return self.codec
        declared = row_hints(connect_schema, self.schema, *path)
        return RowCodec.of(self.schema, overlaid(declared, self.hints), self.defaults)

    def _absent(self, group: PayloadGroup) -> dict[str, NestedField]:
        """Columns with an initial default that the events' schema does not have (yet).

        Rows from before the source added such a column hold its default, wherever they are.
        """
        declared = row_fields(group.schema, *self._row_path)
        return {
            column.name: column
            for column in self.schema.fields
            if declared and column.initial_default is not None and column.name not in declared
        }

    def _not_sent(self, group: PayloadGroup) -> set[str]:
        """Columns that may be null, and get it because the events' schema does not have them."""
        declared = row_fields(group.schema, *self._row_path)
        return {
            column.name
            for column in self.schema.fields
            if declared
            and column.name not in declared
            and column.initial_default is None
            and column.name not in self.codec.required
        }

    def _may_be_null(self, group: PayloadGroup) -> frozenset[str]:
        """Required columns that the events' schema allows to be null, or does not have."""
        declared = row_fields(group.schema, *self._row_path)
        return frozenset(
            name
            for name in self.codec.required - set(self.codec.key)
            if declared and declared.get(name, {"optional": True}).get("optional") is True
        )

    def _layout(self, codec: RowCodec) -> JsonLayout:
        closed: tuple[Path, ...] = ()
        if self.values.unknown_columns == "fail":
            closed = codec.structs(self._row_path)
        if self.values.layout == FLATTENED:
            fields = {column.name: column.type for column in codec.struct()}
            fields |= {"__op": pa.string(), "__deleted": pa.string(), SNAPSHOT_MARK: pa.string()}
            alternatives = codec.alternatives(())
            alternatives[(SNAPSHOT_MARK,)] = (pa.string(), pa.bool_())
            alternatives[("__deleted",)] = (pa.string(), pa.bool_())
        else:
            fields = {"before": codec.struct(), "after": codec.struct(), "op": pa.string()}
            texts = ("connector", "snapshot", "value_capture_type")
            source = pa.struct([(name, pa.string()) for name in texts])
            fields |= {"ts_ms": pa.int64(), "source": source, **RESOLVED_FIELDS}
            alternatives = codec.alternatives(("before",)) | codec.alternatives(("after",))
            alternatives[("source", "snapshot")] = (pa.string(), pa.bool_())
        self.sequence.add_to(fields, alternatives)
        declare_source_time(fields, flattened=self._is_flattened)
        return JsonLayout(
            schema=pa.schema(list(fields.items())),
            alternatives=alternatives,
            closed=closed,
            pass_null=self._evolves,
        )

    @property
    def _is_flattened(self) -> bool:
        return self.values.layout == FLATTENED

    @property
    def _evolves(self) -> bool:
        return self.evolution is not SchemaEvolution.STRICT

    @property
    def _row_path(self) -> Path:
        return () if self.values.layout == FLATTENED else ("after",)

    def _check_names(self, group: PayloadGroup, parsed: JsonObjects) -> None:
        """Refuse names of which Debezium tells two: see `mangled_names`."""
        names = {path[-1] for path in parsed.undeclared}
        names |= row_fields(group.schema, *self._row_path).keys()
        is_ignored = self.values.unknown_columns == "ignore" or not self._evolves
        if self.values.unknown_columns == "ignore" and group.schema is None:
            names |= names_in(group.payloads, self.codec.decoders)
        check_names(names, self.codec.decoders if is_ignored else None)

    @refusing_deep_nesting("new column")
    def _note_columns(
        self, group: PayloadGroup, parsed: JsonObjects, collector: ChangeCollector
    ) -> None:
        """Refuse columns that the table does not have, or ask for them."""
        # Flattened events carry metadata beside the row (`add.fields`), with this prefix.
        flattened = self.values.layout == FLATTENED
        undeclared = [
            path
            for path in parsed.undeclared
            if not (flattened and len(path) == 1 and path[0].startswith("__"))
        ]
        if flattened and {("op",), ("source",)} <= set(undeclared):
            first = group.payloads.slice(parsed.undeclared[("op",)], 1).to_pylist()
            wrong_format.check_format(first, read_as=wrong_format.FLATTENED, key=self.codec.key)
        names = new_columns(undeclared, self._row_path, self.evolution)
        if self._evolves and group.schema is not None:
            fields = row_fields(group.schema, *self._row_path)
            fields = {k: v for k, v in fields.items() if not (flattened and k.startswith("__"))}
            schema_changes = connect_columns(fields, self.schema, self.evolution)
            names = [name for name in names if name not in schema_changes.added]
            collector.schema_changes.merge(schema_changes)
        if names:
            found = json_columns(group.payloads, self._row_path, names, self.schema, self.evolution)
            if self.values.new_columns == "declared":
                check_certain(found)
            collector.schema_changes.merge(found)

    def _note_long_integers(self, group: PayloadGroup, collector: ChangeCollector) -> None:
        """Bare JSON says that a column is too narrow by a value that does not fit."""
        if self.evolution is SchemaEvolution.FULL and collector.bad:
            bad = group.filter(np.isin(group.rows, list(collector.bad)))
            collector.schema_changes.merge(long_columns(bad.payloads, self._row_path, self.schema))
