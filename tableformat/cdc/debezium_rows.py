"""From parsed Debezium events to change rows; see `debezium` for the rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import NestedField

from tableformat.array_types import Bools, Int64s
from tableformat.cdc.debezium_options import FLATTENED, DebeziumOptions
from tableformat.cdc.events import ChangeCollector
from tableformat.cdc.format_options import (
    KEY_ONLY,
    KEY_ONLY_REASON,
    SCHEMA_EVOLUTION,
    SchemaEvolution,
)
from tableformat.cdc.java_texts import report_java_texts
from tableformat.cdc.message_keys import MessageKeys
from tableformat.cdc.placeholders import Placeholder, fill_placeholders
from tableformat.cdc.row_codec import RowCodec, struct_columns
from tableformat.cdc.rowkind import TRUNCATE, RowKind
from tableformat.cdc.sequence import SequenceFields, check_sequenced
from tableformat.spec.arrow_arrays import constant_array
from tableformat.spec.missing_columns import MISSING, mask_texts

INSERT_OPS = ("c", "r")
UPSERT_OPS = (*INSERT_OPS, "u")
SNAPSHOT_MARK = "__source_snapshot"
CHANGED_COLUMNS_ONLY = ("OLD_AND_NEW_VALUES", "NEW_VALUES")  # Spanner's `value_capture_type`
NO_INITIAL_SNAPSHOT = ("", "false", "incremental")
HEARTBEAT = "heartbeat"
RESOLVED = "resolved"
# CockroachDB's `resolved` messages, which say up to which time all changes have come.
_IN_BARE = "__crdb__"
RESOLVED_FIELDS = {RESOLVED: pa.string(), _IN_BARE: pa.struct([(RESOLVED, pa.string())])}
_TIME = r"^\d+\.\d+$"
RESOLVED_MESSAGE = r'^\{(?:"__crdb__":\{)?"resolved":"\d+\.\d+"\}+$'


@dataclass(frozen=True, slots=True)
class DebeziumRows:
    """Parsed events of one wire layout.

    Attributes:
        values: The format's options.
        placeholder: What stands for values that the source did not send.
        sequence: The format's sequence fields.
        codec: The table's columns, as these events encode them.
        absent: Columns that they do not have, and that have an initial default.
        may_be_null: Required columns that may be null at the source, or are not there any more.
        keys: Message keys of the whole batch.
        collector: Takes change rows and bad records.
        table: The parsed events.
        rows: Which events of the batch they are.
    """

    values: DebeziumOptions
    placeholder: Placeholder
    sequence: SequenceFields
    codec: RowCodec
    absent: Mapping[str, NestedField]
    may_be_null: frozenset[str]
    keys: MessageKeys
    collector: ChangeCollector
    table: pa.Table
    rows: Int64s

    def envelope(self) -> None:
        """Change rows of events with `before`, `after` and `op`."""
        op, before, after = (self._column(name) for name in ("op", "before", "after"))
        upsert = _is_one_of(op, UPSERT_OPS)
        delete = as_mask(pc.fill_null(pc.equal(op, "d"), False))
        has_before, has_after = as_mask(before.is_valid()), as_mask(after.is_valid())
        self._others(op, upsert | delete, has_before | has_after)
        self._report(upsert & ~has_after, "the event has no 'after'")
        captured = pc.struct_field(self._column("source"), "value_capture_type")
        self._report(
            upsert & _is_one_of(captured, CHANGED_COLUMNS_ONLY),
            "the event has the changed columns only, the others would become null; create the "
            "change stream with value_capture_type = 'NEW_ROW' or 'NEW_ROW_AND_OLD_VALUES'",
        )
        old_key = self._old_keys(before, after, upsert & has_after & has_before)
        names = list(self.codec.decoders)
        self._upserts(
            struct_columns(after, names, upsert & has_after),
            struct_columns(before, names, upsert & has_after),
            kinds=self._kinds(op, upsert & has_after),
            mask=upsert & has_after,
            check_key=~old_key[upsert & has_after],
        )
        removed = struct_columns(before, self._names_of_deleted, delete & has_before)
        self._deletes(removed, delete & has_before)
        self._deletes_by_key(delete & ~has_before)

    def flattened(self) -> None:
        """Change rows of events that are rows themselves."""
        op = self._column("__op")
        mark = self._column("__deleted")
        mark = pc.fill_null(pc.utf8_lower(mark.cast(pa.string())), "false")
        strange = ~_is_one_of(mark, ("true", "false"))
        self._report(strange, "the event's '__deleted' is neither true nor false")
        delete = _is_one_of(mark, ("true",)) | as_mask(pc.fill_null(pc.equal(op, "d"), False))
        delete &= ~strange
        upsert = ~(delete | strange) & (as_mask(op.is_null()) | _is_one_of(op, UPSERT_OPS))
        self._others(op, upsert | delete | strange, np.ones(len(op), np.bool_))
        columns = {name: self._column(name) for name in self.codec.decoders}
        missing = {name: pa.nulls(int(upsert.sum()), a.type) for name, a in columns.items()}
        self._upserts(
            {name: array.filter(pa.array(upsert)) for name, array in columns.items()},
            missing,
            kinds=self._kinds(op, upsert),
            mask=upsert,
            check_key=np.ones(int(upsert.sum()), np.bool_),
        )
        removed = {name: columns[name].filter(pa.array(delete)) for name in self._names_of_deleted}
        self._deletes(removed, delete)

    def _kinds(self, op: pa.StringArray, mask: Bools) -> pa.Array:
        """An insert is said to be new: `c`, and `r` unless it may be there from the stream."""
        new = as_mask(pc.fill_null(pc.equal(op, "c"), False))
        reads = as_mask(pc.fill_null(pc.equal(op, "r"), False))
        if reads.any():
            new |= reads & self._is_initial_snapshot
        kinds = np.where(new, RowKind.INSERT.value, RowKind.UPDATE_AFTER.value)
        return pa.array(kinds[mask].astype(np.int8))

    @property
    def _is_initial_snapshot(self) -> Bools:
        """Where the event says that it is of a snapshot, and not of an incremental one."""
        if self._is_envelope:
            snapshot = pc.struct_field(self._column("source"), "snapshot")
        else:
            snapshot = self._column(SNAPSHOT_MARK)
        if pa.types.is_boolean(snapshot.type):
            return as_mask(pc.fill_null(snapshot, False))
        return ~_is_one_of(pc.fill_null(snapshot, ""), NO_INITIAL_SNAPSHOT)

    @property
    def _is_envelope(self) -> bool:
        """Not to be told by names: flattened rows may have a column `source` of their own."""
        return self.values.layout != FLATTENED

    @property
    def _deletes_have_keys_only(self) -> bool:
        return self.values.deletes == KEY_ONLY

    @property
    def _names_of_deleted(self) -> list[str]:
        """Columns that deletes are taken to have."""
        return list(self.codec.key if self._deletes_have_keys_only else self.codec.decoders)

    def _upserts(
        self,
        after: dict[str, pa.Array],
        before: dict[str, pa.Array],
        *,
        kinds: pa.Array,
        mask: Bools,
        check_key: Bools,
    ) -> None:
        rows = self.rows[mask]
        if not len(rows):
            return
        bad = self.collector.bad
        ops = self._column("op" if self._is_envelope else "__op")
        have_all = _is_one_of(ops, INSERT_OPS)[mask] & self._inserts_are_whole[mask]
        inserts = _is_one_of(ops, INSERT_OPS)[mask]
        keeps = check_key & ~inserts if self.values.keeps_unavailable else None
        after, kept = self._filled(after, before, have_all, rows, keeps)
        report_java_texts(after, rows, bad)
        required = self.codec.required - self.absent.keys()
        self._relax(after, required & self.may_be_null, rows, kept)
        decoded = self.codec.decode(after, rows=rows, bad=bad, check_required=required, lacks=kept)
        if kept:
            lacks = {self.codec.field_ids[name]: lost for name, lost in kept.items()}
            decoded[MISSING] = mask_texts(lacks, len(rows))
        for name, column in self.absent.items():
            kind = column.field_type
            decoded[name] = constant_array(column.initial_default, kind, len(rows))
        self.keys.check(decoded, rows=rows, mask=check_key, bad=bad)
        sequence = self._sequence(mask)
        reads = as_mask(pc.fill_null(pc.equal(ops, "r"), False))[mask]
        # A snapshot's rows may come from before the log began: without a sequence they are oldest.
        check_sequenced(
            {name: array.filter(pa.array(~reads)) for name, array in sequence.items()},
            rows[~reads],
            bad,
        )
        self.collector.add(decoded | sequence, kinds, rows)

    def _relax(
        self,
        after: Mapping[str, pa.Array],
        names: Collection[str],
        rows: Int64s,
        kept: Mapping[str, Bools],
    ) -> None:
        """Ask for what the source did (DROP NOT NULL, DROP COLUMN) where a row needs it."""
        for name in sorted(names):
            null = as_mask(after[name].is_null()) & ~kept.get(name, np.zeros(len(rows), np.bool_))
            if not null.any():
                continue
            if self.values.evolution is SchemaEvolution.FULL:
                self.collector.schema_changes.relaxed.add(name)
            for row in rows[null].tolist():
                self.collector.bad.setdefault(row, _relaxed_reason(name))

    def _filled(
        self,
        after: Mapping[str, pa.Array],
        before: Mapping[str, pa.Array],
        have_all: Bools,
        rows: Int64s,
        keeps: Bools | None = None,
    ) -> tuple[dict[str, pa.Array], dict[str, Bools]]:
        return fill_placeholders(
            after,
            before,
            placeholder=self.placeholder,
            keep_null=self.values.on_unavailable_value == "null",
            have_all=have_all,
            rows=rows,
            bad=self.collector.bad,
            keeps=keeps,
        )

    @property
    def _inserts_are_whole(self) -> Bools:
        """Events of connectors whose inserts and snapshot reads hold no placeholders."""
        if not self._is_envelope:
            return np.ones(len(self.table), np.bool_)
        connector = pc.struct_field(self._column("source"), "connector")
        # Oracle's LOBs are not in its log unless lob.enabled is set.
        return ~as_mask(pc.fill_null(pc.equal(connector, "oracle"), False))

    def _deletes(self, columns: dict[str, pa.Array], mask: Bools) -> None:
        rows = self.rows[mask]
        if not len(rows):
            return
        bad = self.collector.bad
        nowhere = {name: pa.nulls(len(rows), wire.type) for name, wire in columns.items()}
        columns, _ = self._filled(columns, nowhere, np.zeros(len(rows), np.bool_), rows)
        decoded = self.codec.decode(columns, rows=rows, bad=bad, check_required=())
        decoded = self.keys.coalesce(decoded, rows)
        _check_keys_present(decoded, self.codec.key, rows, bad)
        self.keys.check(decoded, rows=rows, mask=np.ones(len(rows), np.bool_), bad=bad)
        sequence = self._sequence(mask)
        check_sequenced(sequence, rows, bad)
        self.collector.add(decoded | sequence, _all_deletes(len(rows)), rows)

    def _deletes_by_key(self, mask: Bools) -> None:
        if mask.any():
            delete_by_key(
                self.rows[mask],
                self.keys,
                self.sequence,
                self._sequence(mask),
                self.collector,
                keys_suffice=self._deletes_have_keys_only,
            )

    def _old_keys(self, before: pa.StructArray, after: pa.StructArray, mask: Bools) -> Bools:
        """Delete the old key of updates that change it (R12); returns which events those are."""
        changed = np.zeros(len(mask), np.bool_)
        if not mask.any():
            return changed
        key = list(self.codec.key)
        old, new = struct_columns(before, key, mask), struct_columns(after, key, mask)
        differs = np.zeros(int(mask.sum()), np.bool_)
        for name in key:
            differs |= _differs(old[name], new[name])
        changed[mask] = differs
        if differs.any():
            removed = struct_columns(before, self._names_of_deleted, changed)
            rows = self.rows[changed]
            bad = self.collector.bad
            decoded = self.codec.decode(removed, rows=rows, bad=bad, check_required=key)
            sequence = self._sequence(changed)
            self.collector.add(decoded | sequence, _all_deletes(len(rows)), rows)
        return changed

    def _others(self, op: pa.StringArray, known: Bools, has_row: Bools) -> None:
        """Events that are no row changes: count them, or report them."""
        rest = ~known
        if not rest.any():
            return
        message = rest & as_mask(pc.fill_null(pc.equal(op, "m"), False))
        truncate = rest & as_mask(pc.fill_null(pc.equal(op, "t"), False))
        quiet = rest & as_mask(op.is_null()) & ~has_row
        if self._is_envelope:
            quiet &= as_mask(self._column("source").is_null())
            resolved = quiet & self._are_resolved
            self.collector.skip(RESOLVED, self.rows[resolved])
            rest &= ~resolved
            quiet &= ~resolved & as_mask(self._column("ts_ms").is_valid())
        self.collector.skip("message", self.rows[message])
        self.collector.skip(HEARTBEAT, self.rows[quiet])
        match self.values.on_truncate:
            case "ignore":
                self.collector.skip("truncate", self.rows[truncate])
            case "apply":
                self._truncates(truncate)
            case _:
                self._report(truncate, "a truncate event: all rows of the table were removed")
        unknown = rest & ~(message | truncate | quiet)
        if self.values.on_unknown_op == "ignore":
            # Only an op that says something else: without any it is no event at all.
            named = unknown & as_mask(op.is_valid())
            self.collector.skip("unknown op", self.rows[named])
            unknown &= ~named
        self._report(unknown, "the event has no known 'op'")

    @property
    def _are_resolved(self) -> Bools:
        bare = pc.struct_field(self._column(_IN_BARE), RESOLVED)
        found = pc.coalesce(self._column(RESOLVED), bare)
        return as_mask(pc.fill_null(pc.match_substring_regex(found, _TIME), False))

    def _truncates(self, mask: Bools) -> None:
        rows, sequence = self.rows[mask], self._sequence(mask)
        check_sequenced(sequence, rows, self.collector.bad)
        self.collector.add(sequence, pa.array(np.full(len(rows), TRUNCATE, np.int8)), rows)

    def _report(self, mask: Bools, reason: str) -> None:
        for row in self.rows[mask].tolist():
            self.collector.bad.setdefault(row, reason)

    def _sequence(self, mask: Bools) -> dict[str, pa.Array]:
        columns = self.sequence.columns(self.table)
        return {name: array.filter(pa.array(mask)) for name, array in columns.items()}

    def _column(self, name: str) -> pa.Array:
        return self.table.column(name).combine_chunks()


def delete_by_key(
    rows: Int64s,
    keys: MessageKeys,
    sequence: SequenceFields,
    sequence_columns: dict[str, pa.Array],
    collector: ChangeCollector,
    *,
    keys_suffice: bool,
) -> None:
    """Deletes of events that say which row in their message key only.

    They are bad records unless `keys_suffice`: where deletes are said to hold the whole row, its
    other columns decide where the delete goes, and null would send it elsewhere (R10).
    """
    if not keys_suffice:
        for row in rows.tolist():
            collector.bad.setdefault(row, KEY_ONLY_REASON)
    columns = keys.take(rows)
    _check_keys_present(columns, tuple(keys.columns), rows, collector.bad)
    for column in sequence.order:
        sequence_columns.setdefault(column.name, pa.nulls(len(rows), column.type))
    check_sequenced(sequence_columns, rows, collector.bad)
    collector.add(columns | sequence_columns, _all_deletes(len(rows)), rows)


def _relaxed_reason(name: str) -> str:
    return (
        f"required column '{name}' has no value, and the source allows that, or does not have the "
        f"column any more; set {SCHEMA_EVOLUTION}=full, which makes it optional"
    )


def _check_keys_present(
    columns: Mapping[str, pa.Array], key: tuple[str, ...], rows: Int64s, bad: dict[int, str]
) -> None:
    for name in key:
        for place in np.flatnonzero(as_mask(columns[name].is_null())).tolist():
            reason = f"a delete without a value of key column '{name}'"
            bad.setdefault(int(rows[place]), reason)


def _differs(old: pa.Array, new: pa.Array) -> Bools:
    """Where both are known and not the same; decimals of variable scale are structs."""
    if not pa.types.is_struct(old.type):
        return as_mask(pc.fill_null(pc.not_equal(old, new), False))
    parts = [_differs(*(pc.struct_field(each, f.name) for each in (old, new))) for f in old.type]
    differs: Bools = np.logical_or.reduce(parts)
    return differs


def _all_deletes(count: int) -> pa.Array:
    return pa.array(np.full(count, RowKind.DELETE.value, np.int8))


def as_mask(mask: pa.BooleanArray) -> Bools:
    """The array as NumPy booleans; it must not hold nulls."""
    values: Bools = mask.to_numpy(zero_copy_only=False)
    return values


def _is_one_of(texts: pa.StringArray, names: tuple[str, ...]) -> Bools:
    """Where it is; null is none."""
    return as_mask(pc.is_in(texts, pa.array(names, pa.string())))
