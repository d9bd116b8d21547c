"""`debezium-json`: change events of Debezium's connectors.

| event | change |
|---|---|
| `c` | +I |
| `u` | +U; if `before` has another key, -D of that key first |
| `r` (snapshot read) | +U, because it may overlap the stream |
| `d` | -D of the key in `before`, or in the message key where `before` is null |
| null value (tombstone) | skipped: its `d` came before; with `layout=flattened` it is the delete |
| `t` (truncate) | bad record, or skipped with `on-truncate=ignore` |
| `m` (logical message), heartbeat, transaction marker | skipped and counted |
| anything else | bad record |

A message key that contradicts the row is a bad record, and so is a value that its column cannot
hold. A column that the table does not have fails the batch: nothing is known about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from tableformat.cdc.connect_schema import row_hints, split_payloads
from tableformat.cdc.deletes import DELETES, DELETES_OPTION
from tableformat.cdc.encodings import Encoding, EncodingDefaults, Hint, fits
from tableformat.cdc.events import KEY, VALUE, ChangeCollector, EventBatch, ParsedEvents
from tableformat.cdc.events import change_schema as change_schema_of
from tableformat.cdc.json_objects import JsonLayout, parse_json_objects, utf8_rows
from tableformat.cdc.message_keys import MessageKeys
from tableformat.cdc.options import Option, OptionKind, OptionTable, OptionValues
from tableformat.cdc.placeholders import fill_placeholders
from tableformat.cdc.row_codec import RowCodec, struct_columns
from tableformat.cdc.rowkind import ChangelogMode, RowKind
from tableformat.cdc.sequence import SEQUENCE_OPTION, SequenceFields, check_sequenced
from tableformat.errors import InvalidInputError

RowNumbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MODE = ChangelogMode.of([RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE])
KIND_OF_OP = {"c": RowKind.INSERT, "r": RowKind.UPDATE_AFTER, "u": RowKind.UPDATE_AFTER}
TIME_UNITS = ("s", "ms", "us", "ns")
ENVELOPE, FLATTENED = "envelope", "flattened"

OPTIONS = OptionTable(
    "format 'debezium-json'",
    (
        Option(
            name="layout",
            kind=OptionKind.CHOICE,
            choices=(ENVELOPE, FLATTENED),
            default=ENVELOPE,
            help="flattened: rows of ExtractNewRecordState, with `__op` or `__deleted`",
        ),
        SEQUENCE_OPTION,
        DELETES_OPTION,
        Option(
            name="timestamp-unit",
            kind=OptionKind.CHOICE,
            choices=TIME_UNITS,
            default="us",
            help="unit of integer timestamps without a Connect schema",
        ),
        Option(
            name="time-unit",
            kind=OptionKind.CHOICE,
            choices=TIME_UNITS,
            default="us",
            help="unit of integer times of day without a Connect schema",
        ),
        Option(
            name="decimals",
            kind=OptionKind.CHOICE,
            choices=("precise", "text", "double"),
            default="precise",
            help="`decimal.handling.mode` (text: string) without a Connect schema",
        ),
        Option(
            name="binaries",
            kind=OptionKind.CHOICE,
            choices=("base64", "hex"),
            default="base64",
            help="`binary.handling.mode` (base64: also bytes)",
        ),
        Option(
            name="encodings",
            kind=OptionKind.MAP,
            choices=tuple(encoding.value for encoding in Encoding),
            help="encoding of single columns; wins over the units and over a Connect schema",
        ),
        Option(
            name="unavailable-value",
            default="__debezium_unavailable_value",
            help="`unavailable.value.placeholder`: stands for a large value that did not change",
        ),
        Option(
            name="on-unavailable-value",
            kind=OptionKind.CHOICE,
            choices=("fail", "null"),
            default="fail",
            help="when `before` does not have the value either; fail: a bad record",
        ),
        Option(
            name="on-truncate",
            kind=OptionKind.CHOICE,
            choices=("fail", "ignore"),
            default="fail",
            help="fail: a truncate event is a bad record; ignore: rows stay",
        ),
        Option(
            name="unknown-columns",
            kind=OptionKind.CHOICE,
            choices=("fail", "ignore"),
            default="fail",
            help="columns that the table does not have; fail: the batch fails",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumFormat:
    """The format for one table; see the module's text."""

    schema: Schema
    codec: RowCodec
    defaults: EncodingDefaults
    values: OptionValues
    sequence: SequenceFields
    order: tuple[pa.Field, ...]
    change_schema: pa.Schema

    @classmethod
    def build(cls, schema: Schema, values: OptionValues) -> Self:
        """The format for a table of this schema; see `FormatChoice.build`."""
        defaults = EncodingDefaults(
            timestamps=Encoding(values.text("timestamp-unit")),
            times=Encoding(values.text("time-unit")),
            decimals=Encoding(values.text("decimals")),
            binaries=Encoding(values.text("binaries")),
        )
        codec = RowCodec.of(schema, _user_hints(values), defaults)
        if not codec.key:
            raise InvalidInputError("the format 'debezium-json' needs a table with a primary key")
        sequence = SequenceFields.of(values.names("sequence"))
        return cls(
            schema=schema,
            codec=codec,
            defaults=defaults,
            values=values,
            sequence=sequence,
            order=tuple(sequence.order),
            change_schema=change_schema_of(schema, sequence.order),
        )

    def parse(self, events: EventBatch) -> ParsedEvents:
        """Change rows of a batch of events.

        Raises:
            InvalidInputError: There is no column `value`, or an event has a column that the table
                does not have.
        """
        collector = ChangeCollector(batch=events, schema=self.change_schema)
        values = events.required(VALUE)
        keys = MessageKeys.parse(events.optional(KEY), self.codec, collector.bad)
        texts = utf8_rows(values, collector.bad)
        absent = pc.or_(values.is_null(), pc.fill_null(pc.equal(texts, "null"), False))
        self._tombstones(absent, keys, collector)
        texts = pc.if_else(absent, pa.scalar(None, pa.string()), texts)
        for group in split_payloads(texts, collector.bad):
            codec = self._codec_for(group.schema)
            parsed = parse_json_objects(group.payloads, self._layout(codec))
            self._check_columns(parsed.undeclared)
            for row, reason in parsed.bad.items():
                collector.bad.setdefault(int(group.rows[row]), reason)
            for rows, table in parsed.pieces:
                piece = _Piece(self, codec, keys, collector, table, group.rows[rows])
                if self.values.text("layout") == FLATTENED:
                    piece.flattened()
                else:
                    piece.envelope()
        return collector.finish()

    def _tombstones(
        self, absent: pa.BooleanArray, keys: MessageKeys, collector: ChangeCollector
    ) -> None:
        rows = np.flatnonzero(_numpy(absent))
        if self.values.text("layout") == ENVELOPE:
            # A bad key does not matter here: the row is skipped anyway.
            for row in rows.tolist():
                collector.bad.pop(row, None)
            collector.skip("tombstone", len(rows))
        elif len(rows):
            _delete_by_key(rows, keys, self.sequence, {}, collector)

    def _codec_for(self, connect_schema: Mapping[str, object] | None) -> RowCodec:
        if connect_schema is None:
            return self.codec
        path = () if self.values.text("layout") == FLATTENED else ("after",)
        declared = row_hints(connect_schema, *path)
        hints = {
            column.name: declared[column.name]
            for column in self.schema.fields
            if column.name in declared and fits(column, declared[column.name].encoding)
        }
        return RowCodec.of(self.schema, hints | _user_hints(self.values), self.defaults)

    def _layout(self, codec: RowCodec) -> JsonLayout:
        closed = self.values.text("unknown-columns") == "fail"
        if self.values.text("layout") == FLATTENED:
            fields = {column.name: column.type for column in codec.struct()}
            fields |= {"__op": pa.string(), "__deleted": pa.string()}
            alternatives = codec.alternatives(())
            alternatives[("__deleted",)] = (pa.string(), pa.bool_())
            paths: tuple[tuple[str, ...], ...] = ((),)
        else:
            fields = {"before": codec.struct(), "after": codec.struct(), "op": pa.string()}
            fields |= {"ts_ms": pa.int64(), "source": pa.struct([("connector", pa.string())])}
            alternatives = codec.alternatives(("before",)) | codec.alternatives(("after",))
            paths = (("after",),)
        self.sequence.add_to(fields)
        return JsonLayout(
            schema=pa.schema(list(fields.items())),
            alternatives=alternatives,
            closed=paths if closed else (),
        )

    def _check_columns(self, undeclared: Mapping[tuple[str, ...], int]) -> None:
        # Flattened events carry metadata beside the row (`add.fields`), with this prefix.
        flattened = self.values.text("layout") == FLATTENED
        names = [path[-1] for path in undeclared if not (flattened and path[-1].startswith("__"))]
        if names:
            raise InvalidInputError(
                f"the events have a column '{min(names)}' that the table does not have",
                action="add it to the table, or set unknown-columns=ignore",
                columns=sorted(names),
            )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Parsed events of one wire layout, on their way to change rows."""

    format: DebeziumFormat
    codec: RowCodec
    keys: MessageKeys
    collector: ChangeCollector
    table: pa.Table
    rows: RowNumbers

    def envelope(self) -> None:
        """Change rows of events with `before`, `after` and `op`."""
        op, before, after = (self._column(name) for name in ("op", "before", "after"))
        upsert = _numpy(pc.is_in(op, pa.array(list(KIND_OF_OP))))
        delete = _numpy(pc.fill_null(pc.equal(op, "d"), False))
        has_before, has_after = _numpy(before.is_valid()), _numpy(after.is_valid())
        self._others(op, upsert | delete, has_before | has_after)
        self._report(upsert & ~has_after, "the event has no 'after'")
        old_key = self._old_keys(before, after, upsert & has_after & has_before)
        names = list(self.codec.decoders)
        self._upserts(
            struct_columns(after, names, upsert & has_after),
            struct_columns(before, names, upsert & has_after),
            kinds=_kinds(op.filter(pa.array(upsert & has_after))),
            mask=upsert & has_after,
            check_key=~old_key[upsert & has_after],
        )
        known = list(self.codec.key) if self.format.values.text(DELETES) == "key" else names
        self._deletes(struct_columns(before, known, delete & has_before), delete & has_before)
        self._deletes_by_key(delete & ~has_before)

    def flattened(self) -> None:
        """Change rows of events that are rows themselves."""
        op = self._column("__op")
        mark = self._column("__deleted")
        if pa.types.is_boolean(mark.type):
            marked = _numpy(pc.fill_null(mark, False))
        else:
            marked = _numpy(pc.fill_null(pc.equal(pc.utf8_lower(mark), "true"), False))
        delete = marked | _numpy(pc.fill_null(pc.equal(op, "d"), False))
        upsert = ~delete & _numpy(pc.or_(op.is_null(), pc.is_in(op, pa.array(list(KIND_OF_OP)))))
        self._others(op, upsert | delete, np.ones(len(op), np.bool_))
        columns = {name: self._column(name) for name in self.codec.decoders}
        missing = {name: pa.nulls(int(upsert.sum()), a.type) for name, a in columns.items()}
        self._upserts(
            {name: array.filter(pa.array(upsert)) for name, array in columns.items()},
            missing,
            kinds=_kinds(op.filter(pa.array(upsert))),
            mask=upsert,
            check_key=np.ones(int(upsert.sum()), np.bool_),
        )
        removed = {name: columns[name].filter(pa.array(delete)) for name in self.codec.key}
        self._deletes(removed, delete)

    def _upserts(
        self,
        after: dict[str, pa.Array],
        before: dict[str, pa.Array],
        *,
        kinds: pa.Array,
        mask: Mask,
        check_key: Mask,
    ) -> None:
        rows = self.rows[mask]
        if not len(rows):
            return
        values = self.format.values
        bad = self.collector.bad
        after = fill_placeholders(
            after,
            before,
            placeholder=values.text("unavailable-value"),
            keep_null=values.text("on-unavailable-value") == "null",
            rows=rows,
            bad=bad,
        )
        decoded = self.codec.decode(after, rows=rows, bad=bad, check_required=self.codec.required)
        self.keys.check(decoded, rows=rows, mask=check_key, bad=bad)
        sequence = self._sequence(mask)
        ops = self._column("__op" if "__op" in self.table.schema.names else "op")
        reads = _numpy(pc.fill_null(pc.equal(ops, "r"), False))[mask]
        # A snapshot's rows may come from before the log began: without a sequence they are oldest.
        check_sequenced(
            {name: array.filter(pa.array(~reads)) for name, array in sequence.items()},
            rows[~reads],
            bad,
        )
        self.collector.add(decoded | sequence, kinds, rows)

    def _deletes(self, columns: dict[str, pa.Array], mask: Mask) -> None:
        rows = self.rows[mask]
        if not len(rows):
            return
        bad = self.collector.bad
        decoded = self.codec.decode(columns, rows=rows, bad=bad, check_required=())
        decoded = self.keys.coalesce(decoded, rows)
        _check_keys_present(decoded, self.codec.key, rows, bad)
        self.keys.check(decoded, rows=rows, mask=np.ones(len(rows), np.bool_), bad=bad)
        sequence = self._sequence(mask)
        check_sequenced(sequence, rows, bad)
        self.collector.add(decoded | sequence, _all_deletes(len(rows)), rows)

    def _deletes_by_key(self, mask: Mask) -> None:
        if mask.any():
            _delete_by_key(
                self.rows[mask],
                self.keys,
                self.format.sequence,
                self._sequence(mask),
                self.collector,
            )

    def _old_keys(self, before: pa.StructArray, after: pa.StructArray, mask: Mask) -> Mask:
        """Delete the old key of updates that change it (R12); returns which events those are."""
        changed = np.zeros(len(mask), np.bool_)
        if not mask.any():
            return changed
        key = list(self.codec.key)
        old, new = struct_columns(before, key, mask), struct_columns(after, key, mask)
        differs = np.zeros(int(mask.sum()), np.bool_)
        for name in key:
            differs |= _numpy(pc.fill_null(pc.not_equal(old[name], new[name]), False))
        changed[mask] = differs
        if differs.any():
            removed = {name: array.filter(pa.array(differs)) for name, array in old.items()}
            rows = self.rows[changed]
            bad = self.collector.bad
            decoded = self.codec.decode(removed, rows=rows, bad=bad, check_required=key)
            sequence = self._sequence(changed)
            self.collector.add(decoded | sequence, _all_deletes(len(rows)), rows)
        return changed

    def _others(self, op: pa.StringArray, known: Mask, has_row: Mask) -> None:
        """Events that are no row changes: count them, or report them."""
        rest = ~known
        if not rest.any():
            return
        message = rest & _numpy(pc.fill_null(pc.equal(op, "m"), False))
        truncate = rest & _numpy(pc.fill_null(pc.equal(op, "t"), False))
        quiet = rest & _numpy(op.is_null()) & ~has_row
        if "source" in self.table.schema.names:
            quiet &= _numpy(self._column("source").is_null())
            quiet &= _numpy(self._column("ts_ms").is_valid())
        self.collector.skip("message", int(message.sum()))
        self.collector.skip("heartbeat", int(quiet.sum()))
        if self.format.values.text("on-truncate") == "ignore":
            self.collector.skip("truncate", int(truncate.sum()))
        else:
            self._report(truncate, "a truncate event: all rows of the table were removed")
        self._report(rest & ~(message | truncate | quiet), "the event has no known 'op'")

    def _report(self, mask: Mask, reason: str) -> None:
        for row in self.rows[mask].tolist():
            self.collector.bad.setdefault(row, reason)

    def _sequence(self, mask: Mask) -> dict[str, pa.Array]:
        columns = self.format.sequence.columns(self.table)
        return {name: array.filter(pa.array(mask)) for name, array in columns.items()}

    def _column(self, name: str) -> pa.Array:
        return self.table.column(name).combine_chunks()


def _delete_by_key(
    rows: RowNumbers,
    keys: MessageKeys,
    sequence: SequenceFields,
    sequence_columns: dict[str, pa.Array],
    collector: ChangeCollector,
) -> None:
    columns = keys.take(rows)
    _check_keys_present(columns, tuple(keys.columns), rows, collector.bad)
    for column in sequence.order:
        sequence_columns.setdefault(column.name, pa.nulls(len(rows), column.type))
    check_sequenced(sequence_columns, rows, collector.bad)
    collector.add(columns | sequence_columns, _all_deletes(len(rows)), rows)


def _check_keys_present(
    columns: Mapping[str, pa.Array], key: tuple[str, ...], rows: RowNumbers, bad: dict[int, str]
) -> None:
    for name in key:
        for place in np.flatnonzero(_numpy(columns[name].is_null())).tolist():
            reason = f"a delete without a value of key column '{name}'"
            bad.setdefault(int(rows[place]), reason)


def _user_hints(values: OptionValues) -> dict[str, Hint]:
    return {name: Hint(Encoding(text)) for name, text in values.mapping("encodings").items()}


def _kinds(op: pa.StringArray) -> pa.Array:
    return pc.if_else(
        pc.fill_null(pc.equal(op, "c"), False),
        pa.scalar(RowKind.INSERT.value, pa.int8()),
        pa.scalar(RowKind.UPDATE_AFTER.value, pa.int8()),
    )


def _all_deletes(count: int) -> pa.Array:
    return pa.array(np.full(count, RowKind.DELETE.value, np.int8))


def _numpy(mask: pa.BooleanArray) -> Mask:
    values: Mask = mask.to_numpy(zero_copy_only=False)
    return values
