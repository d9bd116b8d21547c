"""The step of a sink that turns events into files: parse, reduce, write. Runs in tasks.

A `ChangeWriter` is made on the driver (`sink`) and shipped. It returns `WrittenFiles`; only the
driver commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from tableformat.cdc.dead_letter import FROM_FIELD
from tableformat.cdc.events import FILE, KIND, TIMESTAMP_MS, Decoder, EventBatch, ParsedEvents
from tableformat.cdc.formats import ChangeFormat, FormatChoice
from tableformat.cdc.reduce import ReducedChanges, reduce_changes
from tableformat.cdc.row_codec import key_columns
from tableformat.cdc.row_policy import RowPolicy
from tableformat.cdc.schema_evolution import log_not_sent, log_units_not_taken
from tableformat.cdc.sharding import shards_by_partition, shards_of
from tableformat.cdc.source_time import latest_ms, latest_of
from tableformat.cdc.truncation import Truncation
from tableformat.errors import InvalidInputError
from tableformat.paths import data_file_locations, equality_delete_locations
from tableformat.runtime import IdSource
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.constraints import sequence_field_id
from tableformat.spec.data_file import DataFile
from tableformat.spec.missing_columns import MISSING
from tableformat.spec.unpartitioned import source_ids
from tableformat.store.base import ObjectStore
from tableformat.write.data_files import write_data_files
from tableformat.write.equality_deletes import write_equality_deletes
from tableformat.write.partial_rows import columns_to_carry, rows_that_lack, storable_rows
from tableformat.write.partitioning import Partitioner


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """What one task wrote for a batch, and how many rows of what.

    `source_ms`: the highest time at which the source made one of the changes; None: unknown.
    `truncation`: what the branch has is deleted, before the files.
    """

    data_files: tuple[DataFile, ...] = ()
    delete_files: tuple[DataFile, ...] = ()
    dead_letter_files: tuple[DataFile, ...] = ()
    changes: int = 0
    source_ms: int | None = None
    truncation: Truncation | None = None

    @classmethod
    def together(cls, parts: Sequence[WrittenFiles]) -> Self:
        """All files of several tasks."""
        return cls(
            data_files=tuple(file for part in parts for file in part.data_files),
            delete_files=tuple(file for part in parts for file in part.delete_files),
            dead_letter_files=tuple(file for part in parts for file in part.dead_letter_files),
            changes=sum(part.changes for part in parts),
            source_ms=latest_of(part.source_ms for part in parts),
            # Every task is given all truncates, so those that have one have the same.
            truncation=next((part.truncation for part in parts if part.truncation), None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeWriter:
    """From events to files, for one version of one table. Pickles when its store does."""

    store: ObjectStore
    metadata: TableMetadata  # without history: what tasks need to know of the table
    delete_spec: PartitionSpec | None  # None: nothing is ever deleted (format `append`)
    choice: FormatChoice
    assume_new_keys: bool
    policy: RowPolicy
    per_partition: int | None
    table: str  # its name, for dead letters
    dead_letter: TableMetadata | None  # None: a bad record fails the batch
    decoder: Decoder | None = None  # None: the format reads what comes

    @property
    def schema(self) -> Schema:
        """The table's schema."""
        return self.metadata.schema()

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns; empty for a table without a key."""
        return key_columns(self.schema)

    def build_format(self) -> ChangeFormat:
        """The change format for the table."""
        return self.choice.build(self.schema)

    def parse(self, change_format: ChangeFormat, events: EventBatch) -> ParsedEvents:
        """Parse events for the table as it is.

        Raises:
            InvalidInputError: There is a bad record and no dead-letter table; names the first one.
                The events have other columns than the table. Or see `ChangeFormat.parse`.
        """
        parsed = self.try_parse(change_format, events)
        if parsed.schema_changes:
            raise InvalidInputError(
                "the table has to change before these events, and this writer cannot change it",
                table=self.table,
                columns=parsed.schema_changes.names,
                action="add or widen the columns first, or make them optional, or use "
                "write_changes or write_stream",
            )
        return parsed

    def try_parse(self, change_format: ChangeFormat, events: EventBatch) -> ParsedEvents:
        """The same for a caller that can change the table.

        While there are `schema_changes` the result means nothing: apply them
        (`SinkPlan.evolved`), then parse the whole batch again.
        """
        if self.decoder is not None:
            events = self.decoder.decode(events)
        parsed = change_format.parse(events)
        if parsed.schema_changes:
            return parsed
        self.choice.check_kinds(parsed.changes.column(KIND))
        log_not_sent(self.table, self._not_sent(parsed))
        log_units_not_taken(self.table, parsed.units_not_taken)
        parsed = self.policy.complete(parsed, events)
        if stored_columns(self.metadata.properties, self.schema):
            from tableformat.cdc.computed_values import without_computed  # loads sqlglot

            parsed = without_computed(parsed, events, self.metadata)
        lacking = rows_that_lack(
            parsed.changes, self.schema, columns_to_carry(self.metadata, self.delete_spec)
        )
        reasons = {int(parsed.rows[row]): _cannot_lack(name) for row, name in lacking.items()}
        parsed = parsed.without(reasons, events)
        if parsed.source_ms is None:
            parsed.source_ms = latest_ms(events.optional(TIMESTAMP_MS))
        if parsed.bad.num_rows and self.dead_letter is None:
            raise bad_record_error(parsed.bad)
        return parsed

    def _not_sent(self, parsed: ParsedEvents) -> frozenset[str]:
        """Columns that get null because no event has them, and that nothing else fills."""
        if not parsed.not_sent:
            return frozenset()
        filled = {self.policy.soft_delete, self.policy.sequence}
        return parsed.not_sent - filled - {*stored_columns(self.metadata.properties, self.schema)}

    def reduce(self, changes: pa.Table, change_format: ChangeFormat) -> ReducedChanges:
        """One row per key; see `reduce_changes`."""
        order = self.policy.order(change_format)
        if FILE in changes.column_names:
            order.append(FILE)
        return reduce_changes(
            changes,
            key=self.key,
            order=order,
            assume_new_keys=self.assume_new_keys,
            field_ids=self._field_ids,
            keeps_deleted=self.policy.soft_delete is not None,
        )

    @property
    def _field_ids(self) -> dict[str, int]:
        return {column.name: column.field_id for column in self.schema.fields}

    def shards(self, changes: pa.Table, count: int) -> npt.NDArray[np.int64]:
        """The task, 0 to `count` - 1, that writes each change; all changes of a key have one."""
        key = [changes.column(name).combine_chunks() for name in self.key]
        if self.per_partition is not None:
            partition = Partitioner(self.metadata.spec(), self.schema).columns(changes)
            return shards_by_partition(partition, key, count, self.per_partition)
        return shards_of(key, count) if key else np.arange(changes.num_rows) % count

    def write(self, changes: pa.Table, change_format: ChangeFormat, ids: IdSource) -> WrittenFiles:
        """Write all changes of some keys: data files and equality deletes. Nothing is committed.

        Args:
            changes: Every change of the batch for each of its keys, and all truncates, in any
                order.
            change_format: The format they came from.
            ids: For file names.

        Effects: see `write_data_files`. Files of a task that fails later are left to orphan
            removal.
        """
        columns = [column.name for column in self.schema.fields]
        if changes.num_rows == 0:
            return WrittenFiles()
        if self.delete_spec is None:
            data_files = self._data_files(self.policy.sorted(changes.select(columns)), ids)
            return WrittenFiles(tuple(data_files), changes=changes.num_rows)
        reduced = self.reduce(changes, change_format)
        sources = source_ids(self.delete_spec)
        sequence = sequence_field_id(self.metadata)
        carried = () if sequence is None else (sequence,)
        beside = [c.name for c in self.schema.fields if c.field_id in {*sources, *carried}]
        delete_files = write_equality_deletes(
            self.store,
            self.policy.sorted_keys(reduced.keys(list(dict.fromkeys([*self.key, *beside])))),
            schema=self.schema,
            equality_ids=sorted(self.schema.identifier_field_ids),
            spec=self.delete_spec,
            properties=self.metadata.properties,
            location_for=equality_delete_locations(self.metadata, ids),
            carried_ids=carried,
        )
        if MISSING in changes.column_names:
            columns.append(MISSING)
        rows = self.policy.rows(reduced, columns, self._field_ids)
        data_files = self._data_files(storable_rows(rows, self.schema), ids)
        return WrittenFiles(
            tuple(data_files),
            tuple(delete_files),
            changes=changes.num_rows,
            truncation=Truncation.of(reduced.truncate, self.policy.sequence),
        )

    def write_dead_letters(self, bad: Sequence[pa.Table], ids: IdSource) -> list[DataFile]:
        """Write bad records into files of the dead-letter table; none without bad records."""
        rows = [table for table in bad if table.num_rows]
        if self.dead_letter is None or not rows:
            return []
        records = pa.concat_tables(rows)
        origin = pa.array([self.table] * records.num_rows, pa.string())
        return write_data_files(
            self.store,
            records.add_column(0, FROM_FIELD, origin),
            schema=self.dead_letter.schema(),
            spec=self.dead_letter.spec(),
            properties=self.dead_letter.properties,
            location_for=data_file_locations(self.dead_letter, ids),
        )

    def _data_files(self, rows: pa.Table, ids: IdSource) -> list[DataFile]:
        if rows.num_rows == 0:
            return []
        return write_data_files(
            self.store,
            rows,
            schema=self.schema,
            spec=self.metadata.spec(),
            properties=self.metadata.properties,
            location_for=data_file_locations(self.metadata, ids),
        )


def bad_record_error(bad: pa.Table) -> InvalidInputError:
    """The error for a batch with bad records."""
    first = bad.slice(0, 1).to_pylist()[0]
    return InvalidInputError(
        f"bad record: {first['reason']}",
        action="repair the source, or set on-bad-record=dead-letter",
        position=first["position"],
        bad_records=bad.num_rows,
    )


def _cannot_lack(column: str) -> str:
    return (
        f"the change leaves out column '{column}', which decides which row it replaces: it is of "
        "the key, of the partition that deletes are written to, a sequence or an IMMUTABLE column"
    )
